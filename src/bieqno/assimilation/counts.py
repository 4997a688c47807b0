"""Observation laws of counts: Poisson, negative binomial, and rounded numbers with over-dispersion."""

import math
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.special import betainc, gammaincc, gammaln, log_ndtr, ndtr
from jaxtyping import Array, Float, PRNGKeyArray

from bieqno.assimilation.densities import TINY, AbstractDensity, Number, check_positive, log_between

LARGE = 100.0  # size of a negative binomial from which Stirling's series is exact to rounding


class Poisson(AbstractDensity):
    """Counts with the predicted mean."""

    counts: ClassVar[bool] = True

    def log_prob(self, value: Float[Array, "..."], predicted: Float[Array, "..."]) -> Float[Array, "..."]:
        """Return the log probability of a count."""
        rate = jnp.maximum(predicted, TINY)
        return value * jnp.log(rate) - rate - gammaln(value + 1)

    def sample(self, predicted: Float[Array, "*s"], *, key: PRNGKeyArray) -> Float[Array, "*s"]:
        """Draw counts."""
        return jax.random.poisson(key, jnp.maximum(predicted, TINY)).astype(predicted.dtype)

    def cdf(self, value: Float[Array, "..."], predicted: Float[Array, "..."]) -> Float[Array, "..."]:
        """Return the regularised incomplete gamma function."""
        return gammaincc(jnp.floor(jnp.maximum(value, 0)) + 1, jnp.maximum(predicted, TINY))

    def variance(self, predicted: Float[Array, "*s"]) -> Float[Array, "*s"]:
        """Return the mean."""
        return jnp.maximum(predicted, TINY)


class NegativeBinomial(AbstractDensity):
    """Counts with the predicted mean m and a variance of ``m + m^2 / size``: a small size is a large dispersion."""

    size: Number
    counts: ClassVar[bool] = True

    def __check_init__(self) -> None:
        check_positive(size=self.size)

    def log_prob(self, value: Float[Array, "..."], predicted: Float[Array, "..."]) -> Float[Array, "..."]:
        """Return the log probability of a count."""
        m, k = jnp.maximum(predicted, TINY), jnp.asarray(self.size, predicted.dtype)
        # By Stirling where the size is large: a difference of large logarithms would lose its digits.
        large = jnp.maximum(k, LARGE)
        steps = value * jnp.log(large) + (large + value - 0.5) * jnp.log1p(value / large) - value
        steps = steps - value / (12 * large * (large + value))
        rising = jnp.where(k > LARGE, steps, gammaln(value + k) - gammaln(k))
        return rising - gammaln(value + 1) - k * jnp.log1p(m / k) - value * jnp.log1p(k / m)

    def sample(self, predicted: Float[Array, "*s"], *, key: PRNGKeyArray) -> Float[Array, "*s"]:
        """Draw a rate of the gamma distribution, and a count of that rate."""
        rate_key, count_key = jax.random.split(key)
        k = jnp.broadcast_to(jnp.asarray(self.size, predicted.dtype), predicted.shape)
        rate = jax.random.gamma(rate_key, k, predicted.shape, predicted.dtype) * jnp.maximum(predicted, TINY) / k
        return jax.random.poisson(count_key, rate).astype(predicted.dtype)

    def cdf(self, value: Float[Array, "..."], predicted: Float[Array, "..."]) -> Float[Array, "..."]:
        """Return the regularised incomplete beta function."""
        m, k = jnp.maximum(predicted, TINY), jnp.asarray(self.size, predicted.dtype)
        return betainc(k, jnp.floor(jnp.maximum(value, 0)) + 1, k / (k + m))

    def variance(self, predicted: Float[Array, "*s"]) -> Float[Array, "*s"]:
        """Return the variance."""
        m = jnp.maximum(predicted, TINY)
        return m + m**2 / jnp.asarray(self.size, predicted.dtype)


class RoundedCounts(AbstractDensity):
    """Reported cases: a normal number, rounded and not negative (He, Ionides and King 2010).

    Where m cases are predicted to be reported, a `share` of all, their variance is ``m (1 - share) + (dispersion m)^2``. The
    probability of any count is at least `least`, so that one week does not decide everything.
    """

    share: Number
    dispersion: Number
    least: float = eqx.field(static=True, default=1e-18)
    counts: ClassVar[bool] = True

    def __check_init__(self) -> None:
        check_positive(share=self.share, dispersion=self.dispersion)

    def _scaled(self, value: Float[Array, "..."], predicted: Float[Array, "..."]) -> Float[Array, "..."]:
        m = jnp.maximum(predicted, 0)
        variance = m * (1 - jnp.asarray(self.share)) + (jnp.asarray(self.dispersion) * m) ** 2
        return (value - m) / jnp.sqrt(jnp.maximum(variance, TINY**2)).astype(m.dtype)

    def log_prob(self, value: Float[Array, "..."], predicted: Float[Array, "..."]) -> Float[Array, "..."]:
        """Return the log probability of a count."""
        high, low = self._scaled(value + 0.5, predicted), self._scaled(value - 0.5, predicted)
        between = jnp.where(value > 0, log_between(low, high, 1e-12), log_ndtr(high))
        return jnp.logaddexp(between, math.log(self.least))

    def sample(self, predicted: Float[Array, "*s"], *, key: PRNGKeyArray) -> Float[Array, "*s"]:
        """Draw counts."""
        noise = jax.random.normal(key, predicted.shape, predicted.dtype)
        return jnp.round(jnp.maximum(predicted + noise * jnp.sqrt(self.variance(predicted) - 1 / 12), 0))

    def cdf(self, value: Float[Array, "..."], predicted: Float[Array, "..."]) -> Float[Array, "..."]:
        """Return the probability of a count that is not larger."""
        return jnp.where(value >= 0, ndtr(self._scaled(jnp.floor(value) + 0.5, predicted)), 0)

    def variance(self, predicted: Float[Array, "*s"]) -> Float[Array, "*s"]:
        """Return the variance, with that of rounding."""
        m = jnp.maximum(predicted, 0)
        return (m * (1 - jnp.asarray(self.share)) + (jnp.asarray(self.dispersion) * m) ** 2).astype(m.dtype) + 1 / 12
