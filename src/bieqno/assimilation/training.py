"""`train_filter`: the one verb that trains a filter, whatever the student, the system and the objective."""

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar, cast, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import PRNGKeyArray

from bieqno.assimilation.conditions import Conditions, conditions_of
from bieqno.assimilation.objectives.objective import Objective
from bieqno.assimilation.protocols import Filter, PaddedFilter, StatefulFilter
from bieqno.assimilation.system import Climate, System
from bieqno.assimilation.trials import make_trials
from bieqno.assimilation.tuning import tune
from bieqno.assimilation.validation import DEFAULT, Validation, judge_of, with_gaps
from bieqno.compilation import quick_jit
from bieqno.training import FitResult, Progress, fit, trainable

Student = TypeVar("Student", bound=Filter)

CHUNKS = 20  # validations in a training, if nothing else is asked for
UNCERTAIN = 0.02  # share by which validation errors of equal filters differ by chance
LONGER = 6  # times the windows of a validation, in which a base must be better, too: it may lose long runs
TIMED_CHUNK = 50  # steps between them in a training that has a budget
BASE_TRUTHS, BASE_WINDOWS = 4, 120  # that the classical filter inside a student is tuned on, for each ensemble size


@runtime_checkable
class HasBase(Protocol):
    """A student that is a classical filter before training, and learns to improve on it."""

    @property
    def settled(self) -> bool:
        """Whether the settings of the base were found before."""

    @property
    def base_settings(self) -> Mapping[str, Sequence[float]]:
        """Settings of the base, with the values to try."""

    def base(self, **settings: Any) -> Filter:
        """Return the base alone."""

    def begin_with(self, found: Mapping[int, Mapping[str, float]]) -> Any:
        """Return the student with the best settings that were found for some ensemble sizes."""

    def without_fall_back(self, sizes: Sequence[int]) -> tuple[Any, dict[int, dict[str, float]]]:
        """Return the student as it is without its base, and the base's settings, at those of the sizes that had fallen back."""

    def trained_for(self, conditions: Conditions) -> Any:
        """Return the student, which knows what it was trained for."""

    def falling_back(self, better: Mapping[int, Mapping[str, float]]) -> Any:
        """Return the student, which at some sizes is its base: where settings are given, and not an empty mapping."""


@dataclass(frozen=True)
class FilterResult(FitResult[Student]):
    """A trained filter, its training history, and by how much it beats the tuned classical filter inside it.

    `errors` are those of the student and of its tuned base for each ensemble size, on truths of their own, in units of the
    climate; empty without a base or a validation.
    """

    errors: Mapping[int, tuple[float, float]]


