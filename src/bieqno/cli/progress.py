"""A progress bar for a training run: how far, the loss, and how long still."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from bieqno import training


@contextmanager
def training_bar(label: str, *, visible: bool = True) -> Iterator[Callable[[training.Progress], None]]:
    """Show a bar while a run goes on; what it yields is the `on_progress` of `fit`.

    Example:
        >>> with training_bar("training", visible=False) as on_progress:
        ...     on_progress(training.Progress(10, 20, 0.5, None, 0, 1.0, 1.0))
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total} steps, loss {task.fields[loss]:.4g}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, disable=not visible) as bar:
        task = bar.add_task(label, total=None, loss=float("nan"))
        yield lambda p: bar.update(task, completed=p.step, total=p.steps, loss=p.loss)
