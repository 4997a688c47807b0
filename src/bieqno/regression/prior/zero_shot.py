"""A local process conditioned on data: predictions without any fit."""

import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from scipy.spatial import KDTree
from sklearn.linear_model import RidgeCV
from threadpoolctl import threadpool_limits

from bieqno.gaussian import LowRankGaussian
from bieqno.regression.fitted import make_data
from bieqno.regression.held_out import HeldOut
from bieqno.regression.predictive import AbstractPredictive
from bieqno.regression.prior.grouping import group
from bieqno.regression.prior.layouts import MAX_DIMENSION
from bieqno.regression.prior.left_out import choose, leave_out
from bieqno.regression.prior.local_process import Circumstances, LocalProcess, Stations, look_around
from bieqno.regression.prior.neighbourhood import NEIGHBOURS, search_rows, spread_rows
from bieqno.regression.process import MIN_NOISE
from bieqno.regression.scaling import Scaling
from bieqno.regression.splits import Data, calibration

CHUNK = 128
"""Stations per compiled call: each has a matrix for every expert, a tenth of a megabyte together."""


class ZeroShot(AbstractPredictive):
    """A local process and the observations that it looks at.

    Attributes:
        process: learned from many functions, or not at all.
        data: the observations.
        scaling: of inputs and targets.
        columns: the inputs that vary; what is constant is no dimension of the space.
        slope: along each of them, of a linear trend in scaled units that the observed targets are without.
        noise: standard deviation of the noise in scaled units, if it is known.
        variance_factor: of the predicted variance, found on observations that were left out in turn.
    """

    process: LocalProcess
    data: Data
    scaling: Scaling
    columns: np.ndarray
    slope: np.ndarray
    noise: Float[Array, ""] | None
    variance_factor: Float[Array, ""]

    def __check_init__(self) -> None:
        if not isinstance(self.process, LocalProcess) or not isinstance(self.data, Data):
            raise ValueError("it needs a local process and data")
        if not isinstance(self.scaling, Scaling) or self.data.inputs.shape[1:] != self.columns.shape:
            raise ValueError("data and columns differ in their number of inputs")
        if self.slope.shape != self.columns.shape:
            raise ValueError(f"a slope along {self.columns.shape} inputs is needed, got {self.slope.shape}")
        if not set(self.columns.tolist()) <= set(range(len(self.scaling.input_shift))):
            raise ValueError("there are columns that have no scaling")
        if self.noise is not None and self.noise.shape != ():
            raise ValueError(f"a known noise is one number, got shape {self.noise.shape}")
        if self.variance_factor.shape != ():
            raise ValueError(f"a factor of the variance is one number, got shape {self.variance_factor.shape}")

    @property
    def uncertain(self) -> bool:
        """Whether observations come with the variance of further noise of their own: they do not."""
        return False

    def conditioned(self, X: np.ndarray, y: np.ndarray, variances: np.ndarray) -> "ZeroShot":
        """The same process given other observations, which bring units of their own."""
        noise = None if self.noise is None else float(self.noise * self.scaling.target_scale)
        alike = bool(np.ptp(self.scaling.input_scale) == 0)
        return condition_prior(self.process, X, y, noise=noise, same_units=alike)

    def in_chunks(self, X: np.ndarray) -> Iterator[tuple[LowRankGaussian, Int[np.ndarray, "n"]]]:
        """The distribution at one chunk of points after another, each with the rows that it is of."""
        tree = self.tree()
        points = np.asarray(self.scaling.inputs(X))[:, self.columns]
        stations, members = group(tree.query(points)[1])
        seen = self.circumstances(tree)
        # Always as many at a time: compiling for another number would take longer than to compute some for nothing.
        for start in range(0, len(stations), CHUNK):
            own, rows = (_padded(array[start : start + CHUNK]) for array in (stations, members))
            asked = Stations(*map(jnp.asarray, (own, search_rows(tree, tree.data[own]), points[rows])))
            found = self._predicted(asked, seen)
            trend = jnp.asarray((points[rows] @ self.slope).ravel(), found.mean.dtype)
            yield LowRankGaussian(found.mean + trend, found.factor, found.log_diag), rows.ravel()

    def left_out(self) -> HeldOut:
        """How observations are predicted from the others, in scaled units; of many, some hundreds are."""
        tree = self.tree()
        chosen = choose(tree.n)
        seen = self.circumstances(tree)
        errors, stds = [np.zeros(0)], [np.zeros(0)]
        for start in range(0, len(chosen), CHUNK):
            rows = chosen[start : start + CHUNK]
            gaussian = self._predicted(leave_out(tree, _padded(rows)), seen)
            mean, std = (np.asarray(x, np.float64)[: len(rows)] for x in (gaussian.mean, gaussian.std))
            errors.append(np.asarray(self.data.targets, np.float64)[rows] - mean)
            stds.append(std)
        return HeldOut(np.concatenate(errors), np.concatenate(stds))

    def calibrated(self) -> "ZeroShot":
        """With the factor of the variance under which left-out errors are no larger than they should be.

        Never below one: a row that is left out leaves a gap that predictions do not have, in which to have been too careful
        says little.
        """
        plain = eqx.tree_at(lambda z: z.variance_factor, self, jnp.ones(()))
        error, std = (jnp.asarray(values) for values in plain.left_out())
        factor = calibration(error, std**2, jnp.zeros_like(error), jnp.ones(error.shape, bool))
        return eqx.tree_at(lambda z: z.variance_factor, self, jnp.maximum(factor, 1))

    def tree(self) -> KDTree:
        """The observations' places, to be searched."""
        return KDTree(np.asarray(self.data.inputs)[np.asarray(self.data.mask)])  # padding comes last

    def circumstances(self, tree: KDTree) -> Circumstances:
        """What is common to all predictions."""
        sites = np.asarray(_spread(self.data))
        around = search_rows(tree, tree.data[sites])
        return _look_around(self.data, jnp.asarray(sites), jnp.asarray(around), self.noise)

    def _predicted(self, stations: Stations, seen: Circumstances) -> LowRankGaussian:
        with one_thread():
            return jax.block_until_ready(
                _predict(self.process, stations, self.data, seen, self.noise, self.variance_factor)
            )


