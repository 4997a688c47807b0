"""Mixtures of normal distributions of one value: what a prediction is where two things may be true."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray


class Mixture(eqx.Module):
    """One value, or a stack of them each by itself, with components along the last axis.

    Example:
        >>> import jax.numpy as jnp
        >>> coin = Mixture(jnp.log(jnp.array([0.5, 0.5])), jnp.array([-1.0, 1.0]), jnp.array([0.01, 0.01]))
        >>> round(float(coin.mean), 3), round(float(coin.variance), 3)
        (0.0, 1.01)
    """

    log_weight: Float[Array, "*n k"]
    """Normalised."""
    means: Float[Array, "*n k"]
    variances: Float[Array, "*n k"]

    def log_prob(self, values: Float[Array, "*n"]) -> Float[Array, "*n"]:
        """Log-density of each value by itself."""
        square = (values[..., None] - self.means) ** 2 / self.variances
        each = self.log_weight - 0.5 * (jnp.log(2 * jnp.pi * self.variances) + square)
        return jax.nn.logsumexp(each, axis=-1)

    def cdf(self, values: Float[Array, "*n"]) -> Float[Array, "*n"]:
        """Probability that each is at most the given value."""
        below = jax.scipy.stats.norm.cdf((values[..., None] - self.means) / jnp.sqrt(self.variances))
        return jnp.sum(jnp.exp(self.log_weight) * below, axis=-1)

    @property
    def mean(self) -> Float[Array, "*n"]:
        """Mean of the mixture."""
        return jnp.sum(jnp.exp(self.log_weight) * self.means, axis=-1)

    @property
    def variance(self) -> Float[Array, "*n"]:
        """Variance of the mixture: that of its components and that between them."""
        between = (self.means - self.mean[..., None]) ** 2
        return jnp.sum(jnp.exp(self.log_weight) * (self.variances + between), axis=-1)

    def sample(self, key: PRNGKeyArray) -> Float[Array, "*n"]:
        """Draw each value by itself."""
        which, normal = jax.random.split(key)
        chosen = jax.random.categorical(which, self.log_weight)[..., None]
        mean, variance = (jnp.take_along_axis(a, chosen, axis=-1)[..., 0] for a in (self.means, self.variances))
        return mean + jnp.sqrt(variance) * jax.random.normal(normal, mean.shape)
