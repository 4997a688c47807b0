"""Stacking: how much each expert counts, by the log-density of rows that were left out, and the least variance they allow.

Experts differ from table to table: near each point (local kriging, corrected by the network), over the whole table with a length
scale for each input, or by cliffs (trees). The prediction is their mixture, as one law of its mean and variance. The weights
are those of a grid that give rows that were left out the highest density, after one factor of all variances. Weights of zero are
among them, so that an expert that does harm takes no part.
"""

from collections.abc import Sequence
from functools import cache
from itertools import product

import numpy as np
from jaxtyping import Float, Int

from bieqno.regression.metrics import HeldOut
from bieqno.regression.pretrained.mixture import Moments

_PARTS = 10  # weights are multiples of a tenth
_LEAST_FACTOR = 0.6  # of the variance: mixtures state too much of it where their experts' errors cancel
_FAR = 25.0  # no squared error over variance counts for more: one outlier does not choose the weights
_LEAST_REPEATED = 30  # values at places that have others: from fewer the noise is not known by them
_FLOORS = (1.0, 0.5, 0.25, 0.1, 0.03, 0.01)


def mix(weights: Float[np.ndarray, "e"], experts: Sequence[Moments]) -> Moments:
    """Return mean and variance of the mixture.

    Example:
        >>> two = [Moments(np.array([1.0]), np.array([2.0])), Moments(np.array([3.0]), np.array([2.0]))]
        >>> [x.tolist() for x in mix(np.array([0.5, 0.5]), two)]
        [[2.0], [3.0]]
    """
    mean = sum(weight * one.mean for weight, one in zip(weights, experts, strict=True))
    variance = sum(w * (one.variance + (one.mean - mean) ** 2) for w, one in zip(weights, experts, strict=True))
    return Moments(mean, variance)


def best_weights(values: Float[np.ndarray, "n"], experts: Sequence[Moments]) -> Float[np.ndarray, "e"]:
    """Return the weights under which values that were left out have the highest density.

    Example:
        >>> good, bad = Moments(np.zeros(20), np.ones(20)), Moments(np.full(20, 9.0), np.ones(20))
        >>> best_weights(np.linspace(-1, 1, 20), [bad, good]).tolist()
        [0.0, 1.0]
    """

    def loss(weights: np.ndarray) -> float:
        mixed = mix(weights, experts)
        square = mean_square(values, mixed)
        factor = max(square, _LEAST_FACTOR)
        return float(np.mean(np.log(mixed.variance * factor)) + square / factor)

    return min(_simplex(len(experts)), key=loss)


def mean_square(values: Float[np.ndarray, "n"], found: Moments) -> float:
    """Return the mean of squared errors over their variances, each bounded."""
    return float(np.mean(np.minimum((values - found.mean) ** 2 / found.variance, _FAR)))


def variance_factor(found: HeldOut, local: float) -> float:
    """Return the factor of all variances; below one only as far as the experts are not `local`.

    A row that is left out leaves a gap that predictions do not have, in which to have been too careful says little about them.
    """
    square = mean_square(found.error, Moments(np.zeros_like(found.error), found.std**2))
    return found.recalibration() if square >= 1 else max(square, _LEAST_FACTOR + (1 - _LEAST_FACTOR) * local)


def least_variance(found: HeldOut, noise: float) -> float:
    """Return the largest part of the noise's variance that rows that were left out allow as the least variance.

    The noise of a process that takes jumps or short waves for noise would widen predictions that are rightly sure; they then
    have a lower density with it. Of noise that is the same everywhere nothing is taken off.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> sure = HeldOut(0.1 * rng.normal(size=50), np.full(50, 0.1))
        >>> [round(least_variance(sure, noise), 4) for noise in (0.008, 1.0)]
        [0.008, 0.01]
    """

    def losses(variance: np.ndarray) -> np.ndarray:
        return np.log(variance) + np.minimum(found.error**2 / variance, _FAR)

    for part in _FLOORS:
        worse = losses(np.maximum(found.std**2, part * noise)) - losses(found.std**2)
        if np.mean(worse) <= np.std(worse) / np.sqrt(len(worse)):
            return part * noise
    return 0.0


def repeated_variance(values: Float[np.ndarray, "n"], groups: Int[np.ndarray, "n"]) -> float:
    """Return the variance of values at the same place, their group; 0 if too few are repeated to tell.

    Example:
        >>> groups = np.repeat(np.arange(30), 2)
        >>> repeated_variance(np.tile([-1.0, 1.0], 30) + groups, groups), repeated_variance(np.arange(9.0), np.arange(9))
        (2.0, 0.0)
    """
    count = np.bincount(groups)
    apart = values - (np.bincount(groups, values) / np.maximum(count, 1))[groups]
    further = len(values) - int(np.count_nonzero(count))
    return float(np.sum(apart**2) / further) if further >= _LEAST_REPEATED else 0.0


def widen(variance: Float[np.ndarray, "n"], factor: float, noise: float) -> Float[np.ndarray, "n"]:
    """Return variances of which what is more than the noise is multiplied by a factor.

    Example:
        >>> widen(np.array([0.5, 1.0, 3.0]), 2.0, 1.0).tolist()
        [0.5, 1.0, 5.0]
    """
    return np.minimum(variance, noise) + factor * np.maximum(variance - noise, 0)


@cache
def _simplex(size: int) -> list[np.ndarray]:
    """Return all weights that are multiples of one part, the first expert's largest first."""
    counts = (own for own in product(range(_PARTS, -1, -1), repeat=size) if sum(own) == _PARTS)
    return [np.array(own) / _PARTS for own in counts]
