"""The command with its subcommands, and what becomes of errors: a user's mistake is one line, never a traceback.

Commands import in their bodies what takes long to import, so that help and wrong usage are told at once.
"""

import sys
from typing import Annotated

import typer

import bieqno
from bieqno.cli.cache import keep_compiled_programs
from bieqno.cli.compare import compare
from bieqno.cli.evaluate import evaluate_table
from bieqno.cli.info import info
from bieqno.cli.init import init
from bieqno.cli.listing import list_experiments
from bieqno.cli.own_data import fit, predict
from bieqno.cli.own_model import assimilate, simulate_observations, train_filter
from bieqno.cli.report import report
from bieqno.cli.run import run

app = typer.Typer(
    name="bieqno",
    help="Approximate Bayesian inference with permutation-equivariant neural operators.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(info)
app.command("list")(list_experiments)
app.command()(run)
app.command()(report)
app.command()(fit)
app.command()(predict)
app.command("evaluate")(evaluate_table)
app.command()(init)
app.command("simulate")(simulate_observations)
app.command("train-filter")(train_filter)
app.command()(assimilate)
app.command()(compare)


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
    keep_compiled_programs()


def main() -> None:
    """Run the command."""
    try:
        app()
    except Exception as error:
        if "--debug" in sys.argv or not _is_users_mistake(error):
            raise
        typer.echo(f"bieqno: {error}", err=True)
        typer.echo("(`bieqno --debug ...` shows where it happened)", err=True)
        sys.exit(1)


def _is_users_mistake(error: Exception) -> bool:
    """Whether wrong input or a full or closed disk raises it; anything else is a defect of ours and keeps its traceback."""
    from bieqno.persistence.tensorfile import PersistenceError
    from bieqno.training import TrainingError

    return isinstance(error, ValueError | OSError | ImportError | PersistenceError | TrainingError)
