"""`train_filter`: the one verb that trains a filter, whatever the student, the system and the objective."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from bieqno.assimilation.objectives.objective import Objective
from bieqno.assimilation.observation import Filter
from bieqno.assimilation.system import Climate, System
from bieqno.assimilation.trials import Assimilation, Trials, make_trials
from bieqno.assimilation.twin import keep_mean
from bieqno.training import FitResult, Progress, fit, trainable

Student = TypeVar("Student", bound=Filter)

CHUNKS = 20  # validations in a training, if nothing else is asked for
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
) -> FitResult[Student]:
    """Train a filter for a system; return it with its training history.

    For `AgainstTruth` the `source_state` of the result are the runs, with the number of those that blew up.

    The student is new (`EnNF`, `LearnedGain`, `LocalEnNF.untrained`) or trained before, the objective `AgainstTruth` or
    `Imitation`. `validate` says how the best weights are chosen and when training stops; None takes the last weights. For
    `checkpoint` and `on_progress` see `fit`.

    Example:
        >>> from bieqno.assimilation import AgainstTruth, LocalEnNF, Lorenz63, Observation, System
        >>> system = System(Lorenz63(window=0.25), Observation([0, 2], 1.0), jnp.array([-8.5, -7.0, 27.0]))
        >>> student = LocalEnNF.untrained(system, width=16, small=8, channels=2, key=jax.random.key(0))
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
    task_key, validation_key, fit_key = jax.random.split(key, 3)
    task = objective.task(student, system, steps=steps, key=task_key)
    judge = None if validate is None else _judge(validate, system, objective, validation_key)
    every = None if validate is None else validate.every
    return fit(
        student,
        task.loss,
        task.source,
        steps=steps,
        optimizer=task.optimizer,
        source_state=task.source_state,
        validate=judge,
        patience=None if validate is None else validate.patience,
        chunk_steps=_chunk(steps) if every is None else min(every, steps),
        microbatches=task.microbatches,
        checkpoint=checkpoint,
        identity=task.identity,
        on_progress=on_progress,
        key=fit_key,
    )


class _CycledError(eqx.Module):
    """Held-out loss of a filter: error of its analysis mean in cycled runs, as a value that `fit` compiles once."""

    system: System
    trials: tuple[Trials, ...]
    deviation: Float[Array, "n"]
    key: PRNGKeyArray
    burn_in: int = eqx.field(static=True)

    def __call__(self, filter: Filter) -> Float[Array, ""]:
        def one(trial: Trials) -> Float[Array, ""]:
            run = Assimilation(filter, self.system, keep_mean, self.key)(trial)
            wrong = (run.kept - trial.twins.truth) / self.deviation
            errors = jnp.minimum(jnp.sqrt(jnp.mean(wrong**2, axis=1)), DIVERGED)
            lost = (run.diverged >= 0) & (jnp.arange(len(errors)) >= run.diverged)
            return jnp.mean(jnp.where(lost, DIVERGED, errors)[self.burn_in :])

        return jnp.mean(jnp.stack([jnp.mean(jax.vmap(one)(trials)) for trials in self.trials]))


def _judge(validate: Validation, system: System, objective: Objective, key: PRNGKeyArray) -> _CycledError:
    """Return the validation of a training: truths that it does not see, from first ensembles of a tenth of the climate."""
    climate_key, truth_key, run_key = jax.random.split(key, 3)
    climate = Climate.of(system, key=climate_key)
    trials = tuple(
        make_trials(
            system,
            validate.windows,
            truths=validate.truths,
            members=size,
            spread=0.1 * climate.deviation,
            key=jax.random.fold_in(truth_key, size),
        )
        for size in sorted({min(objective.sizes), max(objective.sizes)})
    )
    return _CycledError(system, trials, climate.deviation, run_key, validate.burn_in)


def _chunk(steps: int) -> int:
    """Return about a twentieth of the steps, a divisor if there is one nearby: another length would compile anew."""
    wanted = max(1, steps // CHUNKS)
    near = [chunk for chunk in range(max(1, wanted // 2), 2 * wanted + 1) if steps % chunk == 0]
    return min(near, key=lambda chunk: abs(chunk - wanted), default=wanted)
