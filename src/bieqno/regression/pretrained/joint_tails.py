"""A joint distribution whose values have heavier tails than normal ones: each is the hyperbolic sine of one of a joint Gaussian.

Of values ``m + s sinh(z)`` with jointly Gaussian z all first and second moments are in closed form, as ``2 sinh(a) sinh(b) =
cosh(a + b) - cosh(a - b)`` and ``E exp(z) = exp(E z + Var z / 2)``. Marginals, and other values given some of them, have the same
form. A value far out counts for less than under a normal law: its logarithm tells about the others.
"""

from typing import Any

import numpy as np
from jaxtyping import Float, PRNGKeyArray

from bieqno.gaussian import AbstractGaussian
from bieqno.regression.pretrained.joint import Block, ChainGaussian
from bieqno.regression.tails import scale


class TailedGaussian(AbstractGaussian):
    """The distribution of ``centre + unit * sinh(z)`` for the z of a joint Gaussian.

    Example:
        >>> chain = ChainGaussian.dense(np.zeros(2), np.array([[1.0, 0.5], [0.5, 1.0]]))
        >>> pair = TailedGaussian.of(np.zeros(2), np.ones(2), chain.blocks, 0.9)
        >>> pair.covariance().round(2).tolist()
        [[1.0, 0.46], [0.46, 1.0]]
        >>> [round(float(pair.condition(np.array([0]), np.array([y])).mean[0]), 2) for y in (1.0, 10.0)]
        [0.58, 2.45]
    """

    gaussian: ChainGaussian
    centre: Float[np.ndarray, "n"]
    unit: Float[np.ndarray, "n"]
    mean: Float[np.ndarray, "n"]
    deviation: Float[np.ndarray, "n"]

    def __init__(self, gaussian: ChainGaussian, centre: Float[np.ndarray, "n"], unit: Float[np.ndarray, "n"]) -> None:
        self.gaussian, self.centre, self.unit = gaussian, centre, unit
        m, v = gaussian.mean, gaussian.variance
        self.mean = centre + unit * np.exp(v / 2) * np.sinh(m)
        self.deviation = unit * np.sqrt(np.exp(v) / 2 * (np.cosh(2 * m) * np.expm1(v) - np.expm1(-v)))

    @classmethod
    def of(
        cls, mean: Float[np.ndarray, "n"], std: Float[np.ndarray, "n"], blocks: tuple[Block, ...], tail: float
    ) -> "TailedGaussian":
        """Return the distribution of values with such moments and tail whose normal scores are correlated by blocks."""
        return cls(ChainGaussian(np.zeros(len(mean)), np.full(len(mean), tail), blocks), mean, std / scale(tail))

    @property
    def blocks(self) -> tuple[Block, ...]:
        """Those of the joint Gaussian."""
        return self.gaussian.blocks

    @property
    def size(self) -> int:
        """Number of points n."""
        return self.gaussian.size

    @property
    def variance(self) -> Float[np.ndarray, "n"]:
        """Variance of each point."""
        return self.deviation**2

    def covariance(self) -> Float[np.ndarray, "n n"]:
        """Return the dense covariance matrix, O(n^2) memory."""
        return self._covariance(self.gaussian.covariance())

    def covariance_of(self, correlation: Float[np.ndarray, "n n"]) -> Float[np.ndarray, "n n"]:
        """Return the covariance, given the correlation that the blocks make."""
        return self._covariance(self.gaussian.covariance_of(correlation))

    def log_prob(self, value: Any) -> float:
        """Return the logarithm of the joint density at `value`."""
        value = np.asarray(value, np.float64)
        if value.shape != self.centre.shape:
            raise ValueError(f"expected {self.size} values, got shape {value.shape}")
        t = (value - self.centre) / self.unit
        return self.gaussian.log_prob(np.arcsinh(t)) - float(np.sum(np.log(self.unit) + np.log1p(t**2) / 2))

    def sample(self, count: int, *, key: PRNGKeyArray) -> Float[np.ndarray, "count n"]:
        """Draw joint samples, one per row."""
        return self.centre + self.unit * np.sinh(self.gaussian.sample(count, key=key))

    def marginal(self, indices: Any) -> "TailedGaussian":
        """Return the joint distribution of some of the points, in the order of `indices`."""
        own = self.gaussian.marginal(indices)
        indices = np.asarray(indices, int)
        return TailedGaussian(own, self.centre[indices], self.unit[indices])

    def condition(self, indices: Any, values: Any) -> "TailedGaussian":
        """Return the distribution of the other points, in their order, given the values of those of `indices`."""
        told = self.marginal(indices)
        z = np.arcsinh((np.asarray(values, np.float64) - told.centre) / told.unit)
        rest = (np.delete(part, np.asarray(indices, int)) for part in (self.centre, self.unit))
        return TailedGaussian(self.gaussian.condition(indices, z), *rest)

    def _covariance(self, C: Float[np.ndarray, "n n"]) -> Float[np.ndarray, "n n"]:
        """Return the covariance, given that of the joint Gaussian."""
        m, size = self.gaussian.mean, self.unit * np.exp(self.gaussian.variance / 2)
        both = np.cosh(m + m[:, None]) * np.expm1(C) - np.cosh(m - m[:, None]) * np.expm1(-C)
        return np.outer(size, size) / 2 * both
