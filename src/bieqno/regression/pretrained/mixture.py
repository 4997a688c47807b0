"""The mixture of kriging experts: which of them explain a whole data set, how noisy it is, and what they predict together.

The noise is taken to be the same everywhere, so that a region of short waves is not mistaken for a noisy one: only the calm
regions tell them apart. The noise and the prior weights of the experts are found by a few steps of expectation maximisation
over the probes. At a centre, prior weight times likelihood of the neighbourhood gives the weight of each expert.
"""

import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from bieqno.regression.pretrained.experts import RATIOS, ExpertPredictions, predict
from bieqno.regression.pretrained.neighbours import Centres, Neighbourhood, Units

# Logarithm of the variance of the noise, in units of the variance of the targets.
NOISE_LEVELS = tuple(math.log(1e-6) * (1 - i / 14) + math.log(1.5) * (i / 14) for i in range(15))
FLOOR = 1e-6  # least variance in units of the targets' own: a thousandth of their standard deviation

_STEPS = 8
_PSEUDO = 4.0
_NOISE_WIDTH = 0.7  # by how much, in its logarithm, an expert's local noise variance may differ from that of the whole


class Context(eqx.Module):
    """What is common to all predictions from one data set."""

    units: Units
    dimension: Int[Array, ""]
    log_prior: Float[Array, "e"]  # logarithm of the share of the data that each expert explains
    log_noise: Float[Array, "levels"]  # logarithm of the probability of each of `NOISE_LEVELS`
    scale: Float[Array, "e"]  # typical variance of each expert, up to which it states its own


class Mixture(NamedTuple):
    """Experts at points: their means, variances and weights."""

    mean: Float[Array, "*q e"]
    variance: Float[Array, "*q e"]
    log_weight: Float[Array, "*q e"]  # normalised logarithm of the mixture weight
    log_likelihood: Float[Array, "*q 2 e"]
    """Of the neighbourhood, and of the nearest observations given the farther ones."""


class Moments(NamedTuple):
    """Means and variances, NumPy's arrays or JAX's."""

    mean: Any
    variance: Any


class Pair(NamedTuple):
    """Predictions with the correction, and by the mixture of experts alone."""

    corrected: Moments
    experts: Moments

    def at_least(self, noise: Float[Array, ""] | None) -> "Pair":
        """Return the pair with variances that are nowhere below that of a known noise."""
        return self if noise is None else Pair(*(Moments(m, jnp.maximum(v, noise**2)) for m, v in self))


def learn_context(
    centres: Centres,
    there: Bool[Array, "s"],
    count: Int[Array, ""],
    mean: Float[Array, ""],
    variance: Float[Array, ""],
    dimension: Int[Array, ""],
    noise: Float[Array, ""] | None = None,
) -> tuple[Context, Neighbourhood, ExpertPredictions]:
    """Find the units, the noise (if None) and the prior weights of the experts from the probes that are `there`.

    `count`, `mean` and `variance` are those of all targets. The predictions at the probes are returned as well.
    """
    units = Units.of(centres, there, count, mean, variance, dimension)
    seen, probes = predict(centres, units)
    sizes = jnp.log(probes.squares[:, 0] / jnp.maximum(probes.number[:, :1], 1) + FLOOR)
    held = there[:, None]
    number = jnp.maximum(jnp.sum(there), 1).astype(sizes.dtype)
    scale = jnp.exp(jnp.sum(jnp.where(held, sizes, 0), axis=0) / number)
    likelihood, local_variance = jax.vmap(lambda own: log_likelihoods(own, scale))(probes)
    fit = _noise_fit(local_variance)  # [s, e, levels]
    # Probes share observations: together they count no more than what there is.
    shared = jnp.sum(jnp.where(there, probes.number[:, 0], 0))
    overlap = jnp.minimum(1, count.astype(shared.dtype) / jnp.maximum(shared, 1))
    known = None if noise is None else _known_noise(2 * jnp.log(noise / units.scale))

    def step(log_prior: Array, _: None) -> tuple[Array, Array]:
        each = jax.nn.logsumexp(likelihood[:, 0, :, None] + log_prior[None, :, None] + fit, axis=1)
        learned = overlap * jnp.sum(jnp.where(held, each, 0), axis=0)
        levels = jax.nn.log_softmax(learned) if known is None else known
        agreement = jax.nn.logsumexp(fit + levels[None, None], axis=2)
        weights = jax.nn.softmax(likelihood[:, 0] + log_prior[None] + agreement, axis=1)
        counted = jnp.sum(jnp.where(held, weights, 0), axis=0)
        return jnp.log((counted + 1 / len(RATIOS)) / (number + 1)), levels

    uniform = jnp.full(len(RATIOS), -math.log(len(RATIOS)), scale.dtype)
    log_prior, levels = jax.lax.scan(step, uniform, None, length=_STEPS)
    return Context(units, jnp.asarray(dimension), log_prior, levels[-1], scale), seen, probes


