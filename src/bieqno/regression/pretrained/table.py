"""The process behind `PretrainedGGPRegressor`: local experts, a Gaussian process of the whole table and trees, stacked."""

import dataclasses
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Float, Int
from scipy.stats import norm

from bieqno.cores import one_blas_thread
from bieqno.regression.data import Scaling, without_copies
from bieqno.regression.metrics import HeldOut, log_losses
from bieqno.regression.predictive import AbstractPredictive
from bieqno.regression.pretrained import stacking
from bieqno.regression.pretrained.ard import ARDProcess, fit_ard
from bieqno.regression.pretrained.correction import FEW_INPUTS, Correction, suited
from bieqno.regression.pretrained.joint import ONE_BLOCK, chain
from bieqno.regression.pretrained.joint_mixture import JointMixture, draw_processes, join
from bieqno.regression.pretrained.leave_one_out import choose_rows
from bieqno.regression.pretrained.mixture import FLOOR, NOISE_LEVELS, Moments
from bieqno.regression.pretrained.process import LocalProcess, condition, known_noise
from bieqno.regression.pretrained.transforms import Transform, TransformedGaussian, promising_transforms
from bieqno.regression.pretrained.trees import LEAST_INPUTS, LEAST_ROWS, TreeExpert, fit_trees
from bieqno.regression.tails import find_tail, from_normal, log_density, to_normal

_IRRELEVANT = 20.0  # an input whose length scale is so many times the shortest takes no part in distances
_BEHIND = 0.05  # nats per row by which an expert is no competitor
_HYPOTHESES, _HYPOTHESES_OF_MANY = 8, 2  # processes in a joint distribution, and in one of many blocks
_FEW = 300  # rows up to which length scales follow single rows, so that they are found anew without them
# Matrices of a few hundred rows gain little by threads of their own, and lose thousandfold where the cores are busy.
_one_thread = one_blas_thread.wrap
_MORE_ERROR = 1.05  # how much larger than without a transform the error of the mean may be
_ALIKE = 1.3  # length scales that differ by no more are no metric of their own


