"""What the posterior operator is told about a test point and its neighbours: numbers without units, of moderate size.

Relative to the mixture of experts: the mean `base` and the variance `spread` at the point. Directions enter as cosines of
angles, to the nearest observation and to the steepest ascent of the values, so that they are the same in every frame and
in every dimension.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bieqno.regression.pretrained.background import NOISE_LEVELS, Background, Weighed
from bieqno.regression.pretrained.experts import EXPERTS, NEAREST
from bieqno.regression.pretrained.layouts import MAX_DIMENSION
from bieqno.regression.pretrained.neighbourhood import Neighbourhood

_RANKS = (1, 2, 3, 4, 6, 8, 16, 32)
"""Neighbours whose distance is told."""
_NOWHERE = 30.0
"""Distance of a neighbour that is not there."""

POINT_FEATURES = 6 * len(EXPERTS) + len(_RANKS) + 9
NEIGHBOUR_FEATURES = 9


def of_point(
    seen: Neighbourhood,
    weighed: Weighed,
    base: Float[Array, ""],
    spread: Float[Array, ""],
    background: Background,
    dimension: Int[Array, ""],
) -> Float[Array, "p"]:
    """Features of a test point."""
    evidence = weighed.evidence - jnp.max(weighed.evidence, axis=1, keepdims=True)
    log_spread = jnp.log(spread)
    levels = jnp.asarray(NOISE_LEVELS, spread.dtype)
    probability = jnp.exp(background.log_noise)
    log_noise = probability @ levels
    count = jnp.sum(seen.mask)
    distances = jnp.where(seen.mask, seen.distances, _NOWHERE)[-jnp.asarray(_RANKS)]
    return jnp.concatenate(
        [
            jnp.arcsinh((weighed.mean - base) / jnp.sqrt(spread)),
            (jnp.log(weighed.variance) - log_spread) / 2,
            jnp.maximum(weighed.log_weight, -12) / 4,
            _damped(evidence[0]),
            _damped(evidence[1]),
            jnp.maximum(background.log_share, -8) / 4,
            jnp.log(distances + 0.05),
            jnp.stack(
                [
                    log_spread / 4,
                    log_noise / 4,
                    (log_spread - log_noise) / 4,
                    jnp.sqrt(jnp.maximum(probability @ (levels - log_noise) ** 2, 1e-6)),
                    _log_variation(seen, 3) - log_spread / 2,
                    _log_variation(seen, NEAREST) - log_spread / 2,
                    _log_variation(seen, 3) - log_noise / 2,
                    jnp.minimum(dimension, MAX_DIMENSION).astype(spread.dtype) / 4,  # no more were ever seen
                    1 / (1 + count.astype(spread.dtype) / 8),
                ]
            ),
        ]
    )


def of_neighbours(seen: Neighbourhood, base: Float[Array, ""], spread: Float[Array, ""]) -> Float[Array, "k r"]:
    """Features of each neighbour."""
    distance = seen.distances
    direction = seen.offsets / jnp.maximum(distance, 1e-6)[:, None]
    value = (seen.values - base) / jnp.sqrt(spread)
    near = jnp.exp(-((distance / 3) ** 2) / 2) * seen.mask
    middle = jnp.sum(near * seen.values) / jnp.maximum(jnp.sum(near), 1e-6)
    ascent = (near * (seen.values - middle)) @ seen.offsets
    length = jnp.linalg.norm(ascent)
    uphill = direction @ (ascent / jnp.maximum(length, 1e-6))
    return jnp.stack(
        [
            jnp.log(distance + 0.05),
            1 / (1 + distance),
            distance / 8,
            direction @ direction[-1],
            uphill,
            jnp.arcsinh(value),
            jnp.tanh(value),
            seen.values,
            jnp.arcsinh(10 * (seen.values - seen.values[-1])),
        ],
        axis=1,
    )


def _damped(evidence: Float[Array, "e"]) -> Float[Array, "e"]:
    """Differences of log-likelihoods from zero to minus thousands, most of which say no more than 'not this one'."""
    return -jnp.log1p(-evidence / 4)


def _log_variation(seen: Neighbourhood, count: int) -> Float[Array, ""]:
    """Logarithm of the standard deviation of the nearest values."""
    there, values = seen.mask[-count:], seen.values[-count:]
    number = jnp.maximum(jnp.sum(there), 1)
    mean = jnp.sum(jnp.where(there, values, 0)) / number
    return jnp.log(jnp.sum(jnp.where(there, (values - mean) ** 2, 0)) / number + 1e-6) / 2
