"""The command with its subcommands, and its errors: a user's mistake is one line, never a traceback.

Commands import what takes long in their bodies, so that help and wrong usage are answered at once.
"""

import os
import platform
import sys
from importlib.metadata import version
from typing import Annotated

import typer

import bieqno
from bieqno.cli import studies, systems, tables

app = typer.Typer(
    name="bieqno",
    help="Approximate Bayesian inference with permutation-equivariant neural operators.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.command()
def info() -> None:
    """Show versions, devices, the number type and the folder of the compilation cache.

    Example: bieqno info
    """
    import jax
    import jax.numpy as jnp

    from bieqno.compilation import compilation_cache

    rows = {
        "bieqno": bieqno.__version__,
        "python": f"{platform.python_version()} ({platform.system()} {platform.machine()})",
        **{name: version(name) for name in ("jax", "jaxlib", "equinox", "optax", "safetensors", "numpy")},
        "devices": ", ".join(str(device) for device in jax.devices()),
        "cores": str(os.cpu_count()),
        "dtype": str(jnp.zeros(()).dtype),
        "cache": str(compilation_cache() or "off"),
    }
    typer.echo("\n".join(f"{name:<11}  {value}" for name, value in rows.items()))


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
    from bieqno.compilation import LEAST_SECONDS, compilation_cache

    # JAX reads them when it is imported, which no command has done yet.
    if (folder := compilation_cache()) is not None:
        os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder)
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", str(LEAST_SECONDS))


def run_app() -> None:
    """Run the command; turn wrong input and a full or closed disk into one line, any other error is a bug."""
    try:
        app()
    except Exception as error:
        from bieqno.persistence.tensorfile import PersistenceError
        from bieqno.training import TrainingError

        expected = isinstance(error, ValueError | OSError | ImportError | PersistenceError | TrainingError)
        if "--debug" in sys.argv or not expected:
            raise
        said = str(error)
        if isinstance(error, OSError) and error.filename is not None:
            said = f"{error.filename}: {error.strerror}"
        typer.echo(f"bieqno: {said}\n(`bieqno --debug ...` shows the traceback)", err=True)
        sys.exit(1)


if __name__ == "__main__":
    run_app()
