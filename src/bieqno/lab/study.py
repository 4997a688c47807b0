"""A study: its description, its settings by name, the function that makes its numbers, and one run of it.

Finished cases of a run are kept on disk, so that ``--resume`` need not compute them again. A case is a name and some arrays in
one file, written beside and renamed, so that a run may be killed at any time. The folder is hidden beside the result, and its
name holds a digest of all that the numbers depend on: a run never reads the cases of another.
"""

import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import quote

import numpy as np
import xarray as xr

from bieqno.compilation import forget_programs
from bieqno.lab.results import Result, Row
from bieqno.lab.texts import did_you_mean
from bieqno.persistence.tensorfile import PersistenceError, read_tensors, write_tensors
from bieqno.training import Progress as TrainingProgress

Findings: TypeAlias = tuple[Sequence[Row], Mapping[str, xr.Dataset]]
"""The rows of a study, and the data behind its figures by name."""
_KIND = "case"


@dataclass(frozen=True)
class Cases:
    """The store of finished cases; without a folder nothing is kept. `taken` names those that were read.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as parent:
        ...     first = Cases.beside(parent, "study", "0123").take("a", lambda: {"x": np.ones(2)})
        ...     again = Cases.beside(parent, "study", "0123").take("a", lambda: {"x": np.zeros(2)})
        >>> again["x"]
        array([1., 1.])
    """

    folder: Path | None = None
    prefix: str = ""
    taken: list[str] = field(default_factory=list)

    @classmethod
    def beside(cls, parent: str | Path, experiment: str, key: str) -> "Cases":
        """Return the cases of the run of an experiment that has this key."""
        return cls(Path(parent) / f".{experiment}.{key}.cases")

    def within(self, part: str) -> "Cases":
        """Return the same store for a part of the run, whose names may equal those of another part."""
        return Cases(self.folder, f"{self.prefix}{part}/", self.taken)

    def take(self, name: str, compute: Callable[[], Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
        """Return the arrays of a case: read if it is finished, computed and kept otherwise."""
        path = self._path(name)
        if path is not None and path.exists():
            with suppress(PersistenceError):  # damaged: compute it again
                found = read_tensors(path, kind=_KIND)[0]
                self.taken.append(self.prefix + name)
                return found
        arrays = dict(compute())
        forget_programs()
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_tensors(path, arrays, kind=_KIND, description=self.prefix + name)
        return arrays

    def checkpoint(self, name: str) -> Path | None:
        """Return where the training that a case begins with keeps its checkpoint; None if nothing is kept."""
        path = self._path(name)
        return None if path is None else path.with_suffix(".training")

    def finished(self) -> int:
        """Return how many cases are kept."""
        return 0 if self.folder is None else sum(1 for _ in self.folder.glob("*.case"))

    def remove(self) -> None:
        """Delete all."""
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)

    @staticmethod
    def remove_outdated(parent: str | Path, experiment: str, key: str) -> None:
        """Delete cases of an experiment that other code or versions than those of the key left: no run will read them."""
        current = f".{experiment}.{key.split('-')[0]}-"
        for folder in Path(parent).glob(f".{experiment}.*.cases"):
            if not folder.name.startswith(current):
                shutil.rmtree(folder, ignore_errors=True)

    def _path(self, name: str) -> Path | None:
        return None if self.folder is None else self.folder / f"{quote(self.prefix + name, safe=' ,=')}.case"


class Progress(NamedTuple):
    """The state of a run, given to `on_progress` before each part; `step`, `steps` and `loss` are of a training under way."""

    part: str
    done: int | float
    total: int | float
    seconds: float
    step: int = 0
    steps: int = 0
    loss: float | None = None


@dataclass(frozen=True)
class Run:
    """One run of a study: its seed, the methods asked for, where cases are kept, and what is called with its progress."""

    seed: int = 0
    only: Collection[str] = ()
    cases: Cases = field(default_factory=Cases)
    on_progress: Callable[[Progress], None] | None = None
    started: float = field(default_factory=time.perf_counter)

    def wants(self, method: str) -> bool:
        """Return whether a method is to be run."""
        return not self.only or method in self.only

    def progress(self, part: str, done: int | float, total: int | float = 1.0, training: Any = None) -> None:
        """Report the part that begins, how much is done, and the state of a training under way."""
        if self.on_progress is not None:
            step = (0, 0, None) if training is None else (training.step, training.steps, training.loss)
            self.on_progress(Progress(part, done, total, time.perf_counter() - self.started, *step))

    def training(self, part: str) -> Callable[[TrainingProgress], None]:
        """Return the `on_progress` of a training that is all there is to do in this part of the run."""
        return lambda p: self.progress(part, p.step / p.steps, training=p)

    def between(self, begin: float, end: float, label: str = "") -> "Run":
        """Return the same run with its progress scaled to a share of the whole, and `label` before the part."""

        def scaled(p: Progress) -> None:
            self.progress(label + p.part, begin + (end - begin) * p.done / p.total, training=p)

        return replace(self, on_progress=scaled)


@dataclass(frozen=True)
class Description:
    """What lists and reports say of a study: a question in two or three sentences that need no paper, and the paper's claim.

    `minutes` say how long each preset takes on two quiet cores; `methods` can be chosen with ``--only``, if there are any.
    """

    title: str
    question: str
    minutes: Mapping[str, float]
    methods: tuple[str, ...] = ()
    claim: str = "None; the paper does not go there."


@dataclass(frozen=True)
class Experiment:
    """A study with its name, description and presets: settings by name, each of which knows its `preset`.

    `misses`, if given, says in what a result is out of bounds; the command then fails after the result is written.

    Example:
        >>> from types import SimpleNamespace
        >>> def study(s, run):
        ...     drawn = np.random.default_rng(run.seed).uniform(size=s.draws)
        ...     return [Row.of("evenly", "drawing", "value", drawn.tolist())], {}
        >>> about = Description("Numbers", "Some are drawn. What is their mean?", {"quick": 0.1})
        >>> numbers = Experiment("numbers", about, {"quick": SimpleNamespace(preset="quick", draws=5)}, study)
        >>> numbers.run("quick", seed=3).rows[0].n
        5
    """

    name: str
    description: Description
    presets: Mapping[str, Any]
    study: Callable[[Any, Run], Findings]
    misses: Callable[[Result], Sequence[str]] = lambda result: ()

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules of the study and of the functions that it was given."""
        return tuple(sorted({function.__module__ for function in _functions(self.study)}))

    def run(
        self,
        settings: Any = "quick",
        *,
        seed: int = 0,
        only: Collection[str] = (),
        cases: Cases | None = None,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> Result:
        """Run the experiment with settings or those of a preset; `on_progress` is called before each part and in training."""
        if only and not self.description.methods:
            raise ValueError(f"{self.name} compares its methods with each other and cannot run only {', '.join(only)}")
        if isinstance(settings, str):
            if settings not in self.presets:
                raise ValueError(f"there is no preset {settings!r}; {did_you_mean(settings, self.presets)}")
            settings = self.presets[settings]
        rows, arrays = self.study(settings, Run(seed, only, cases or Cases(), on_progress))
        return Result(self.name, settings.preset, seed, tuple(rows), arrays)


def _functions(part: Any) -> Iterator[Callable[..., Any]]:
    """Yield the functions of a study, or of what it was given."""
    if isinstance(part, partial):
        for inner in (part.func, *part.args, *part.keywords.values()):
            yield from _functions(inner)
    elif callable(part):
        yield part
