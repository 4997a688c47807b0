"""``bieqno run``: experiments, their results on disk, and the page."""

from pathlib import Path
from typing import Annotated

import typer


def run(
    names: Annotated[
        list[str], typer.Argument(metavar="NAME", help="As `bieqno list` shows them; or all: all but demo.")
    ],
    preset: Annotated[str, typer.Option(help="smoke, quick or paper.")] = "quick",
    seed: Annotated[int, typer.Option(min=0, help="What everything random grows from.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder of the results.")] = Path("runs"),
    only: Annotated[list[str] | None, typer.Option(help="Only this method; can be given several times.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where the same run was interrupted.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Say nothing but errors.")] = False,
    log_json: Annotated[bool, typer.Option("--log-json", help="Say everything as JSON lines.")] = False,
) -> None:
    """Run experiments, store their numbers, arrays and figures, and make the page.

    Examples: bieqno run demo / bieqno run lorenz63 step-1d --preset paper --resume / bieqno run all
    """
    from bieqno.cli.running import run_experiments

    run_experiments(names, preset, seed=seed, out=out, only=only or [], resume=resume, quiet=quiet, log_json=log_json)