def train_filter(
    student: Student,
    system: System,
    objective: Objective,
    *,
    steps: int | None = None,
    budget: float | str | None = None,
    validate: Validation | None = DEFAULT,
    checkpoint: str | os.PathLike[str] | None = None,
    mesh: Mesh | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    key: PRNGKeyArray,
) -> "FilterResult[Student]":
    """Train a filter for a system; return it with its training history.

    A student with a classical filter inside (`LocalEnNF`) begins as the best of its settings, which are tuned for each ensemble
    size of the objective, and falls back on it at sizes at which training did not make it better: `errors` has both.

    For `AgainstTruth` the `source_state` of the result are the runs, with the number of those that blew up.

    The student is new (`EnNF`, `LearnedGain`, `LocalEnNF.untrained`) or trained before, the objective `AgainstTruth` or
    `Imitation`. It is trained for a number of `steps` or for the time of a `budget`, such as ``"5 min"``, which holds tuning and
    compilation too. `validate` says how the best weights are chosen and when training stops; None takes the last weights. For
    `checkpoint`, `mesh` and `on_progress` see `fit`; the `reference` of a progress is the error of the tuned base.

    Example:
        >>> from bieqno.assimilation import AgainstTruth, LocalEnNF, Lorenz63, Observation, System
        >>> system = System(Lorenz63(window=0.25), Observation([0, 2], 1.0), jnp.array([-8.5, -7.0, 27.0]))
        >>> student = LocalEnNF.untrained(system, width=8, channels=2, key=jax.random.key(0))
        >>> objective = AgainstTruth(sizes={4: 8}, unroll=1)
        >>> result = train_filter(student, system, objective, steps=40, validate=None, key=jax.random.key(1))
        >>> result.losses.shape, result.source_state[0].ensemble.shape
        ((40,), (8, 4, 3))
    """
    for name, part, kind, expected in (
        ("student", student, Filter, "a filter, such as LocalEnNF.untrained(...)"),
        ("system", system, System, "a System(...)"),
        ("objective", objective, Objective, "an objective, such as AgainstTruth()"),
    ):
        # A class has the methods of its instances.
        if isinstance(part, type) or not isinstance(part, kind):
            got = f"the class {part.__name__}" if isinstance(part, type) else f"a {type(part).__name__}"
            raise TypeError(f"expected {expected}, got {got} as {name}")
    if not jax.tree.leaves(trainable(student)[0]):
        raise ValueError(f"{type(student).__name__} has no weights to train; train EnNF, LearnedGain or LocalEnNF")
    begun, seconds = time.monotonic(), None if budget is None else as_seconds(budget)
    if (steps is None) == (seconds is None):
        raise ValueError(f'a training has a number of steps or a budget such as "5 min", got {steps=} and {budget=}')
    task_key, validation_key, fit_key, base_key = jax.random.split(key, 4)
    sizes = sorted(objective.sizes)
    missing = _gaps(objective)
    found: dict[int, dict[str, float]] = {}
    if isinstance(student, HasBase):
        if not student.settled:
            found = _tuned_bases(student, system, sizes, base_key, missing)
            student = student.begin_with(found)
        student, again = student.without_fall_back(sizes)  # of a filter that is trained further
        found |= again
    task = objective.task(student, system, key=task_key)
    padded = isinstance(student, PaddedFilter | StatefulFilter)
    judge = every = patience = None
    errors: dict[int, float] = {}
    if validate is not None:
        ends = sorted({sizes[0], sizes[-1]})
        judge = task.judge or judge_of(validate, system, ends, padded, validation_key, missing)
        # A budget is the end: of the many short chunks that it has, a few without improvement say nothing.
        every, patience = validate.every, validate.patience if seconds is None else None
        errors = _base_errors(student, validate, system, found, validation_key, missing)
        if on_progress is not None and set(ends) <= set(errors):
            on_progress = _beside(on_progress, float(np.mean([errors[size] for size in ends])))
    result = fit(
        student,
        task.loss,
        task.source,
        steps=steps,
        budget=None if seconds is None else max(seconds - (time.monotonic() - begun), 1.0),
        optimizer=task.optimizer,
        source_state=task.source_state,
        validate=judge,
        patience=patience,
        tolerance=UNCERTAIN,
        chunk_steps=_chunk(steps) if every is None else min(every, steps or every),
        microbatches=task.microbatches,
        checkpoint=checkpoint,
        mesh=mesh,
        identity=task.identity if steps is None else f"{task.identity}, {steps} steps",
        on_progress=on_progress,
        key=fit_key,
    )
    if isinstance(result.module, HasBase):
        result = replace(result, module=result.module.trained_for(conditions_of(system)))
    if validate is None or not found:
        return FilterResult(**vars(result), errors={})
    return _never_worse(result, validate, system, found, errors, validation_key, missing)


def _gaps(objective: Objective) -> tuple[float, float]:
    """Return the shares of observations that are missing: filters are validated on networks like those of their training."""
    least, most = getattr(objective, "missing", (0.0, 0.0))
    return float(least), float(most)


