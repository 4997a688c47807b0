"""`train_filter`: the one verb that trains a filter, whatever the student, the system and the objective."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from bieqno.assimilation.objectives.objective import Objective
from bieqno.assimilation.observation import Filter, Observed, PaddedFilter
from bieqno.assimilation.system import Climate, System
from bieqno.assimilation.trials import Assimilation, Trials, make_trials
from bieqno.assimilation.tuning import tune
from bieqno.training import FitResult, Progress, fit, trainable

Student = TypeVar("Student", bound=Filter)

CHUNKS = 20  # validations in a training, if nothing else is asked for
BASE_TRUTHS, BASE_WINDOWS = 4, 120  # that the classical filter inside a student is tuned on, for each ensemble size
DIVERGED = 3.0  # largest error, and that from a divergence on, in units of the climate: twice that of no observations


@dataclass(frozen=True)
class Validation:
    """Judge a student by cycled runs on truths of their own, keep the best weights, and stop when they no longer improve.

    The score is the error of the analysis mean in units of the climate, averaged over windows and truths, at the
    smallest and at the largest ensemble size of the objective; from a divergence on a run has the largest error.

    Args:
        every: steps between two validations; None for about a twentieth of the training.
        patience: stop after so many validations without improvement; None for never. The learning rate falls to zero
            at the last step, and much of the improvement comes with its fall: a short patience stops too early.
    """

    truths: int = 16
    windows: int = 100
    burn_in: int = 20
    every: int | None = None
    patience: int | None = 10

    def __post_init__(self) -> None:
        if self.truths < 1 or not 0 <= self.burn_in < self.windows:
            raise ValueError(f"a validation needs truths and windows beyond its burn-in, got {self}")
        for name, count in (("every", self.every), ("patience", self.patience)):
            if count is not None and count < 1:
                raise ValueError(f"{name} of a validation is at least 1 or None, got {name}={count}")


DEFAULT = Validation()


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
    steps: int,
    validate: Validation | None = DEFAULT,
    checkpoint: str | os.PathLike[str] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    key: PRNGKeyArray,
) -> "FilterResult[Student]":
    """Train a filter for a system; return it with its training history.

    A student with a classical filter inside (`LocalEnNF`) begins as the best of its settings, which are tuned for each ensemble
    size of the objective, and falls back on it at sizes at which training did not make it better: `errors` has both.

    For `AgainstTruth` the `source_state` of the result are the runs, with the number of those that blew up.

    The student is new (`EnNF`, `LearnedGain`, `LocalEnNF.untrained`) or trained before, the objective `AgainstTruth` or
    `Imitation`. `validate` says how the best weights are chosen and when training stops; None takes the last weights. For
    `checkpoint` and `on_progress` see `fit`.

    Example:
        >>> from bieqno.assimilation import AgainstTruth, LocalEnNF, Lorenz63, Observation, System
        >>> system = System(Lorenz63(window=0.25), Observation([0, 2], 1.0), jnp.array([-8.5, -7.0, 27.0]))
        >>> student = LocalEnNF.untrained(system, width=8, channels=2, key=jax.random.key(0))
        >>> result = train_filter(student, system, AgainstTruth(sizes={4: 16}), steps=300, key=jax.random.key(1))
        >>> bool(result.validations.min() < result.validations[0]), result.source_state[0].ensemble.shape
        (True, (16, 4, 3))
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
    task_key, validation_key, fit_key, base_key = jax.random.split(key, 4)
    sizes = sorted(objective.sizes)
    found: dict[int, dict[str, float]] = {}
    if isinstance(student, HasBase) and not student.settled:
        found = _tuned_bases(student, system, sizes, base_key)
        student = student.begin_with(found)
    task = objective.task(student, system, steps=steps, key=task_key)
    padded = isinstance(student, PaddedFilter)
    judge = every = patience = None
    if validate is not None:
        judge = _judge(validate, system, sorted({sizes[0], sizes[-1]}), padded, validation_key)
        every, patience = validate.every, validate.patience
    result = fit(
        student,
        task.loss,
        task.source,
        steps=steps,
        optimizer=task.optimizer,
        source_state=task.source_state,
        validate=judge,
        patience=patience,
        chunk_steps=_chunk(steps) if every is None else min(every, steps),
        microbatches=task.microbatches,
        checkpoint=checkpoint,
        identity=task.identity,
        on_progress=on_progress,
        key=fit_key,
    )
    if validate is None or not found:
        return FilterResult(**vars(result), errors={})
    return _never_worse(result, validate, system, found, validation_key)


