"""How a run tells where it stands: bars on a terminal, a line now and then elsewhere, JSON lines for programs, or nothing."""

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeAlias, runtime_checkable

from rich.console import Console, RenderableType
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from bieqno.lab.jsontext import known_to_json
from bieqno.lab.studies import Progress

Listener: TypeAlias = Callable[[Progress], None]
LINE_EVERY = 10.0  # seconds between two plain lines


@runtime_checkable
class Teller(Protocol):
    """What a run needs to tell."""

    def watch(self, experiment: str) -> Any:
        """A context that yields the `on_progress` of an experiment."""

    def say(self, event: str, text: RenderableType, **facts: Any) -> None:
        """Something happened: as text for a reader, or as facts for a program."""


def teller(*, quiet: bool, log_json: bool) -> Teller:
    """The teller for the options and the kind of standard output."""
    if log_json:
        return JsonLines()
    if quiet:
        return Silence()
    return Bars() if sys.stdout.isatty() else Lines()


class Silence:
    """Tells nothing; errors are still shown."""

    @contextmanager
    def watch(self, experiment: str) -> Iterator[Listener]:
        """Nothing is shown."""
        yield lambda progress: None

    def say(self, event: str, text: RenderableType, **facts: Any) -> None:
        """Nothing is shown."""


class Bars:
    """A bar that moves, with experiment, stage, step and the time that is left."""

    def __init__(self) -> None:
        self._console = Console(highlight=False)

    @contextmanager
    def watch(self, experiment: str) -> Iterator[Listener]:
        """A bar that is gone when the experiment is done."""
        columns = (
            TextColumn("[bold]{task.fields[experiment]}"), BarColumn(), TaskProgressColumn(),
            # Over an hour: cases take minutes, and a pace over the last seconds would know nothing.
            TimeRemainingColumn(), TextColumn("{task.description}"),
        )  # fmt: skip
        with Bar(*columns, console=self._console, transient=True, speed_estimate_period=3600) as bar:
            task = bar.add_task("starting", total=None, experiment=experiment)
            yield lambda p: bar.update(task, completed=p.done, total=p.total, description=stage(p))

    def say(self, event: str, text: RenderableType, **facts: Any) -> None:
        """Above the bar; brackets in the name of a folder are not markup."""
        self._console.print(text, markup=False)


class Lines:
    """Plain lines, not more than a few a minute, on standard error; results on standard output."""

    @contextmanager
    def watch(self, experiment: str) -> Iterator[Listener]:
        """A line at the beginning and then every ten seconds."""
        last = -LINE_EVERY

        def show(progress: Progress) -> None:
            nonlocal last
            if time.monotonic() - last < LINE_EVERY:
                return
            last = time.monotonic()
            left = remaining(progress)
            ahead = "" if left is None else f", about {duration(left)} left"
            share = progress.done / progress.total
            print(f"{experiment}: {share:4.0%}  {stage(progress)}{ahead}", file=sys.stderr, flush=True)

        yield show

    def say(self, event: str, text: RenderableType, **facts: Any) -> None:
        """As a line, or a table as wide as it needs to be."""
        if isinstance(text, str):
            print(text, flush=True)
        else:
            Console(width=160, highlight=False).print(text)


class JsonLines:
    """Every event as one JSON object a line on standard output."""

    @contextmanager
    def watch(self, experiment: str) -> Iterator[Listener]:
        """Each progress is a line."""
        yield lambda p: self._write("progress", experiment=experiment, remaining=remaining(p), **p._asdict())

    def say(self, event: str, text: RenderableType, **facts: Any) -> None:
        """The facts without the text; an event without facts is none for a program."""
        if facts:
            self._write(event, **facts)

    def _write(self, event: str, **facts: Any) -> None:
        print(json.dumps(known_to_json({"event": event, **facts})), flush=True)


def stage(progress: Progress) -> str:
    """What is done now, with the step and its loss."""
    step = f", step {progress.step:,} of {progress.steps:,}" if progress.steps else ""
    loss = "" if progress.loss is None else f", loss {progress.loss:.3g}"
    return f"{progress.part}{step}{loss}"


def remaining(progress: Progress) -> float | None:
    """Seconds still to go if the rest goes as fast; None while nothing is known."""
    share = progress.done / progress.total
    return progress.seconds * (1 - share) / share if share > 0 else None


def duration(seconds: float) -> str:
    """For a reader.

    Example:
        >>> duration(42.0), duration(600.0), duration(9000.0)
        ('42 s', '10 min', '2 h 30 min')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"
