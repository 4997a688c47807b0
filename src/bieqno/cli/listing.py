"""``bieqno list``: which experiments there are."""

from rich.console import Console
from rich.table import Table


def list_experiments() -> None:
    """Show the experiments: what each is about, what the paper claims, and about how long each preset takes.

    Example: bieqno list
    """
    from bieqno.cli.telling import duration
    from bieqno.lab.studies import EXPERIMENTS

    console = Console(highlight=False)
    table = Table(box=None, padding=(0, 2, 1, 0), pad_edge=False)
    table.add_column("experiment", no_wrap=True)
    table.add_column("what it is, and what the paper claims")
    table.add_column("about, on two cores", no_wrap=True)
    for name, experiment in EXPERIMENTS.items():
        about = experiment.description
        times = "\n".join(f"{preset:<6} {duration(60 * minutes)}" for preset, minutes in about.minutes.items())
        table.add_row(f"[bold]{name}", f"{about.title}.\n[dim]Claim:[/dim] {about.claim}", times)
    console.print(table)
    console.print("Run one with: bieqno run NAME --preset quick    (`all` for all but demo)")
