"""The two regressors with the face of scikit-learn: `GGPRegressor`, trained, and `PretrainedGGPRegressor`, zero-shot."""

import abc
import os
import warnings
from collections.abc import Callable, Iterable
from numbers import Integral, Real
from operator import index
from typing import Any, ClassVar, TypeVar

import equinox as eqx
import jax
import numpy as np
from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin, _fit_context
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval
from sklearn.utils.validation import check_is_fitted, validate_data

from bieqno import persistence
from bieqno.gaussian import LowRankGaussian
from bieqno.persistence import PersistenceError
from bieqno.regression.data import LEAST_ROWS, Data, Scaling, Table, checked_rows, checked_targets
from bieqno.regression.metrics import HeldOut, as_text, stacked
from bieqno.regression.pretrained.correction import Correction
from bieqno.regression.pretrained.features import MAX_DIMENSION
from bieqno.regression.pretrained.fine_tuning import fine_tune
from bieqno.regression.pretrained.mixture import Context
from bieqno.regression.pretrained.neighbours import NEIGHBOURS, Units
from bieqno.regression.pretrained.process import LocalProcess, Trend, condition
from bieqno.regression.pretrained.weights import no_correction, shipped_correction
from bieqno.regression.trained.ensemble import FittedEnsemble, TrainingSettings, fit_ensemble
from bieqno.regression.trained.process import GeneralizedGaussianProcess
from bieqno.training import Progress

R = TypeVar("R", bound="AbstractRegressor")
_FITTED = ("n_features_in_", "feature_names_in_", "target_names_", "single_output_", "seed_", "n_iter_")
"""What a fit finds beside the processes; `load` restores it."""

_COUNT = Interval(Integral, 1, None, closed="left")
_NOT_NEGATIVE = Interval(Real, 0, None, closed="left")


class Saved(eqx.Module):
    """The content of a regressor's file."""

    kind: str = eqx.field(static=True)
    settings: dict[str, Any] = eqx.field(static=True)
    found: dict[str, Any] = eqx.field(static=True)
    processes: tuple[FittedEnsemble | LocalProcess, ...]

    def __check_init__(self) -> None:
        expected = {"GGPRegressor": FittedEnsemble, "PretrainedGGPRegressor": LocalProcess}.get(self.kind)
        if not self.processes or expected is None or any(not isinstance(one, expected) for one in self.processes):
            raise ValueError(f"it holds no fitted processes of a {self.kind}")
        size = len(self.processes[0].scaling.input_shift)
        if any(len(process.scaling.input_shift) != size for process in self.processes):
            raise ValueError("its outputs differ in their number of inputs")
        names = self.found.get("feature_names_in_")
        if self.found.get("n_features_in_") != size or (names is not None and len(names) != size):
            raise ValueError(f"it names {self.found.get('n_features_in_')} inputs, its processes have {size}")
        differing = set(_FITTED) - {"feature_names_in_"} ^ set(self.found) - {"feature_names_in_"}
        if differing:
            raise ValueError(f"it differs from what a fit finds in {sorted(differing)}")


STORED = (
    Saved,
    FittedEnsemble,
    GeneralizedGaussianProcess,
    Scaling,
    Data,
    HeldOut,
    LocalProcess,
    Correction,
    Context,
    Units,
    Trend,
)


