"""Scores of predictions, and the losses that processes are trained on; `bieqno.scores` has those of ensembles.

A prediction is the mean and the standard deviation of a *noisy* new value at each point, and the `tail` of its law, 0 for normal
laws (`tails`). The RMSE is taken against the
clean function, everything else against noisy new values: no method can score a negative log predictive density (NLPD)
below the entropy of the noise on average, and `nlpd_excess` is the difference.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float
from scipy.stats import norm

from bieqno.gaussian import LowRankGaussian
from bieqno.regression.tails import TAILS, from_normal, log_density, to_normal
from bieqno.regression.tails import crps as standard_crps

Values: TypeAlias = Float[np.ndarray, "n"]

COVERAGE_LEVELS = (0.5, 0.9, 0.95)
RIGHT_ERRORS = 5
"""Pseudo-observations with errors of the expected size in a recalibration: a handful of rows decides little."""
PIT_BINS = 10
_COVERAGES = tuple(f"coverage_{level * 100:g}" for level in COVERAGE_LEVELS)


def log_losses(error: Any, variance: Any) -> Any:
    """Return the negative log-density of each error, given its variance, for arrays of NumPy or JAX."""
    xp = np if isinstance(error, np.ndarray) else jnp
    return 0.5 * (xp.log(2 * np.pi * variance) + error**2 / variance)


def joint_loss(gaussian: LowRankGaussian, values: Float[Array, "n"], mask: Bool[Array, "n"]) -> Float[Array, ""]:
    """Return the joint negative log-probability of the values of the `mask`, per value (eq. 10 of the paper)."""
    kept = LowRankGaussian(
        jnp.where(mask, gaussian.mean, 0),
        jnp.where(mask[:, None], gaussian.factor, 0),
        # With this variance a value at its mean has density one, hence log-density zero: padding costs nothing.
        jnp.where(mask, gaussian.log_diag, -math.log(2 * math.pi)),
    )
    number = jnp.maximum(jnp.sum(mask), 1).astype(gaussian.mean.dtype)
    return -kept.log_prob(jnp.where(mask, values, 0)) / number


def rmse(mean: Values, truth: Values) -> float:
    """Return the root mean squared error of the mean."""
    return float(np.sqrt(np.mean((mean - truth) ** 2)))


def nlpd(mean: Values, std: Values, values: Values, tail: Any = 0.0) -> float:
    """Return the negative logarithm of the predictive density at each value, averaged over the points."""
    return float(np.mean(np.log(std) - log_density((values - mean) / std, tail)))


def noise_entropy(noise: float) -> float:
    """Return the least possible NLPD: the entropy of Gaussian noise with standard deviation `noise`."""
    return float(0.5 * (1 + np.log(2 * np.pi * noise**2)))


def crps(mean: Values, std: Values, values: Values, tail: Any = 0.0) -> float:
    """Return the continuous ranked probability score, averaged over the points; in units of y."""
    return float(np.mean(std * standard_crps((values - mean) / std, tail)))


def coverage(mean: Values, std: Values, values: Values, level: float, tail: Any = 0.0) -> float:
    """Return the fraction of the values inside the central interval of probability `level`."""
    return float(np.mean(np.abs(values - mean) <= from_normal(norm.ppf(0.5 + level / 2), tail) * std))


def reliability(
    mean: Values, std: Values, values: Values, levels: Float[np.ndarray, "k"], tail: Any = 0.0
) -> Float[np.ndarray, "k"]:
    """Return the coverage at each of many levels: equal to the levels for a calibrated prediction."""
    return np.array([coverage(mean, std, values, float(level), tail) for level in levels])


def pit(mean: Values, std: Values, values: Values, bins: int, tail: Any = 0.0) -> Float[np.ndarray, "bins"]:
    """Return frequencies of the probability integral transform: uniform if calibrated, more at both ends if overconfident."""
    places = np.minimum((norm.cdf(to_normal((values - mean) / std, tail)) * bins).astype(int), bins - 1)
    return np.bincount(places, minlength=bins) / max(len(values), 1)


def scores(
    mean: Values,
    std: Values,
    *,
    truth: Values,
    values: Values,
    noise: float | None,
    jump: np.ndarray | None = None,
    tail: Any = 0.0,
) -> dict[str, float]:
    """Return all scores of one prediction, by name, given the clean function (`truth`) and noisy new `values`.

    `noise` is the standard deviation of their noise, if it is known, and `jump` marks the points near a jump.
    """
    if not (np.all(np.isfinite(mean)) and np.all(np.isfinite(std)) and np.all(std > 0)):
        raise ValueError("a prediction needs finite means and finite positive standard deviations")
    density = nlpd(mean, std, values, tail)
    found = {"rmse": rmse(mean, truth), "nlpd": density, "crps": crps(mean, std, values, tail)}
    if noise is not None:
        found["nlpd_excess"] = density - noise_entropy(noise)
    shares = reliability(mean, std, values, np.array(COVERAGE_LEVELS), tail)
    found |= dict(zip(_COVERAGES, shares.tolist(), strict=True))
    if jump is not None:
        found["rmse_near_jump"] = rmse(mean[jump], truth[jump])
    return found


class HeldOut(eqx.Module):
    """Predictions of rows that were held out or left out one by one: value minus mean, and deviation, in scaled units.

    `tail` is that of the law of all predictions (`tails`).
    """

    error: Float[np.ndarray, "n"]
    std: Float[np.ndarray, "n"]
    tail: float = 0.0

    def __check_init__(self) -> None:
        if not 0 <= self.tail <= TAILS[-1]:
            raise ValueError(f"a tail is between 0 and {TAILS[-1]}, got {self.tail}")
        if self.error.ndim != 1 or self.error.shape != self.std.shape:
            raise ValueError(f"errors of shape {self.error.shape} do not go with deviations of {self.std.shape}")

    def recalibration(self) -> float:
        """Return the factor of the variance, at least one: the mean square of errors over deviations, with `RIGHT_ERRORS`.

        No error counts for more than five recalibrated deviations, so that one outlier does not change all predictions.

        Example:
            >>> errors = np.random.default_rng(0).normal(size=100)
            >>> round(HeldOut(3 * errors, np.ones(100)).recalibration(), 1)
            8.0
            >>> round(HeldOut(np.append(errors, 1e6), np.ones(101)).recalibration(), 1)
            1.2
        """
        squares, factor = (self.error / self.std) ** 2, np.inf
        for _ in range(100):  # until deviations and their bound are measured by the same factor
            factor = (np.sum(np.minimum(squares, 25 * factor)) + RIGHT_ERRORS) / (len(squares) + RIGHT_ERRORS)
        return max(float(factor), 1.0)

    def scores(self, unit: float = 1.0) -> dict[str, np.ndarray]:
        """Return the scores in units of the data; `unit` is the scaled unit.

        Example:
            >>> errors = np.random.default_rng(0).normal(size=1000)
            >>> found = HeldOut(errors, np.ones(1000)).scores()
            >>> float(found["rows"]), float(found["coverage_95"]), found["pit"].shape
            (1000.0, 0.96, (10,))
        """
        mean, std, error = np.zeros(len(self.error)), self.std * unit, self.error * unit
        names = ["rmse", "nlpd", *_COVERAGES]
        if not len(error):
            return {"rows": np.zeros(()), **{name: np.asarray(np.nan) for name in names}, "pit": np.zeros(PIT_BINS)}
        each = scores(mean, std, truth=error, values=error, noise=None, tail=self.tail)
        named = {name: np.asarray(each[name]) for name in names}
        return {"rows": np.asarray(float(len(error))), **named, "pit": pit(mean, std, error, PIT_BINS, self.tail)}


def stacked(scores: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Return the scores of several outputs by name, one row per output."""
    return {name: np.stack([own[name] for own in scores]) for name in scores[0]}


