"""The command with its subcommands, and its errors: a user's mistake is one line, never a traceback.

Commands import what takes long in their bodies, so that help and wrong usage are answered at once.
"""

import os
import platform
import sys
import traceback
from importlib.metadata import version
from typing import Annotated

import typer

import bieqno
from bieqno.cli import analyses, interrupt_quietly, studies, systems, tables
from bieqno.cli.output import warn

EX_SOFTWARE = 70  # exit code of a bug, as sysexits.h has it
BUG = "bieqno: this is a bug, and no fault of yours. Please report the lines above, the command, and what `bieqno info` prints."

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
app.command("explain")(analyses.explain_analysis)
for command in (
    *(studies.run, studies.report, tables.fit, tables.predict, tables.evaluate),
    *(systems.init, systems.simulate, systems.train_filter, systems.compare),
    *(analyses.assimilate, analyses.export),
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
    from bieqno.compilation import LEAST_SECONDS, cache_problem, compilation_cache

    folder = compilation_cache()
    if folder is not None and (problem := cache_problem(folder)):
        warn(problem)
        os.environ["BIEQNO_CACHE"], folder = "off", None
        os.environ.pop("JAX_COMPILATION_CACHE_DIR", None)
    # JAX reads them when it is imported, which no command has done yet.
    if folder is not None:
        os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder)
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", str(LEAST_SECONDS))


def run_app() -> None:
    """Run the command; turn wrong input and a full or closed disk into one line, and say how to report any other error."""
    interrupt_quietly(begun=True)
    try:
        app()
    except Exception as error:
        from bieqno.persistence.tensorfile import PersistenceError
        from bieqno.training import TrainingError

        exhausted = isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error)  # the latter of XLA
        expected = exhausted or isinstance(error, ValueError | OSError | ImportError | PersistenceError | TrainingError)
        if "--debug" in sys.argv:
            raise
        if not expected:
            traceback.print_exception(error)
            typer.echo(BUG, err=True)
            sys.exit(EX_SOFTWARE)
        said = "there is not enough memory for this" if exhausted else str(error)
        if isinstance(error, OSError) and error.strerror:  # without the number of the error
            said = error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
        typer.echo(f"bieqno: {said}\n(`bieqno --debug ...` shows the traceback)", err=True)
        sys.exit(1)


if __name__ == "__main__":
    run_app()
