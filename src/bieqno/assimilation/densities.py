"""Observation laws that are not Gaussian: positive quantities, values below a detection limit, outliers; see also `counts`.

The particle filter weighs members by ``log_prob``. Filters that assume Gaussian errors see mean and variance at the members'
predictions (`Observed.gaussian`), which is an approximation, and refuse to ask such a law for a covariance.
"""

import abc
import math
from typing import Any, ClassVar, NoReturn

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import betainc, log_ndtr, ndtr
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from bieqno.assimilation.laws import HALF_LOG_2_PI, AbstractLaw, Mask, Predicted, Rows, Values

Number = float | Float[Array, ""] | Float[Array, "m"]
TINY = 1e-6  # least mean of a count: a density of zero for all members decides nothing
SMALLEST = 1e-30  # least positive prediction, far below any quantity in any units
LEAST = -1e4  # least log density of a value: one that is impossible for all members leaves the others their say


def check_positive(**numbers: Any) -> None:
    """Refuse parameters that are not positive and finite, where they have values."""
    for name, number in numbers.items():
        if not isinstance(number, jax.core.Tracer) and not np.all((np.asarray(number) > 0) & np.isfinite(number)):
            raise ValueError(f"a {name} is positive and finite, got {name}={number}")


class AbstractDensity(AbstractLaw):
    """A law of independent values, each distributed about its own prediction; all methods work on arrays of any shape.

    Example:
        >>> from bieqno.assimilation import Observation, Poisson
        >>> observed = Observation([0], Poisson()).window(jnp.array([3.0]))
        >>> observed.log_prob(jnp.array([[3.0], [1.0]])).round(2).tolist()
        [-1.5, -2.7899999618530273]
    """

    counts: ClassVar[bool] = False  # whether values are whole numbers

    @abc.abstractmethod
    def log_prob(self, value: Float[Array, "..."], predicted: Float[Array, "..."]) -> Float[Array, "..."]:
        """Return the log density, or the log probability of a count."""

    @abc.abstractmethod
    def sample(self, predicted: Float[Array, "*s"], *, key: PRNGKeyArray) -> Float[Array, "*s"]:
        """Draw a value for each prediction."""

    @abc.abstractmethod
    def cdf(self, value: Float[Array, "..."], predicted: Float[Array, "..."]) -> Float[Array, "..."]:
        """Return the probability of a value that is not larger."""

    @abc.abstractmethod
    def variance(self, predicted: Float[Array, "*s"]) -> Float[Array, "*s"]:
        """Return the variance at each prediction."""

    def mean(self, predicted: Float[Array, "*s"]) -> Float[Array, "*s"]:
        """Return the mean at each prediction: the prediction itself, unless a law says otherwise."""
        return predicted

    def std(self, reference: Values) -> Values:
        """Return the standard deviation."""
        return jnp.sqrt(self.variance(reference))

    def moments(self, predicted: Predicted) -> tuple[Predicted, Predicted]:
        """Return mean and variance."""
        return self.mean(predicted), self.variance(predicted)

    def draw(self, predicted: Predicted, *, key: PRNGKeyArray) -> Predicted:
        """Draw values."""
        return self.sample(predicted, key=key).astype(predicted.dtype)

    def log_likelihood(self, value: Values, predicted: Predicted, reference: Values, mask: Mask) -> Float[Array, "N"]:
        """Sum over the values."""
        each = jnp.maximum(self.log_prob(jnp.where(mask, value, 1), predicted), LEAST)
        return jnp.sum(jnp.where(mask, each, 0), axis=1)

    def log_constant(self, reference: Values, mask: Mask) -> Float[Array, ""]:
        """Nothing was left out."""
        return jnp.zeros((), reference.dtype)

    def below(self, value: Values, predicted: Predicted, reference: Values) -> tuple[Predicted, Predicted]:
        """Return the distribution function, for counts also at the next smaller one."""
        upto = self.cdf(value, predicted)
        return (jnp.where(value > 0, self.cdf(value - 1, predicted), 0), upto) if self.counts else (upto, upto)

    def impossible(self, value: Float[Array, "..."]) -> Bool[Array, "..."]:
        """Return where a count is negative."""
        return value < 0 if self.counts else super().impossible(value)

    def _refuse(self) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__} has no error covariance; a filter that assumes Gaussian errors takes "
            "observed.gaussian(ensemble), and one that uses the law itself observed.log_weights(ensemble)"
        )

    def whiten(self, rows: Rows, reference: Values, mask: Mask) -> Rows:
        """Refuse."""
        self._refuse()

    def colour(self, noise: Rows, reference: Values) -> Rows:
        """Refuse."""
        self._refuse()

    def floored(self, floor: float) -> AbstractLaw:
        """Refuse."""
        self._refuse()


