"""``python -m bieqno.experiments NAME --preset quick --out runs``: run, store with figures, print the table."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from bieqno.cli.cache import keep_compiled_programs
from bieqno.experiments import EXPERIMENTS, Progress, write_result
from bieqno.report.filter_figures import filter_figures
from bieqno.report.filter_tables import filter_tables
from bieqno.report.regression_figures import regression_figures
from bieqno.report.tables import tables

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


@app.command()
def main(
    name: Annotated[str, typer.Argument(help=f"One of {', '.join(EXPERIMENTS)}.")],
    preset: Annotated[str, typer.Option(help="smoke, quick or paper.")] = "quick",
    seed: Annotated[int, typer.Option(min=0, help="What everything random grows from.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder of the results.")] = Path("runs"),
) -> None:
    """Run an experiment of the paper, store its numbers, arrays and figures, and print its table."""
    if name not in EXPERIMENTS:
        raise typer.BadParameter(f"expected one of {', '.join(EXPERIMENTS)}, got {name!r}")
    experiment = EXPERIMENTS[name]
    if preset not in experiment.PRESETS:
        raise typer.BadParameter(f"expected a preset of {', '.join(experiment.PRESETS)}, got {preset!r}")
    # Compiling takes longer than many a fit; a second start need not repeat it.
    keep_compiled_programs()
    console = Console()
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task(name, total=None)

        def show(progress: Progress) -> None:
            bar.update(task, completed=progress.done, total=progress.total, description=progress.part)

        result = experiment.run(preset, seed=seed, on_progress=show)
    of_filters = any(row.protocol for row in result.rows)
    folder = write_result(result, out, filter_figures(result) if of_filters else regression_figures(result))
    for table in filter_tables(result) if of_filters else tables(result):
        console.print(table)
    console.print(f"Numbers, arrays and figures are in {folder}")


if __name__ == "__main__":
    app()
