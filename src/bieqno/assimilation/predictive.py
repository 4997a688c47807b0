"""Scores without a truth: how well the forecast ensemble and the observation law predicted what was then observed."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float, PRNGKeyArray

from bieqno.arguments import checked
from bieqno.assimilation.laws import AbstractLaw
from bieqno.assimilation.observation import Observed
from bieqno.assimilation.protocols import Filter
from bieqno.scores import crps

SCORED = 0x5EED0002  # folded into the key of an analysis, which filters split and fold small numbers into
DRAWS = 200  # least number of values that are drawn for the CRPS, from all members together


def keep_scores(
    prior: Float[Array, "N n"], posterior: Float[Array, "N n"], observed: Observed, *, key: PRNGKeyArray
) -> dict[str, Array]:
    """Keep how well each window was predicted one step ahead, by the mixture of the laws at all members' predictions.

    The `log_score` is the log density of all that was observed in a window, 0 where nothing was: its sum over a series
    (`Run.log_score`) estimates the log-likelihood of the model. For each value the `pit`, the probability that the
    forecast gave to smaller ones, is uniform if the forecast is calibrated (counts at random within their step); `crps` is in
    the units of the value, from values drawn at random. Both are NaN where nothing was observed.

    Example:
        >>> from bieqno.assimilation import EnKF, NoisyModel, Observation, System, cycle, simulate
        >>> walk = System(NoisyModel(lambda z: z, 1.0), Observation([0], 1.0), jnp.zeros(1))
        >>> twin = simulate(walk, 30, key=jax.random.key(0))
        >>> start = jnp.zeros((50, 1))
        >>> run = cycle(EnKF(), walk, start, twin.observations, record=keep_scores, key=jax.random.key(1))
        >>> bool(-80 < run.log_score < -50), run.kept["pit"].shape
        (True, (30, 1))
    """
    return _scores(observed.predict(prior), observed, key)


@runtime_checkable
class Predicts(Protocol):
    """A filter that has a predictive law of its own, instead of the mixture of the laws at all members' predictions."""

    def predictive(self, prior: Float[Array, "N n"], observed: Observed) -> tuple[Float[Array, "k m"], AbstractLaw]:
        """Return predictions, and the law whose mixture at all of them predicts what is observed; the value is not used."""


def predicted_by(filter: Filter, prior: Float[Array, "N n"], observed: Observed) -> Float[Array, ""]:
    """Return the log score of a filter's prediction, as `keep_scores` or `KeepScores` keeps it."""
    predicted, observed = _law_of(filter, prior, observed)
    densities = jax.vmap(partial(_law_at, observed))(predicted)[1]
    return logsumexp(densities) - jnp.log(len(predicted)).astype(predicted.dtype)


class KeepScores(eqx.Module):
    """Keep what `keep_scores` does, by the predictive law of a filter where it has one; and what `also`, another record, keeps.

    Example:
        >>> from bieqno.assimilation import EnKF, Observation
        >>> observed = Observation([0], 1.0).window(jnp.array([0.0]))
        >>> prior = jnp.ones((2, 1))
        >>> round(float(KeepScores(EnKF())(prior, prior, observed, key=jax.random.key(0))["log_score"]), 2)
        -1.42
    """

    filter: Filter
    also: Callable[..., dict[str, Array]] | None = None

    def __call__(
        self, prior: Float[Array, "N n"], posterior: Float[Array, "N n"], observed: Observed, *, key: PRNGKeyArray
    ) -> dict[str, Array]:
        """Score a window."""
        kept = {} if self.also is None else self.also(prior, posterior, observed, key=key)
        if not isinstance(kept, dict):
            raise TypeError(f"also keeps a dictionary, such as keep_moments, got {type(kept).__name__}")
        return kept | _scores(*_law_of(self.filter, prior, observed), key)


def _law_of(filter: Filter, prior: Float[Array, "N n"], observed: Observed) -> tuple[Float[Array, "k m"], Observed]:
    if not isinstance(filter, Predicts):
        return observed.predict(prior), observed
    predicted, law = filter.predictive(prior, observed)
    return predicted, dataclasses.replace(observed, error=law)


def _scores(predicted: Float[Array, "k m"], observed: Observed, key: PRNGKeyArray) -> dict[str, Array]:
    """Score the mixture of the laws at some predictions."""
    members, law = predicted.shape[0], observed.error
    level_key, draw_key = jax.random.split(jax.random.fold_in(key, SCORED))
    mean, variance = law.moments(predicted)
    # The law at each member's own prediction: at the observed value it would be no density, at a truth's it would know that.
    (below, upto), densities = jax.vmap(partial(_law_at, observed))(predicted)
    low, high = (jnp.mean(p, axis=0) for p in (below, upto))
    level = jax.random.uniform(level_key, low.shape, low.dtype)
    repeated = jnp.tile(predicted, (-(-DRAWS // members), 1))
    drawn = law.draw(repeated, key=draw_key)

    def missing(score: Array) -> Array:
        return jnp.where(observed.mask, score, jnp.nan)

    return {
        "observed": missing(observed.value),
        "log_score": logsumexp(densities) - jnp.log(members).astype(predicted.dtype),
        "crps": missing(jax.vmap(lambda y, x: crps(y[None, None], x[None, :, None])[0], (0, 1))(observed.value, drawn)),
        "pit": missing(low + level * (high - low)),
        "predicted_mean": jnp.mean(mean, axis=0),
        "predicted_spread": jnp.sqrt(jnp.mean(variance, axis=0) + jnp.var(mean, axis=0)),
    }


def _law_at(observed: Observed, predicted: Float[Array, "m"]) -> tuple[tuple[Array, Array], Float[Array, ""]]:
    """Return how likely smaller values and the observed ones are, and the log density of all that was observed."""
    law, value, mask = observed.error, observed.value, observed.mask
    below, upto = law.below(value, predicted[None], predicted)
    density = law.log_likelihood(value, predicted[None], predicted, mask)[0] + law.log_constant(predicted, mask)
    return (below[0], upto[0]), density


@checked()
def calibration_band(count: int, bins: int = 10, level: float = 0.95) -> tuple[float, float]:
    """Return within which shares all bins of a histogram of uniform numbers are, with this probability (Bonferroni).

    Example:
        >>> low, high = calibration_band(730)
        >>> 0.065 < low < 0.075, 0.13 < high < 0.135
        (True, True)
    """
    from scipy.stats import binom

    if count < 1 or bins < 1 or not 0 < level < 1:
        raise ValueError(f"expected numbers, bins and a level within 0 and 1, got {count}, {bins} and {level}")
    outside = (1 - level) / bins
    ends: Any = binom.ppf([outside / 2, 1 - outside / 2], count, 1 / bins) / count
    return float(ends[0]), float(ends[1])