class LogNormal(AbstractDensity):
    """Positive values with the predicted median; `deviation` is the standard deviation of their logarithm."""

    deviation: Number

    def __check_init__(self) -> None:
        check_positive(deviation=self.deviation)

    def _scaled(self, value: Float[Array, "..."], predicted: Float[Array, "..."]) -> Float[Array, "..."]:
        ratio = jnp.maximum(value, 0) / jnp.maximum(predicted, SMALLEST)
        return jnp.log(ratio) / jnp.asarray(self.deviation, value.dtype)

    def log_prob(self, value: Float[Array, "..."], predicted: Float[Array, "..."]) -> Float[Array, "..."]:
        """Return the log density; the least of all where a value is not positive."""
        positive = value > 0
        safe = jnp.where(positive, value, 1)
        density = -0.5 * self._scaled(safe, predicted) ** 2 - HALF_LOG_2_PI
        density = density - jnp.log(safe * jnp.asarray(self.deviation))
        return jnp.where(positive, density, LEAST)

    def impossible(self, value: Float[Array, "..."]) -> Bool[Array, "..."]:
        """Return where a value is not positive."""
        return value <= 0

    def sample(self, predicted: Float[Array, "*s"], *, key: PRNGKeyArray) -> Float[Array, "*s"]:
        """Draw values."""
        noise = jax.random.normal(key, predicted.shape, predicted.dtype)
        return jnp.maximum(predicted, SMALLEST) * jnp.exp(jnp.asarray(self.deviation, predicted.dtype) * noise)

    def cdf(self, value: Float[Array, "..."], predicted: Float[Array, "..."]) -> Float[Array, "..."]:
        """Return the normal distribution function of the logarithm."""
        return ndtr(self._scaled(value, predicted))

    def mean(self, predicted: Float[Array, "*s"]) -> Float[Array, "*s"]:
        """Return the mean, which is larger than the median."""
        return jnp.maximum(predicted, SMALLEST) * jnp.exp(0.5 * jnp.asarray(self.deviation, predicted.dtype) ** 2)

    def variance(self, predicted: Float[Array, "*s"]) -> Float[Array, "*s"]:
        """Return the variance."""
        return self.mean(predicted) ** 2 * jnp.expm1(jnp.asarray(self.deviation, predicted.dtype) ** 2)


class StudentT(AbstractDensity):
    """Values with outliers: Student's distribution about the prediction, with a scale and more than two degrees of freedom."""

    scale: Number
    freedom: float = eqx.field(static=True, default=4.0)

    def __check_init__(self) -> None:
        check_positive(scale=self.scale)
        if not self.freedom > 2:
            raise ValueError(f"a variance needs more than two degrees of freedom, got freedom={self.freedom}")

    def log_prob(self, value: Float[Array, "..."], predicted: Float[Array, "..."]) -> Float[Array, "..."]:
        """Return the log density."""
        v, scale = self.freedom, jnp.asarray(self.scale, predicted.dtype)
        constant = math.lgamma((v + 1) / 2) - math.lgamma(v / 2) - 0.5 * math.log(v * math.pi)
        return constant - jnp.log(scale) - (v + 1) / 2 * jnp.log1p(((value - predicted) / scale) ** 2 / v)

    def sample(self, predicted: Float[Array, "*s"], *, key: PRNGKeyArray) -> Float[Array, "*s"]:
        """Draw values."""
        noise = jax.random.t(key, self.freedom, predicted.shape, predicted.dtype)
        return predicted + jnp.asarray(self.scale, predicted.dtype) * noise

    def cdf(self, value: Float[Array, "..."], predicted: Float[Array, "..."]) -> Float[Array, "..."]:
        """Return Student's distribution function."""
        t = (value - predicted) / jnp.asarray(self.scale, predicted.dtype)
        v = jnp.asarray(self.freedom, predicted.dtype)
        tail = 0.5 * betainc(v / 2, jnp.asarray(0.5, v.dtype), v / (v + t**2))
        return jnp.where(t > 0, 1 - tail, tail)

    def variance(self, predicted: Float[Array, "*s"]) -> Float[Array, "*s"]:
        """Return the variance, the same at all predictions."""
        variance = jnp.asarray(self.scale, predicted.dtype) ** 2 * (self.freedom / (self.freedom - 2))
        return jnp.broadcast_to(variance, predicted.shape)


