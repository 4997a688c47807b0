"""The local expert: a corrected mixture of kriging experts near each point, conditioned on data without any training.

What all predictions share (search trees, context, Bayes factors of the correction) is made once, when the process is
conditioned; a prediction gathers neighbours on the host and runs one compiled program per chunk. The program sees neither the
number of rows nor that of points, and inputs are padded to a few numbers of columns, which changes no distance.
"""

import dataclasses
import math
from collections.abc import Callable
from functools import cached_property

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from scipy.spatial import KDTree
from sklearn.linear_model import RidgeCV

from bieqno.arguments import refuse_fork
from bieqno.compilation import quick_jit
from bieqno.operators.fixed import INFINITE
from bieqno.regression.data import MIN_NOISE, Scaling, floats
from bieqno.regression.metrics import HeldOut
from bieqno.regression.pretrained import experts, leave_one_out
from bieqno.regression.pretrained.correction import FEW_INPUTS, Correction
from bieqno.regression.pretrained.leave_one_out import MOST_LOG_BAYES_FACTOR, correction_weight, left_out_neighbours
from bieqno.regression.pretrained.mixture import Context, Moments, Pair, blend, learn_context
from bieqno.regression.pretrained.neighbours import Centres, gather, group, search_rows, spread_rows

CHUNK = 128  # centres per compiled call: each has a matrix for every expert, a tenth of a megabyte together


class Trend(eqx.Module):
    """A linear trend by ridge regression for more than `FEW_INPUTS` inputs, among which hardly anything is near."""

    slope: Float[np.ndarray, "d"]
    leverage: Float[np.ndarray, "n"]  # how much of its own deviation the trend follows at an observation

    def __check_init__(self) -> None:
        if not (np.isfinite(self.slope).all() and np.all((self.leverage >= 0) & (self.leverage < 1))):
            raise ValueError("a trend has finite slopes, and leverages between 0 and 1")

    @classmethod
    def of(cls, inputs: Float[np.ndarray, "n d"], targets: Float[np.ndarray, "n"]) -> "Trend":
        """Fit the trend with the penalty that generalised cross-validation chooses.

        Example:
            >>> inputs = np.random.default_rng(0).normal(size=(50, 5))
            >>> trend = Trend.of(inputs, 3 * inputs[:, 0])
            >>> trend.slope.round(2)[:2].tolist(), bool(trend.leverage.sum() < 5)
            ([3.0, 0.0], True)
        """
        if inputs.shape[1] <= FEW_INPUTS:
            return cls(np.zeros(inputs.shape[1]), np.zeros(len(targets)))
        ridge = RidgeCV(np.geomspace(1e-3, 1e5, 17)).fit(inputs, targets)
        centred = inputs - inputs.mean(axis=0)
        gram = centred.T @ centred + ridge.alpha_ * np.eye(inputs.shape[1])
        leverage = np.sum(centred * np.linalg.solve(gram, centred.T).T, axis=1)
        return cls(np.asarray(ridge.coef_, np.float64), np.clip(leverage, 0, 1 - 1e-6))


