"""The command with its subcommands, and its errors: a user's mistake is one line, never a traceback.

Commands import what takes long in their bodies, so that help and wrong usage are answered at once.
"""

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated

import typer

import bieqno
from bieqno.cli import studies, systems, tables

_SHOWN_PACKAGES = ("jax", "jaxlib", "equinox", "optax", "safetensors", "numpy")

app = typer.Typer(
    name="bieqno",
    help="Approximate Bayesian inference with permutation-equivariant neural operators.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def compilation_cache() -> Path:
    """Return the folder of compiled programs: ``BIEQNO_CACHE``, JAX's own setting, or one in the user's cache folder."""
    chosen = os.environ.get("BIEQNO_CACHE") or os.environ.get("JAX_COMPILATION_CACHE_DIR")
    return Path(chosen or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "bieqno"))


@app.command()
def info() -> None:
    """Show versions, devices, the number type and the folder of the compilation cache.

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


app.command("list")(studies.list_studies)
for command in (
    *(studies.run, studies.report, tables.fit, tables.predict, tables.evaluate),
    *(systems.init, systems.simulate, systems.train_filter, systems.assimilate, systems.compare),
):
    app.command()(command)


def _show_version(wanted: bool) -> bool:
    if wanted:
        typer.echo(f"bieqno {bieqno.__version__}")
        raise typer.Exit
    return wanted


@app.callback()
def _start(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    # JAX reads both when it is imported, which no command has done yet. The compiler's own log is not for users.
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(compilation_cache())
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def run_app() -> None:
    """Run the command; turn a user's mistake into one line and exit code 1."""
    try:
        app()
    except Exception as error:
        if "--debug" in sys.argv or not _is_users_mistake(error):
            raise
        typer.echo(f"bieqno: {error}", err=True)
        typer.echo("(`bieqno --debug ...` shows the traceback)", err=True)
        sys.exit(1)


def _is_users_mistake(error: Exception) -> bool:
    """Return whether wrong input or a full or closed disk raised it; any other error is a bug and keeps its traceback."""
    from bieqno.persistence.tensorfile import PersistenceError
    from bieqno.training import TrainingError

    return isinstance(error, ValueError | OSError | ImportError | PersistenceError | TrainingError)


def _version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


if __name__ == "__main__":
    run_app()
