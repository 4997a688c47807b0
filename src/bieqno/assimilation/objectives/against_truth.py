"""Training against the truth, on the student's own analyses: it learns from what it will meet when it is used.

Many truths run at once. In each step every ensemble is forecast, observed and analysed by the student as it is now; the
analyses are scored against the truths, the weights improved, and the runs continue from these analyses. Nothing is
differentiated through time unless asked for. An ensemble that blows up begins anew, as a random few do in every step.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from bieqno.assimilation.models.forecast import forecast
from bieqno.assimilation.objectives.objective import Task, check_learning_rate
from bieqno.assimilation.observation import Filter
from bieqno.assimilation.system import Climate, System

# Each twice the one before: between them a filter interpolates, beyond them it was seen to extrapolate.
SIZES = MappingProxyType({2: 40, 4: 32, 8: 20, 16: 10, 32: 5})
RESTARTED = 0.005  # share of the runs that begin anew in every step, so that beginnings are never forgotten
BEGINNINGS = (0.06, 0.75)  # spread of first ensembles, in units of the climate
LOST = 10.0  # standard deviations from the climate's mean at which a member has blown up
IDENTITY = "against truth 3"  # to be counted up when the loss or the source changes


@dataclass(frozen=True)
class AgainstTruth:
    """Train on the error of the student's own analyses, in cycled runs on truths of the system's model.

    Args:
        sizes: the ensemble sizes to learn, with the number of truths of each.
        missing: least and largest share of observations that is missing in training.
        unroll: number of windows that are differentiated through.
        learning_rate: of Adam after a short warm-up; it falls to zero along a cosine.
    """

    sizes: Mapping[int, int] = field(default_factory=lambda: SIZES)
    missing: tuple[float, float] = (0.0, 0.0)
    unroll: int = 1
    learning_rate: float = 2e-3

    def __post_init__(self) -> None:
        if not self.sizes or any(size < 1 or truths < 1 for size, truths in self.sizes.items()):
            raise ValueError(f"sizes name at least one ensemble size with its number of truths, got {dict(self.sizes)}")
        if not 0 <= self.missing[0] <= self.missing[1] <= 1:
            raise ValueError(f"the share of missing observations is (low, high) within 0 and 1, got {self.missing}")
        if self.unroll < 1:
            raise ValueError(f"at least one window is differentiated through, got unroll={self.unroll}")
        check_learning_rate(self.learning_rate)

    def task(self, student: Filter, system: System, *, steps: int, key: PRNGKeyArray) -> Task:
        """Prepare the training: free runs for the climate, and the first ensembles."""
        climate_key, start_key = jax.random.split(key)
        climate = Climate.of(system, key=climate_key)
        keys = jax.random.split(start_key, len(self.sizes))
        begun = [
            Runs(*_beginnings(climate, truths, size, (0.5, 0.5), k), jnp.zeros((), int))
            for k, (size, truths) in zip(keys, self.sizes.items(), strict=True)
        ]
        loss = TruthLoss(system, climate, self.missing, self.unroll)
        return Task(loss, runs_and_key, _optimizer(self.learning_rate, steps), IDENTITY, tuple(begun))


class Runs(eqx.Module):
    """Twin experiments under way with one ensemble size."""

    truth: Float[Array, "B n"]
    ensemble: Float[Array, "B N n"]
    blown_up: Int[Array, ""]


def runs_and_key(key: PRNGKeyArray, runs: tuple[Runs, ...]) -> tuple[tuple[Runs, ...], PRNGKeyArray]:
    """Return the batch of a step: the runs as they are, and a key for their next windows."""
    return runs, key


class TruthLoss(eqx.Module):
    """Error of the analyses of the next windows: that of the mean plus the CRPS, in units of the climate.

    The CRPS is that of the ensemble as it is. The mean of a trained ensemble does not scatter by chance, and the score
    that is fair to random members would have too much spread: twice as much as the error at N = 3, unbounded at 2.
    """

    system: System
    climate: Climate
    missing: tuple[float, float] = eqx.field(static=True)
    windows: int = eqx.field(static=True)

    def __call__(
        self, student: Filter, batch: tuple[tuple[Runs, ...], PRNGKeyArray], *, key: PRNGKeyArray
    ) -> tuple[Float[Array, ""], tuple[Runs, ...]]:
        """Return the loss, and the runs after it."""
        groups, batch_key = batch
        keys = jax.random.split(batch_key, len(groups))
        values, runs = zip(*(self._continue(student, *group) for group in zip(groups, keys, strict=True)), strict=True)
        return jnp.mean(jnp.stack(values)), jax.lax.stop_gradient(runs)

    def _continue(self, student: Filter, runs: Runs, key: PRNGKeyArray) -> tuple[Float[Array, ""], Runs]:
        """Take all runs of one ensemble size through the next windows."""
        start_key, luck_key, window_key = jax.random.split(key, 3)
        truths, members, _ = runs.ensemble.shape
        begun, begun_ensemble = _beginnings(self.climate, truths, members, BEGINNINGS, start_key)
        luck, share = jax.random.uniform(luck_key, (2, truths))
        missing = self.missing[0] + share * (self.missing[1] - self.missing[0])
        truth, ensemble, blown_up, loss = runs.truth, runs.ensemble, runs.blown_up, jnp.zeros(())
        for window in range(self.windows):
            model_key, analysis_key = jax.random.split(jax.random.fold_in(window_key, window))
            truth, prior = self._forecast(truth, ensemble, model_key)
            sound = jnp.all(jnp.abs(prior - self.climate.mean) <= LOST * self.climate.deviation, axis=(1, 2))
            sound = sound & jnp.all(jnp.isfinite(truth), axis=1)
            again = ~sound | (luck < RESTARTED) if window == 0 else ~sound
            truth = jnp.where(again[:, None], begun, truth)
            prior = jnp.where(again[:, None, None], begun_ensemble, prior)
            blown_up = blown_up + jnp.sum(~sound)
            ensemble = self._analyse(student, truth, prior, missing, analysis_key)
            loss = loss + jnp.mean(jax.vmap(self._score)(truth, ensemble))
        return loss / self.windows, Runs(truth, ensemble, blown_up)

    def _forecast(
        self, truth: Float[Array, "B n"], ensemble: Float[Array, "B N n"], key: PRNGKeyArray
    ) -> tuple[Float[Array, "B n"], Float[Array, "B N n"]]:
        """Return truths and members a window later, forecast together: to the model a truth is one more member."""
        everyone = jnp.concatenate([truth[:, None], ensemble], axis=1)
        carried = forecast(self.system.model, everyone.reshape(-1, truth.shape[1]), key=key).reshape(everyone.shape)
        return carried[:, 0], carried[:, 1:]

    def _analyse(
        self,
        student: Filter,
        truth: Float[Array, "B n"],
        prior: Float[Array, "B N n"],
        missing: Float[Array, "B"],
        key: PRNGKeyArray,
    ) -> Float[Array, "B N n"]:
        """Observe every truth, each value missing with the run's probability, and let the student analyse."""
        observation = self.system.observation
        mask_key, error_key, filter_key = jax.random.split(key, 3)
        shape = (len(truth), self.system.observed)
        mask = jax.random.uniform(mask_key, shape) >= missing[:, None]
        error = jax.random.normal(error_key, shape)

        def one(truth: Array, prior: Array, error: Array, mask: Array, key: PRNGKeyArray) -> Array:
            clean = observation.operator(truth)
            value = clean + observation.error.colour(error[None], clean)[0]
            return student(prior, observation.window(value, mask=mask, reference=clean), key=key)

        return jax.vmap(one)(truth, prior, error, mask, jax.random.split(filter_key, len(truth)))

    def _score(self, truth: Float[Array, "n"], ensemble: Float[Array, "N n"]) -> Float[Array, ""]:
        """Return the error of the mean over all variables, plus their mean CRPS."""
        count = ensemble.shape[0]
        wrong = (ensemble - truth) / self.climate.deviation
        # Half the mean distance between members, from their order.
        ranks = (2 * jnp.arange(1, count + 1) - count - 1)[:, None].astype(wrong.dtype)
        apart = jnp.sum(ranks * jnp.sort(wrong, axis=0), axis=0) / count**2
        crps = jnp.mean(jnp.mean(jnp.abs(wrong), axis=0) - apart)
        return jnp.sqrt(jnp.mean(jnp.mean(wrong, axis=0) ** 2) + 1e-10) + crps


def _beginnings(
    climate: Climate, truths: int, members: int, spread: tuple[float, float], key: PRNGKeyArray
) -> tuple[Float[Array, "B n"], Float[Array, "B N n"]]:
    """Draw truths of the climate, each with an ensemble about it; its spread is log-uniform, in units of the climate."""
    which_key, width_key, noise_key = jax.random.split(key, 3)
    truth = climate.states[jax.random.randint(which_key, (truths,), 0, len(climate.states))]
    low, high = (math.log(end) for end in spread)
    width = jnp.exp(jax.random.uniform(width_key, (truths, 1, 1), minval=low, maxval=high))
    noise = jax.random.normal(noise_key, (truths, 1 + members, truth.shape[1]))
    return truth, truth[:, None] + width * climate.deviation * (noise[:, :1] + noise[:, 1:])


@lru_cache
def _optimizer(learning_rate: float, steps: int) -> optax.GradientTransformation:
    """Return one object for equal arguments, so that trainings of equal shape share one compilation."""
    schedule = optax.warmup_cosine_decay_schedule(0.0, learning_rate, min(100, steps // 2), steps)
    # The analyses of later steps depend on the weights of earlier ones: a short memory of gradients is the better one.
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adam(schedule, b2=0.99))
