"""The paired comparison: methods on cases, trial by trial, as rows with standard errors.

A *case* draws numbered trials: a data set to learn from, or truths with observations and first ensembles. Every *method* gets the
same trials, so that differences between methods are not differences between trials. A trial may itself hold many
repetitions, such as truths that run side by side; its scores then have one value for each. Filters and regressors go through
this one loop; what a trial is, and how it is scored, stands in `bieqno.lab.methods`.
"""

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np

from bieqno.lab.results import Row
from bieqno.lab.study import Run

T = TypeVar("T")
Arrays: TypeAlias = Mapping[str, np.ndarray]
SETTING = "setting."
"""Prefix of settings that a method found by tuning, among the arrays that it returns."""
_SCORE, _ORDER = "score.", "order of the scores"
DIVERGED = "diverged"
"""The score that says in which window a run diverged, -1 if it did not."""


@dataclass(frozen=True)
class Case(Generic[T]):
    """What methods are compared on: `draw` returns the trial of a number, the same for every method.

    `about` has further fields of the rows, such as `ensemble_size` and `protocol`; `label` distinguishes cases of one name.
    """

    name: str
    draw: Callable[[int], T]
    repetitions: int = 1
    about: Mapping[str, Any] = field(default_factory=dict)
    label: str = ""


@dataclass(frozen=True)
class Method(Generic[T]):
    """A method to be compared: its name, and from a trial to arrays, such as predictions and settings that it found."""

    name: str
    run: Callable[[T], Arrays]


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """A method on a case: for each trial its scores, and those arrays that were to be kept."""

    case: Case[T]
    method: str
    kept: Sequence[Arrays]

    @cached_property
    def scores(self) -> dict[str, np.ndarray]:
        """Every score with one value per repetition."""
        names = [name.removeprefix(_SCORE) for name in self.kept[0] if name.startswith(_SCORE)]
        return {name: np.concatenate([np.atleast_1d(kept[_SCORE + name]) for kept in self.kept]) for name in names}

    @property
    def settings(self) -> dict[str, float]:
        """What tuning found in the first trial."""
        found = self.kept[0].items()
        return {name.removeprefix(SETTING): float(value) for name, value in found if name.startswith(SETTING)}

    def rows(self, metrics: Collection[str] = ()) -> list[Row]:
        """Return a row for each metric, all if none is named; runs that diverged are counted and not averaged."""
        about, scores = dict(self.case.about), dict(self.scores)
        if DIVERGED in scores:
            sound = scores.pop(DIVERGED) < 0
            scores = {name: values[sound] for name, values in scores.items()}
            about["diverged"] = int(np.sum(~sound))
        chosen = [name for name in scores if not metrics or name in metrics]
        return [Row.of(self.case.name, self.method, name, scores[name].tolist(), **about) for name in chosen]


def compare(
    run: Run,
    plan: Iterable[tuple[Case[T], Method[T]]],
    score: Callable[[T, Arrays], Mapping[str, Any]],
    *,
    keep: Collection[str] = (),
) -> list[Outcome[T]]:
    """Run every wanted method of the plan on all trials of its case, and score it.

    `score` is given a trial and what a method made of it, `seconds` among it; arrays named in `keep` and settings are kept.
    """

    def trial(case: Case[T], method: Method[T], repetition: int) -> dict[str, np.ndarray]:
        drawn, begun = case.draw(repetition), time.perf_counter()
        found = dict(method.run(drawn))
        found.setdefault("seconds", np.array(time.perf_counter() - begun))
        scores = {_SCORE + name: np.asarray(value) for name, value in score(drawn, found).items()}
        order = {_ORDER: np.frombuffer(",".join(scores).encode(), np.uint8)}
        return scores | order | {name: found[name] for name in found if name in keep or name.startswith(SETTING)}

    wanted = [(case, method) for case, method in plan if run.wants(method.name)]
    total, done = sum(case.repetitions for case, _ in wanted), 0
    outcomes = []
    for case, method in wanted:
        kept, label = [], case.label or case.name
        for repetition in range(case.repetitions):
            each = f", trial {repetition + 1} of {case.repetitions}" if case.repetitions > 1 else ""
            run.progress(f"{label}, {method.name}{each}", done, total)
            found = run.cases.take(f"{label}/{repetition}/{method.name}", partial(trial, case, method, repetition))
            # A file sorts its arrays by name; rows come in the order of the scores.
            names = found.pop(_ORDER).tobytes().decode().split(",")
            kept.append({**{name: found.pop(name) for name in names}, **found})
            done += 1
        outcomes.append(Outcome(case, method.name, kept))
    return outcomes
