"""Gradient-boosted trees with quantiles, tuned by cross-validation: what many reach for where a table is given."""

from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from jaxtyping import Float
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.metrics import make_scorer, mean_pinball_loss
from sklearn.model_selection import KFold, cross_val_score
from threadpoolctl import threadpool_limits

_LOW, _HIGH = 0.05, 0.95
_WIDTH = 2 * 1.6449  # between these two quantiles of a standard normal law
_LEAVES, _ROUNDS = (3, 8, 24), (50, 200)


@dataclass(frozen=True)
class BoostedTrees:
    """One set of trees for the mean, and one for each of two quantiles.

    Attributes:
        mean: predicts the mean.
        low: predicts the lower quantile.
        high: predicts the upper quantile.
        floor: least standard deviation, a tenth of the cross-validated error of the mean: trees may let quantiles meet or cross.
    """

    mean: HistGradientBoostingRegressor
    low: HistGradientBoostingRegressor
    high: HistGradientBoostingRegressor
    floor: float

    def predict(self, x: Float[np.ndarray, "n d"]) -> tuple[Float[np.ndarray, "n"], Float[np.ndarray, "n"]]:
        """Mean and standard deviation of new values, the latter that of a normal law with these quantiles."""
        std = (self.high.predict(x) - self.low.predict(x)) / _WIDTH
        return self.mean.predict(x), np.maximum(std, self.floor)


def tune_trees(x: Float[np.ndarray, "m d"], y: Float[np.ndarray, "m"], *, seed: int = 0) -> BoostedTrees:
    """Choose number and size of the trees by five folds, for the mean and for each quantile by itself.

    Args:
        x: inputs.
        y: noisy values.
        seed: of the folds.

    Example:
        >>> import numpy as np
        >>> x = np.linspace(0, 1, 60)[:, None]
        >>> mean, std = tune_trees(x, (x[:, 0] > 0.5).astype(float)).predict(np.array([[0.2], [0.8]]))
        >>> mean.round(1).tolist()
        [0.0, 1.0]
    """
    folds = KFold(5, shuffle=True, random_state=seed)

    def best(score: object, **loss: Any) -> tuple[HistGradientBoostingRegressor, float]:
        candidates = [
            HistGradientBoostingRegressor(
                **loss, max_leaf_nodes=leaves, max_iter=rounds, min_samples_leaf=5, early_stopping=False
            )
            for leaves, rounds in product(_LEAVES, _ROUNDS)
        ]
        scores = [cross_val_score(candidate, x, y, cv=folds, scoring=score).mean() for candidate in candidates]
        return candidates[int(np.argmax(scores))].fit(x, y), -float(max(scores))

    def quantile(level: float) -> HistGradientBoostingRegressor:
        score = make_scorer(mean_pinball_loss, alpha=level, greater_is_better=False)
        return best(score, loss="quantile", quantile=level)[0]

    with threadpool_limits(1, "openmp"):  # tables of some hundreds of rows gain nothing by threads
        mean, error = best("neg_root_mean_squared_error")
        return BoostedTrees(mean, quantile(_LOW), quantile(_HIGH), max(0.1 * error, 1e-12))