def weigh(predictions: ExpertPredictions, context: Context) -> Mixture:
    """Give the experts of one centre their variances and their mixture weights, one row per point."""
    likelihood, variance = log_likelihoods(predictions, context.scale)
    fit = jax.nn.logsumexp(_noise_fit(variance) + context.log_noise[None], axis=1)
    log_weight = jax.nn.log_softmax(likelihood[0] + context.log_prior + fit)
    shared = (jnp.broadcast_to(x, (len(predictions.mean), *x.shape)) for x in (log_weight, likelihood))
    return Mixture(predictions.mean, jnp.maximum(predictions.variance * variance[None], FLOOR), *shared)


def moments(log_weight: Float[Array, "e"], mixture: Mixture) -> Moments:
    """Return mean and variance of the mixture at one point, under the given weights."""
    weight = jnp.exp(log_weight)
    mean = weight @ mixture.mean
    return Moments(mean, weight @ (mixture.variance + (mixture.mean - mean) ** 2))


def blend(weight: Any, pair: Pair) -> Moments:
    """Return mean and variance of the mixture of both predictions, in which the corrected one has this weight.

    Example:
        >>> two = Pair(Moments(jnp.array(1.0), jnp.array(2.0)), Moments(jnp.array(3.0), jnp.array(2.0)))
        >>> [x.item() for x in blend(jnp.array(0.5), two)]
        [2.0, 3.0]
    """
    corrected, experts = pair
    mean = weight * corrected.mean + (1 - weight) * experts.mean
    apart = weight * (1 - weight) * (corrected.mean - experts.mean) ** 2
    return Moments(mean, weight * corrected.variance + (1 - weight) * experts.variance + apart)


def log_likelihoods(
    predictions: ExpertPredictions, scale: Float[Array, "e"]
) -> tuple[Float[Array, "2 e"], Float[Array, "e"]]:
    """Return log-likelihoods of a neighbourhood under each expert at its best variance, and that variance."""
    wide = (predictions.squares[0] + _PSEUDO * scale) / (predictions.number[0] + _PSEUDO)
    near = (predictions.squares[1] + _PSEUDO * wide) / (predictions.number[1] + _PSEUDO)
    variance = jnp.maximum(jnp.stack([wide, near]), FLOOR)
    half = predictions.number[:, None] * jnp.log(variance) + predictions.squares / variance
    return -half / 2 - predictions.log_det, variance[0]


def _noise_fit(variance: Float[Array, "*s e"]) -> Float[Array, "*s e levels"]:
    """Return how well the noise that an expert finds locally agrees with each level of the whole."""
    leading = (None,) * (variance.ndim - 1)
    found = jnp.log(jnp.asarray(RATIOS, variance.dtype)[leading] * variance)
    levels = jnp.asarray(NOISE_LEVELS, variance.dtype)[(*leading, None)]
    return -0.5 * ((found[..., None] - levels) / _NOISE_WIDTH) ** 2


def _known_noise(log_variance: Float[Array, ""]) -> Float[Array, "levels"]:
    """Return a known level of the noise as log-probabilities of all levels."""
    levels = jnp.asarray(NOISE_LEVELS)
    return jax.nn.log_softmax(-0.5 * ((jnp.clip(log_variance, levels[0], levels[-1]) - levels) / 0.3) ** 2)
