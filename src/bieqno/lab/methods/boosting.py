"""Boosted trees that state their uncertainty, where they are installed (extra ``bench``): CatBoost and NGBoost.

Their settings are chosen by the likelihood of five folds, as ours are, and they are then trained on all rows.
"""

from collections.abc import Mapping
from importlib.util import find_spec
from itertools import product
from typing import Any

import numpy as np
from jaxtyping import Bool

from bieqno.lab.methods.regression import Fit, Prediction, Problem


def catboost(problem: Problem, seed: int) -> Prediction:
    """Return CatBoost with uncertainty: depth, penalty and rounds by the likelihood of five folds, then trained on all rows."""
    from catboost import CatBoostRegressor

    fixed: dict[str, Any] = {"loss_function": "RMSEWithUncertainty", "verbose": False, "random_seed": seed % 1000}
    fixed |= {"allow_writing_files": False, "thread_count": 1, "learning_rate": 0.05}

    def history(own: dict[str, Any], held: np.ndarray) -> list[float]:
        model = CatBoostRegressor(iterations=1500, use_best_model=False, **own)
        model.fit(problem.x[~held], problem.y[~held], eval_set=(problem.x[held], problem.y[held]))
        return next(iter(model.get_evals_result()["validation"].values()))

    tried = [fixed | {"depth": depth, "l2_leaf_reg": penalty} for depth, penalty in product((3, 6), (3.0, 30.0))]
    found = [np.mean([history(own, held) for held in _folds(problem, seed)], axis=0) for own in tried]
    best = int(np.argmin([losses.min() for losses in found]))
    model = CatBoostRegressor(iterations=int(np.argmin(found[best])) + 1, **tried[best])
    mean, variance = model.fit(problem.x, problem.y).predict(problem.points).T
    return Prediction(mean, np.sqrt(variance), np.diag(variance[:1]))


def ngboost(problem: Problem, seed: int) -> Prediction:
    """Return NGBoost: the number of rounds by the likelihood of five folds, then trained on all rows."""
    from ngboost import NGBRegressor

    fixed = {"verbose": False, "random_state": seed % 1000, "learning_rate": 0.03}

    def history(held: np.ndarray) -> list[float]:
        model = NGBRegressor(n_estimators=600, **fixed)
        model.fit(problem.x[~held], problem.y[~held], problem.x[held], problem.y[held])
        return next(iter(model.evals_result["val"].values()))

    losses = np.mean([history(held) for held in _folds(problem, seed)], axis=0)
    model = NGBRegressor(n_estimators=int(np.argmin(losses)) + 1, **fixed)
    found = model.fit(problem.x, problem.y).pred_dist(problem.points)
    return Prediction(found.loc, found.scale, np.diag(found.scale[:1] ** 2))


def _folds(problem: Problem, seed: int) -> list[Bool[np.ndarray, "n"]]:
    """Return five folds by which settings are chosen: which rows each holds out."""
    number = np.random.default_rng(seed).permutation(len(problem.y)) % 5
    return [number == fold for fold in range(5)]


METHODS: Mapping[str, Fit] = {"catboost": catboost, "ngboost": ngboost}


def installed() -> dict[str, Fit]:
    """Return the methods whose package is there."""
    return {name: fit for name, fit in METHODS.items() if find_spec(name) is not None}
