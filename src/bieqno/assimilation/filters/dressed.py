"""Predictive laws of few members: normal distributions in other coordinates of the values, for counts and for measurements.

The mixture of the laws at the members' predictions is a coarse density where members are few, and gives nothing to what none of
them predicts. A `Dressed` filter is scored by a smooth law with the same moments instead, where that is better.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.special import log_ndtr, logsumexp, ndtri
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from bieqno.assimilation.densities import AbstractDensity, Censored, log_between
from bieqno.assimilation.filters.transformed import PAIRS, SeenLaw
from bieqno.assimilation.laws import HALF_LOG_2_PI, Predicted, Values
from bieqno.assimilation.observation import Observed
from bieqno.assimilation.protocols import Filter, refuse_memory


class TransformedNormals(AbstractDensity):
    """Values whose transforms are a mixture of normal distributions; `predicted` is not used.

    A count is the probability between its two neighbouring halves, zero of all below one half.

    Example:
        >>> one = jnp.ones((1, 1))
        >>> law = TransformedNormals(0 * one, one, one, "sqrt", True)
        >>> counts = jnp.arange(40.0)[:, None]
        >>> jnp.exp(law.log_prob(counts, counts)).sum().round(4).item()
        1.0
    """

    log_weight: Float[Array, "k m"]
    centre: Float[Array, "k m"]
    spread: Float[Array, "k m"]
    seen: str = eqx.field(static=True)
    whole: bool = eqx.field(static=True)  # whether values are counts

    def _at(self, value: Float[Array, "..."]) -> Float[Array, "k ..."]:
        """Return the distance from each centre in units of its spread."""
        transformed = PAIRS[self.seen][0](value)
        shape = (len(self.centre), *[1] * (transformed.ndim - 1), self.centre.shape[1])
        return (transformed - self.centre.reshape(shape)) / self.spread.reshape(shape)

    def _mixed(self, parts: Float[Array, "k ..."]) -> Float[Array, "..."]:
        """Return the logarithm of the weighted sum."""
        shape = (len(self.centre), *[1] * (parts.ndim - 2), self.centre.shape[1])
        return logsumexp(parts + self.log_weight.reshape(shape), axis=0)

    def log_prob(self, value: Float[Array, "..."], predicted: Float[Array, "..."]) -> Float[Array, "..."]:
        """Return the log density, or the log probability of a count."""
        value = jnp.broadcast_to(value, jnp.broadcast_shapes(value.shape, predicted.shape))
        if not self.whole:
            slope = jax.vmap(jax.grad(PAIRS[self.seen][0]))(value.ravel()).reshape(value.shape)
            spread = self.spread.reshape(len(self.spread), *[1] * (value.ndim - 1), -1)
            each = -0.5 * self._at(value) ** 2 - HALF_LOG_2_PI - jnp.log(spread)
            return self._mixed(each) + jnp.log(slope)
        high, low = self._at(value + 0.5), self._at(jnp.maximum(value - 0.5, 0))
        return self._mixed(jnp.where(value > 0, log_between(low, high, 1e-6), log_ndtr(high)))

    def cdf(self, value: Float[Array, "..."], predicted: Float[Array, "..."]) -> Float[Array, "..."]:
        """Return the probability of a value that is not larger."""
        value = jnp.broadcast_to(value, jnp.broadcast_shapes(value.shape, predicted.shape))
        edge = jnp.floor(value) + 0.5 if self.whole else value
        upto = jnp.exp(self._mixed(log_ndtr(self._at(edge))))
        return jnp.where(value >= 0, upto, 0) if self.whole else upto

    def below(self, value: Values, predicted: Predicted, reference: Values) -> tuple[Predicted, Predicted]:
        """Return the distribution function, for counts also at the next smaller one."""
        upto = self.cdf(value, predicted)
        return (jnp.where(value > 0, self.cdf(value - 1, predicted), 0), upto) if self.whole else (upto, upto)

    def sample(self, predicted: Float[Array, "*s"], *, key: PRNGKeyArray) -> Float[Array, "*s"]:
        """Draw values."""
        which_key, noise_key = jax.random.split(key)
        noise = jax.random.normal(noise_key, predicted.shape, predicted.dtype)
        chosen = jax.random.categorical(which_key, self.log_weight, axis=0, shape=predicted.shape)
        columns = jnp.arange(self.centre.shape[1])
        drawn = PAIRS[self.seen][1](self.centre[chosen, columns] + self.spread[chosen, columns] * noise)
        return jnp.round(drawn) if self.whole else drawn

    def mean(self, predicted: Float[Array, "*s"]) -> Float[Array, "*s"]:
        """Return the mean, by quadrature."""
        return jnp.broadcast_to(self._quadrature()[0], predicted.shape)

    def variance(self, predicted: Float[Array, "*s"]) -> Float[Array, "*s"]:
        """Return the variance, by quadrature."""
        return jnp.broadcast_to(self._quadrature()[1], predicted.shape)

    def _quadrature(self) -> tuple[Float[Array, "m"], Float[Array, "m"]]:
        """Return mean and variance from quantiles of every component."""
        levels = (jnp.arange(32, dtype=self.centre.dtype) + 0.5) / 32
        nodes = ndtri(levels)[:, None, None]
        values = PAIRS[self.seen][1](self.centre + self.spread * nodes)
        weights = jnp.exp(self.log_weight) / 32
        mean = jnp.sum(weights * values, axis=(0, 1))
        return mean, jnp.sum(weights * (values - mean) ** 2, axis=(0, 1))


class Dressed(eqx.Module):
    """Any filter, scored by the moments of its forecast and of the law where `moments` is 1, by their mixture where it is 0.

    The moments are those of values in the coordinates `seen`, in which they are taken to be normal.

    Example:
        >>> from bieqno.assimilation import ETKF, KeepScores, Observation, Poisson
        >>> observed = Observation([0], Poisson()).window(jnp.array([9.0]))
        >>> prior = jnp.array([[3.0], [5.0]])
        >>> record = KeepScores(Dressed(ETKF(), "sqrt"))
        >>> round(float(record(prior, prior, observed, key=jax.random.key(0))["log_score"]), 1)
        -3.8
    """

    filter: Filter
    seen: str = eqx.field(static=True)
    moments: float | Float[Array, ""] = 1.0

    def __check_init__(self) -> None:
        refuse_memory(self.filter, "Dressed")

    def __call__(self, ensemble: Float[Array, "N n"], observed: Observed, *, key: PRNGKeyArray) -> Float[Array, "N n"]:
        """Analyse as the filter does."""
        return self.filter(ensemble, observed, key=key)

    def predictive(self, prior: Float[Array, "N n"], observed: Observed) -> tuple[Float[Array, "N m"], AbstractDensity]:
        """Return the members' predictions, and the law that was chosen."""
        # A value at a detection limit has a probability, which the density of a smooth law cannot be compared with.
        if not isinstance(observed.error, AbstractDensity) or isinstance(observed.error, Censored):
            raise TypeError(
                f"a law with a density everywhere can be dressed, such as Poisson(), got {type(observed.error).__name__}"
            )
        predicted = observed.predict(prior)
        h, variance = SeenLaw(observed.error, self.seen).moments(predicted)
        spread = jnp.sqrt(jnp.var(h, axis=0) + jnp.mean(variance, axis=0))
        centre = jnp.mean(h, axis=0)
        parts = {"log_weight": jnp.zeros_like(centre)[None], "centre": centre[None], "spread": spread[None]}
        smooth = TransformedNormals(**parts, seen=self.seen, whole=observed.error.counts)
        return predicted, _Either(observed.error, smooth, jnp.asarray(self.moments, float) > 0.5)