class LocalProcess(eqx.Module):
    """A corrected mixture of experts and the observations that it is conditioned on, scaled, in double precision."""

    correction: Correction
    inputs: Float[np.ndarray, "n d"]
    targets: Float[np.ndarray, "n"]  # without the trend
    scaling: Scaling
    columns: Int[np.ndarray, "d"]  # the inputs that vary and matter
    trend: Trend
    context: Context
    noise: float | None = eqx.field(static=True)  # known standard deviation of the observations, in scaled units
    seed: int = eqx.field(static=True)  # of the choice of the rows that are left out
    # Of the correction, infinite for an observation that was not left out.
    log_bayes_factor: Float[np.ndarray, "n"] = eqx.field(metadata={INFINITE: True})
    variance_factor: float
    held_out: HeldOut
    steps: int = eqx.field(static=True, default=0)  # of a fine-tuning of the correction on these observations

    def __check_init__(self) -> None:
        parts = self.correction, self.scaling, self.trend, self.context, self.held_out
        kinds = Correction, Scaling, Trend, Context, HeldOut
        if not all(isinstance(part, kind) for part, kind in zip(parts, kinds, strict=True)):
            raise ValueError("a local process has a correction, a scaling, a trend, a context and held-out predictions")
        if self.inputs.shape[1:] != self.columns.shape or self.trend.slope.shape != self.columns.shape:
            raise ValueError("inputs, columns and trend differ in their number of inputs")
        if not set(self.columns.tolist()) <= set(range(len(self.scaling.input_shift))):
            raise ValueError("there are columns that have no scaling")
        per_row = (self.targets, self.trend.leverage, self.log_bayes_factor)
        if not len(self.inputs) or any(values.shape != self.inputs.shape[:1] for values in per_row):
            raise ValueError("there is at least one observation, each with a target, a leverage and a Bayes factor")
        if np.any(np.abs(self.log_bayes_factor[self.log_bayes_factor < np.inf]) > MOST_LOG_BAYES_FACTOR):
            raise ValueError(f"a log Bayes factor is at most {MOST_LOG_BAYES_FACTOR} either way")
        if not 0 < self.variance_factor < np.inf:
            raise ValueError(f"a factor of the variance is one positive number, got {self.variance_factor}")

    @cached_property
    def tree(self) -> KDTree:
        """The search tree of the observations."""
        return KDTree(self.inputs)

    @cached_property
    def left_out(self) -> tuple[Int[np.ndarray, "j"], KDTree | None]:
        """The rows that were left out once, and their search tree."""
        rows = np.flatnonzero(np.isfinite(self.log_bayes_factor))
        return rows, KDTree(self.inputs[rows]) if len(rows) else None

    def prepare(self) -> None:
        """Build at once what all predictions share."""
        _ = self.tree, self.left_out

    def moments(self, X: np.ndarray) -> Moments:
        """Return mean and variance of new noisy values at `X`, in scaled units."""
        points = self.scaling.inputs(X)[:, self.columns]
        centres, members = group(self.tree.query(points, workers=-1)[1])
        rows, tree = self.left_out
        near = np.full((len(centres), 1), -1) if tree is None else left_out_neighbours(tree, rows, self.inputs[centres])
        weights = correction_weight(self.log_bayes_factor, near)
        mean, variance = np.empty((2, len(points)))
        # Always as many at a time: compiling for another number would take longer than computing some for nothing.
        for start in range(0, len(centres), CHUNK):
            own, rows, weight = (_padded(array[start : start + CHUNK]) for array in (centres, members, weights))
            seen = search_rows(self.tree, self.inputs[own])
            pair = self.compare(gather(self.inputs, self.targets, own, seen, points[rows]))
            found, there = blend(np.repeat(weight, rows.shape[1]), pair), rows.ravel() >= 0
            mean[rows.ravel()[there]], variance[rows.ravel()[there]] = found.mean[there], found.variance[there]
        return Moments(mean + points @ self.trend.slope, self.variance_factor * variance)

    def compare(self, centres: Centres) -> Pair:
        """Predict the points of centres, in one row, with the correction and without it, as NumPy's arrays."""
        refuse_fork()
        noise = None if self.noise is None else floats(self.noise)
        return jax.tree.map(
            lambda x: np.asarray(x, np.float64), _compare(self.correction, widened(centres), self.context, noise)
        )

    def leave_out(self, rows: Int[np.ndarray, "n"]) -> tuple[Centres, Int[np.ndarray, "n"]]:
        """Return observations as points to be predicted from those at other places, and the centre of each."""
        centres, around = leave_one_out.leave_out(self.tree, rows)
        return gather(self.inputs, self.targets, centres, around, self.inputs[rows][:, None]), centres

    def recalibrated(self, hopeless: Callable[[np.ndarray, HeldOut], bool] | None = None) -> "LocalProcess":
        """Return the process validated by observations that are left out in turn; of many, by some thousands.

        If it is `hopeless`, given the first of the rows and their held-out predictions, there are no more of them.
        """
        chosen, found = leave_one_out.choose_rows(len(self.inputs), self.seed), self
        parts = []
        for end in range(CHUNK, len(chosen) + CHUNK, CHUNK):
            around, centres = self.leave_out(_padded(chosen[end - CHUNK : end]))
            parts.append((centres, self.compare(around)))
            last = end >= len(chosen)
            if last or (hopeless is not None and end == CHUNK):
                order = np.argsort(chosen[:end])
                centres, pair = jax.tree.map(lambda *own, order=order: np.concatenate(own)[order], *parts)
                found = self.validated(chosen[order], centres, pair)
                if not last and hopeless is not None and hopeless(chosen[order], found.held_out):
                    break
        return found

    def validated(self, rows: Int[np.ndarray, "n"], centres: Int[np.ndarray, "n"], pair: Pair) -> "LocalProcess":
        """Return the process with Bayes factors and recalibration from rows, each predicted from a centre as in `pair`.

        The factor of the variance is never below one: a row that is left out leaves a gap that predictions do not have, in
        which to have been too careful says little.
        """
        values = self.targets[rows]
        # The trend knew the row: without it, the error would have been larger by so much.
        known = 1 - self.trend.leverage[rows]
        pair = Pair(*(Moments(values - (values - np.asarray(m)) / known, np.asarray(v)) for m, v in pair))
        factors = np.full(len(self.inputs), np.inf)
        factors[rows] = leave_one_out.log_bayes_factors(values, pair)
        around = left_out_neighbours(KDTree(self.inputs[rows]), rows, self.inputs[centres], without=rows)
        blended = blend(correction_weight(factors, around), pair)
        found = HeldOut(values - blended.mean, np.sqrt(blended.variance))
        factor = found.recalibration()
        recalibrated = HeldOut(found.error, np.sqrt(factor) * found.std)
        return dataclasses.replace(self, log_bayes_factor=factors, variance_factor=factor, held_out=recalibrated)


