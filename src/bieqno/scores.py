"""Scores of estimates and ensembles: errors (eq. 20 of the paper), spread, proper scores, calibration, and their uncertainty.

Series have one row per time: a truth is ``(T, n)``, an estimate likewise, an ensemble ``(T, N, n)``. Scores with one
value per time return all of them; average over the wanted times, and use `autocorrelated_interval` or
`independent_interval` for the uncertainty of the average.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from scipy.stats import t as student

from bieqno.arguments import checked


class Interval(NamedTuple):
    """An average, its standard error, and the ends of its confidence interval."""

    mean: float
    stderr: float
    low: float
    high: float


@checked()
def rmse(truth: Float[Array, "T n"], estimate: Float[Array, "_ _"]) -> Float[Array, "T"]:
    """Return the root-mean-square error over the variables, one value per time.

    Example:
        >>> rmse(jnp.zeros((2, 2)), jnp.array([[3.0, 3.0], [1.0, -1.0]])).tolist()
        [3.0, 1.0]
    """
    _same(truth, estimate)
    return jnp.sqrt(jnp.mean((truth - estimate) ** 2, axis=1))


@checked()
def relative_rmse(truth: Float[Array, "T n"], estimate: Float[Array, "_ _"]) -> Float[Array, ""]:
    """Return the paper's error (eq. 20): norm of the error over the norm of the truth, both over the whole series.

    Example:
        >>> relative_rmse(jnp.full((2, 2), 10.0), jnp.full((2, 2), 11.0)).round(3).item()
        0.10000000149011612
    """
    _same(truth, estimate)
    return jnp.sqrt(jnp.sum((truth - estimate) ** 2) / jnp.sum(truth**2))


@checked()
def spread(ensemble: Float[Array, "T N n"]) -> Float[Array, "T"]:
    """Return the root of the mean ensemble variance over the variables, one value per time; zero for one member.

    Example:
        >>> spread(jnp.array([[[0.0], [2.0]]])).round(3).tolist()  # sqrt(2)
        [1.4140000343322754]
    """
    count = ensemble.shape[1]
    return jnp.sqrt(jnp.mean(jnp.var(ensemble, axis=1), axis=1) * (count / max(count - 1, 1)))


@checked()
def spread_error_ratio(truth: Float[Array, "T n"], ensemble: Float[Array, "T N n"]) -> Float[Array, ""]:
    """Return the spread over the error of the mean, both as roots of averages over the series; below one: overconfident.

    The factor (N + 1) / N, for the sampling error of a mean of N members, makes it one for a calibrated ensemble.
    """
    count = ensemble.shape[1]
    error = jnp.mean((truth - jnp.mean(ensemble, axis=1)) ** 2)
    return jnp.sqrt((count + 1) / count * jnp.mean(spread(ensemble) ** 2) / error)


@checked()
def crps(truth: Float[Array, "T n"], ensemble: Float[Array, "T N n"]) -> Float[Array, "T"]:
    """Return the continuous ranked probability score, averaged over the variables: the absolute error of an ensemble.

    The member of rank i stands for the quantile (i - 1/2) / N; the score is twice the mean of the quantile losses.

    Example:
        >>> crps(jnp.zeros((1, 1)), jnp.full((1, 3, 1), 2.0)).tolist()
        [2.0]
    """
    count = ensemble.shape[1]
    excess = jnp.sort(ensemble, axis=1) - truth[:, None]
    level = (jnp.arange(count, dtype=excess.dtype)[None, :, None] + 0.5) / count
    return 2 * jnp.mean(jnp.where(excess > 0, (1 - level) * excess, -level * excess), axis=(1, 2))


@checked()
def energy_score(truth: Float[Array, "T n"], ensemble: Float[Array, "T N n"]) -> Float[Array, "T"]:
    """Return the energy score, the CRPS of whole states: it also scores the dependence between variables.

    Example:
        >>> energy_score(jnp.zeros((1, 2)), jnp.array([[[3.0, 4.0], [3.0, 4.0]]])).tolist()
        [5.0]
    """

    def one(pair: tuple[Float[Array, "n"], Float[Array, "N n"]]) -> Float[Array, ""]:
        y, members = pair
        between = jnp.linalg.norm(members[:, None] - members[None], axis=-1)
        return jnp.mean(jnp.linalg.norm(members - y[None], axis=-1)) - 0.5 * jnp.mean(between)

    # One time after the other: all pairs of members of all times together may not fit into memory.
    return jax.lax.map(one, (truth, ensemble))


@checked()
def rank_histogram(truth: Float[Array, "T n"], ensemble: Float[Array, "T N n"]) -> Int[np.ndarray, "bins"]:
    """Count how often the truth has 0, 1, ... N members below it; flat for a calibrated ensemble.

    Example:
        >>> rank_histogram(jnp.array([[0.5], [2.5]]), jnp.array([[[0.0], [1.0], [2.0]]] * 2)).tolist()
        [0, 1, 0, 1]
    """
    below = np.asarray(jnp.sum(ensemble < truth[:, None], axis=1)).ravel()
    equal = np.asarray(jnp.sum(ensemble == truth[:, None], axis=1)).ravel()
    # A truth that equals k members takes its k + 1 possible ranks in turn: even, and without a random number.
    turn = np.arange(below.size) % (equal + 1)
    return np.bincount(below + turn, minlength=ensemble.shape[1] + 1)


@checked()
def coverage(truth: Float[Array, "T n"], ensemble: Float[Array, "T N n"], level: float = 0.9) -> Float[Array, ""]:
    """Return the fraction of true values inside the central interval of the ensemble with probability `level`.

    The ends are quantiles for exchangeable members, (N + 1) p in rank, so that a calibrated ensemble of any size
    large enough for the level covers exactly `level`.

    Example:
        >>> draws = jax.random.normal(jax.random.key(0), (20000, 20, 1))
        >>> round(float(coverage(draws[:, 0], draws[:, 1:], level=0.8)), 2)
        0.8
    """
    if not 0 < level < 1:
        raise ValueError(f"a level lies between 0 and 1, got {level}")
    low, high = (_exchangeable_quantile(ensemble, p) for p in ((1 - level) / 2, (1 + level) / 2))
    return jnp.mean((truth >= low) & (truth <= high))


@checked()
def autocorrelated_interval(series: Float[Array, "T"], level: float = 0.95) -> Interval:
    """Return the average of an autocorrelated series, such as the errors of one long run, with its interval.

    The series is cut into about sqrt(T) batches, long compared with its correlation time; their means are nearly
    independent, and Student's distribution gives the interval (the method of batch means).

    Example:
        >>> autocorrelated_interval(jnp.ones(100)).stderr
        0.0
    """
    values = np.asarray(series, float)
    if values.ndim != 1 or values.size < 4:
        raise ValueError(f"expected a series of at least 4 values, got shape {values.shape}")
    length = math.isqrt(values.size)
    # The remainder is dropped at the beginning, where a run has settled least.
    means = values[values.size % length :].reshape(-1, length).mean(axis=1)
    interval = independent_interval(jnp.asarray(means), level)
    centre, half = float(values.mean()), interval.high - interval.mean
    return Interval(centre, interval.stderr, centre - half, centre + half)


@checked()
def independent_interval(values: Float[Array, "R"], level: float = 0.95) -> Interval:
    """Return the average of independent values, such as one per truth, with Student's interval.

    Example:
        >>> interval = independent_interval(jnp.array([1.0, 3.0]))
        >>> interval.mean, interval.stderr
        (2.0, 1.0)
    """
    sample = np.asarray(values, float)
    if sample.ndim != 1 or sample.size < 2:
        raise ValueError(f"expected at least 2 independent values, got shape {sample.shape}")
    if not 0 < level < 1:
        raise ValueError(f"a level lies between 0 and 1, got {level}")
    centre = float(sample.mean())
    stderr = float(sample.std(ddof=1) / np.sqrt(sample.size))
    half = float(student.ppf(0.5 + level / 2, sample.size - 1)) * stderr
    return Interval(centre, stderr, centre - half, centre + half)


def _exchangeable_quantile(ensemble: Float[Array, "T N n"], p: float) -> Float[Array, "T n"]:
    """Return the quantile at rank (N + 1) p among the members, interpolated between them."""
    ordered, count = jnp.sort(ensemble, axis=1), ensemble.shape[1]
    rank = min(max((count + 1) * p - 1, 0.0), count - 1.0)
    below, above = math.floor(rank), math.ceil(rank)
    return ordered[:, below] + (rank - below) * (ordered[:, above] - ordered[:, below])


def _same(truth: Float[Array, "..."], estimate: Float[Array, "..."]) -> None:
    if truth.shape != estimate.shape:
        raise ValueError(f"the truth has shape {truth.shape}, the estimate {estimate.shape}")
