"""The opponents of gGP, tuned as well as possible: Gaussian processes and gradient-boosted trees of scikit-learn.

The marginal likelihood of these kernels has bad optima: with the length scale at its lower bound the process explains
every point by itself and predicts the mean between them. So the length scale is bounded below at a third of the spacing
of the points, many starts are screened by the value of the likelihood on *all* the data (a value costs a small part of
a gradient), and the best start of each length scale, or of the best few where the data are many, is followed uphill.
The highest likelihood wins.
"""

import itertools
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.linalg import cho_solve, cholesky, solve_triangular
from scipy.optimize import minimize
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Kernel, Matern, WhiteKernel
from sklearn.metrics import make_scorer, mean_pinball_loss
from sklearn.model_selection import KFold, cross_val_score
from threadpoolctl import threadpool_limits

# What differs between the kernels is one factor, made from its length scales and their bounds.
_MATERN = {f"matern{k}2": partial(Matern, nu=k / 2) for k in (1, 3, 5)}
_SHAPES: dict[str, Callable[..., Kernel]] = {"se": RBF, **_MATERN, "two-se": RBF}
KERNELS = tuple(_SHAPES)

# Starts of the variance and of a learned noise variance, in units of the mean square of y.
_VARIANCES = (1.0, 0.3, 10.0)
_NOISES = (1e-3, 0.1, 1e-4)
# A climb costs seconds where the data are many: there only one variance and two noises are screened for each length
# scale, and only the two best starts are followed.
_MANY = 300
_CLIMBS, _CLIMBS_OF_MANY = 6, 2
_STOP = {"ftol": 1e-7, "gtol": 1e-4}  # relative to a log-likelihood of hundreds: the fourth decimal


