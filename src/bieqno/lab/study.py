"""What an experiment is: what it says about itself, its settings by name, and the study that makes its numbers."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeAlias, TypeVar, runtime_checkable

import xarray as xr

from bieqno.lab.cases import Cases
from bieqno.lab.nearest import unknown
from bieqno.lab.results import Progress, Result, Row
from bieqno.training import Progress as TrainingProgress

Findings: TypeAlias = tuple[Sequence[Row], Mapping[str, xr.Dataset]]
"""The numbers of a study, and by name what its figures are drawn from."""


@dataclass(frozen=True)
class Description:
    """For lists and reports.

    Attributes:
        title: in a few words.
        question: what is asked, in two sentences that need no paper.
        claim: what the paper claims.
        minutes: about how long each preset takes on two quiet cores.
        methods: the names that can be chosen with ``--only``; empty if the methods cannot be run one by one.
    """

    title: str
    question: str
    claim: str
    minutes: Mapping[str, float]
    methods: tuple[str, ...] = ()


@dataclass(frozen=True)
class Run:
    """One run of a study: what it is to do, what it keeps and whom it tells; see `Experiment.run`."""

    seed: int
    only: Collection[str]
    cases: Cases
    on_progress: Callable[[Progress], None] | None
    started: float = field(default_factory=time.perf_counter)

    def wants(self, method: str) -> bool:
        """Whether a method is to be run."""
        return not self.only or method in self.only

    def tell(
        self,
        part: str,
        done: int | float,
        total: int | float = 1.0,
        training: TrainingProgress | Progress | None = None,
    ) -> None:
        """Say what comes now, how much is done out of how much, and where the training stands if one goes on."""
        if self.on_progress is not None:
            step = (0, 0, None) if training is None else (training.step, training.steps, training.loss)
            self.on_progress(Progress(part, done, total, time.perf_counter() - self.started, *step))


@runtime_checkable
class HasPreset(Protocol):
    """What the settings of every experiment have."""

    @property
    def preset(self) -> str:
        """Name of the settings."""


S = TypeVar("S", bound=HasPreset)


@dataclass(frozen=True)
class Experiment(Generic[S]):
    """A study with a name, what is said about it and the settings that it is run with.

    It is a value: `dataclasses.replace` gives one that does the same with another study.

    Attributes:
        name: as on the command line and in results.
        description: for lists and reports.
        presets: settings by name.
        study: makes the findings, given settings and a `Run`.

    Example:
        >>> import numpy as np
        >>> from types import SimpleNamespace
        >>> def study(s, run):
        ...     drawn = np.random.default_rng(run.seed).uniform(size=s.draws)
        ...     return [Row.of("evenly", "drawing", "value", drawn.tolist())], {}
        >>> about = Description("Numbers", "Some are drawn. What is their mean?", "None.", {"quick": 0.1})
        >>> numbers = Experiment("numbers", about, {"quick": SimpleNamespace(preset="quick", draws=5)}, study)
        >>> numbers.run("quick", seed=3).rows[0].n
        5
    """

    name: str
    description: Description
    presets: Mapping[str, S]
    study: Callable[[S, Run], Findings]

    def run(
        self,
        settings: S | str = "quick",
        *,
        seed: int = 0,
        only: Collection[str] = (),
        cases: Cases | None = None,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> Result:
        """Run the experiment.

        Args:
            settings: what to run, or the name of a preset.
            seed: what everything random grows from.
            only: the methods to run, all if empty.
            cases: where trainings and finished cases are kept.
            on_progress: called before each part, and while it trains.

        Raises:
            ValueError: if there is no such preset, or if some methods are asked for where they cannot be run one by one.
        """
        if only and not self.description.methods:
            raise ValueError(f"{self.name} compares its methods with each other and cannot run only {', '.join(only)}")
        if isinstance(settings, str):
            if settings not in self.presets:
                raise ValueError(unknown("preset", settings, self.presets))
            settings = self.presets[settings]
        rows, arrays = self.study(settings, Run(seed, only, Cases() if cases is None else cases, on_progress))
        return Result(self.name, settings.preset, seed, tuple(rows), arrays)
