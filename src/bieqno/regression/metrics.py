"""Scores of Gaussian predictions, point by point: how far off the mean is, and whether the stated spread is honest.

A prediction is the mean and the standard deviation of a *noisy* new value at each point. The RMSE is taken against the
clean function, everything else against noisy new values: no method can score a negative log predictive density (NLPD)
below the entropy of the noise on average, and `nlpd_excess` is what it pays beyond.
"""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import scoringrules
from jaxtyping import Bool, Float
from scipy.stats import norm

Values: TypeAlias = Float[np.ndarray, "n"]

COVERAGE_LEVELS = (0.5, 0.9, 0.95)


def rmse(mean: Values, truth: Values) -> float:
    """Root mean squared error of the mean."""
    return float(np.sqrt(np.mean((mean - truth) ** 2)))


def nlpd(mean: Values, std: Values, values: Values) -> float:
    """Negative logarithm of the predictive density at each value, averaged over the points."""
    z = (values - mean) / std
    return float(np.mean(0.5 * z**2 + np.log(std) + 0.5 * np.log(2 * np.pi)))


def noise_entropy(noise: float) -> float:
    """The NLPD of one who knows the function: the entropy of Gaussian noise with standard deviation `noise`."""
    return float(0.5 * np.log(2 * np.pi * np.e * noise**2))


def crps(mean: Values, std: Values, values: Values) -> float:
    """Continuous ranked probability score, averaged over the points; in units of y, smaller is better."""
    return float(np.mean(scoringrules.crps_normal(values, mean, std)))


def coverage(mean: Values, std: Values, values: Values, level: float) -> float:
    """Share of the values inside the central interval of probability `level`."""
    half_width = norm.ppf(0.5 + level / 2) * std
    return float(np.mean(np.abs(values - mean) <= half_width))


def reliability(mean: Values, std: Values, values: Values, levels: Float[np.ndarray, "k"]) -> Float[np.ndarray, "k"]:
    """The coverage at each of many levels: on the diagonal for an honest prediction, below it for a bold one."""
    return np.array([coverage(mean, std, values, float(level)) for level in levels])


def pit(mean: Values, std: Values, values: Values, bins: int) -> Float[np.ndarray, "bins"]:
    """Shares of the values' probability integral transforms in equal bins: all alike for an honest prediction.

    More at both ends says that it is too sure of itself, more in the middle that it is too careful.
    """
    places = np.minimum((norm.cdf((values - mean) / std) * bins).astype(int), bins - 1)
    return np.bincount(places, minlength=bins) / max(len(values), 1)


def near(x: Values, places: Sequence[float], distance: float = 0.05) -> Bool[np.ndarray, "n"]:
    """Which points of a line lie within `distance` of one of the places."""
    # A hair more, so that a point at the very distance counts whichever way it is rounded.
    return np.min(np.abs(x[:, None] - np.asarray(places)[None, :]), axis=1) <= distance * (1 + 1e-9)


def scores(
    mean: Values,
    std: Values,
    *,
    truth: Values,
    values: Values,
    noise: float | None,
    jump: Bool[np.ndarray, "n"] | None = None,
) -> dict[str, float]:
    """All scores of one prediction, by name.

    Args:
        mean: predicted mean.
        std: predicted standard deviation of noisy values.
        truth: the clean function.
        values: noisy new values.
        noise: standard deviation of their noise; None if nobody knows it, as in data from the world.
        jump: the points near a jump of the function, where it has some.
    """
    if not (np.all(np.isfinite(mean)) and np.all(np.isfinite(std)) and np.all(std > 0)):
        raise ValueError("a Gaussian prediction needs finite means and finite positive standard deviations")
    density = nlpd(mean, std, values)
    found = {"rmse": rmse(mean, truth), "nlpd": density, "crps": crps(mean, std, values)}
    if noise is not None:
        found["nlpd_excess"] = density - noise_entropy(noise)
    found |= {f"coverage_{level * 100:g}": coverage(mean, std, values, level) for level in COVERAGE_LEVELS}
    if jump is not None:
        found["rmse_near_jump"] = rmse(mean[jump], truth[jump])
    return found
