"""Random counts and gamma noise for stochastic models: fast inside compiled loops, since no draw waits for another.

JAX's own binomial and gamma numbers repeat until every one of an array is accepted. Here a count is a quantile at a uniform
number: by summing probabilities where few events are expected, else by the expansion of Cornish and Fisher, whose error is then
a few hundredths of one event. A whole number has no derivative; here it has that of the number that was rounded, so that filters
can be trained through a model that counts.
"""

import jax
import jax.numpy as jnp
from jax.scipy.special import ndtri
from jaxtyping import Array, Float

FEW, TERMS = 7.0, 26  # events up to which probabilities are summed, and how many of them
TRIES = 4  # proposals of a gamma number, of which one in twenty is refused at worst
LEVELS = 2 * TRIES + 1  # uniform numbers for each gamma number


@jax.custom_jvp
def rounded_down(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return the whole number below, with the derivative of the number itself.

    Example:
        >>> rounded_down(jnp.array(2.7)).item(), jax.grad(rounded_down)(jnp.array(2.7)).item()
        (2.0, 1.0)
    """
    return jnp.floor(x)


@rounded_down.defjvp
def _rounded_down_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    return jnp.floor(primals[0]), tangents[0]


def binomial(level: Float[Array, "..."], count: Float[Array, "..."], share: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return how many of a number take part, each with the same probability: the quantile at a uniform level.

    Example:
        >>> level = jax.random.uniform(jax.random.key(0), (20000,))
        >>> drawn = binomial(level, jnp.array(10.0), jnp.array(0.3))
        >>> round(float(drawn.mean()), 1), round(float(drawn.var()), 1)
        (3.0, 2.1)
    """
    rare = jnp.minimum(share, 1 - share)
    found = jnp.clip(_quantile(level, count * rare, rare), 0, count)
    return jnp.where(share > 0.5, count - found, found)


def poisson(level: Float[Array, "..."], mean: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return how many rare events there are: the quantile at a uniform level.

    Example:
        >>> poisson(jnp.array([0.1, 0.5, 0.999]), jnp.array(4.0)).tolist()
        [2.0, 4.0, 11.0]
    """
    return jnp.maximum(_quantile(level, mean, jnp.zeros_like(mean)), 0)


def _quantile(level: Float[Array, "..."], mean: Float[Array, "..."], share: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return the quantile of a binomial number with at most half the probability of one, or with none a Poisson number."""
    rest = 1 - share
    few = jnp.minimum(mean, FEW)
    each = jnp.where(share > 1e-6, jnp.log1p(-share) / jnp.where(share > 1e-6, -share, -1), 1)
    first = jnp.exp(-few * each)

    # Written out, all terms are one fused loop over the numbers: far faster than a loop of short steps.
    summed, probability, upto = jnp.zeros_like(level * few), first, first
    for k in range(TERMS):
        summed = summed + (level > upto)
        probability = probability * jnp.maximum(few - k * share, 0) / ((k + 1) * rest)
        upto = upto + probability
    deviation = jnp.sqrt(jnp.maximum(mean, FEW) * rest)
    skew, excess = (rest - share) / deviation, (1 - 6 * share * rest) / deviation**2
    z = ndtri(level)
    w = z + skew * (z**2 - 1) / 6 + excess * (z**3 - 3 * z) / 24 - skew**2 * (2 * z**3 - 5 * z) / 36
    # One more event that is expected is, on average, one more.
    summed = jax.lax.stop_gradient(summed) + (few - jax.lax.stop_gradient(few))
    return jnp.where(mean < FEW, summed, rounded_down(mean + deviation * w + 0.5))


def gamma_noise(levels: Float[Array, "9 *s"], shape: Float[Array, ""] | float) -> Float[Array, "*s"]:
    """Return numbers of mean 1 and variance ``1 / shape``, each from nine uniform numbers.

    The method of Marsaglia and Tsang (2000), with a fixed number of proposals.

    Example:
        >>> noise = gamma_noise(jax.random.uniform(jax.random.key(0), (LEVELS, 20000), minval=1e-7), 0.4)
        >>> round(float(noise.mean()), 1), round(float(noise.var()), 1)
        (1.0, 2.5)
    """
    a = jnp.asarray(shape, levels.dtype)
    d = jnp.where(a < 1, a + 1, a) - 1 / 3
    x, level = ndtri(levels[:TRIES]), jnp.log(levels[TRIES : 2 * TRIES])
    v = (1 + x / jnp.sqrt(9 * d)) ** 3
    accepted = (v > 0) & (level < 0.5 * x**2 + d * (1 - v + jnp.log(jnp.maximum(v, 1e-30))))
    drawn = jnp.ones_like(v[0])
    for number in reversed(range(TRIES)):  # the first that is accepted
        drawn = jnp.where(accepted[number], v[number], drawn)
    return d * drawn * jnp.where(a < 1, levels[-1] ** (1 / a), 1) / a
