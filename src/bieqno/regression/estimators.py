"""The two regressors: `PretrainedGGPRegressor`, zero-shot, and `GGPRegressor`, trained on the data as in the paper."""

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np
from sklearn.utils._param_validation import Interval, StrOptions

from bieqno.regression.base import AbstractRegressor, draw_seed
from bieqno.regression.data import LEAST_ROWS, Scaling, Table, floats
from bieqno.regression.pretrained.correction import no_correction, shipped_correction
from bieqno.regression.pretrained.fine_tuning import fine_tune
from bieqno.regression.pretrained.table import TableProcess, fit_table
from bieqno.regression.trained.ensemble import FittedEnsemble, TrainingSettings, fit_ensemble
from bieqno.training import Progress

_COUNT = Interval(Integral, 1, None, closed="left")
_SIZE = Interval(Integral, 1, 10_000, closed="both")  # of what is allocated: more is a slip, and fails after minutes
_NOT_NEGATIVE = Interval(Real, 0, None, closed="left")
_SHARED: dict[str, list[Any]] = {
    "noise": [_NOT_NEGATIVE, None],
    "random_state": ["random_state"],
    "on_progress": [callable, None],
}


@dataclass(kw_only=True, eq=False, repr=False)
class PretrainedGGPRegressor(AbstractRegressor):
    """Regression with calibrated joint uncertainty for tables of any number of inputs; no network is trained on the data.

    Three kinds of experts predict: local Gaussian processes near each point (kriging), corrected by a posterior operator that was
    pre-trained on many random functions of 1 to 12 inputs; a Gaussian process of the whole table with a length scale for
    each input; and, from three inputs on, boosted trees with kriged residuals. Held-out rows decide how much each counts,
    recalibrate the variance and bound it below by the noise.

    Differences of inputs are taken in double precision, so that inputs may be crowded at places far apart.

    Args:
        correction: use the pre-trained operator; False leaves it out.
        same_units: whether all inputs have one unit, as coordinates in space have; predictions then do not depend on the
            frame. Otherwise each input is scaled by itself.
        fine_tune: train the correction on the data, and keep the result where it improves held-out
            rows; takes half a minute. Never done with fewer than 40 rows.
        target_transform: "auto" predicts the logarithm or the inverse hyperbolic sine of skewed targets where that gives
            held-out rows a higher density; "none" never does. With a known `noise` or an `alpha` there is none.
        noise: known standard deviation of the noise in `y`; None learns it.
        alpha: variance of additional noise in `y` that new values will not have, the same for all rows; used with a
            known `noise` to weigh the observations, and taken off the predicted variance.
        random_state: seed of the rows that are left out (a random choice of 1,024 of more), of the folds of trees and
            fine-tuning, and of `sample_y` by default.
        on_progress: called with a `bieqno.Progress` after every few steps of the fine-tuning.

    Attributes:
        n_iter_: steps of the fine-tuning (largest over the outputs); 0 without it or where it did not help.
        validation_scores_: scores of leave-one-out predictions, by name as in `GGPRegressor`.

    Example:
        >>> import numpy as np
        >>> X = np.linspace(0, 1, 40)[:, None]
        >>> model = PretrainedGGPRegressor().fit(X, np.sin(6 * X[:, 0]))
        >>> mean, std = model.predict(X[:3], return_std=True)
        >>> mean.shape, std.shape, model.sample_y(X[:3], 5).shape
        ((3,), (3,), (3, 5))
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = _SHARED | {
        **{name: ["boolean"] for name in ("correction", "same_units", "fine_tune")},
        "alpha": [_NOT_NEGATIVE],
        "target_transform": [StrOptions({"auto", "none"})],
    }

    correction: bool = True
    same_units: bool = False
    fine_tune: bool = False
    target_transform: str = "auto"
    noise: float | None = None
    alpha: float = 0.0
    random_state: int | np.random.RandomState | None = None
    on_progress: Callable[[Progress], None] | None = None

    def condition(self, X: Table, y: Table) -> "PretrainedGGPRegressor":
        """Take `X`, `y` as the observations in place of those before: a new fit that keeps fine-tuned weights."""
        return self._condition(X, y, 0.0, least=LEAST_ROWS)

    def _fit_columns(
        self, X: np.ndarray, columns: np.ndarray, alpha: np.ndarray, random: np.random.RandomState
    ) -> tuple[tuple[TableProcess, ...], int]:
        correction = shipped_correction() if self.correction else no_correction()
        settings: dict[str, Any] = {
            "noise": _plain(self.noise),
            "alpha": float(self.alpha),
            "same_units": bool(self.same_units),
        }
        settings["transform"] = self.target_transform
        tune = partial(fine_tune, on_progress=self.on_progress) if self.fine_tune else None
        fits = [fit_table(correction, X, column, seed=self.seed_, tune=tune, **settings) for column in columns.T]
        return tuple(fits), max(process.steps for process in fits)


@dataclass(kw_only=True, eq=False, repr=False)
class GGPRegressor(AbstractRegressor, TrainingSettings):
    """The paper's generalized Gaussian process, trained on the data: joint uncertainty and no kernel to choose.

    A small ensemble is trained to predict random parts of the data from the rest (eq. 10). Each member holds out another
    fold; the held-out loss decides when to stop, and the held-out errors recalibrate the variance. It takes minutes.

    Inputs are standardised in double precision and then rounded to single precision, in which the networks compute: two
    inputs closer than about 1e-7 of the inputs' spread are the same to it, of which `fit` warns. `PretrainedGGPRegressor`
    has no such limit.

    Args:
        noise: known standard deviation of the noise in `y`; None learns it.
        alpha: variance of additional noise in `y` that new values will not have: a number, or one value per row. With
            one value per row it is also an input beside each observation, and the process learns to weigh it.
        rank: number of columns of each member's covariance factor.
        width: length of embeddings and hidden layers.
        members: number of members; with 1 nothing is held out, nothing is recalibrated, and all steps are taken.
        set_interaction: the paper's form, in which a prediction depends on the other points asked for at the same time.
        targets: number of points predicted in each random split (M' of the paper); None draws it.
        observations: most observations that they are predicted from; None takes all others, as the paper does.
        batch_size: random splits per member and step.
        patience: stop after that many times 50 steps without improvement on the held-out folds.
        warm_start: continue from the weights of the previous fit; the data may change, the network may not.
        random_state: seed of weights, folds, splits, and of `sample_y` by default.
        on_progress: called with a `bieqno.Progress` after every 50 steps.

    Attributes:
        target_names_: names of the targets, where `y` was a named column or columns of a data frame; None otherwise.
        n_iter_: training steps whose weights are used (largest over the outputs).
        validation_scores_: scores of each row predicted by the member that held it out: number of `rows`, `rmse`, `nlpd`,
            `coverage_50`, `coverage_90`, `coverage_95`, and `pit`, the frequencies of the probability integral transform
            in ten bins.

    Example:
        >>> import numpy as np
        >>> X = np.linspace(0, 1, 40)[:, None]
        >>> model = GGPRegressor(width=16, members=2, max_steps=50, random_state=0).fit(X, np.sin(6 * X[:, 0]))
        >>> model.predict(X[:3]).shape
        (3,)
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = _SHARED | {
        **{name: [_SIZE] for name in ("rank", "width", "depth", "members", "batch_size")},
        **{name: [_COUNT] for name in ("max_steps", "patience")},
        **{name: [_COUNT, None] for name in ("targets", "observations")},
        **{name: ["boolean"] for name in ("set_interaction", "warm_start")},
        "alpha": [_NOT_NEGATIVE, "array-like"],
        "learning_rate": [Interval(Real, 0, None, closed="neither")],
    }

    alpha: float | Table = 0.0
    warm_start: bool = False
    random_state: int | np.random.RandomState | None = None
    on_progress: Callable[[Progress], None] | None = None

    def condition(self, X: Table, y: Table, alpha: float | Table = 0.0) -> "GGPRegressor":
        """Take `X`, `y` as the observations in place of those before, without training again.

        `alpha` is the variance of their additional noise, for a process that was fitted with one value per row.
        """
        return self._condition(X, y, alpha, least=1)

    def _fit_columns(
        self, X: np.ndarray, columns: np.ndarray, alpha: np.ndarray, random: np.random.RandomState
    ) -> tuple[tuple[FittedEnsemble, ...], int]:
        inputs = np.asarray(floats(Scaling.of(X, columns[:, 0]).inputs(X)))
        distinct, seen = (len(np.unique(rows, axis=0)) for rows in (X, inputs))
        # In a large data set a few are equal by chance, and do not matter.
        if seen < 0.99 * distinct:
            warnings.warn(
                f"{distinct - seen} of {distinct} distinct inputs are merged with others in the precision of the networks; "
                "use PretrainedGGPRegressor, which takes differences in double precision, or centre each group of inputs "
                "and give the group as a column of its own",
                stacklevel=4,
            )
        settings = TrainingSettings(
            **{field.name: _plain(getattr(self, field.name)) for field in fields(TrainingSettings)}
        )
        outputs = columns.shape[1]
        previous = getattr(self, "processes_", None) if self.warm_start else None
        if previous is not None and len(previous) != outputs:
            raise ValueError(f"warm_start cannot continue from {len(previous)} outputs with {outputs}")
        facts: dict[str, Any] = {"uncertain": np.ndim(self.alpha) > 0, "fold_seed": self.seed_}
        starts = previous or [None] * outputs
        fits = [
            fit_ensemble(
                X, column, alpha, settings, seed=draw_seed(random), start=start, on_progress=self.on_progress, **facts
            )
            for column, start in zip(columns.T, starts, strict=True)
        ]
        return tuple(ensemble for ensemble, _ in fits), max(result.best_step for _, result in fits)


def load_regressor(path: str | os.PathLike[str]) -> AbstractRegressor:
    """Load whichever regressor a file holds; see `load` of either."""
    return AbstractRegressor.load(path)


def _plain(value: Any) -> Any:
    """Return a NumPy number as one of Python's."""
    return value.item() if isinstance(value, np.generic) else value
