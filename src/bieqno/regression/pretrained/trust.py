"""How far the network is trusted beside the experts that it corrects: as far as observations that were left out tell.

What was learned from many functions is wrong about some. Each observation is predicted from the others with the correction and
without it; where it does harm to the observations round a point, the experts alone predict there. The two are models whose
odds are those of the predicted values, times those that the network has beforehand.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

_LOG_ODDS = 2.0
"""Of the correction, before anything is known: seven to one, for it was trained to be the better one."""
MOST_GAIN = 3.0
"""No observation alone counts for more: next to a jump that nothing announced, densities differ without bound."""


class Moments(NamedTuple):
    """Means and variances."""

    mean: Float[Array, "*n"]
    variance: Float[Array, "*n"]


class Compared(NamedTuple):
    """Predictions with the correction, and by the experts alone."""

    corrected: Moments
    plain: Moments

    def at_least(self, noise: Float[Array, ""] | None) -> "Compared":
        """With variances that are nowhere below that of a known noise."""
        return self if noise is None else Compared(*(Moments(m, jnp.maximum(v, noise**2)) for m, v in self))


def gains(values: Float[Array, "n"], found: Compared) -> Float[Array, "n"]:
    """By how much the logarithm of the predicted density of each value rises by the correction.

    Example:
        >>> found = Compared(Moments(jnp.zeros(2), jnp.full(2, 0.1)), Moments(jnp.zeros(2), jnp.ones(2)))
        >>> gains(jnp.array([0.1, 2.0]), found).round(2).tolist()
        [1.1100000143051147, -3.0]
    """

    def log_density(found: Moments) -> Array:
        return -0.5 * (jnp.log(found.variance) + (values - found.mean) ** 2 / found.variance)

    return jnp.clip(log_density(found.corrected) - log_density(found.plain), -MOST_GAIN, MOST_GAIN)


def trust(gain: Float[Array, "m"], rows: Int[Array, "*s k"]) -> Float[Array, "*s"]:
    """The probability of the correction among observations.

    Args:
        gain: of each observation.
        rows: of the observations that count, -1 where there are no more.

    Example:
        >>> trust(jnp.array([1.0, -5.0, 0.0]), jnp.array([[0, 1], [2, -1]])).round(2).tolist()
        [0.11999999731779099, 0.8799999952316284]
    """
    return jax.nn.sigmoid(_LOG_ODDS + jnp.sum(jnp.where(rows >= 0, gain[rows], 0), axis=-1))


def blend(share: Float[Array, "*n"], found: Compared) -> Moments:
    """Mean and variance of the mixture of both, of which the corrected one has this share.

    Example:
        >>> two = Compared(Moments(jnp.array(1.0), jnp.array(2.0)), Moments(jnp.array(3.0), jnp.array(2.0)))
        >>> [x.item() for x in blend(jnp.array(0.5), two)]
        [2.0, 3.0]
    """
    corrected, plain = found
    mean = share * corrected.mean + (1 - share) * plain.mean
    apart = share * (1 - share) * (corrected.mean - plain.mean) ** 2
    return Moments(mean, share * corrected.variance + (1 - share) * plain.variance + apart)
