"""Targets that are positive, skewed or heavy-tailed are predicted under a monotone transform, chosen by rows left out.

A prediction is Gaussian for the transformed target; mean, variance and covariance in the units of the data follow by quadrature
and, for pairs, by Mehler's expansion in Hermite polynomials: ``cov(g(z), h(z')) = sum_k g_k h_k rho^k`` for the correlation rho
of z and z'.
"""

import math
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Float, PRNGKeyArray
from numpy.polynomial.hermite_e import hermegauss, hermeval
from scipy.stats import skew

from bieqno.gaussian import AbstractGaussian
from bieqno.regression.data import ROUNDING
from bieqno.regression.metrics import log_losses
from bieqno.regression.pretrained.ard import fit_ard
from bieqno.regression.pretrained.joint import ChainGaussian

KINDS = ("none", "log", "asinh")
_SKEWED, _VERY_SKEWED = 1.0, 2.0  # least skewness of positive targets, and of others, for which transforms are tried
_ROWS = 300  # that decide
_NODES, _ORDERS = 24, 12
_POINTS, _WEIGHTS = hermegauss(_NODES)


class Transform(eqx.Module):
    """``log((y - shift) / scale)``, ``asinh((y - shift) / scale)``, or none."""

    kind: str = eqx.field(static=True)
    shift: float
    scale: float

    def __check_init__(self) -> None:
        if self.kind not in KINDS or not 0 < self.scale < math.inf or not math.isfinite(self.shift):
            raise ValueError(f"expected a transform of {', '.join(KINDS)} with a finite shift and a positive scale")

    @classmethod
    def of(cls, kind: str, y: Float[np.ndarray, "n"]) -> "Transform":
        """Return a transform with the shift and scale of targets.

        Example:
            >>> transform = Transform.of("log", np.array([0.0, 1.0, 2.0, 4.0]))
            >>> transform.inverse(transform.forward(np.array([0.0, 3.0]))).round(6).tolist()
            [0.0, 3.0]
        """
        low, middle, high = np.quantile(y, (0.25, 0.5, 0.75))
        if kind == "log":  # zeros are half the least that is positive
            return cls(kind, -float(y[y > 0].min()) / 2 if y.min() == 0 else 0.0, float(np.median(y[y > 0])))
        return cls(kind, float(middle), float(high - low) or 1.0) if kind == "asinh" else cls("none", 0.0, 1.0)

    def forward(self, y: Float[np.ndarray, "*n"]) -> Float[np.ndarray, "*n"]:
        """Return transformed targets; what a logarithm cannot take is taken to be the least that it can."""
        if self.kind == "none":
            return y
        t = (y - self.shift) / self.scale
        return np.arcsinh(t) if self.kind == "asinh" else np.log(np.maximum(t, 1e-12))

    def inverse(self, z: Float[np.ndarray, "*n"]) -> Float[np.ndarray, "*n"]:
        """Return targets from transformed ones."""
        if self.kind == "none":
            return z
        z = np.clip(z, -50, 50)
        return self.shift + self.scale * (np.sinh(z) if self.kind == "asinh" else np.exp(z))

    def log_slope(self, y: Float[np.ndarray, "*n"]) -> Float[np.ndarray, "*n"]:
        """Return the logarithm of the derivative of `forward`."""
        if self.kind == "none":
            return np.zeros_like(y)
        t = (y - self.shift) / self.scale
        return -math.log(self.scale) - (np.log1p(t**2) / 2 if self.kind == "asinh" else np.log(np.maximum(t, 1e-12)))

    def moments(
        self, mean: Float[np.ndarray, "n"], std: Float[np.ndarray, "n"]
    ) -> tuple[Float[np.ndarray, "n"], Float[np.ndarray, "n"]]:
        """Return mean and deviation of the target from those of the transformed one.

        Example:
            >>> mean, std = Transform("log", 0.0, 1.0).moments(np.zeros(1), np.ones(1))
            >>> bool(np.isclose(mean[0], np.exp(0.5))), bool(np.isclose(std[0], np.sqrt((np.e - 1) * np.e), rtol=1e-4))
            (True, True)
        """
        if self.kind == "none":
            return mean, std
        coefficients = self.expansion(mean, std)
        return coefficients[0], np.sqrt(np.sum(coefficients[1:] ** 2, axis=0))

    def expansion(self, mean: Float[np.ndarray, "n"], std: Float[np.ndarray, "n"]) -> Float[np.ndarray, "k n"]:
        """Return the coefficients of the target in orthonormal Hermite polynomials of the standardised transformed one."""
        values = self.inverse(mean + std * _POINTS[:, None])
        orders = np.stack(
            [hermeval(_POINTS, np.eye(_ORDERS)[k]) / math.sqrt(math.factorial(k)) for k in range(_ORDERS)]
        )
        return (orders * (_WEIGHTS / _WEIGHTS.sum())) @ values


