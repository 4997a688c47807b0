"""How a filter in training is validated: by cycled runs on truths that it is not trained on."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray, PyTree

from bieqno.assimilation.observation import Observed
from bieqno.assimilation.protocols import Filter, PaddedFilter, StatefulFilter
from bieqno.assimilation.system import Climate, System
from bieqno.assimilation.trials import Assimilation, Trials, make_trials

DIVERGED = 3.0  # largest error, and that from a divergence on, in units of the climate: twice that of no observations


@dataclass(frozen=True)
class Validation:
    """Validate a student by cycled runs on truths of their own, keep the best weights, and stop when they no longer improve.

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


class CycledError(eqx.Module):
    """Held-out loss of a filter: error of its analysis mean in cycled runs, as a value that `fit` compiles once."""

    system: System
    trials: tuple[Trials, ...]  # those of a filter that takes padding are of one shape
    present: tuple[Bool[Array, "_ _"], ...]  # of shapes of their own
    deviation: Float[Array, "n"]
    key: PRNGKeyArray
    burn_in: int = eqx.field(static=True)

    def __call__(self, filter: Filter) -> Float[Array, ""]:
        """Return the mean error of all trials."""
        return jnp.mean(jnp.concatenate(self.errors(filter)))

    def errors(self, filter: Filter) -> list[Float[Array, "r"]]:
        """Return the error of every trial, those of one shape together."""

        def one(trial: Trials, present: Bool[Array, "N"]) -> Float[Array, ""]:
            shown = _padded(filter, present)
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


class _PaddedStateful(eqx.Module):
    """Show a filter that has a state which members are present."""

    filter: StatefulFilter
    present: Bool[Array, "N"]

    def begin(self) -> PyTree[Any]:
        return self.filter.begin()

    def step(
        self, state: Any, ensemble: Array, observed: Observed, present: None = None, *, key: PRNGKeyArray
    ) -> tuple[Array, Any]:
        return self.filter.step(state, ensemble, observed, self.present, key=key)

    def __call__(self, ensemble: Float[Array, "N n"], observed: Observed, *, key: PRNGKeyArray) -> Float[Array, "N n"]:
        return self.step(self.begin(), ensemble, observed, key=key)[0]


def _padded(filter: Filter, present: Bool[Array, "N"]) -> Filter:
    """Show a filter which members are present, where it takes padding."""
    if isinstance(filter, StatefulFilter):
        return _PaddedStateful(filter, present)
    return _Padded(filter, present) if isinstance(filter, PaddedFilter) else filter


class _MeanOfPresent(eqx.Module):
    """Keep the mean of the members that are present."""

    present: Bool[Array, "N"]

    def __call__(self, prior: Array, posterior: Array, observed: Observed, *, key: PRNGKeyArray) -> Float[Array, "n"]:
        return jnp.mean(posterior, axis=0, where=self.present[:, None])


def with_gaps(trials: Trials, missing: tuple[float, float], key: PRNGKeyArray) -> Trials:
    """Let observations be missing, of each truth a share between the two that are given.

    Example:
        >>> from bieqno.assimilation import Lorenz63, Observation
        >>> system = System(Lorenz63(), Observation([0, 2], 1.0), jnp.array([-8.5, -7.0, 27.0]))
        >>> trials = make_trials(system, 100, truths=2, members=3, key=jax.random.key(0))
        >>> there = with_gaps(trials, (0.5, 0.5), jax.random.key(1)).twins.observations.mask
        >>> 0.4 < float(jnp.mean(there)) < 0.6
        True
    """
    if not any(missing):
        return trials
    share_key, mask_key = jax.random.split(key)
    mask = trials.twins.observations.mask
    share = jax.random.uniform(share_key, mask.shape[:1], minval=missing[0], maxval=missing[1])
    there = jax.random.uniform(mask_key, mask.shape) >= share[:, None, None]
    return eqx.tree_at(lambda t: t.twins.observations.mask, trials, mask & there)


def judge_of(
    validate: Validation,
    system: System,
    sizes: Sequence[int],
    padded: bool,
    key: PRNGKeyArray,
    missing: tuple[float, float] = (0.0, 0.0),
) -> CycledError:
    """Return the validation of a training: truths that it does not see, from first ensembles of a tenth of the climate.

    A filter that is to learn from networks with `missing` observations is validated on such networks.
    """
    climate_key, truth_key, run_key = jax.random.split(key, 3)
    climate, most = Climate.of(system, key=climate_key), max(sizes)
    spread = 0.1 * climate.deviation
    found: list[tuple[Trials, Bool[Array, "r N"]]] = []
    for size in sizes:
        own = jax.random.fold_in(truth_key, size)
        trials = make_trials(system, validate.windows, truths=validate.truths, members=size, spread=spread, key=own)
        trials = with_gaps(trials, missing, jax.random.fold_in(own, 1))
        if padded:  # a repeated member is as sound as the member itself
            numbers = jnp.where(jnp.arange(most) < size, jnp.arange(most), 0)
            trials = eqx.tree_at(lambda t: t.ensembles, trials, trials.ensembles[:, numbers])
        shape = trials.ensembles.shape[:2]
        found.append((trials, jnp.broadcast_to(jnp.arange(shape[1]) < size, shape)))
    if padded:
        found = [jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *found)]
    shown, present = (tuple(part) for part in zip(*found, strict=True))
    return CycledError(system, shown, present, climate.deviation, run_key, validate.burn_in)
