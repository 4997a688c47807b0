"""The `bieqno` command."""

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated

import jax
import jax.numpy as jnp
import typer

import bieqno

app = typer.Typer(
    name="bieqno",
    help="Approximate Bayesian inference with permutation-equivariant neural operators.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

_SHOWN_PACKAGES = ("jax", "jaxlib", "equinox", "optax", "safetensors", "numpy")


def compilation_cache() -> Path:
    """Where compiled programs are kept from one start to the next."""
    chosen = os.environ.get("JAX_COMPILATION_CACHE_DIR") or os.environ.get("BIEQNO_CACHE")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "bieqno"


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"bieqno {bieqno.__version__}")
        raise typer.Exit


@app.callback()
def _start(
    show_version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    jax.config.update("jax_compilation_cache_dir", str(compilation_cache()))


@app.command()
def info() -> None:
    """Show versions, devices, the number type and where the compilation cache is.

    Example: bieqno info
    """
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


def main() -> None:
    """Run the command."""
    sys.exit(app())
