"""A local process conditioned on data: predictions without any fit."""

import dataclasses
import math
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import lru_cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from scipy.spatial import KDTree
from threadpoolctl import ThreadpoolController

from bieqno.gaussian import LowRankGaussian
from bieqno.regression.held_out import HeldOut
from bieqno.regression.predictive import AbstractPredictive
from bieqno.regression.pretrained.background import FLOOR
from bieqno.regression.pretrained.grouping import group
from bieqno.regression.pretrained.left_out import choose, judges, leave_out
from bieqno.regression.pretrained.local_process import Circumstances, LocalProcess, Stations, asked, look_around
from bieqno.regression.pretrained.neighbourhood import search_rows, spread_rows
from bieqno.regression.pretrained.trend import Trend
from bieqno.regression.pretrained.trust import MOST_GAIN, Compared, Moments, blend, gains, trust
from bieqno.regression.scaling import Scaling
from bieqno.regression.trained.fitted import make_data
from bieqno.regression.trained.process import MIN_NOISE
from bieqno.regression.trained.splits import Data

_MOST_NOISE = 1e6
"""In units of the data's spread, which nothing is seen through; its square is still a number."""
CHUNK = 128
"""Stations per compiled call: each has a matrix for every expert, a tenth of a megabyte together."""


class ZeroShot(AbstractPredictive):
    """A local process and the observations that it looks at.

    Attributes:
        process: learned from many functions, or not at all.
        data: the observations, without the trend.
        scaling: of inputs and targets.
        columns: the inputs that vary; what is constant is no dimension of the space.
        trend: of the targets, in scaled units.
        noise: standard deviation of the noise in units of the data, if it is known.
        further: variance of further noise that the observations have and new values will not, in units of the data.
        same_units: whether all inputs are scaled alike.
        gain: of each observation, by how much the network's correction has raised its predicted log-density when it was left
            out; NaN if it was not.
        variance_factor: of the predicted variance, found on observations that were left out in turn.
        held_out: how these were predicted.
        steps: of a fine-tuning of the process on these observations.
    """

    process: LocalProcess
    data: Data
    scaling: Scaling
    columns: np.ndarray
    trend: Trend
    noise: float | None = eqx.field(static=True)
    further: float = eqx.field(static=True)
    same_units: bool = eqx.field(static=True)
    gain: Float[Array, "m"]
    variance_factor: Float[Array, ""]
    held_out: HeldOut
    steps: int = eqx.field(static=True)

    def __check_init__(self) -> None:
        parts = {LocalProcess: self.process, Data: self.data, Trend: self.trend, HeldOut: self.held_out}
        if any(not isinstance(part, kind) for kind, part in parts.items()) or not isinstance(self.scaling, Scaling):
            raise ValueError("it needs a local process, data, a scaling, a trend and what was held out")
        if self.data.inputs.shape[1:] != self.columns.shape or self.trend.slope.shape != self.columns.shape:
            raise ValueError("data, columns and trend differ in their number of inputs")
        if not set(self.columns.tolist()) <= set(range(len(self.scaling.input_shift))):
            raise ValueError("there are columns that have no scaling")
        there = np.asarray(self.data.mask)
        if not there.any() or (np.diff(there.astype(int)) > 0).any() or there.sum() != len(self.trend.leverage):
            raise ValueError("observations come first, at least one, each with a leverage, and then padding")
        if self.gain.shape != there.shape or bool(jnp.any(jnp.abs(self.gain) > MOST_GAIN)):
            raise ValueError(f"each observation has a gain of at most {MOST_GAIN} either way")
        if bool(jnp.any(jnp.isfinite(self.gain) & ~self.data.mask)):
            raise ValueError("padding has no gain")
        if self.variance_factor.shape != () or not 0 < float(self.variance_factor) < np.inf:
            raise ValueError(f"a factor of the variance is one positive number, got {self.variance_factor}")

    @property
    def uncertain(self) -> bool:
        """Whether observations come with the variance of further noise of their own: they do not."""
        return False

    @property
    def scaled_noise(self) -> Float[Array, ""] | None:
        """The known noise of the observations in scaled units."""
        if self.noise is None:
            return None
        noise = math.hypot(self.noise, math.sqrt(self.further)) / float(self.scaling.target_scale)
        return jnp.asarray(min(max(noise, MIN_NOISE), _MOST_NOISE), jnp.zeros(()).dtype)

    def conditioned(self, X: np.ndarray, y: np.ndarray, variances: np.ndarray) -> "ZeroShot":
        """The same process given other observations, which bring units of their own."""
        return condition_prior(self.process, X, y, noise=self.noise, further=self.further, same_units=self.same_units)

    def in_chunks(self, X: np.ndarray) -> Iterator[tuple[LowRankGaussian, Int[np.ndarray, "n"]]]:
        """The distribution at one chunk of points after another, each with the rows that it is of."""
        tree = self.tree()
        points = np.asarray(self.scaling.inputs(X))[:, self.columns]
        stations, members = group(tree.query(points, workers=-1)[1])
        seen = self.circumstances(tree)
        further = (math.sqrt(self.further) / float(self.scaling.target_scale)) ** 2
        judging = judges(tree, np.flatnonzero(np.isfinite(self.gain)), stations)
        # Always as many at a time: compiling for another number would take longer than to compute some for nothing.
        for start in range(0, len(stations), CHUNK):
            own, rows, around = (_padded(array[start : start + CHUNK]) for array in (stations, members, judging))
            wanted = Stations(*map(jnp.asarray, (own, search_rows(tree, tree.data[own]), points[rows])))
            trusted = self.gain, jnp.asarray(around)
            with one_thread():
                found = jax.block_until_ready(
                    _predict(self.process, wanted, self.data, seen, self.scaled_noise, *trusted, self.variance_factor)
                )
            trend = jnp.asarray((points[rows] @ self.trend.slope).ravel(), found.mean.dtype)
            log_diag = jnp.log(jnp.maximum(jnp.exp(found.log_diag) - further, FLOOR)) if further else found.log_diag
            yield LowRankGaussian(found.mean + trend, found.factor, log_diag), rows.ravel()

    def calibrated(self) -> "ZeroShot":
        """With observations left out in turn; of many, some thousands."""
        tree = self.tree()
        chosen, seen = choose(tree.n), self.circumstances(tree)
        if not len(chosen):
            return self
        parts = []
        for start in range(0, len(chosen), CHUNK):
            stations = leave_out(tree, _padded(chosen[start : start + CHUNK]))
            with one_thread():
                found = jax.block_until_ready(_compare(self.process, stations, self.data, seen, self.scaled_noise))
            parts.append((stations.centres, found))
        centres, found = jax.tree.map(lambda *own: jnp.concatenate(own)[: len(chosen)], *parts)
        return self.judged(chosen, centres, found)

    def judged(self, rows: Int[np.ndarray, "n"], centres: Int[Array, "n"], found: Compared) -> "ZeroShot":
        """With what rows that were left out tell: how far to trust the correction, and how wide predictions must be.

        The factor of the variance is never below one: a row that is left out leaves a gap that predictions do not have, in
        which to have been too careful says little.

        Args:
            rows: that were left out.
            centres: the stations that each was predicted from.
            found: how it was predicted.
        """
        values = self.data.targets[rows]
        # The trend knew the row: without it, the error would have been larger by so much.
        known = jnp.asarray(1 - self.trend.leverage[rows], values.dtype)
        found = Compared(*(Moments(values - (values - m) / known, v) for m, v in found))
        gain = jnp.full_like(self.data.targets, jnp.nan).at[rows].set(gains(values, found))
        around = judges(self.tree(), rows, np.asarray(centres), without=rows)
        blended = blend(trust(gain, jnp.asarray(around)), found)
        error, std = (np.asarray(x, np.float64) for x in (values - blended.mean, jnp.sqrt(blended.variance)))
        factor = HeldOut(error, std).widening()
        return dataclasses.replace(
            self,
            gain=gain,
            variance_factor=jnp.asarray(factor, gain.dtype),
            held_out=HeldOut(error, np.sqrt(factor) * std),
        )

    def tree(self) -> KDTree:
        """The observations' places, to be searched."""
        return KDTree(np.asarray(self.data.inputs)[np.asarray(self.data.mask)])

    def circumstances(self, tree: KDTree) -> Circumstances:
        """What is common to all predictions."""
        sites = np.asarray(_spread(self.data))
        around = search_rows(tree, tree.data[sites])
        return _look_around(self.data, jnp.asarray(sites), jnp.asarray(around), self.scaled_noise)