class TableProcess(AbstractPredictive):
    """A stack of experts, fitted to a table; `columns` are the inputs that vary."""

    local: LocalProcess
    ard: ARDProcess
    trees: TreeExpert | None
    scaling: Scaling
    columns: Int[np.ndarray, "d"]
    transform: Transform  # of the targets, in whose units everything else is
    weights: Float[np.ndarray, "e"]  # of local expert, process and trees
    least_variance: float  # in scaled units
    variance_factor: float  # of all but `noise_variance` and `mean_variance`
    held_out: HeldOut
    alpha: float = eqx.field(static=True)  # variance of noise that new values will not have, in units of the data
    settings: dict[str, Any] = eqx.field(static=True)  # that it was fitted with
    noise_variance: float = 0.0  # in scaled units, of noise that repeated places tell; 0 without them
    mean_variance: float = 0.0  # of the mean of the values at such a place

    def __check_init__(self) -> None:
        kinds = LocalProcess, ARDProcess, Scaling, HeldOut, Transform
        parts = self.local, self.ard, self.scaling, self.held_out, self.transform
        if not all(isinstance(part, kind) for part, kind in zip(parts, kinds, strict=True)):
            raise ValueError(
                "a table's process has a local and a global process, a scaling, a transform and held-out predictions"
            )
        if self.ard.inputs.shape[1:] != self.columns.shape or len(self.columns) > len(self.scaling.input_shift):
            raise ValueError("process, columns and scaling differ in their number of inputs")
        if len(self.columns) and not 0 <= self.columns.min() <= self.columns.max() < len(self.scaling.input_shift):
            raise ValueError(f"columns are numbers of inputs, got {self.columns}")
        experts = 2 if self.trees is None else 3
        if self.weights.shape != (experts,) or not (np.all(self.weights >= 0) and np.isclose(self.weights.sum(), 1)):
            raise ValueError(f"there are {experts} weights that add up to one, got {self.weights}")
        if not (
            0 < self.variance_factor < np.inf
            and all(0 <= v < np.inf for v in (self.least_variance, self.noise_variance, self.mean_variance))
        ):
            raise ValueError("a factor of the variance is positive, and variances of noise are not negative")

    @property
    def steps(self) -> int:
        """Steps of the fine-tuning."""
        return self.local.steps

    @property
    def noise(self) -> float:
        """Variance of the noise in scaled units: the least variance, or what the local experts take for it."""
        scale = float(self.local.context.units.scale) ** 2
        local = scale * float(np.exp(np.exp(np.asarray(self.local.context.log_noise)) @ np.asarray(NOISE_LEVELS)))
        return max(self.least_variance, float(self.weights[0]) * min(local, self.ard.noise))

    @property
    def tail(self) -> float:
        """That of the law of a prediction, see `tails`; 0, a normal law, under a transform, where others have no mean."""
        return self.held_out.tail

    def prepare(self) -> None:
        """Build at once what all predictions share."""
        self.local.prepare()
        _ = self.ard.factor if self.ard.exact else self.ard.tree

    @_one_thread
    def moments(self, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and standard deviation at `X`."""
        return self.transform.moments(*self._transformed(X))

    @_one_thread
    def quantiles(self, X: np.ndarray, probabilities: Sequence[float]) -> np.ndarray:
        """Return quantiles at `X`, a column for each probability."""
        mean, std = self._transformed(X)
        return self.transform.inverse(mean[:, None] + std[:, None] * from_normal(norm.ppf(probabilities), self.tail))

    def cdf(self, X: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return the probability of each row that a new value is at most `y`."""
        mean, std = self._transformed(X)
        return np.asarray(norm.cdf(to_normal((self.transform.forward(y) - mean) / std, self.tail)))

    def log_densities(self, X: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return the logarithm of the density of each row by itself at `y`."""
        mean, std = self._transformed(X)
        density = log_density((self.transform.forward(y) - mean) / std, self.tail)
        return density - np.log(std) + self.transform.log_slope(y)

    @cached_property
    def hypotheses(self) -> tuple[ARDProcess, ...]:
        """Processes of the whole table that the rows do not tell apart."""
        known = known_noise(self.settings["noise"], self.alpha, self.scaling)
        return draw_processes(self.ard, _HYPOTHESES, noise=known, tied=self.settings["same_units"])

    @_one_thread
    def posterior(self, X: np.ndarray) -> JointMixture | TransformedGaussian:
        """Return the joint distribution of new noisy values at `X`, of a transformed target under one process only."""
        mean, std = self._transformed(X)
        points = self.scaling.inputs(X)[:, self.columns]
        scaled = self.noise_variance or self.noise * self.variance_factor
        of_rows = scaled * float(self.scaling.target_scale) ** 2
        noise = np.full(len(mean), max(of_rows - self.alpha, 0.0))
        if self.transform.kind != "none":  # under which other laws of the same moments have other moments
            return TransformedGaussian(chain(self.ard, points, mean, std, noise), self.transform)
        processes = self.hypotheses[:: 1 if len(X) <= ONE_BLOCK else _HYPOTHESES // _HYPOTHESES_OF_MANY]
        kept = max(1 - self.alpha / of_rows, 0.0) if of_rows > 0 else 1.0
        return join(processes, points, mean, std, noise, kept, float(self.weights[1]), self.tail)

    def conditioned(self, X: np.ndarray, y: np.ndarray, variances: np.ndarray) -> "TableProcess":
        """Return the same process given other observations, which bring units of their own."""
        return fit_table(self.local.correction, X, y, **self.settings)

    def _transformed(self, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and standard deviation of the transformed target."""
        mean, variance = self._scaled(X)
        return self.scaling.values(mean), np.sqrt(variance) * self.scaling.target_scale

    def _scaled(self, X: np.ndarray) -> Moments:
        points = self.scaling.inputs(X)[:, self.columns]
        experts: list[Callable[[], Moments]] = [lambda: self.local.moments(X), lambda: self.ard.predict(points)]
        if (trees := self.trees) is not None:
            experts.append(lambda: trees.predict(points))
        used = np.flatnonzero(self.weights)
        mean, variance = stacking.mix(self.weights[used], [experts[i]() for i in used])
        told = self.noise_variance + self.mean_variance
        variance = np.maximum(stacking.widen(variance, self.variance_factor, told), self.least_variance)
        return Moments(mean, np.maximum(variance - self.alpha / float(self.scaling.target_scale) ** 2, FLOOR))


@_one_thread
def fit_table(
    correction: Correction,
    X: Float[np.ndarray, "n d"],
    y: Float[np.ndarray, "n"],
    *,
    noise: float | None = None,
    alpha: float = 0.0,
    same_units: bool = False,
    transform: str = "auto",
    seed: int = 0,
    tune: Callable[[LocalProcess], LocalProcess] | None = None,
) -> TableProcess:
    """Fit all experts to data and stack them; the settings are those of `PretrainedGGPRegressor`.

    `tune` may change the local expert before it is stacked.
    """
    settings: dict[str, Any] = {"noise": noise, "alpha": alpha, "same_units": same_units, "seed": seed}
    told = settings | {"transform": transform}
    Scaling.of(X, y)  # refuses what has no scale
    X, y = without_copies(X, y)
    plain, loss = _fit_under(Transform.of("none", y), correction, X, y, tune, told, **settings)
    # A known noise is that of the target itself.
    candidates = promising_transforms(X, y) if transform == "auto" and noise is None and not alpha else ()
    for candidate in candidates:
        # The process of the whole table has proposed; the stack, in which others may count more, decides. Zeros have a high
        # density under a logarithm that spreads them over many decades, whose means are then far beyond the data.
        transformed, other = _fit_under(candidate, correction, X, y, tune, told, **settings)
        if other < loss and _root_mean_square(transformed) <= _MORE_ERROR * _root_mean_square(plain):
            return transformed
    return plain


def _root_mean_square(process: TableProcess) -> float:
    """Return the error of means of rows that were left out, in the units of the data."""
    return float(np.sqrt(np.mean(process.held_out.error**2)) * process.scaling.target_scale)


def _fit_under(
    used: Transform,
    correction: Correction,
    X: Float[np.ndarray, "n d"],
    values: Float[np.ndarray, "n"],
    tune: Callable[[LocalProcess], LocalProcess] | None,
    told: dict[str, Any],
    *,
    noise: float | None,
    alpha: float,
    same_units: bool,
    seed: int,
) -> tuple[TableProcess, float]:
    """Fit all experts under a transform of the targets; return the stack and its mean loss of rows that were left out."""
    y = used.forward(values)
    scaling = _common_scaling(X, y) if same_units else Scaling.of(X, y)
    varying = np.flatnonzero(np.ptp(X, axis=0) > 0)
    columns = varying if len(varying) else np.arange(1)
    inputs, targets = np.ascontiguousarray(scaling.inputs(X)[:, columns]), scaling.targets(y)
    groups = np.unique(inputs, axis=0, return_inverse=True)[1].ravel()
    known = known_noise(noise, alpha, scaling)
    ard = fit_ard(inputs, targets, noise=known, tied=same_units)
    rows = np.sort(choose_rows(len(y), seed))
    metric, anew = _if_wide(ard, groups, known, same_units)
    whole = _without(rows, ard, groups, anew)
    several = len(columns) >= LEAST_INPUTS and np.ptp(targets) > 0
    losses, early = np.full(len(y), np.nan), bool(several) and tune is None
    losses[rows] = log_losses(targets[rows] - whole.mean, whole.variance)
    local = _best_local(correction, X, y, scaling, columns, metric, losses, early, noise=known, seed=seed)
    if tune is not None:  # it may have left out other rows
        local = tune(local)
        rows = local.left_out[0]
        whole = _without(rows, ard, groups, anew)
    judged = len(local.held_out.error) == len(rows)
    experts = [*([Moments(targets[rows] - local.held_out.error, local.held_out.std**2)] if judged else []), whole]
    trees = None
    if several and len(y) >= LEAST_ROWS:
        trees, out_of_fold = fit_trees(inputs, targets, groups, metric, rows, seed=seed)
        experts.append(out_of_fold)
    weights = stacking.best_weights(targets[rows], experts)
    if trees is not None and not weights[-1]:  # what takes no part is not kept
        trees, weights, experts = None, weights[:-1], experts[:-1]
    mean, variance = stacking.mix(weights, experts)
    weights = weights if judged else np.concatenate([[0.0], weights])
    found = HeldOut(targets[rows] - mean, np.sqrt(variance))
    factor = stacking.variance_factor(found, float(weights[0]))
    if several and anew is None and 8 < len(y) <= _FEW:
        factor *= max(1.0, _errors_anew(ard, groups, known, same_units) / stacking.mean_square(targets[rows], whole))
    if known is None:  # hyperparameters take as much of the errors as coefficients of a regression do
        factor *= 1 + float(weights[1]) * (len(columns) + 3) / len(y)
    repeated = 0.0 if known is not None else stacking.repeated_variance(targets, groups)
    factor, repeated, of_mean = _but_noise(factor, found, repeated, repeated * (groups.max() + 1) / len(y))
    found = HeldOut(found.error, np.sqrt(stacking.widen(found.std**2, factor, repeated + of_mean)))
    # What errors have more than was stated is taken for noise that the process has missed.
    least = known**2 if known is not None else stacking.least_variance(found, repeated or ard.noise * max(factor, 1.0))
    held_out, loss = _in_units(used, scaling, values[rows], found.error, np.sqrt(np.maximum(found.std**2, least)))
    process = TableProcess(
        local=local,
        ard=ard,
        trees=trees,
        scaling=scaling,
        columns=columns,
        transform=used,
        weights=weights,
        least_variance=least,
        noise_variance=repeated,
        mean_variance=of_mean,
        variance_factor=factor,
        held_out=held_out,
        alpha=alpha,
        settings=told,
    )
    return process, loss


def _in_units(
    used: Transform,
    scaling: Scaling,
    values: Float[np.ndarray, "n"],
    error: Float[np.ndarray, "n"],
    std: Float[np.ndarray, "n"],
) -> tuple[HeldOut, float]:
    """Return held-out predictions of values, with the law of their errors, and their mean loss, in the units of the data."""
    scale, tail = float(scaling.target_scale), find_tail(error / std) if used.kind == "none" else 0.0
    loss = np.mean(np.log(std * scale) - log_density(error / std, tail) - used.log_slope(values))
    mean, deviation = used.moments(scaling.values(scaling.targets(used.forward(values)) - error), std * scale)
    return HeldOut((values - mean) / scale, deviation / scale, tail), float(loss)


def _common_scaling(X: Float[np.ndarray, "n d"], y: Float[np.ndarray, "n"]) -> Scaling:
    """Return a scaling in which all inputs keep a unit in common."""
    scaling = Scaling.of(X, y)
    common = np.full_like(scaling.input_scale, np.sqrt(np.mean(np.var(X, axis=0))) or 1.0)
    return dataclasses.replace(scaling, input_scale=common)


def _errors_anew(ard: ARDProcess, groups: Int[np.ndarray, "n"], noise: float | None, tied: bool) -> float:
    """Return the mean square of errors if length scales, which follow single rows, are found without them."""
    return stacking.mean_square(ard.targets, ard.cross_fit(groups, noise=noise, tied=tied))


def _if_wide(
    ard: ARDProcess, groups: Int[np.ndarray, "n"], noise: float | None, tied: bool
) -> tuple[ARDProcess, Moments | None]:
    """Return a process whose metric can be trusted and, of more inputs than rows, predictions by folds.

    So many length scales fit noise so well that a row which is left out is predicted by what it has taught them.
    """
    rows, inputs = ard.inputs.shape
    if inputs <= max(FEW_INPUTS, rows):
        return ard, None
    return fit_ard(ard.inputs, ard.targets, noise=noise, tied=True), ard.cross_fit(groups, noise=noise, tied=tied)


def _without(rows: np.ndarray, ard: ARDProcess, groups: Int[np.ndarray, "n"], anew: Moments | None) -> Moments:
    """Return predictions of rows that were left out: one by one, or those by folds."""
    return ard.leave_out(rows, groups) if anew is None else Moments(anew.mean[rows], anew.variance[rows])


def _but_noise(factor: float, found: HeldOut, noise: float, of_mean: float) -> tuple[float, float, float]:
    """Return the factor of the rest that widens held-out variances as one of all does, the noise and the variance of a mean.

    Both are told by repeated values, and zero without: errors of length scales make nothing of them larger.
    """
    level, told = float(np.mean(found.std**2)), noise + of_mean
    if factor <= 1 or told >= level:
        return factor, 0.0, 0.0
    return (factor * level - told) / (level - told), noise, of_mean


def _best_local(
    correction: Correction,
    X: np.ndarray,
    y: np.ndarray,
    scaling: Scaling,
    columns: np.ndarray,
    ard: ARDProcess,
    others: Float[np.ndarray, "n"],
    early: bool,
    **settings: Any,
) -> LocalProcess:
    """Return the local expert in the plain metric, or in that of the length scales if it predicts left-out rows better.

    `others` are the losses of another expert, NaN for rows that were not left out. The second metric is not tried where the first
    is behind it: the other is then used anyway. If `early`, an expert that is far behind on the first rows is not judged by all.
    """
    enough = float(np.nanmean(others)) + _BEHIND
    lengths = np.exp(ard.log_lengths)
    plain, found = np.ptp(ard.log_lengths) < np.log(_ALIKE), []

    def fitted(own: Scaling) -> LocalProcess:
        inputs = int(np.count_nonzero(np.isfinite(own.input_scale[columns])))
        return condition(suited(correction, inputs), X, y, own, **settings, hopeless=hopeless if early else None)

    def hopeless(rows: np.ndarray, found: HeldOut) -> bool:
        behind = log_losses(found.error, found.std**2) - others[rows]
        return bool(behind.mean() - 2 * behind.std() / np.sqrt(len(behind)) > _BEHIND)

    def losses(one: LocalProcess) -> np.ndarray:
        return np.asarray(log_losses(one.held_out.error, one.held_out.std**2))

    if plain or len(columns) <= FEW_INPUTS:
        found.append(fitted(scaling))
    if not plain and not (found and losses(found[0]).mean() > enough):
        scale, relevant = np.full_like(scaling.input_scale, np.inf), lengths < _IRRELEVANT * lengths.min()
        scale[columns[relevant]] = scaling.input_scale[columns[relevant]] * lengths[relevant] / lengths.min()
        found.append(fitted(dataclasses.replace(scaling, input_scale=scale)))
    # The plain metric stands unless the other is surely better, or the only one that was worth to be judged.
    if len(found[0].held_out.error) != len(found[-1].held_out.error):
        return max(found, key=lambda one: len(one.held_out.error))
    better = losses(found[0]) - losses(found[-1])
    return found[-1] if better.mean() >= 2 * better.std() / np.sqrt(len(better)) else found[0]