class _Either(AbstractDensity):
    """The one or the other of two laws."""

    law: AbstractDensity
    smooth: TransformedNormals
    chosen: Bool[Array, ""]

    def log_prob(self, value: Float[Array, "..."], predicted: Float[Array, "..."]) -> Float[Array, "..."]:
        return jnp.where(self.chosen, self.smooth.log_prob(value, predicted), self.law.log_prob(value, predicted))

    def sample(self, predicted: Float[Array, "*s"], *, key: PRNGKeyArray) -> Float[Array, "*s"]:
        return jnp.where(self.chosen, self.smooth.sample(predicted, key=key), self.law.sample(predicted, key=key))

    def cdf(self, value: Float[Array, "..."], predicted: Float[Array, "..."]) -> Float[Array, "..."]:
        return jnp.where(self.chosen, self.smooth.cdf(value, predicted), self.law.cdf(value, predicted))

    def below(self, value: Values, predicted: Predicted, reference: Values) -> tuple[Predicted, Predicted]:
        both = (law.below(value, predicted, reference) for law in (self.smooth, self.law))
        low, upto = (jnp.where(self.chosen, a, b) for a, b in zip(*both, strict=True))
        return low, upto

    def mean(self, predicted: Float[Array, "*s"]) -> Float[Array, "*s"]:
        return jnp.where(self.chosen, self.smooth.mean(predicted), self.law.mean(predicted))

    def variance(self, predicted: Float[Array, "*s"]) -> Float[Array, "*s"]:
        return jnp.where(self.chosen, self.smooth.variance(predicted), self.law.variance(predicted))