def condition(
    correction: Correction,
    X: Float[np.ndarray, "n d"],
    y: Float[np.ndarray, "n"],
    scaling: Scaling | None = None,
    *,
    noise: float | None = None,
    seed: int = 0,
    hopeless: Callable[[np.ndarray, HeldOut], bool] | None = None,
) -> LocalProcess:
    """Condition a corrected mixture of experts on data; inputs of infinite scale take no part.

    `noise` is the known standard deviation of the observations in scaled units, `hopeless` that of `recalibrated`.
    """
    scaling = Scaling.of(X, y) if scaling is None else scaling
    varying = np.flatnonzero((np.ptp(X, axis=0) > 0) & np.isfinite(scaling.input_scale))
    columns = varying if len(varying) else np.arange(1)
    inputs, targets = np.ascontiguousarray(scaling.inputs(X)[:, columns]), scaling.targets(y)
    trend = Trend.of(inputs, targets)
    targets = targets - inputs @ trend.slope
    return LocalProcess(
        correction=correction,
        inputs=inputs,
        targets=targets,
        scaling=scaling,
        columns=columns,
        trend=trend,
        context=learn(inputs, targets, noise),
        noise=noise,
        seed=seed,
        log_bayes_factor=np.full(len(y), np.inf),
        variance_factor=1.0,
        held_out=HeldOut(np.zeros(0), np.zeros(0)),
    ).recalibrated(hopeless)


def learn(inputs: Float[np.ndarray, "n d"], targets: Float[np.ndarray, "n"], noise: float | None) -> Context:
    """Find out what is common to all predictions from scaled observations, given the known noise or None."""
    probes = spread_rows(inputs, targets, np.ones(len(targets), bool))
    rows = search_rows(KDTree(inputs), inputs[probes])
    around = gather(inputs, targets, probes, rows, inputs[probes][:, None])
    count, dimension = (jax.device_put(np.asarray(number)) for number in (len(targets), inputs.shape[1]))
    known = None if noise is None else floats(noise)
    return _learn(widened(around), probes >= 0, count, floats(targets.mean()), floats(targets.var()), dimension, known)


@quick_jit
def _learn(
    probes: Centres,
    there: Bool[Array, "s"],
    count: Array,
    mean: Array,
    variance: Array,
    dimension: Array,
    noise: Array | None,
) -> Context:
    return learn_context(probes, there, count, mean, variance, dimension, noise)[0]


@quick_jit
def _compare(correction: Correction, centres: Centres, context: Context, noise: Float[Array, ""] | None) -> Pair:
    return correction.compare(*experts.predict(centres, context.units), context).at_least(noise)


def widened(centres: Centres) -> Centres:
    """Pad the inputs by zeros to one of a few numbers of columns: four, sixteen, and so on."""
    columns = centres.offsets.shape[2]
    size = FEW_INPUTS
    while size < columns:
        size *= 4
    more = ((0, 0), (0, 0), (0, size - columns))
    offsets, points = (np.pad(x, more).astype(np.float32) for x in (centres.offsets, centres.points))
    return Centres(offsets, centres.values.astype(np.float32), centres.mask, points)


def known_noise(noise: float | None, alpha: float, scaling: Scaling) -> float | None:
    """Return the known standard deviation of observations in scaled units, given that of new values, or None."""
    if noise is None:
        return None
    scaled = math.hypot(noise, math.sqrt(alpha)) / float(scaling.target_scale)
    return min(max(scaled, MIN_NOISE), 1e6)  # the square of which is still a number


def _padded(rows: np.ndarray) -> np.ndarray:
    return np.pad(rows, [(0, CHUNK - len(rows)), *[(0, 0)] * (rows.ndim - 1)], constant_values=-1)
