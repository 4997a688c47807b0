"""``bieqno info``: what is installed, and what it runs on."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version

import typer

import bieqno
from bieqno.cli.cache import compilation_cache

_SHOWN_PACKAGES = ("jax", "jaxlib", "equinox", "optax", "safetensors", "numpy")


def info() -> None:
    """Show versions, devices, the number type and where the compilation cache is.

    Example: bieqno info
    """
    import jax
    import jax.numpy as jnp

    rows = {
        "bieqno": bieqno.__version__,
        "python": f"{platform.python_version()} ({platform.system()} {platform.machine()})",
        **{name: _version_of(name) for name in _SHOWN_PACKAGES},
        "devices": ", ".join(str(device) for device in jax.devices()),
        "cores": str(os.cpu_count()),
        "dtype": str(jnp.zeros(()).dtype),
        "cache": str(compilation_cache()),
    }
    width = max(map(len, rows))
    for name, value in rows.items():
        typer.echo(f"{name:<{width}}  {value}")


def _version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
