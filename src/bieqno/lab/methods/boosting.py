"""Trees that state their uncertainty, where they are installed (extra ``bench``): CatBoost, NGBoost, quantile forest.

Their settings are chosen by the likelihood of five folds, as ours are, and they are then trained on all rows. Of more than
`_MANY` rows one fold decides: a fifth of them is enough to compare settings.
"""

from collections.abc import Mapping
from importlib.util import find_spec
from itertools import product
from typing import Any

import numpy as np
from jaxtyping import Bool
from scipy.stats import norm

from bieqno.lab.methods.regression import Fit, Prediction, Problem

_MANY = 4000
_PATIENCE = 50  # rounds without a gain after which training stops


def catboost(problem: Problem, seed: int) -> Prediction:
    """Return CatBoost with uncertainty: depth, penalty and rounds by the likelihood of folds, then trained on all rows."""
    from catboost import CatBoostRegressor

    fixed: dict[str, Any] = {"loss_function": "RMSEWithUncertainty", "verbose": False, "random_seed": seed % 1000}
    fixed |= {"allow_writing_files": False, "thread_count": 1, "learning_rate": 0.05}

    def trained(own: dict[str, Any], held: np.ndarray) -> tuple[float, int]:
        model = CatBoostRegressor(iterations=3000, early_stopping_rounds=_PATIENCE, **own)
        model.fit(problem.x[~held], problem.y[~held], eval_set=(problem.x[held], problem.y[held]))
        return next(iter(model.get_best_score()["validation"].values())), model.get_best_iteration() + 1

    tried = [fixed | {"depth": depth, "l2_leaf_reg": penalty} for depth, penalty in product((3, 6), (3.0, 30.0))]
    found = [np.mean([trained(own, held) for held in _folds(problem, seed)], axis=0) for own in tried]
    best = int(np.argmin([loss for loss, _ in found]))
    model = CatBoostRegressor(iterations=round(found[best][1]), **tried[best])
    mean, variance = model.fit(problem.x, problem.y).predict(problem.points).T
    return Prediction(mean, np.sqrt(variance), np.diag(variance[:1]))


def ngboost(problem: Problem, seed: int) -> Prediction:
    """Return NGBoost: the number of rounds by the likelihood of folds, then trained on all rows."""
    from ngboost import NGBRegressor

    fixed = {"verbose": False, "random_state": seed % 1000, "learning_rate": 0.05}

    def rounds(held: np.ndarray) -> int:
        model = NGBRegressor(n_estimators=1500, **fixed)
        model.fit(problem.x[~held], problem.y[~held], problem.x[held], problem.y[held], early_stopping_rounds=_PATIENCE)
        return model.best_val_loss_itr + 1

    number = round(float(np.mean([rounds(held) for held in _folds(problem, seed)])))
    model = NGBRegressor(n_estimators=number, **fixed)
    found = model.fit(problem.x, problem.y).pred_dist(problem.points)
    return Prediction(found.loc, found.scale, np.diag(found.scale[:1] ** 2))


def quantile_forest(problem: Problem, seed: int) -> Prediction:
    """Return a quantile regression forest: leaf size and tried inputs by the likelihood of folds."""
    from quantile_forest import RandomForestQuantileRegressor

    ends = [float(norm.cdf(-1)), float(norm.cdf(1))]  # a standard deviation below and above the median of a normal law

    def predicted(
        own: dict[str, Any], known: np.ndarray, points: np.ndarray, trees: int = 50
    ) -> tuple[np.ndarray, np.ndarray]:
        model = RandomForestQuantileRegressor(trees, random_state=seed % 1000, **own)
        model.fit(problem.x[known], problem.y[known])
        low, high = model.predict(points, quantiles=ends).T
        least = 1e-3 * problem.y.std()
        return model.predict(points, quantiles="mean"), np.maximum((high - low) / 2, least)

    def loss(own: dict[str, Any]) -> float:
        folds = _folds(problem, seed)
        found = [norm.logpdf(problem.y[held], *predicted(own, ~held, problem.x[held])) for held in folds]
        return -float(np.mean(np.concatenate(found)))

    tried = [{"min_samples_leaf": leaf, "max_features": part} for leaf, part in product((2, 5, 10, 20), (0.4, 1.0))]
    mean, std = predicted(min(tried, key=loss), np.ones(len(problem.y), bool), problem.points, 300)
    return Prediction(mean, std, np.diag(std[:1] ** 2))


def _folds(problem: Problem, seed: int) -> list[Bool[np.ndarray, "n"]]:
    """Return the folds by which settings are chosen, five or one of five: which rows each holds out."""
    number = np.random.default_rng(seed).permutation(len(problem.y)) % 5
    return [number == fold for fold in range(5 if len(problem.y) <= _MANY else 1)]


METHODS: Mapping[str, Fit] = {"catboost": catboost, "ngboost": ngboost, "quantile-forest": quantile_forest}


def installed() -> dict[str, Fit]:
    """Return the methods whose package is there."""
    return {name: fit for name, fit in METHODS.items() if find_spec(name.replace("-", "_")) is not None}