def _tuned_bases(
    student: "HasBase", system: System, sizes: Sequence[int], key: PRNGKeyArray, missing: tuple[float, float]
) -> dict[int, dict[str, float]]:
    """Return the best settings of the classical filter inside a student, for each ensemble size, on truths of their own."""
    climate_key, truth_key, run_key = jax.random.split(key, 3)
    spread = 0.1 * Climate.of(system, key=climate_key).deviation
    found = {}
    for size in sizes:
        own = jax.random.fold_in(truth_key, size)
        trials = make_trials(system, BASE_WINDOWS, truths=BASE_TRUTHS, members=size, spread=spread, key=own)
        trials = with_gaps(trials, missing, jax.random.fold_in(own, 1))
        build, settings = student.base, student.base_settings
        found[size] = tune(build, settings, system, trials, burn_in=BASE_WINDOWS // 6, rungs=2, key=run_key).best
    return found


def _base_errors(
    student: Any,
    validate: Validation,
    system: System,
    found: Mapping[int, Mapping[str, float]],
    key: PRNGKeyArray,
    missing: tuple[float, float] = (0.0, 0.0),
) -> dict[int, float]:
    """Return the error of the tuned base for each ensemble size, on truths that choose neither its settings nor weights."""
    errors = {}
    for size, settings in found.items():
        base = student.base(**{name: jnp.asarray(value, float) for name, value in settings.items()})
        judge = judge_of(validate, system, [size], False, jax.random.fold_in(key, 1), missing)
        errors[size] = float(quick_jit(judge)(base))
    return errors


def _never_worse(
    result: FitResult[Student],
    validate: Validation,
    system: System,
    found: Mapping[int, Mapping[str, float]],
    errors: Mapping[int, float],
    key: PRNGKeyArray,
    missing: tuple[float, float] = (0.0, 0.0),
) -> "FilterResult[Student]":
    """Compare with the tuned base, whose errors are given, at every size; fall back on it where it is clearly better.

    Where it seems to be, both are run for longer, and the errors of that count: a base without a network to bring it back may
    be ahead in the first windows, and lose one run after another later.
    """
    student = cast(Any, result.module)
    judge = judge_of(validate, system, list(found), True, jax.random.fold_in(key, 1), missing)
    ours = np.asarray(quick_jit(judge.errors)(student)[0]).reshape(len(found), -1).mean(axis=1)
    both = {size: (float(error), errors[size]) for size, error in zip(found, ours, strict=True)}
    longer = replace(validate, windows=LONGER * validate.windows)
    for size in [size for size, pair in both.items() if _base_is_better(*pair)]:
        own_key, settings = jax.random.fold_in(key, 2), {size: found[size]}
        judge = judge_of(longer, system, [size], True, jax.random.fold_in(own_key, 1), missing)
        base = _base_errors(student, longer, system, settings, own_key, missing)[size]
        both[size] = float(quick_jit(judge)(student)), base
    better = {size: found[size] if _base_is_better(*pair) else {} for size, pair in both.items()}
    return FilterResult(**{**vars(result), "module": student.falling_back(better)}, errors=both)


def _base_is_better(error: float, base: float) -> bool:
    """Return whether the base's error is below the student's by more than what is chance."""
    return base < (1 - UNCERTAIN) * error


def _beside(on_progress: Callable[[Progress], None], reference: float) -> Callable[[Progress], None]:
    """Return what reports progress with a reference beside the validation."""
    return lambda progress: on_progress(progress._replace(reference=reference))


def as_seconds(budget: float | str) -> float:
    """Return a time in seconds, given so or as a number with a unit.

    Example:
        >>> as_seconds("5 min"), as_seconds("1.5h"), as_seconds(90.0)
        (300.0, 5400.0, 90.0)
    """
    number, unit = budget, "s"
    if isinstance(budget, str):
        found = re.fullmatch(r"\s*([0-9]+\.?[0-9]*)\s*(s|sec|min|h)\s*", budget)
        number, unit = found.groups() if found else ("nan", "s")
    seconds = float(number) * {"s": 1, "sec": 1, "min": 60, "h": 3600}[unit]
    if not 0 < seconds < np.inf:
        raise ValueError(f'a budget is a time such as "5 min", "90 s" or "1 h", or positive seconds, got {budget!r}')
    return seconds


def _chunk(steps: int | None) -> int:
    """Return about a twentieth of the steps, a divisor if there is one nearby: another length would compile anew."""
    if steps is None:
        return TIMED_CHUNK
    wanted = max(1, steps // CHUNKS)
    near = [chunk for chunk in range(max(1, wanted // 2), 2 * wanted + 1) if steps % chunk == 0]
    return min(near, key=lambda chunk: abs(chunk - wanted), default=wanted)