class TransformedGaussian(AbstractGaussian):
    """A joint distribution of targets whose transforms are jointly Gaussian."""

    gaussian: ChainGaussian
    transform: Transform
    mean: Float[np.ndarray, "n"]
    deviation: Float[np.ndarray, "n"]

    def __init__(self, gaussian: ChainGaussian, transform: Transform) -> None:
        self.gaussian, self.transform = gaussian, transform
        self.mean, self.deviation = transform.moments(gaussian.mean, gaussian.deviation)

    @property
    def variance(self) -> Float[np.ndarray, "n"]:
        """Variance of each point."""
        return self.deviation**2

    def covariance(self) -> Float[np.ndarray, "n n"]:
        """Return the dense covariance matrix, O(n^2) memory."""
        correlation = self.gaussian.covariance() / np.outer(self.gaussian.deviation, self.gaussian.deviation)
        terms = self.transform.expansion(self.gaussian.mean, self.gaussian.deviation)[1:]
        total = np.zeros_like(correlation)
        for order, term in enumerate(terms, start=1):
            total += np.outer(term, term) * correlation**order
        return total

    def log_prob(self, value: Any) -> float:
        """Return the logarithm of the joint density at `value`."""
        value = np.asarray(value, np.float64)
        return self.gaussian.log_prob(self.transform.forward(value)) + float(np.sum(self.transform.log_slope(value)))

    def sample(self, count: int, *, key: PRNGKeyArray) -> Float[np.ndarray, "count n"]:
        """Draw joint samples, one per row."""
        return self.transform.inverse(self.gaussian.sample(count, key=key))

    def marginal(self, indices: Any) -> "TransformedGaussian":
        """Return the joint distribution of some of the points, in the order of `indices`."""
        return TransformedGaussian(self.gaussian.marginal(indices), self.transform)

    def condition(self, indices: Any, values: Any) -> "TransformedGaussian":
        """Return the distribution of the other points, in their order, given the values of those of `indices`."""
        given = self.gaussian.condition(indices, self.transform.forward(np.asarray(values, np.float64)))
        return TransformedGaussian(given, self.transform)


def promising_transforms(X: Float[np.ndarray, "n d"], y: Float[np.ndarray, "n"]) -> list[Transform]:
    """Return the transforms under which rows that are left out surely have a higher density than under none, the best first."""
    spread = y.std()
    if len(y) < 20 or spread <= ROUNDING * np.abs(y).max():
        return []
    skewness = abs(skew((y - y.mean()) / spread))
    kinds = ("log",) * bool(y.min() >= 0 and skewness > _SKEWED) + ("asinh",) * bool(skewness > _VERY_SKEWED)
    if not kinds:
        return []
    rows = np.sort(np.random.default_rng(0).permutation(len(y))[:_ROWS])
    x = X[rows][:, np.ptp(X[rows], axis=0) > 0]
    if not x.shape[1]:
        return []
    x = (x - x.mean(axis=0)) / x.std(axis=0)

    def losses(transform: Transform) -> np.ndarray:
        z = transform.forward(y[rows])
        scale = z.std() or 1.0
        z = (z - z.mean()) / scale
        mean, variance = fit_ard(x, z).leave_out(np.arange(len(z)), np.arange(len(z)))
        return log_losses(z - mean, variance) + math.log(scale) - transform.log_slope(y[rows])

    before, gains = losses(Transform.of("none", y)), list[tuple[float, Transform]]()
    for kind in kinds:
        own = Transform.of(kind, y)
        better = before - losses(own)
        if better.mean() > 2 * better.std() / math.sqrt(len(better)):
            gains.append((float(better.mean()), own))
    return [own for _, own in sorted(gains, key=lambda pair: -pair[0])]