class AbstractRegressor(MultiOutputMixin, RegressorMixin, BaseEstimator, abc.ABC):
    """What both regressors share: predictions, validation scores, files. A subclass fits a process to each output."""

    alpha: Any
    random_state: Any
    on_progress: Callable[[Progress], None] | None

    @abc.abstractmethod
    def _fit_columns(
        self, X: np.ndarray, columns: np.ndarray, alpha: np.ndarray, random: np.random.RandomState
    ) -> tuple[tuple[FittedEnsemble | LocalProcess, ...], int]:
        """Fit a process to each column; return them and the largest number of training steps that were used."""

    def _choose_seed(self, random: np.random.RandomState) -> int:
        return _draw_seed(random)

    @_fit_context(prefer_skip_nested_validation=True)  # type: ignore[untyped-decorator]
    def fit(self: R, X: Table, y: Table) -> R:
        """Fit to the rows of `X` and their targets; rows whose target is NaN are left out with a warning.

        A fit that fails, for whatever reason, leaves the estimator as it was: unfitted, or with its earlier fit whole.
        """
        before = dict(self.__dict__)
        try:
            rows, targets, alpha = checked_rows(self, X, y, self.alpha, reset=True, least=LEAST_ROWS)
            random = check_random_state(self.random_state)
            self.seed_ = self._choose_seed(random)
            columns = targets[:, None] if targets.ndim == 1 else targets
            processes, self.n_iter_ = self._fit_columns(rows, columns, alpha, random)
            self._use(processes)
            self.target_names_ = _names(y)
            self.single_output_ = targets.ndim == 1
        except BaseException:
            self.__dict__ = before
            raise
        return self

    @property
    def validation_scores_(self) -> dict[str, np.ndarray]:
        """Scores of predictions of rows that were held out."""
        check_is_fitted(self, "processes_")
        return stacked([own.held_out.scores(float(own.scaling.target_scale)) for own in self.processes_])

    def summary(self) -> str:
        """Return a table of `validation_scores_`: how well rows that were held out are predicted.

        Example:
            >>> X = np.linspace(0, 1, 40)[:, None]
            >>> print(PretrainedGGPRegressor(correction=False).fit(X, np.floor(3 * X[:, 0])).summary())  # doctest: +ELLIPSIS
               rows   RMSE    NLPD  50 %  90 %  95 %  PIT, % in tenths
            y    40 ...
        """
        scores = self.validation_scores_
        if not scores["rows"].any():
            return "no rows were held out (members=1)"
        names = ["y"] if self.single_output_ else [f"y{i}" for i in range(len(self.processes_))]
        return as_text(scores, names if self.target_names_ is None else list(self.target_names_))

    @property
    def calibration_(self) -> np.ndarray:
        """Factor of each output's predicted variance, found on rows that were held out."""
        check_is_fitted(self, "processes_")
        return np.array([float(process.variance_factor) for process in self.processes_])

    def predict(
        self, X: Table, return_std: bool = False, return_cov: bool = False
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """Predict the mean, and on request the standard deviation or covariance of new noisy values."""
        if return_std and return_cov:
            raise ValueError("ask for return_std or return_cov, not both")
        X = self._checked_inputs(X)
        moments = [process.moments(X) for process in self.processes_]
        mean = self._stack([mean for mean, _ in moments])
        if return_cov:
            return mean, self._stack([process.covariance(X) for process in self.processes_])
        return (mean, self._stack([std for _, std in moments])) if return_std else mean

    def posterior(self, X: Table) -> LowRankGaussian | tuple[LowRankGaussian, ...]:
        """Return the joint distribution of new noisy values at `X`; one per output if there are several.

        In single precision: for targets far from zero compared with their spread, prefer `predict` and `sample_y`.
        """
        X = self._checked_inputs(X)
        posteriors = tuple(process.posterior(X) for process in self.processes_)
        return posteriors[0] if self.single_output_ else posteriors

    def sample_y(
        self, X: Table, n_samples: int = 1, random_state: int | np.random.RandomState | None = None
    ) -> np.ndarray:
        """Draw joint samples at `X`: ``(n, n_samples)``, or ``(n, outputs, n_samples)`` for several outputs.

        Without a `random_state` the seed that `fit` drew from the estimator's own is used: equal calls, equal samples.
        """
        X = self._checked_inputs(X)
        if index(n_samples) < 1:
            raise ValueError(f"n_samples must be at least 1, got {n_samples}")
        random = check_random_state(self.seed_ if random_state is None else random_state)
        keys = jax.random.split(jax.random.key(random.randint(2**31 - 1)), len(self.processes_))
        draws = [
            process.sample(X, index(n_samples), key=key) for process, key in zip(self.processes_, keys, strict=True)
        ]
        return draws[0] if self.single_output_ else np.stack(draws, axis=1)

    def log_predictive_density(self, X: Table, y: Table) -> float:
        """Return the logarithm of the joint density of new values `y` at `X`, summed over the outputs."""
        X = self._checked_inputs(X)
        columns = checked_targets(y, len(X), len(self.processes_))
        return sum(process.log_density(X, column) for process, column in zip(self.processes_, columns.T, strict=True))

    def _condition(self: R, X: Table, y: Table, alpha: float | Table, least: int) -> R:
        check_is_fitted(self)
        X, y, variances = checked_rows(self, X, y, alpha, reset=False, least=least)
        columns = y[:, None] if y.ndim == 1 else y
        if columns.shape[1] != len(self.processes_):
            raise ValueError(f"fitted to {len(self.processes_)} outputs, got y with {columns.shape[1]}")
        if variances.any() and not self.processes_[0].uncertain:
            raise ValueError("this process was fitted without one alpha per row, so it cannot weigh observations by it")
        pairs = zip(self.processes_, columns.T, strict=True)
        self._use(process.conditioned(X, column, variances) for process, column in pairs)
        return self

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save the fitted regressor to one file; `load` reads it without the training data or script.

        `on_progress` is not saved, and a `random_state` that is a generator, not a number, is saved as None.
        """
        check_is_fitted(self)
        settings = self.get_params() | {"on_progress": None}
        settings["alpha"] = np.asarray(self.alpha, np.float64) if np.ndim(self.alpha) else float(self.alpha)
        if isinstance(self.random_state, np.random.RandomState):
            settings["random_state"] = None
        values = {name: getattr(self, name) for name in _FITTED if hasattr(self, name)}
        found = {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in values.items()}
        persistence.save(path, Saved(type(self).__name__, settings, found, self.processes_), known=STORED)

    @classmethod
    def load(cls: type[R], path: str | os.PathLike[str]) -> R:
        """Load a regressor that `save` wrote; no code from the file is run."""
        model = load_regressor(path)
        if not isinstance(model, cls):
            raise PersistenceError(f"{path} holds a {type(model).__name__}, not a {cls.__name__}")
        return model

    def __getstate__(self) -> dict[str, Any]:
        """For pickle and joblib, in the project's own format: JAX's functions cannot be pickled."""
        state = dict(super().__getstate__()) | {"on_progress": None}
        if "processes_" in state:
            state["processes_"] = [persistence.to_bytes(process, known=STORED) for process in self.processes_]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "processes_" in state:
            self._use(persistence.from_bytes(process, known=STORED) for process in state["processes_"])

    def _use(self, processes: Iterable[FittedEnsemble | LocalProcess]) -> None:
        """Take the processes, and build at once what all their predictions share."""
        self.processes_ = tuple(processes)
        for process in self.processes_:
            process.prepare()

    def _checked_inputs(self, X: Table) -> np.ndarray:
        check_is_fitted(self)
        return validate_data(self, X, reset=False, dtype=np.float64)

    def _stack(self, columns: list[np.ndarray]) -> np.ndarray:
        return columns[0] if self.single_output_ else np.stack(columns, axis=-1)


class GGPRegressor(AbstractRegressor):
    """The paper's generalized Gaussian process, trained on the data: joint uncertainty and no kernel to choose.

    A small ensemble is trained to predict random parts of the data from the rest (eq. 10). Each member holds out another
    fold; the held-out loss decides when to stop, and the held-out errors recalibrate the variance. It takes minutes.

    Inputs are standardised in double precision and then rounded to single precision, in which the networks compute: two
    inputs closer than about 1e-7 of the inputs' spread are the same to it. `PretrainedGGPRegressor` has no such limit.

    Args:
        noise: known standard deviation of the noise in `y`; None learns it.
        alpha: variance of additional noise in `y` that new values will not have: a number, or one value per row. With
            one value per row the process also sees it beside each observation and learns to weigh it.
        rank: number of columns of each member's covariance factor.
        width: length of embeddings and hidden layers.
        depth: number of layers of each network.
        members: number of members; with 1 nothing is held out, nothing is recalibrated, and all steps are taken.
        set_interaction: the paper's form, in which a prediction depends on the other points asked for at the same time.
        targets: number of points predicted in each random split (M' of the paper); None draws it.
        observations: most observations that they are predicted from; None takes all others, as the paper does.
        max_steps: most training steps.
        batch_size: random splits per member and step.
        patience: stop after that many times 50 steps without improvement on the held-out folds.
        learning_rate: step size of Adam.
        warm_start: continue from the weights of the previous fit; the data may change, the network may not.
        random_state: seed of weights, folds, splits, and of `sample_y` by default.
        on_progress: called with a `bieqno.Progress` after every 50 steps.

    Attributes:
        target_names_: names of the targets, where `y` was a named column or columns of a data frame; None otherwise.
        n_iter_: training steps whose weights are used (largest over the outputs).
        validation_scores_: scores of each row predicted by the member that held it out, one value per output: number of
            `rows`, `rmse`, `nlpd`, `coverage_50`, `coverage_90`, `coverage_95`, and `pit`, the frequencies of the
            probability integral transform in ten bins.
        calibration_: factor of each output's predicted variance, found on the held-out rows.

    Example:
        >>> import numpy as np
        >>> X = np.linspace(0, 1, 40)[:, None]
        >>> model = GGPRegressor(width=16, members=2, max_steps=50, random_state=0).fit(X, np.sin(6 * X[:, 0]))
        >>> model.predict(X[:3]).shape
        (3,)
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "noise": [_NOT_NEGATIVE, None],
        "alpha": [_NOT_NEGATIVE, "array-like"],
        "set_interaction": ["boolean"],
        "learning_rate": [Interval(Real, 0, None, closed="neither")],
        "warm_start": ["boolean"],
        "random_state": ["random_state"],
        "on_progress": [callable, None],
    } | {
        **{name: [_COUNT] for name in ("rank", "width", "depth", "members", "max_steps", "batch_size", "patience")},
        **{name: [_COUNT, None] for name in ("targets", "observations")},
    }

    def __init__(
        self,
        *,
        noise: float | None = None,
        alpha: float | Table = 0.0,
        rank: int = 8,
        width: int = 64,
        depth: int = 3,
        members: int = 5,
        set_interaction: bool = False,
        targets: int | None = None,
        observations: int | None = 256,
        max_steps: int = 2000,
        batch_size: int = 16,
        patience: int = 12,
        learning_rate: float = 1e-3,
        warm_start: bool = False,
        random_state: int | np.random.RandomState | None = None,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> None:
        self.noise = noise
        self.alpha = alpha
        self.rank = rank
        self.width = width
        self.depth = depth
        self.members = members
        self.set_interaction = set_interaction
        self.targets = targets
        self.observations = observations
        self.max_steps = max_steps
        self.batch_size = batch_size
        self.patience = patience
        self.learning_rate = learning_rate
        self.warm_start = warm_start
        self.random_state = random_state
        self.on_progress = on_progress

    def condition(self, X: Table, y: Table, alpha: float | Table = 0.0) -> "GGPRegressor":
        """Take `X`, `y` as the observations in place of those before, without training again.

        `alpha` is the variance of their additional noise, for a process that was fitted with one value per row.
        """
        return self._condition(X, y, alpha, least=1)

    def _choose_seed(self, random: np.random.RandomState) -> int:
        """Keep the folds in a warm start, so that nothing held out has been trained on."""
        return self.seed_ if self._previous() is not None else _draw_seed(random)

    def _previous(self) -> tuple[FittedEnsemble, ...] | None:
        return getattr(self, "processes_", None) if self.warm_start else None

    def _fit_columns(
        self, X: np.ndarray, columns: np.ndarray, alpha: np.ndarray, random: np.random.RandomState
    ) -> tuple[tuple[FittedEnsemble, ...], int]:
        settings = TrainingSettings(*(_plain(getattr(self, name)) for name in TrainingSettings._fields))
        previous = self._previous()
        if previous is not None and len(previous) != columns.shape[1]:
            raise ValueError(f"warm_start cannot continue from {len(previous)} outputs with {columns.shape[1]}")
        fits = [
            fit_ensemble(
                X,
                column,
                alpha,
                settings,
                uncertain=np.ndim(self.alpha) > 0,
                seed=_draw_seed(random),
                fold_seed=self.seed_,
                start=None if previous is None else previous[i],
                on_progress=self.on_progress,
            )
            for i, column in enumerate(columns.T)
        ]
        return tuple(ensemble for ensemble, _ in fits), max(result.best_step for _, result in fits)


class PretrainedGGPRegressor(AbstractRegressor):
    """Zero-shot regression with calibrated joint uncertainty: nothing is trained on the data by default.

    Each point is predicted from the observations near it by a mixture of local Gaussian processes (kriging experts), and by a
    posterior operator that corrects the mixture, pre-trained on many random functions of one to four inputs. For more
    inputs there is no correction, and a linear trend comes first. Rows left out in turn decide how far the correction
    is used, and recalibrate the variance.

    Differences of inputs are taken in double precision, so that inputs may be crowded at places far apart.

    Args:
        correction: use the pre-trained operator; False is the mixture of kriging experts alone.
        same_units: whether all inputs have one unit, as coordinates in space have; predictions then do not depend on the
            frame. Otherwise each input is scaled by itself.
        fine_tune: train the correction on the data, and keep the result where held-out rows say that it
            helps; takes half a minute. Never done with fewer than 40 rows.
        noise: known standard deviation of the noise in `y`; None learns it.
        alpha: variance of additional noise in `y` that new values will not have, the same for all rows; used with a
            known `noise` to weigh the observations, and taken off the predicted variance.
        random_state: seed of the rows that are left out (a random choice of 2,048 of more), of the folds of the
            fine-tuning, and of `sample_y` by default.
        on_progress: called with a `bieqno.Progress` after every few steps of the fine-tuning.

    Attributes:
        n_iter_: steps of the fine-tuning (largest over the outputs); 0 without it or where it did not help.
        validation_scores_: scores of leave-one-out predictions, by name as in `GGPRegressor`.
        calibration_: factor of each output's predicted variance, found on the leave-one-out errors.
        target_names_: as in `GGPRegressor`.

    Example:
        >>> import numpy as np
        >>> X = np.linspace(0, 1, 40)[:, None]
        >>> model = PretrainedGGPRegressor().fit(X, np.sin(6 * X[:, 0]))
        >>> mean, std = model.predict(X[:3], return_std=True)
        >>> mean.shape, std.shape, model.sample_y(X[:3], 5).shape
        ((3,), (3,), (3, 5))
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "correction": ["boolean"],
        "same_units": ["boolean"],
        "fine_tune": ["boolean"],
        "noise": [_NOT_NEGATIVE, None],
        "alpha": [_NOT_NEGATIVE],
        "random_state": ["random_state"],
        "on_progress": [callable, None],
    }

    def __init__(
        self,
        *,
        correction: bool = True,
        same_units: bool = False,
        fine_tune: bool = False,
        noise: float | None = None,
        alpha: float = 0.0,
        random_state: int | np.random.RandomState | None = None,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> None:
        self.correction = correction
        self.same_units = same_units
        self.fine_tune = fine_tune
        self.noise = noise
        self.alpha = alpha
        self.random_state = random_state
        self.on_progress = on_progress

    def condition(self, X: Table, y: Table) -> "PretrainedGGPRegressor":
        """Take `X`, `y` as the observations in place of those before: a new fit that keeps fine-tuned weights."""
        return self._condition(X, y, 0.0, least=LEAST_ROWS)

    def _fit_columns(
        self, X: np.ndarray, columns: np.ndarray, alpha: np.ndarray, random: np.random.RandomState
    ) -> tuple[tuple[LocalProcess, ...], int]:
        places = len(np.unique(X, axis=0))
        if len(X) > 4 * places:
            warnings.warn(
                f"{len(X)} rows are at {places} places only, and a prediction uses the {NEIGHBOURS} nearest rows, which "
                "are hardly at other places; average the rows of each place, or use GGPRegressor",
                stacklevel=4,
            )
        # Of more inputs nothing was learned.
        corrected = self.correction and np.count_nonzero(np.ptp(X, axis=0)) <= MAX_DIMENSION
        correction = shipped_correction() if corrected else no_correction()
        settings = {"noise": _plain(self.noise), "alpha": float(self.alpha), "same_units": bool(self.same_units)}
        processes = [condition(correction, X, column, seed=self.seed_, **settings) for column in columns.T]
        if self.fine_tune:
            processes = [fine_tune(one, on_progress=self.on_progress) for one in processes]
        return tuple(processes), max(process.steps for process in processes)


def load_regressor(path: str | os.PathLike[str]) -> GGPRegressor | PretrainedGGPRegressor:
    """Load whichever regressor a file holds; no code from the file is run.

    Raises:
        PersistenceError: if the file is damaged, holds something else, or has settings that this version does not know.
    """
    saved = persistence.load(path, known=STORED)
    if not isinstance(saved, Saved):
        raise PersistenceError(f"{path} holds a {type(saved).__name__}, not a regressor")
    cls = {one.__name__: one for one in (GGPRegressor, PretrainedGGPRegressor)}[saved.kind]
    unknown = set(saved.settings) - set(cls().get_params())
    if unknown:
        raise PersistenceError(f"{path} has settings that this version does not know: {sorted(unknown)}")
    model = cls(**saved.settings)
    try:
        model._validate_params()
    except ValueError as error:
        raise PersistenceError(f"{path} cannot be used: {error}") from error
    model._use(saved.processes)
    for name, value in saved.found.items():
        setattr(model, name, np.asarray(value) if isinstance(value, list) else value)
    return model


def _names(y: Table) -> np.ndarray | None:
    """Return the names of a data frame's columns or of a series; None if there are none, or some are not texts."""
    names = list(getattr(y, "columns", [getattr(y, "name", None)]))
    return np.array(names) if all(isinstance(name, str) for name in names) else None


def _draw_seed(random: np.random.RandomState) -> int:
    return int(random.randint(2**31 - 1))


def _plain(value: Any) -> Any:
    """Return a NumPy number as one of Python's."""
    return value.item() if isinstance(value, np.generic) else value
