"""What a whole data set tells about the local experts: how strong its noise is, and which of them explain it.

The noise is taken to be the same everywhere, so that a region of short waves is not mistaken for a noisy one: a fine
chequered pattern and noise look alike there, and only the calm regions tell them apart. Both the noise and the shares of
the experts are found by a few steps of expectation maximisation over sites, neighbourhoods spread over the data.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from bieqno.regression.pretrained.experts import RATIOS, Opinions

# Logarithm of the variance of the noise, in units of the variance of the targets.
NOISE_LEVELS = tuple(math.log(1e-6) * (1 - i / 14) + math.log(1.5) * (i / 14) for i in range(15))
FLOOR = 1e-6
"""Least variance in units of the targets' own: a thousandth of their standard deviation."""

_STEPS = 8
_PSEUDO = 4.0
_NOISE_WIDTH = 0.7
"""By how much, in its logarithm, an expert's local noise variance may differ from that of the whole."""


class Background(NamedTuple):
    """What is common to all points of a data set."""

    log_share: Float[Array, "e"]
    """Logarithm of the share of the data that each expert explains."""
    log_noise: Float[Array, "levels"]
    """Logarithm of the probability of each of `NOISE_LEVELS`."""
    scale: Float[Array, "e"]
    """Typical variance of each expert, up to which it states its own."""


class Weighed(NamedTuple):
    """Experts at points: their means, variances and how much each is believed."""

    mean: Float[Array, "*q e"]
    variance: Float[Array, "*q e"]
    log_weight: Float[Array, "*q e"]
    """Normalised logarithm of the belief."""
    evidence: Float[Array, "*q 2 e"]
    """Log-likelihood of the neighbourhood, and of the nearest observations given the farther ones."""


def learn(
    sites: Opinions,
    there: Bool[Array, "s"],
    observations: Int[Array, ""],
    log_noise: Float[Array, "levels"] | None = None,
) -> Background:
    """Find the noise and the shares of the experts.

    Args:
        sites: opinions at some sites, stacked along a first axis.
        there: which sites are there.
        observations: number of observations of the whole data set.
        log_noise: what is known about the noise; None to learn it.
    """
    sizes = jnp.log(sites.squares[:, 0] / jnp.maximum(sites.number[:, :1], 1) + FLOOR)
    held = there[:, None]
    scale = jnp.exp(jnp.sum(jnp.where(held, sizes, 0), axis=0) / jnp.maximum(jnp.sum(there), 1))
    evidence, variance = jax.vmap(lambda own: evidence_of(own, scale))(sites)
    noise = _noise_fit(variance)  # [s, e, levels]
    number = jnp.maximum(jnp.sum(there), 1)
    # Sites share observations: together they count no more than what there is.
    seen = jnp.sum(jnp.where(there, sites.number[:, 0], 0))
    overlap = jnp.minimum(1, observations / jnp.maximum(seen, 1))

    def step(log_share: Array, _: None) -> tuple[Array, Array]:
        joint = evidence[:, 0, :, None] + log_share[:, None] + noise
        each = jax.nn.logsumexp(joint, axis=1)
        learned = overlap * jnp.sum(jnp.where(held, each, 0), axis=0)
        levels = jax.nn.log_softmax(learned) if log_noise is None else log_noise
        belief = jax.nn.softmax(evidence[:, 0] + log_share + jax.nn.logsumexp(noise + levels, axis=2), axis=1)
        counted = jnp.sum(jnp.where(held, belief, 0), axis=0)
        return jnp.log((counted + 1 / len(RATIOS)) / (number + 1)), levels

    uniform = jnp.full(len(RATIOS), -math.log(len(RATIOS)), scale.dtype)
    log_share, levels = jax.lax.scan(step, uniform, None, length=_STEPS)
    return Background(log_share, levels[-1], scale)


def weigh(opinions: Opinions, background: Background) -> Weighed:
    """Give the experts of one neighbourhood their variances, and weigh them by all that is known."""
    evidence, variance = evidence_of(opinions, background.scale)
    fit = jax.nn.logsumexp(_noise_fit(variance) + background.log_noise, axis=1)
    log_weight = jax.nn.log_softmax(evidence[0] + background.log_share + fit)
    number = len(opinions.mean)
    return Weighed(
        opinions.mean,
        jnp.maximum(opinions.variance * variance, FLOOR),
        jnp.broadcast_to(log_weight, (number, *log_weight.shape)),
        jnp.broadcast_to(evidence, (number, *evidence.shape)),
    )


def evidence_of(opinions: Opinions, scale: Float[Array, "e"]) -> tuple[Float[Array, "2 e"], Float[Array, "e"]]:
    """Log-likelihoods of a neighbourhood under each expert, at the variance that suits it; and that variance."""
    wide = (opinions.squares[0] + _PSEUDO * scale) / (opinions.number[0] + _PSEUDO)
    near = (opinions.squares[1] + _PSEUDO * wide) / (opinions.number[1] + _PSEUDO)
    variance = jnp.maximum(jnp.stack([wide, near]), FLOOR)
    half = opinions.number[:, None] * jnp.log(variance) + opinions.squares / variance
    return -half / 2 - opinions.log_det, variance[0]


def _noise_fit(variance: Float[Array, "*s e"]) -> Float[Array, "*s e levels"]:
    """How well the noise that an expert finds locally goes with each level of the whole."""
    found = jnp.log(jnp.asarray(RATIOS, variance.dtype) * variance)
    return -0.5 * ((found[..., None] - jnp.asarray(NOISE_LEVELS, variance.dtype)) / _NOISE_WIDTH) ** 2