class Censored(AbstractDensity):
    """Values with normal errors above a detection limit; what is below is recorded as the limit."""

    deviation: Number
    limit: Number

    def __check_init__(self) -> None:
        check_positive(deviation=self.deviation)
        if not isinstance(self.limit, jax.core.Tracer) and not np.all(np.isfinite(self.limit)):
            raise ValueError(f"a detection limit is finite, got limit={self.limit}")

    def _parts(self, predicted: Float[Array, "*s"]) -> tuple[Array, Array, Array]:
        """Return the deviation, the limit and its distance from the prediction in units of the deviation."""
        deviation, limit = (jnp.asarray(x, predicted.dtype) for x in (self.deviation, self.limit))
        return deviation, limit, (limit - predicted) / deviation

    def log_prob(self, value: Float[Array, "..."], predicted: Float[Array, "..."]) -> Float[Array, "..."]:
        """Return the log density above the limit, the log probability of being below it elsewhere."""
        deviation, limit, at_limit = self._parts(predicted)
        density = -0.5 * ((value - predicted) / deviation) ** 2 - jnp.log(deviation) - HALF_LOG_2_PI
        return jnp.where(value > limit, density, log_ndtr(at_limit))

    def sample(self, predicted: Float[Array, "*s"], *, key: PRNGKeyArray) -> Float[Array, "*s"]:
        """Draw values."""
        deviation, limit, _ = self._parts(predicted)
        return jnp.maximum(predicted + deviation * jax.random.normal(key, predicted.shape, predicted.dtype), limit)

    def cdf(self, value: Float[Array, "..."], predicted: Float[Array, "..."]) -> Float[Array, "..."]:
        """Return the normal distribution function."""
        deviation, limit, _ = self._parts(predicted)
        return ndtr((jnp.maximum(value, limit) - predicted) / deviation)

    def below(self, value: Values, predicted: Predicted, reference: Values) -> tuple[Predicted, Predicted]:
        """Return the distribution function; nothing is smaller than the limit."""
        upto = self.cdf(value, predicted)
        return jnp.where(value > jnp.asarray(self.limit), upto, 0), upto

    def mean(self, predicted: Float[Array, "*s"]) -> Float[Array, "*s"]:
        """Return the mean of what is recorded."""
        deviation, limit, at = self._parts(predicted)
        return limit + deviation * (_density(at) - at * ndtr(-at))

    def variance(self, predicted: Float[Array, "*s"]) -> Float[Array, "*s"]:
        """Return the variance of what is recorded; not less than a thousandth of the errors'."""
        deviation, _, at = self._parts(predicted)
        # E[x^2] - E[x]^2 of what is above the limit, arranged so that far above it nothing is lost to rounding.
        above, below, density = ndtr(-at), ndtr(at), _density(at)
        variance = above + at * density * (1 - 2 * below) + at**2 * above * below - density**2
        return deviation**2 * jnp.maximum(variance, 1e-3)


def log_between(low: Float[Array, "*s"], high: Float[Array, "*s"], least: float) -> Float[Array, "*s"]:
    """Return the log probability of a standard normal number between two; `least` keeps their difference from zero."""
    # In the lower tail, by symmetry: differences of probabilities near one would lose their digits.
    upper = low > 0
    more = log_ndtr(jnp.where(upper, -low, high))
    less = log_ndtr(jnp.where(upper, -high, low))
    return more + jnp.log(-jnp.expm1(jnp.minimum(less - more, -least)))


def _density(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return the standard normal density."""
    return jnp.exp(-0.5 * x**2 - HALF_LOG_2_PI)
