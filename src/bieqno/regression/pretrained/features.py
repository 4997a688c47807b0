"""Features of a test point and of its neighbours for the posterior operator: numbers without units, of moderate size.

They are relative to the mixture of experts: the mean `base` and the variance `spread` at the point. Directions enter as
cosines of angles, to the nearest observation and to the steepest ascent of the values, so that they are the same in
every frame and in every dimension.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from bieqno.regression.pretrained.experts import EXPERTS, NEAREST
from bieqno.regression.pretrained.mixture import NOISE_LEVELS, Context, Mixture
from bieqno.regression.pretrained.neighbours import Neighbourhood, length

MAX_DIMENSION = 4
"""Most inputs of the functions that the correction was pre-trained on."""

_RANKS = (1, 2, 3, 4, 6, 8, 16, 32)
"""Neighbours whose distance is a feature."""
_NOWHERE = 30.0
"""Distance of padding."""

POINT_FEATURES = 6 * len(EXPERTS) + len(_RANKS) + 9
NEIGHBOUR_FEATURES = 9


def point_features(
    seen: Neighbourhood, mixture: Mixture, base: Float[Array, ""], spread: Float[Array, ""], context: Context
) -> Float[Array, "p"]:
    """Return the features of a test point."""
    likelihood = mixture.log_likelihood - jnp.max(mixture.log_likelihood, axis=1, keepdims=True)
    log_spread = jnp.log(spread)
    levels = jnp.asarray(NOISE_LEVELS, spread.dtype)
    probability = jnp.exp(context.log_noise)
    log_noise = probability @ levels
    count = jnp.sum(seen.mask)
    distances = jnp.where(seen.mask, length(seen.offsets), _NOWHERE)[-jnp.asarray(_RANKS)]
    return jnp.concatenate(
        [
            jnp.arcsinh((mixture.mean - base) / jnp.sqrt(spread)),
            (jnp.log(mixture.variance) - log_spread) / 2,
            jnp.maximum(mixture.log_weight, -12) / 4,
            *(-jnp.log1p(-likelihood / 4)),  # damped: differences go down to minus thousands
            jnp.maximum(context.log_prior, -8) / 4,
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
                    jnp.minimum(context.dimension, MAX_DIMENSION).astype(spread.dtype) / 4,  # as in the pre-training
                    1 / (1 + count.astype(spread.dtype) / 8),
                ]
            ),
        ]
    )


def neighbour_features(seen: Neighbourhood, base: Float[Array, ""], spread: Float[Array, ""]) -> Float[Array, "k r"]:
    """Return the features of each neighbour."""
    distance = length(seen.offsets)
    direction = seen.offsets / jnp.maximum(distance, 1e-6)[:, None]
    value = (seen.values - base) / jnp.sqrt(spread)
    near = jnp.where(seen.mask, jnp.exp(-((distance / 3) ** 2) / 2), 0)
    middle = jnp.sum(near * seen.values) / jnp.maximum(jnp.sum(near), 1e-6)
    ascent = (near * (seen.values - middle)) @ seen.offsets
    uphill = direction @ (ascent / jnp.maximum(jnp.linalg.norm(ascent), 1e-6))
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


def _log_variation(seen: Neighbourhood, count: int) -> Float[Array, ""]:
    """Return the logarithm of the standard deviation of the nearest values."""
    there, values = seen.mask[-count:], seen.values[-count:]
    number = jnp.maximum(jnp.sum(there), 1).astype(values.dtype)
    mean = jnp.sum(jnp.where(there, values, 0)) / number
    return jnp.log(jnp.sum(jnp.where(there, (values - mean) ** 2, 0)) / number + 1e-6) / 2