def as_text(scores: Mapping[str, np.ndarray], names: Sequence[str]) -> str:
    """Return a table of `stacked` scores, for the outputs of these names.

    Example:
        >>> print(as_text(stacked([HeldOut(np.array([0.1, -0.2, 0.3]), np.full(3, 0.2)).scores()]), ["y"]))
           rows   RMSE    NLPD  50 %  90 %  95 %  PIT, % in tenths
        y     3  0.216  -0.107    33   100   100  0 33 0 0 0 0 33 0 0 33
    """
    rows = [["", "rows", "RMSE", "NLPD", *(f"{name.removeprefix('coverage_')} %" for name in _COVERAGES)]]
    for i, name in enumerate(names):
        exact = [f"{scores['rows'][i]:.0f}", f"{scores['rmse'][i]:.3g}", f"{scores['nlpd'][i]:.3g}"]
        rows.append([name, *exact, *(f"{100 * scores[level][i]:.0f}" for level in _COVERAGES)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    last = ["PIT, % in tenths", *(" ".join(f"{100 * share:.0f}" for share in own) for own in scores["pit"])]
    return "\n".join(
        "  ".join([row[0].ljust(widths[0]), *(map(str.rjust, row[1:], widths[1:])), end])
        for row, end in zip(rows, last, strict=True)
    )