@dataclass(frozen=True)
class TunedGP:
    """A Gaussian process with a constant mean and its hyperparameters chosen; a `noise` of None is learned in the kernel.

    `at_bound` says whether some hyperparameter ended at a bound, a sign that the kernel does not suit the data.
    """

    regressor: GaussianProcessRegressor
    noise: float | None
    mean: float
    log_marginal_likelihood: float
    at_bound: bool

    def predict(self, x: Float[np.ndarray, "n d"]) -> tuple[Float[np.ndarray, "n"], Float[np.ndarray, "n"]]:
        """Mean and standard deviation of *noisy* new values, the noise included."""
        mean, std = _quietly(lambda: self.regressor.predict(x, return_std=True))
        return mean + self.mean, np.sqrt(std**2 + (self.noise or 0.0) ** 2)

    def covariance(self, x: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n n"]:
        """Joint covariance of noisy new values."""
        _, covariance = _quietly(lambda: self.regressor.predict(x, return_cov=True))
        return covariance + (self.noise or 0.0) ** 2 * np.eye(len(x))


def tune(
    x: Float[np.ndarray, "m d"],
    y: Float[np.ndarray, "m"],
    *,
    kernel: str = "se",
    noise: float | None,
    lengths: int = 7,
    climbs: int | None = None,
) -> TunedGP:
    """Fit a Gaussian process around the mean of the data by its marginal likelihood, from many starts.

    All `KERNELS` have a variance and a length scale for each input, ``two-se`` has two of each. A `noise` of None is learned. The
    search starts from `lengths` length scales between the spacing of the points and their range, and climbs from so many of them,
    best first, at each level of a learned noise; `climbs=None` means fewer where the data are many.
    """
    if kernel not in KERNELS:
        raise ValueError(f"expected a kernel of {', '.join(KERNELS)}, got {kernel!r}")
    mean = float(np.mean(y))
    y = y - mean
    power = float(np.mean(y**2))
    many = len(x) > _MANY
    prior, families = _kernel(x, power, kernel, lengths, _VARIANCES[:1] if many else _VARIANCES)
    # Climbs start from the best length scales at *each* level of a learned noise: high noise screens well and traps.
    groups = [families]
    if noise is None:
        levels = np.log(power * np.array(_NOISES[:2] if many else _NOISES))
        prior = prior + WhiteKernel(power * 1e-2, (power * 1e-5, power))
        groups = [[[np.append(start, level) for start in family] for family in families] for level in levels]
    if climbs is None:
        climbs = (_CLIMBS_OF_MANY if many else _CLIMBS) // len(groups)

    def search(objective: Callable[..., Any], _: np.ndarray, bounds: np.ndarray) -> tuple[np.ndarray, float]:
        """Scikit-learn's place for an optimiser: screen all starts, climb from the best ones."""

        def best_of(family: list[np.ndarray]) -> tuple[float, np.ndarray]:
            inside = [np.clip(start, bounds[:, 0], bounds[:, 1]) for start in family]
            values = [objective(start, eval_gradient=False) for start in inside]
            best = int(np.argmin(values))
            return values[best], inside[best]

        ranked = [sorted(map(best_of, group), key=lambda pair: pair[0]) for group in groups]
        climb = partial(minimize, objective, jac=True, method="L-BFGS-B", bounds=bounds, options=_STOP)
        ends = [climb(start) for group in ranked for _, start in group[:climbs]]
        end = min(ends, key=lambda end: float(end.fun))
        return end.x, float(end.fun)

    return _fitted(x, y, prior, noise, search, mean)


def given_all(
    model: TunedGP, x: Float[np.ndarray, "m d"], y: Float[np.ndarray, "m"], points: Float[np.ndarray, "n d"]
) -> tuple[Float[np.ndarray, "n"], Float[np.ndarray, "n"]]:
    """Return mean and deviation of noisy values by a tuned process given all rows; keeps one matrix, unlike scikit-learn."""
    kernel = model.regressor.kernel_
    L = cholesky(kernel(x) + model.regressor.alpha * np.eye(len(x)), lower=True, overwrite_a=True, check_finite=False)
    across = kernel(x, points)
    mean = across.T @ cho_solve((L, True), y - model.mean) + model.mean
    known = solve_triangular(L, across, lower=True, overwrite_b=True, check_finite=False)
    variance = kernel.diag(points) - np.sum(known**2, axis=0)
    return mean, np.sqrt(np.maximum(variance, 1e-12) + (model.noise or 0.0) ** 2)


def as_in_the_paper(x: Float[np.ndarray, "m d"], y: Float[np.ndarray, "m"], *, noise: float | None) -> TunedGP:
    """The Gaussian process as the paper seems to have used it: zero mean, one climb from the default start.

    On sparse and on two-dimensional data it often collapses to a length scale of nearly zero. The smooth fits that the
    paper describes in two dimensions (two scales of four found at 16 x 16) are those of the noise *learned*, which is
    `tune` with ``noise=None``.
    """
    return _fitted(x, y, ConstantKernel() * RBF(np.ones(x.shape[1])), noise, "fmin_l_bfgs_b")


def _kernel(
    x: Float[np.ndarray, "m d"], power: float, name: str, lengths: int, variances: Sequence[float]
) -> tuple[Kernel, list[list[np.ndarray]]]:
    """A kernel with its bounds, and starts of its log-hyperparameters: a family of them for each length scale."""
    extent = np.ptp(x, axis=0)
    extent = np.where(extent > 0, extent, 1.0)
    spacing = extent * len(x) ** (-1 / x.shape[1])
    length_bounds = np.stack([spacing / 3, 10 * extent], axis=1)
    variance_bounds = (power * 1e-3, power * 1e3)
    grid = np.geomspace(spacing, extent, lengths)

    def one(length: np.ndarray) -> Kernel:
        return ConstantKernel(power, variance_bounds) * _SHAPES[name](length, length_bounds)

    def start(variance: float, length: np.ndarray) -> np.ndarray:
        return np.log([power * variance, *length])

    if name == "two-se":
        pairs = itertools.combinations(grid, 2)
        splits = [(0.1 * variance, variance) for variance in variances]  # the fine scale is the weaker one
        families = [[np.append(start(a, short), start(b, long)) for a, b in splits] for short, long in pairs]
        return one(grid[0]) + one(grid[-1]), families
    return one(grid[0]), [[start(variance, length) for variance in variances] for length in grid]


def _fitted(
    x: np.ndarray, y: np.ndarray, kernel: Kernel, noise: float | None, optimizer: Any, mean: float = 0.0
) -> TunedGP:
    # With the noise in the kernel, scikit-learn's own jitter is all that is added.
    alpha = 1e-10 if noise is None else noise**2
    regressor = GaussianProcessRegressor(kernel, alpha=alpha, optimizer=optimizer)
    _quietly(lambda: regressor.fit(x, y))
    theta, bounds = regressor.kernel_.theta, regressor.kernel_.bounds
    at_bound = bool(np.any(np.abs(theta[:, None] - bounds) < 1e-3))
    return TunedGP(regressor, noise, mean, float(regressor.log_marginal_likelihood_value_), at_bound)


def _quietly(call: Callable[[], Any]) -> Any:
    """Call without the warnings that are expected here: what they say stands in `TunedGP.at_bound`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.filterwarnings("ignore", message="Predicted variances smaller than 0", category=UserWarning)
        return call()


def predict_by_trees(
    x: Float[np.ndarray, "m d"], y: Float[np.ndarray, "m"], points: Float[np.ndarray, "n d"], *, seed: int = 0
) -> tuple[Float[np.ndarray, "n"], Float[np.ndarray, "n"]]:
    """Return mean and standard deviation of new values: that of a normal law with the quantiles at 0.05 and 0.95.

    Number and size of the trees are chosen by five folds, for the mean and for each quantile by itself. The least standard
    deviation is a tenth of the cross-validated error of the mean: quantiles may meet or cross.

    Example:
        >>> x = np.linspace(0, 1, 60)[:, None]
        >>> mean, std = predict_by_trees(x, (x[:, 0] > 0.5).astype(float), np.array([[0.2], [0.8]]))
        >>> mean.round(1).tolist()
        [0.0, 1.0]
    """
    folds = KFold(min(5, len(y)), shuffle=True, random_state=seed)

    def best(score: object, **loss: Any) -> tuple[Float[np.ndarray, "n"], float]:
        trees = partial(HistGradientBoostingRegressor, min_samples_leaf=5, early_stopping=False, **loss)
        grid = itertools.product((3, 8, 24), (50, 200))
        candidates = [trees(max_leaf_nodes=leaves, max_iter=rounds) for leaves, rounds in grid]
        scores = [cross_val_score(candidate, x, y, cv=folds, scoring=score).mean() for candidate in candidates]
        return candidates[int(np.argmax(scores))].fit(x, y).predict(points), -float(max(scores))

    def quantile(level: float) -> Float[np.ndarray, "n"]:
        score = make_scorer(mean_pinball_loss, alpha=level, greater_is_better=False)
        return best(score, loss="quantile", quantile=level)[0]

    with threadpool_limits(1, "openmp"):  # tables of some hundreds of rows gain nothing by threads
        mean, error = best("neg_root_mean_squared_error")
        low, high = quantile(0.05), quantile(0.95)
    return mean, np.maximum((high - low) / (2 * 1.6449), max(0.1 * error, 1e-12))
