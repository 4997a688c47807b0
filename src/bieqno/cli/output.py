"""Console output of the commands and checks of output files; nothing here imports what takes long."""

import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import typer
from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from bieqno.cli import INTERRUPTED
from bieqno.lab.texts import json_text, known_to_json

LARGEST_SEED = 2**32 - 1  # random keys and scikit-learn take no larger one
LINE_EVERY = 10.0  # seconds between two plain lines
Listener: TypeAlias = Callable[[Any], None]


def warn(text: str) -> None:
    """Write a warning to standard error, where it does not mix with results."""
    typer.echo(f"warning: {text}", err=True)


def show_table(headings: Sequence[str], rows: Iterable[Sequence[str]], *, title: str | None = None) -> None:
    """Print a table without lines between its cells."""
    table = Table(*headings, box=None, padding=(0, 1), pad_edge=False, title=title)
    for row in rows:
        table.add_row(*row)
    Console(width=110, highlight=False).print(table, markup=False)


def _terminal_bar(*columns: Any) -> Progress:
    """Return a bar on standard error, which is shown on a terminal only, not in logs."""
    hidden = not (sys.stderr.isatty() and sys.stdout.isatty())
    shown = (TextColumn("{task.description}"), BarColumn(), *columns, TimeRemainingColumn())
    # Rich forgets steps of more than half a minute ago, and parts that take longer would have no remaining time.
    return Progress(*shown, console=Console(stderr=True), disable=hidden, speed_estimate_period=3600.0)


@contextmanager
def counting_bar(label: str) -> Iterator[Callable[[int, int, str], None]]:
    """Show a bar with the remaining time; yield a function of (parts done, parts in all, next part)."""
    with _terminal_bar(MofNCompleteColumn()) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total, part: bar.update(task, completed=done, total=total, description=part or label)


@contextmanager
def training_bar(label: str) -> Iterator[Listener]:
    """Show a bar with loss, validation error and remaining time; yield the `on_progress` of a training.

    Example:
        >>> from bieqno.training import Progress
        >>> with training_bar("training") as on_progress:
        ...     on_progress(Progress(10, 20, 0.5, 0.4, 0, 1.0, 1.0))
    """
    with _terminal_bar(TextColumn("{task.fields[status]}")) as bar:
        # The first event of a training comes after tuning and compilation, which take a minute.
        task, validation = bar.add_task(label, total=None, status="tuning and compiling"), ""

        def update(progress: Any) -> None:
            nonlocal validation
            if progress.validation is not None:
                validation = f", validation {progress.validation:.4g}"
            if progress.reference is not None:
                validation = f"{validation.partition(' (')[0]} (tuned base {progress.reference:.4g})"
            scores = f", loss {progress.loss:.4g}{validation}" if math.isfinite(progress.loss) else ", compiling"
            steps = f"{progress.step}/{progress.steps} steps" if progress.steps else f"{progress.step} steps"
            bar.update(task, completed=progress.step, total=progress.steps or None, status=steps + scores)

        yield update


@contextmanager
def interruptible(outcome: Callable[[], str] = lambda: "nothing was written") -> Iterator[None]:
    """On Ctrl-C say what was saved by then, and exit with code 130."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(f"\nstopped: {outcome()}", err=True)
        raise typer.Exit(INTERRUPTED) from None


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Keep other processes of bieqno from writing to a folder, which is created if missing, until the end; or refuse.

    The folder itself is locked, so that nothing is left behind, not even by a process that is killed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        import fcntl
    except ImportError:  # Windows: two processes are not kept apart
        yield
        return
    busy = f"another bieqno is writing to {folder}; wait for its end, or name another --out"
    opened = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(busy) from None
        except OSError:  # file systems without locks
            pass
        # Its last owner may have removed it between our opening and our lock, which is then on a folder that is not there.
        if not folder.is_dir() or not os.path.samestat(os.fstat(opened), folder.stat()):
            raise ValueError(busy)
        yield
    finally:
        os.close(opened)


def check_writable(path: Path, *inputs: Path | None, beside: bool = False) -> None:
    """Refuse an output file that cannot be written, or that the command reads, before any long computation.

    What is there and no regular file, such as a pipe, is written to; `beside` says that other files are written beside it.
    """
    if str(path) == "-":
        raise ValueError("only tables go to standard output; name a file with --out")
    if path.exists() and not (path.is_file() or path.is_dir()):
        if beside:
            raise ValueError(f"{path} is no regular file, and more is written beside it; name a file with --out")
        if not os.access(path, os.W_OK):
            raise ValueError(f"cannot write {path}: no permission")
        return
    if path.exists() and any(other is not None and other.exists() and path.samefile(other) for other in inputs):
        raise ValueError(f"{path} is read by this command and would be overwritten; name another file with --out")
    if path.is_dir():
        raise ValueError(f"{path} is a folder; name a file in it")
    try:
        path = path.resolve() if path.is_symlink() else path
    except (OSError, RuntimeError) as error:  # links that go round; which of both, depends on the version of Python
        raise ValueError(f"cannot write {path}: its links lead nowhere") from error
    if not path.parent.is_dir():
        raise ValueError(f"cannot write {path}: there is no folder {path.parent}")
    if not os.access(path.parent, os.W_OK):
        raise ValueError(f"cannot write {path}: {path.parent} is not writable")


def write_page(path: Path, page: str, numbers: Mapping[str, Any]) -> None:
    """Write a page and, beside it, its numbers as JSON; both, or what was there stays."""
    from bieqno.persistence import PersistenceError, replace_file

    beside = path.with_suffix(".json")
    before = beside.read_bytes() if beside.exists() else None
    replace_file(beside, json_text(numbers).encode())
    try:
        replace_file(path, page.encode())
    except PersistenceError:
        if before is None:
            beside.unlink()
        else:
            replace_file(beside, before)
        raise


class Reporter(NamedTuple):
    """How a run of studies reports: `watch` a study's progress, `report` an event as text and as facts for a program."""

    watch: Callable[[str], AbstractContextManager[Listener]]
    report: Callable[..., None]


