"""Boosted trees, cross-fitted, with kriged residuals: the expert for cliffs, categories and interactions of many inputs.

Each of `FOLDS` models is trained without one fold and predicts it; their mean predicts new points. The out-of-fold residuals
decide how many rounds are used, teach a second, smaller set of trees how strong the residuals are from place to place, and are
kriged: what is left of a smooth function is predicted by a Gaussian process in the metric of the length scales.
The trees are scikit-learn's, of few rows our own (`boosting`); they are kept as arrays, so that a file holds numbers only.
"""

from collections.abc import Callable, Sequence

import equinox as eqx
import numpy as np
from jaxtyping import Float, Int
from sklearn.base import clone
from sklearn.ensemble import HistGradientBoostingRegressor
from threadpoolctl import threadpool_limits

from bieqno.regression.pretrained.ard import ARDProcess, fit_ard
from bieqno.regression.pretrained.boosting import CHUNK, Forest, boost
from bieqno.regression.pretrained.mixture import Moments

FOLDS = 5
LEAST_ROWS, LEAST_INPUTS = 60, 3
"""With fewer rows trees have nothing to split; of one or two inputs the local experts find the cliffs themselves."""
_MOST_ROUNDS, _LEAVES, _LEAVES_OF_MANY = 400, 8, 24
_SPREAD = 40, 0.08, 6
_FEW, _OF_FEW, _SPREAD_OF_FEW = 600, (140, 0.14, 3), (24, 0.2, 3)
"""Rows up to which our own trees are used, and their rounds, learning rates and levels: chosen on synthetic functions."""
_MANY = 20_000  # rows from which on threads pay


class TreeExpert(eqx.Module):
    """Boosted trees, trees for the logarithm of the squared residuals, and a process of the standardised residuals."""

    mean: Forest
    log_spread: Forest
    residuals: ARDProcess

    def predict(self, points: Float[np.ndarray, "n d"]) -> Moments:
        """Predict noisy values."""
        spread = np.exp(self.log_spread.predict(points) / 2)
        left = self.residuals.predict(points)
        return Moments(self.mean.predict(points) + spread * left.mean, spread**2 * left.variance)


def fit_trees(
    inputs: Float[np.ndarray, "n d"],
    targets: Float[np.ndarray, "n"],
    groups: Int[np.ndarray, "n"],
    metric: ARDProcess,
    rows: Int[np.ndarray, "k"],
    *,
    seed: int,
) -> tuple[TreeExpert, Moments]:
    """Fit the expert, and predict `rows` by models that were trained without their fold; a group is in one fold.

    `metric` has the length scales of the kriging.
    """
    own, number = np.unique(groups, return_inverse=True)
    folds = (np.random.default_rng(seed).permutation(len(own)) % FOLDS)[number]
    few = len(targets) <= _FEW
    rounds = min(_MOST_ROUNDS, 120 + len(targets) // 3) if len(targets) < _MANY else _MOST_ROUNDS // 2
    leaves = _LEAVES if len(targets) < 3000 else _LEAVES_OF_MANY
    cross_fit, size_of_mean = (boost, _OF_FEW) if few else (_cross_fit, (rounds, 32 / rounds, leaves))
    mean, found = cross_fit(inputs, targets, folds, size_of_mean, np.square)
    residual = targets - found
    # Of a normal residual the logarithm of the square is on average that of the variance minus 1.27.
    size = np.log(residual**2 + 1e-2 * np.mean(residual**2)) + 1.0

    def loss(error: np.ndarray) -> np.ndarray:
        """Return the log-loss of the residuals at a log-variance that misses the sizes by these errors, up to a constant."""
        log_variance = size - error
        return log_variance + residual**2 * np.exp(-log_variance)

    log_spread, spread = cross_fit(inputs, size, folds, _SPREAD_OF_FEW if few else _SPREAD, loss)
    spread = np.exp(spread / 2)
    process = fit_ard(inputs, residual / spread, like=metric)
    left, spread = process.leave_out(rows, groups), spread[rows]
    return TreeExpert(mean, log_spread, process), Moments(found[rows] + spread * left.mean, spread**2 * left.variance)


def _cross_fit(
    inputs: Float[np.ndarray, "n d"],
    targets: Float[np.ndarray, "n"],
    folds: Int[np.ndarray, "n"],
    settings: tuple[int, float, int],
    loss: Callable[[np.ndarray], np.ndarray],
) -> tuple[Forest, Float[np.ndarray, "n"]]:
    """Train a model without each fold, given rounds, learning rate and leaves; return them and the out-of-fold predictions.

    Used are as many rounds as give the least `loss` of the out-of-fold errors.
    """
    rounds, rate, leaves = settings
    shape = {"max_iter": rounds, "learning_rate": rate, "max_leaf_nodes": leaves, "l2_regularization": 1.0}
    model = HistGradientBoostingRegressor(
        **shape, min_samples_leaf=5 if len(targets) < 1000 else 10, early_stopping=False, random_state=0
    )
    with threadpool_limits(1 if len(targets) < _MANY else None, "openmp"):
        models = [clone(model).fit(inputs[folds != fold], targets[folds != fold]) for fold in range(FOLDS)]
    forest = forest_of(models)
    stages = np.empty((rounds + 1, len(targets)))
    for fold in range(FOLDS):
        stages[0, folds == fold] = forest.baseline[fold]
        held = np.flatnonzero(folds == fold)
        for own in (held[i : i + CHUNK] for i in range(0, len(held), CHUNK)):
            stages[1:, own] = forest.stages(fold, inputs[own])
    np.cumsum(stages, axis=0, out=stages)
    best = int(np.argmin([np.mean(loss(targets - stage)) for stage in stages]))
    return forest.first(best), stages[best]


def forest_of(models: Sequence[HistGradientBoostingRegressor]) -> Forest:
    """Take the trees out of scikit-learn's models of equally many rounds."""
    trees = [[rounds[0].nodes for rounds in model._predictors] for model in models]
    most = max(len(nodes) for own in trees for nodes in own)

    def stacked(name: str) -> np.ndarray:
        return np.array([[np.pad(nodes[name], (0, most - len(nodes))) for nodes in own] for own in trees])

    leaf, itself = stacked("is_leaf").astype(bool), np.arange(most)
    return Forest(
        np.array([float(np.ravel(model._baseline_prediction)[0]) for model in models]),
        np.where(leaf, 0, stacked("feature_idx")).astype(np.int32),
        np.where(leaf, np.inf, stacked("num_threshold")).astype(np.float64),
        np.where(leaf, itself, stacked("left")).astype(np.int32),
        np.where(leaf, itself, stacked("right")).astype(np.int32),
        stacked("value").astype(np.float64),
    )
