"""``bieqno report``: the page again, from what is stored."""

from pathlib import Path
from typing import Annotated

import typer


def report(folder: Annotated[Path, typer.Argument(help="Folder of the results.")] = Path("runs")) -> None:
    """Make report.html again from stored results, without computing anything.

    Example: bieqno report runs
    """
    from bieqno.lab.report.page import write_page

    typer.echo(f"The page is {write_page(folder)}")