def choose_reporter(*, quiet: bool, log_json: bool) -> Reporter:
    """Return the reporter for the options and the kind of standard output: a JSON log, nothing, a bar, or plain lines."""
    if log_json:
        return Reporter(_json_progress, _json_event)
    if quiet:
        return Reporter(lambda study: nullcontext(lambda progress: None), lambda event, text, **facts: None)
    return Reporter(_live_bar if sys.stdout.isatty() else _plain_lines, _print)


@contextmanager
def _live_bar(study: str) -> Iterator[Listener]:
    columns = (TextColumn(f"[bold]{study}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    # The speed is averaged over an hour: single cases take minutes.
    with Progress(*columns, TextColumn("{task.description}"), transient=True, speed_estimate_period=3600) as bar:
        task = bar.add_task("starting", total=None)
        yield lambda p: bar.update(task, completed=p.done, total=p.total, description=_stage(p))


def _plain_lines(study: str) -> AbstractContextManager[Listener]:
    """Write a line to standard error at the beginning and then every ten seconds."""
    last, remaining = -LINE_EVERY, _Remaining()

    def show(progress: Any) -> None:
        nonlocal last
        left = remaining.after(progress)
        if time.monotonic() - last < LINE_EVERY:
            return
        last = time.monotonic()
        ahead = "" if left is None else f", about {duration(left)} left"
        typer.echo(f"{study}: {progress.done / progress.total:4.0%}  {_stage(progress)}{ahead}", err=True)

    return nullcontext(show)


def _print(event: str, text: RenderableType, **facts: Any) -> None:
    """Print a text, or a table as wide as it needs to be; brackets in the name of a folder are not markup."""
    if isinstance(text, str):
        typer.echo(text)
    else:
        Console(width=None if sys.stdout.isatty() else 160, highlight=False).print(text)


def _json_progress(study: str) -> AbstractContextManager[Listener]:
    about, remaining = {"experiment": study}, _Remaining()
    return nullcontext(lambda p: _json_event("progress", "", **about, remaining=remaining.after(p), **p._asdict()))


def _json_event(event: str, text: RenderableType, **facts: Any) -> None:
    """Write the facts as one line of JSON; an event without facts is left out."""
    if facts:
        typer.echo(json.dumps(known_to_json({"event": event, **facts})))


def _stage(progress: Any) -> str:
    """Return the current part of a study with the step and the loss of its training."""
    step = f", step {progress.step:,} of {progress.steps:,}" if progress.steps else ""
    if progress.loss is None:
        return progress.part + step
    return progress.part + step + (f", loss {progress.loss:.3g}" if math.isfinite(progress.loss) else ", compiling")


class _Remaining:
    """Estimates the time to go at the pace since the first part that was finished, which is the one that compiled."""

    def __init__(self) -> None:
        self.first: Any = None

    def after(self, progress: Any) -> float | None:
        """Return the seconds to go; None before there is a pace."""
        self.first = self.first or (progress if progress.done else None)
        if self.first is None or progress.done <= self.first.done:
            return None
        pace = (progress.seconds - self.first.seconds) / (progress.done - self.first.done)
        return pace * (progress.total - progress.done)


def duration(seconds: float) -> str:
    """Return a duration for a reader.

    Example:
        >>> duration(42.0), duration(600.0), duration(9000.0)
        ('42 s', '10 min', '2 h 30 min')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"
