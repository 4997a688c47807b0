"""Predictions in the units of the data, from whatever predicts in scaled units."""

import abc
from collections.abc import Iterable, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray
from scipy.stats import norm

from bieqno.gaussian import AbstractGaussian, LowRankGaussian
from bieqno.regression.data import Scaling, floats
from bieqno.regression.metrics import HeldOut

BISECTIONS = 40  # of quantiles of a mixture: to rounding, from its parts' own


class AbstractPredictive(eqx.Module):
    """The distribution of new noisy values, given the observations that it holds; `held_out` validates it."""

    scaling: eqx.AbstractVar[Scaling]
    held_out: eqx.AbstractVar[HeldOut]

    @abc.abstractmethod
    def moments(self, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and standard deviation at `X`."""

    @abc.abstractmethod
    def posterior(self, X: np.ndarray) -> AbstractGaussian:
        """Return the joint distribution of new noisy values at `X`."""

    def quantiles(self, X: np.ndarray, probabilities: Sequence[float]) -> np.ndarray:
        """Return quantiles at `X`, a column for each probability."""
        mean, std = self.moments(X)
        return mean[:, None] + std[:, None] * norm.ppf(probabilities)

    def cdf(self, X: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return the probability of each row that a new value is at most `y`."""
        return np.asarray(norm.cdf(y, *self.moments(X)))

    def log_densities(self, X: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return the logarithm of the density of each row by itself at `y`."""
        return np.asarray(norm.logpdf(y, *self.moments(X)))

    def prepare(self) -> None:
        """Build at once what all predictions share; nothing by default."""

    def covariance(self, X: np.ndarray) -> np.ndarray:
        """Return the joint covariance at `X`."""
        return np.asarray(self.posterior(X).covariance(), np.float64)

    def sample(self, X: np.ndarray, count: int, *, key: PRNGKeyArray) -> np.ndarray:
        """Draw joint samples at `X`, one per column."""
        return np.asarray(self.posterior(X).sample(count, key=key), np.float64).T

    def log_density(self, X: np.ndarray, y: np.ndarray) -> float:
        """Return the logarithm of the joint density of values `y` at `X`."""
        return float(self.posterior(X).log_prob(y))


def mixture_moments(process: AbstractPredictive, rows: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and deviation, those of an equal mixture where the inputs may be several."""
    if len(rows) == 1:
        return process.moments(rows[0])
    means, stds = (np.stack(parts) for parts in zip(*map(process.moments, rows), strict=True))
    return means.mean(axis=0), np.sqrt(np.mean(stds**2, axis=0) + means.var(axis=0))


def mixture_quantiles(
    process: AbstractPredictive, rows: Sequence[np.ndarray], probabilities: Sequence[float]
) -> np.ndarray:
    """Return quantiles, where the inputs may be several those of an equal mixture, by bisection between their own."""
    each = np.stack([process.quantiles(own, probabilities) for own in rows])
    low, high = each.min(axis=0), each.max(axis=0)
    if len(rows) == 1:
        return low
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        for k, probability in enumerate(probabilities):
            above = np.mean([process.cdf(own, middle[:, k]) for own in rows], axis=0) > probability
            low[:, k], high[:, k] = np.where(above, low[:, k], middle[:, k]), np.where(above, middle[:, k], high[:, k])
    return (low + high) / 2


def mixture_sample(
    process: AbstractPredictive, rows: Sequence[np.ndarray], count: int, key: PRNGKeyArray
) -> np.ndarray:
    """Draw samples, one per column, in turn of each that the inputs may be."""
    if len(rows) == 1:
        return process.sample(rows[0], count, key=key)
    draws = np.empty((len(rows[0]), count))
    for i, own in enumerate(rows[:count]):
        number = len(range(i, count, len(rows)))
        draws[:, i :: len(rows)] = process.sample(own, number, key=jax.random.fold_in(key, i))
    return draws


class LowRankPredictive(AbstractPredictive):
    """A prediction whose joint covariance is of low rank plus diagonal, computed chunk by chunk in single precision."""

    @abc.abstractmethod
    def in_chunks(self, X: np.ndarray) -> Iterable[tuple[LowRankGaussian, Int[np.ndarray, "n"]]]:
        """Yield the distribution, in scaled units, chunk by chunk, with the rows of `X` that it belongs to, -1 for padding."""

    def posterior(self, X: np.ndarray) -> LowRankGaussian:
        """Return the joint distribution of new noisy values at `X`, in single precision, whose range must hold variances."""
        scale, shift = float(self.scaling.target_scale), float(self.scaling.target_shift)
        if floats(0.0).dtype == np.float32 and not (1e-15 < scale < 1e15 and abs(shift) < 1e30):
            raise ValueError(
                f"a posterior of targets of mean {shift:.3g} and standard deviation {scale:.3g} leaves the range of single "
                "precision; use predict, sample_y or log_predictive_density, or give the targets in other units"
            )
        return self._scaled_posterior(X).affine(floats(scale), floats(shift))

    def moments(self, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and standard deviation at `X`, without keeping the covariance factor."""
        mean, std = _in_order([(_moments(gaussian), rows) for gaussian, rows in self.in_chunks(X)])
        return self.scaling.values(mean), std * self.scaling.target_scale

    def covariance(self, X: np.ndarray) -> np.ndarray:
        """Return the joint covariance at `X`."""
        return np.asarray(self._scaled_posterior(X).covariance(), np.float64) * self.scaling.target_scale**2

    def sample(self, X: np.ndarray, count: int, *, key: PRNGKeyArray) -> np.ndarray:
        """Draw joint samples at `X`, one per column."""
        return self.scaling.values(self._scaled_posterior(X).sample(count, key=key)).T

    def log_density(self, X: np.ndarray, y: np.ndarray) -> float:
        """Return the logarithm of the joint density of values `y` at `X`."""
        scaled = self._scaled_posterior(X).log_prob(floats(self.scaling.targets(y)))
        return float(scaled) - len(y) * float(np.log(self.scaling.target_scale))

    def _scaled_posterior(self, X: np.ndarray) -> LowRankGaussian:
        parts = [((part.mean, part.factor, part.log_diag), rows) for part, rows in self.in_chunks(X)]
        return LowRankGaussian(*map(jnp.asarray, _in_order(parts)))


def _in_order(parts: Sequence[tuple[tuple[Array, ...], Int[np.ndarray, "n"]]]) -> list[np.ndarray]:
    """Return the values of all rows in their order, by NumPy: JAX would compile anew for every number of points."""
    rows = np.concatenate([own for _, own in parts])
    order = np.argsort(rows, kind="stable")[np.count_nonzero(rows < 0) :]
    return [np.concatenate(series)[order] for series in zip(*(arrays for arrays, _ in parts), strict=True)]


@eqx.filter_jit
def _moments(gaussian: LowRankGaussian) -> tuple[Float[Array, "n"], Float[Array, "n"]]:
    return gaussian.mean, gaussian.std