def condition_prior(
    process: LocalProcess,
    X: Float[np.ndarray, "n d"],
    y: Float[np.ndarray, "n"],
    *,
    noise: float | None = None,
    further: float = 0.0,
    same_units: bool = False,
) -> ZeroShot:
    """Condition a local process on data in units of their own.

    Args:
        process: the prior.
        X: inputs.
        y: targets.
        noise: standard deviation of the noise, if it is known.
        further: variance of further noise that new values will not have.
        same_units: whether all inputs have one unit, as coordinates in space have: predictions then do not depend on the
            frame. Otherwise each is scaled by itself.
    """
    scaling = Scaling.of(X, y)
    if same_units:
        common = np.full_like(scaling.input_scale, np.sqrt(np.mean(np.var(X, axis=0))) or 1.0)
        scaling = eqx.tree_at(lambda s: s.input_scale, scaling, common)
    data = make_data(scaling, X, y, np.zeros(len(y)))
    varying = np.flatnonzero(np.ptp(X, axis=0) > 0)
    columns = varying if len(varying) else np.arange(1)
    inputs, targets = np.asarray(data.inputs)[:, columns], np.asarray(data.targets)
    trend = Trend.of(inputs[: len(y)], targets[: len(y)])
    rest = np.where(data.mask, targets - inputs @ trend.slope, 0).astype(targets.dtype)
    data = eqx.tree_at(lambda d: (d.inputs, d.targets), data, (jnp.asarray(inputs), jnp.asarray(rest)))
    return ZeroShot(
        process=process, data=data, scaling=scaling, columns=columns, trend=trend, noise=noise, further=further,
        same_units=same_units, gain=jnp.full_like(data.targets, jnp.nan), variance_factor=jnp.ones(()), held_out=HeldOut.none(),
        steps=0,
    ).calibrated()  # fmt: skip


def one_thread() -> AbstractContextManager[object]:
    """For decompositions of small matrices, which threads slow down."""
    return _controller().limit(limits=1, user_api="blas")


@lru_cache
def _controller() -> ThreadpoolController:
    """Looking for the libraries anew takes longer than a chunk of points."""
    return ThreadpoolController()


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
    gain: Float[Array, "m"],
    judges: Int[Array, "s k"],
    factor: Float[Array, ""],
) -> LowRankGaussian:
    share = trust(gain, judges)
    gaussian = process.conclude(stations.points, *asked(stations, data, seen.units), seen, share)
    log_diag = gaussian.log_diag
    if noise is not None:
        # No new value is surer than the noise.
        lack = jnp.maximum(noise**2 - jnp.sum(gaussian.factor**2, axis=1), 1e-30)
        log_diag = jnp.maximum(log_diag, jnp.log(lack))
    return LowRankGaussian(gaussian.mean, jnp.sqrt(factor) * gaussian.factor, log_diag + jnp.log(factor))


@eqx.filter_jit
def _compare(
    process: LocalProcess, stations: Stations, data: Data, seen: Circumstances, noise: Float[Array, ""] | None
) -> Compared:
    return process.compare(*asked(stations, data, seen.units), seen).at_least(noise)