def condition_prior(
    process: LocalProcess,
    X: Float[np.ndarray, "n d"],
    y: Float[np.ndarray, "n"],
    *,
    noise: float | None = None,
    same_units: bool = False,
) -> ZeroShot:
    """Condition a local process on data in units of their own.

    Args:
        process: the prior.
        X: inputs.
        y: targets.
        noise: standard deviation of the noise, if it is known.
        same_units: whether all inputs have one unit, as coordinates in space have: predictions then do not depend on the
            frame. Otherwise each is scaled by itself.
    """
    places = len(np.unique(X, axis=0))
    if len(X) > 4 * places:
        warnings.warn(
            f"{len(X)} rows are at {places} places only, and a prior looks at the {NEIGHBOURS} nearest rows: it hardly sees "
            "other places; average the rows of each place, or use prior=None",
            stacklevel=3,
        )
    scaling = Scaling.of(X, y)
    if same_units:
        common = np.full_like(scaling.input_scale, np.sqrt(np.mean(np.var(X, axis=0))) or 1.0)
        scaling = eqx.tree_at(lambda s: s.input_scale, scaling, common)
    scaled = None if noise is None else jnp.asarray(max(noise / float(scaling.target_scale), MIN_NOISE), jnp.float32)
    data = make_data(scaling, X, y, np.zeros(len(y)))
    varying = np.flatnonzero(np.ptp(X, axis=0) > 0)
    columns = varying if len(varying) else np.arange(1)
    inputs = np.asarray(data.inputs)[:, columns]
    slope = _slope(inputs[: len(y)], np.asarray(data.targets)[: len(y)])
    rest = jnp.where(data.mask, data.targets - jnp.asarray(inputs @ slope, data.targets.dtype), 0)
    data = eqx.tree_at(lambda d: (d.inputs, d.targets), data, (jnp.asarray(inputs), rest))
    return ZeroShot(
        process=process, data=data, scaling=scaling, columns=columns, slope=slope, noise=scaled,
        variance_factor=jnp.ones(()),
    ).calibrated()  # fmt: skip


def _slope(inputs: Float[np.ndarray, "n d"], targets: Float[np.ndarray, "n"]) -> Float[np.ndarray, "d"]:
    """Of a ridge regression if there are more inputs than the prior has seen, and zero otherwise.

    In many dimensions no observation is near, and the trend is most of what can be known; in few the experts see it.
    """
    if inputs.shape[1] <= MAX_DIMENSION or len(targets) < 3:
        return np.zeros(inputs.shape[1])
    return np.asarray(RidgeCV(np.geomspace(1e-3, 1e5, 17)).fit(inputs, targets).coef_, np.float64)


def one_thread() -> AbstractContextManager[object]:
    """For decompositions of small matrices, which threads slow down."""
    return threadpool_limits(1, "blas")


_spread = eqx.filter_jit(spread_rows)


@eqx.filter_jit
def _look_around(
    data: Data, sites: Int[Array, "s"], rows: Int[Array, "s k"], noise: Float[Array, ""] | None
) -> Circumstances:
    return look_around(data, sites, rows, jnp.asarray(data.inputs.shape[1]), noise)


def _padded(rows: Int[np.ndarray, "n *q"]) -> Int[np.ndarray, "chunk *q"]:
    return np.pad(rows, [(0, CHUNK - len(rows)), *[(0, 0)] * (rows.ndim - 1)], constant_values=-1)


@eqx.filter_jit
def _predict(
    process: LocalProcess,
    stations: Stations,
    data: Data,
    seen: Circumstances,
    noise: Float[Array, ""] | None,
    factor: Float[Array, ""],
) -> LowRankGaussian:
    gaussian = process.predict(stations, data, seen)
    gaussian = LowRankGaussian(gaussian.mean, jnp.sqrt(factor) * gaussian.factor, gaussian.log_diag + jnp.log(factor))
    if noise is None:
        return gaussian
    # No new value is surer than the noise.
    lack = jnp.maximum(noise**2 - jnp.sum(gaussian.factor**2, axis=1), 1e-30)
    return LowRankGaussian(gaussian.mean, gaussian.factor, jnp.maximum(gaussian.log_diag, jnp.log(lack)))
