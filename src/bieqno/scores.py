"""How good an estimate or an ensemble is: errors, spread, proper scores, calibration, and their uncertainty.

Series have one row a time: a truth is ``(T, n)``, an estimate likewise, an ensemble ``(T, N, n)``. Scores with one
value a time return all of them; average what is wanted, and ask `autocorrelated_interval` or `independent_interval`
how sure the average is.
"""

import math
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import scoringrules
from jaxtyping import Array, Float, Int
from scipy.stats import t as student


class Interval(NamedTuple):
    """An average, its standard error, and the ends of a confidence interval."""

    mean: float
    stderr: float
    low: float
    high: float


def rmse(truth: Float[Array, "T n"], estimate: Float[Array, "_ _"]) -> Float[Array, "T"]:
    """Root-mean-square error over the variables, one value a time.

    Example:
        >>> import jax.numpy as jnp
        >>> rmse(jnp.zeros((2, 2)), jnp.array([[3.0, 3.0], [1.0, -1.0]])).tolist()
        [3.0, 1.0]
    """
    _same(truth, estimate)
    return jnp.sqrt(jnp.mean((truth - estimate) ** 2, axis=1))


def relative_rmse(truth: Float[Array, "T n"], estimate: Float[Array, "_ _"]) -> Float[Array, ""]:
    """The paper's error (eq. 6): norm of the error over the norm of the truth, both over the whole series.

    Example:
        >>> import jax.numpy as jnp
        >>> relative_rmse(jnp.full((2, 2), 10.0), jnp.full((2, 2), 11.0)).round(3).item()
        0.10000000149011612
    """
    _same(truth, estimate)
    return jnp.sqrt(jnp.sum((truth - estimate) ** 2) / jnp.sum(truth**2))


def spread(ensemble: Float[Array, "T N n"]) -> Float[Array, "T"]:
    """Root of the mean ensemble variance over the variables, one value a time; zero for one member.

    Example:
        >>> import jax.numpy as jnp
        >>> spread(jnp.array([[[0.0], [2.0]]])).round(3).tolist()  # sqrt(2)
        [1.4140000343322754]
    """
    count = ensemble.shape[1]
    variance = jnp.var(ensemble, axis=1) * (count / max(count - 1, 1))
    return jnp.sqrt(jnp.mean(variance, axis=1))


def spread_error_ratio(truth: Float[Array, "T n"], ensemble: Float[Array, "T N n"]) -> Float[Array, ""]:
    """Spread over error of the mean, both as roots of averages over the series.

    One for an ensemble that tells how wrong it is: the factor (N + 1) / N accounts for the error that the
    mean of N members has by sampling. Below one, the ensemble is too sure of itself.
    """
    count = ensemble.shape[1]
    error = jnp.mean((truth - jnp.mean(ensemble, axis=1)) ** 2)
    return jnp.sqrt((count + 1) / count * jnp.mean(spread(ensemble) ** 2) / error)


def crps(truth: Float[Array, "T n"], ensemble: Float[Array, "T N n"]) -> Float[Array, "T"]:
    """Continuous ranked probability score, averaged over the variables: the absolute error of an ensemble.

    Example:
        >>> import jax.numpy as jnp
        >>> crps(jnp.zeros((1, 1)), jnp.full((1, 3, 1), 2.0)).tolist()
        [2.0]
    """
    each = scoringrules.crps_ensemble(truth, ensemble, m_axis=1, estimator="qd", backend="jax")
    return jnp.mean(each, axis=1)


def energy_score(truth: Float[Array, "T n"], ensemble: Float[Array, "T N n"]) -> Float[Array, "T"]:
    """Energy score, the CRPS of whole states: it sees whether the variables go together as they should."""
    return scoringrules.es_ensemble(truth, ensemble, m_axis=1, v_axis=2, backend="jax")


