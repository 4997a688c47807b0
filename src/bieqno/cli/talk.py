"""What the commands for own data and models say beside their results: warnings, bars, and that they were stopped."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


def warn(text: str) -> None:
    """Say something that the user should know, where it does not mix with results."""
    typer.echo(f"warning: {text}", err=True)


def on_terminal() -> bool:
    """Whether somebody is watching: bars are for them, not for logs."""
    return sys.stderr.isatty() and sys.stdout.isatty()


@contextmanager
def counting_bar(label: str) -> Iterator[Callable[[int, int, str], None]]:
    """Show a bar with the time that remains; what it yields is called with how many of how many, and what is next."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not on_terminal()) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total, part: bar.update(task, completed=done, total=total, description=part or label)


@contextmanager
def stoppable(saved: Callable[[], str]) -> Iterator[None]:
    """On Ctrl-C end with what was saved by then, and the exit code 130 that shells expect."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(f"\nstopped: {saved()}", err=True)
        raise typer.Exit(130) from None


def check_writable(path: Path, *read: Path | None) -> None:
    """Refuse a place where no file can be written, before hours are spent on what should go there, and one that is read."""
    if path.exists() and any(other is not None and other.exists() and path.samefile(other) for other in read):
        raise ValueError(f"{path} is read by this command and would be overwritten; name another file with --out")
    if path.is_dir():
        raise ValueError(f"{path} is a folder; name a file in it")
    if not path.parent.is_dir():
        raise ValueError(f"cannot write {path}: there is no folder {path.parent}")
    if not os.access(path.parent, os.W_OK):
        raise ValueError(f"cannot write {path}: {path.parent} may not be written to")