def _tuned_bases(
    student: "HasBase", system: System, sizes: Sequence[int], key: PRNGKeyArray
) -> dict[int, dict[str, float]]:
    """Return the best settings of the classical filter inside a student, for each ensemble size, on truths of their own."""
    climate_key, truth_key, run_key = jax.random.split(key, 3)
    spread = 0.1 * Climate.of(system, key=climate_key).deviation
    found = {}
    for size in sizes:
        own = jax.random.fold_in(truth_key, size)
        trials = make_trials(system, BASE_WINDOWS, truths=BASE_TRUTHS, members=size, spread=spread, key=own)
        build, settings = student.base, student.base_settings
        found[size] = tune(build, settings, system, trials, burn_in=BASE_WINDOWS // 6, rungs=2, key=run_key).best
    return found


def _never_worse(
    result: FitResult[Student],
    validate: Validation,
    system: System,
    found: Mapping[int, Mapping[str, float]],
    key: PRNGKeyArray,
) -> "FilterResult[Student]":
    """Compare with the tuned base at every size, on validation truths, and fall back on it where it is the better one."""
    errors, better, student = {}, {}, cast(Any, result.module)
    own_key = jax.random.fold_in(key, 1)
    ours = eqx.filter_jit(_judge(validate, system, list(found), True, own_key).errors)(student)[0].reshape(
        len(found), -1
    )
    for (size, settings), error in zip(found.items(), np.asarray(ours).mean(axis=1), strict=True):
        base = student.base(**{name: jnp.asarray(value, float) for name, value in settings.items()})
        errors[size] = float(error), float(eqx.filter_jit(_judge(validate, system, [size], False, own_key))(base))
        better[size] = settings if errors[size][1] < errors[size][0] else {}
    return FilterResult(**{**vars(result), "module": student.falling_back(better)}, errors=errors)


class _CycledError(eqx.Module):
    """Held-out loss of a filter: error of its analysis mean in cycled runs, as a value that `fit` compiles once."""

    system: System
    trials: tuple[Trials, ...]  # those of a filter that takes padding are of one shape
    present: tuple[Bool[Array, "r N"], ...]
    deviation: Float[Array, "n"]
    key: PRNGKeyArray
    burn_in: int = eqx.field(static=True)

    def __call__(self, filter: Filter) -> Float[Array, ""]:
        return jnp.mean(jnp.concatenate(self.errors(filter)))

    def errors(self, filter: Filter) -> list[Float[Array, "r"]]:
        """Return the error of every trial, those of one shape together."""

        def one(trial: Trials, present: Bool[Array, "N"]) -> Float[Array, ""]:
            shown = _Padded(filter, present) if isinstance(filter, PaddedFilter) else filter
            run = Assimilation(shown, self.system, _MeanOfPresent(present), self.key)(trial)
            wrong = (run.kept - trial.twins.truth) / self.deviation
            errors = jnp.minimum(jnp.sqrt(jnp.mean(wrong**2, axis=1)), DIVERGED)
            lost = (run.diverged >= 0) & (jnp.arange(len(errors)) >= run.diverged)
            return jnp.mean(jnp.where(lost, DIVERGED, errors)[self.burn_in :])

        return [jax.vmap(one)(*pair) for pair in zip(self.trials, self.present, strict=True)]


class _Padded(eqx.Module):
    """Show a filter which members are present."""

    filter: PaddedFilter
    present: Bool[Array, "N"]

    def __call__(self, ensemble: Float[Array, "N n"], observed: Observed, *, key: PRNGKeyArray) -> Float[Array, "N n"]:
        return self.filter.analyse(ensemble, observed, self.present, key=key)


class _MeanOfPresent(eqx.Module):
    """Keep the mean of the members that are present."""

    present: Bool[Array, "N"]

    def __call__(self, prior: Array, posterior: Array, observed: Observed, *, key: PRNGKeyArray) -> Float[Array, "n"]:
        return jnp.mean(posterior, axis=0, where=self.present[:, None])


def _judge(validate: Validation, system: System, sizes: Sequence[int], padded: bool, key: PRNGKeyArray) -> _CycledError:
    """Return the validation of a training: truths that it does not see, from first ensembles of a tenth of the climate."""
    climate_key, truth_key, run_key = jax.random.split(key, 3)
    climate, most = Climate.of(system, key=climate_key), max(sizes)
    spread = 0.1 * climate.deviation
    found: list[tuple[Trials, Bool[Array, "r N"]]] = []
    for size in sizes:
        own = jax.random.fold_in(truth_key, size)
        trials = make_trials(system, validate.windows, truths=validate.truths, members=size, spread=spread, key=own)
        if padded:  # a repeated member is as sound as the member itself
            numbers = jnp.where(jnp.arange(most) < size, jnp.arange(most), 0)
            trials = eqx.tree_at(lambda t: t.ensembles, trials, trials.ensembles[:, numbers])
        found.append(
            (trials, jnp.broadcast_to(jnp.arange(trials.ensembles.shape[1]) < size, trials.ensembles.shape[:2]))
        )
    if padded:
        found = [jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *found)]
    shown, present = (tuple(part) for part in zip(*found, strict=True))
    return _CycledError(system, shown, present, climate.deviation, run_key, validate.burn_in)


def _chunk(steps: int) -> int:
    """Return about a twentieth of the steps, a divisor if there is one nearby: another length would compile anew."""
    wanted = max(1, steps // CHUNKS)
    near = [chunk for chunk in range(max(1, wanted // 2), 2 * wanted + 1) if steps % chunk == 0]
    return min(near, key=lambda chunk: abs(chunk - wanted), default=wanted)