def rank_histogram(truth: Float[Array, "T n"], ensemble: Float[Array, "T N n"]) -> Int[np.ndarray, "bins"]:
    """How often the truth has 0, 1, ... N members below it; flat if truth and members are alike.

    A truth that equals k members counts for all of the k + 1 ranks it could have, evenly.

    Example:
        >>> import jax.numpy as jnp
        >>> rank_histogram(jnp.array([[0.5], [2.5]]), jnp.array([[[0.0], [1.0], [2.0]]] * 2)).tolist()
        [0, 1, 0, 1]
    """
    members = ensemble.shape[1]
    below = np.asarray(jnp.sum(ensemble < truth[:, None], axis=1)).ravel()
    equal = np.asarray(jnp.sum(ensemble == truth[:, None], axis=1)).ravel()
    # Ties take the places among their ranks in turn: even, and without a random number.
    turn = np.arange(below.size) % (equal + 1)
    return np.bincount(below + turn, minlength=members + 1)


def coverage(truth: Float[Array, "T n"], ensemble: Float[Array, "T N n"], level: float = 0.9) -> Float[Array, ""]:
    """Share of true values inside the central interval of the ensemble that should hold `level` of them.

    The ends are quantiles for exchangeable members, (N + 1) p in rank, so that a perfect ensemble of any size
    large enough for the level covers exactly `level`.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> draws = jax.random.normal(jax.random.key(0), (20000, 20, 1))
        >>> round(float(coverage(draws[:, 0], draws[:, 1:], level=0.8)), 2)
        0.8
    """
    if not 0 < level < 1:
        raise ValueError(f"a level lies between 0 and 1, got {level}")
    tail = (1 - level) / 2
    low, high = _exchangeable_quantile(ensemble, tail), _exchangeable_quantile(ensemble, 1 - tail)
    return jnp.mean((truth >= low) & (truth <= high))


def autocorrelated_interval(series: Float[Array, "T"], level: float = 0.95) -> Interval:
    """Average of a series whose values depend on each other, such as errors of one long run.

    The series is cut into about sqrt(T) batches, long compared with its memory; their means are nearly
    independent, and Student's law gives the interval (the method of batch means).

    Example:
        >>> import jax.numpy as jnp
        >>> autocorrelated_interval(jnp.ones(100)).stderr
        0.0
    """
    values = np.asarray(series, float)
    if values.ndim != 1 or values.size < 4:
        raise ValueError(f"expected a series of at least 4 values, got shape {values.shape}")
    length = math.isqrt(values.size)
    batches = values.size // length
    # The remainder is left off at the beginning, where a run is least settled.
    means = values[values.size - batches * length :].reshape(batches, length).mean(axis=1)
    interval = independent_interval(jnp.asarray(means), level)
    centre = float(values.mean())
    half = interval.high - interval.mean
    return Interval(centre, interval.stderr, centre - half, centre + half)


def independent_interval(values: Float[Array, "R"], level: float = 0.95) -> Interval:
    """Average of independent values, such as one a truth, with Student's interval.

    Example:
        >>> import jax.numpy as jnp
        >>> interval = independent_interval(jnp.array([1.0, 3.0]))
        >>> interval.mean, interval.stderr
        (2.0, 1.0)
    """
    sample = np.asarray(values, float)
    if sample.ndim != 1 or sample.size < 2:
        raise ValueError(f"expected at least 2 independent values, got shape {sample.shape}")
    centre = float(sample.mean())
    stderr = float(sample.std(ddof=1) / np.sqrt(sample.size))
    half = float(student.ppf(0.5 + level / 2, sample.size - 1)) * stderr
    return Interval(centre, stderr, centre - half, centre + half)


def _exchangeable_quantile(ensemble: Float[Array, "T N n"], p: float) -> Float[Array, "T n"]:
    """Quantile at rank (N + 1) p among the members, between them if need be."""
    ordered = jnp.sort(ensemble, axis=1)
    count = ensemble.shape[1]
    rank = min(max((count + 1) * p - 1, 0.0), count - 1.0)
    below = math.floor(rank)
    above = min(below + 1, count - 1)
    return ordered[:, below] + (rank - below) * (ordered[:, above] - ordered[:, below])


def _same(truth: Float[Array, "..."], estimate: Float[Array, "..."]) -> None:
    if truth.shape != estimate.shape:
        raise ValueError(f"the truth has shape {truth.shape}, the estimate {estimate.shape}")
