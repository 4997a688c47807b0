"""What both regressors share behind scikit-learn's interface: one process per output, predictions, scores and files."""

import abc
import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from operator import index
from typing import Any, TypeVar

import equinox as eqx
import jax
import numpy as np
from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin, _fit_context
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from bieqno import persistence
from bieqno.arguments import refuse_fork
from bieqno.compilation import use_compilation_cache
from bieqno.gaussian import AbstractGaussian
from bieqno.persistence import PersistenceError
from bieqno.regression.data import LEAST_ROWS, Data, Scaling, Table, checked_rows, checked_targets
from bieqno.regression.distribution import PredictedDistribution
from bieqno.regression.frames import Column, FrameEncoder
from bieqno.regression.metrics import HeldOut, as_text, stacked
from bieqno.regression.predictive import mixture_moments, mixture_quantiles, mixture_sample
from bieqno.regression.pretrained.ard import ARDProcess
from bieqno.regression.pretrained.boosting import Forest
from bieqno.regression.pretrained.correction import Correction
from bieqno.regression.pretrained.mixture import Context
from bieqno.regression.pretrained.neighbours import Units
from bieqno.regression.pretrained.process import LocalProcess, Trend
from bieqno.regression.pretrained.table import TableProcess
from bieqno.regression.pretrained.transforms import Transform
from bieqno.regression.pretrained.trees import TreeExpert
from bieqno.regression.trained.ensemble import FittedEnsemble
from bieqno.regression.trained.process import GeneralizedGaussianProcess
from bieqno.training import Progress

R = TypeVar("R", bound="AbstractRegressor")
F = TypeVar("F", bound=Callable[..., Any])
_FITTED = ("n_features_in_", "feature_names_in_", "target_names_", "single_output_", "seed_", "n_iter_")
"""What a fit finds beside the processes; `load` restores it."""


def _validated(fit: F) -> F:
    """Check settings before a fit as scikit-learn does; its own decorator would hide the types of `fit` from users."""
    return _fit_context(prefer_skip_nested_validation=True)(fit)


class Saved(eqx.Module):
    """The content of a regressor's file."""

    kind: str = eqx.field(static=True)
    settings: dict[str, Any] = eqx.field(static=True)
    found: dict[str, Any] = eqx.field(static=True)
    processes: tuple[FittedEnsemble | TableProcess, ...]
    encoder: FrameEncoder | None = None

    def __check_init__(self) -> None:
        expected = {"GGPRegressor": FittedEnsemble, "PretrainedGGPRegressor": TableProcess}.get(self.kind)
        if not self.processes or expected is None or any(not isinstance(one, expected) for one in self.processes):
            raise ValueError(f"it holds no fitted processes of a {self.kind}")
        size, *others = (len(process.scaling.input_shift) for process in self.processes)
        if any(other != size for other in others):
            raise ValueError("its outputs differ in their number of inputs")
        for name, value in self.found.items():
            _check_found(name, value, len(self.processes))
        names = self.found.get("feature_names_in_")
        if self.encoder is not None and (self.encoder.size, self.encoder.names) != (size, names):
            raise ValueError(f"its columns make {self.encoder.size} inputs, its processes have {size}")
        size = size if self.encoder is None else len(self.encoder.names)
        if self.found.get("n_features_in_") != size or (names is not None and len(names) != size):
            raise ValueError(f"it names {self.found.get('n_features_in_')} inputs, its processes have {size}")
        differing = (set(_FITTED) ^ set(self.found)) - {"feature_names_in_"}
        if differing:
            raise ValueError(f"it differs from what a fit finds in {sorted(differing)}")


def _check_found(name: str, value: Any, outputs: int) -> None:
    """Refuse what no fit finds."""
    texts = isinstance(value, list) and all(isinstance(one, str) for one in value)
    fits = {
        "feature_names_in_": texts,
        "target_names_": value is None or (texts and len(value) == outputs),
        "single_output_": isinstance(value, bool) and (outputs == 1 or not value),
    }
    if not fits.get(name, type(value) is int and 0 <= value < 2**63):
        raise ValueError(f"no fit finds {value!r} for {name}")


_TRAINED = (FittedEnsemble, GeneralizedGaussianProcess, Data)
_PRETRAINED = (TableProcess, Transform, ARDProcess, TreeExpert, Forest, LocalProcess, Correction, Context, Units, Trend)
STORED = (Saved, Scaling, HeldOut, FrameEncoder, Column, *_TRAINED, *_PRETRAINED)  # the classes that a file may name


class AbstractRegressor(MultiOutputMixin, RegressorMixin, BaseEstimator, abc.ABC):
    """What both regressors share; a subclass fits a process to each output."""

    alpha: Any
    random_state: Any
    on_progress: Callable[[Progress], None] | None

    @abc.abstractmethod
    def _fit_columns(
        self, X: np.ndarray, columns: np.ndarray, alpha: np.ndarray, random: np.random.RandomState
    ) -> tuple[tuple[FittedEnsemble | TableProcess, ...], int]:
        """Fit a process to each column; return them and the largest number of training steps that were used."""

    @_validated
    def fit(self: R, X: Table, y: Table) -> R:
        """Fit to the rows of `X` and their targets; rows whose target is NaN are left out with a warning.

        A data frame may hold numbers, booleans, categories, dates and missing values (see `bieqno.regression.frames`).

        A fit that fails, for whatever reason, leaves the estimator as it was: unfitted, or with its earlier fit whole.
        """
        refuse_fork()
        before = dict(self.__dict__)
        use_compilation_cache()
        try:
            rows, targets, alpha = self._checked_rows(X, y, self.alpha, reset=True, least=LEAST_ROWS)
            random = check_random_state(self.random_state)
            # A warm start keeps the folds, so that nothing held out has been trained on.
            if not (getattr(self, "warm_start", False) and hasattr(self, "seed_")):
                self.seed_ = draw_seed(random)
            columns = targets[:, None] if targets.ndim == 1 else targets
            processes, self.n_iter_ = self._fit_columns(rows, columns, alpha, random)
            self._use(processes)
            names = list(getattr(y, "columns", [getattr(y, "name", None)]))
            self.target_names_ = np.array(names) if all(isinstance(name, str) for name in names) else None
            self.single_output_ = targets.ndim == 1
        except BaseException:
            self.__dict__ = before
            raise
        return self

    @property
    def validation_scores_(self) -> dict[str, np.ndarray]:
        """Scores of predictions of rows that were held out, one value per output."""
        check_is_fitted(self, "processes_")
        return stacked([own.held_out.scores(float(own.scaling.target_scale)) for own in self.processes_])

    @property
    def calibration_(self) -> np.ndarray:
        """Factor of each output's predicted variance, found on rows that were held out."""
        check_is_fitted(self, "processes_")
        return np.array([float(process.variance_factor) for process in self.processes_])

    @property
    def tail_(self) -> np.ndarray:
        """How heavy the tails of each output's predictions are: 0 of a normal law, 0.9 of Student's with 3 degrees of freedom."""
        check_is_fitted(self, "processes_")
        return np.array([float(process.held_out.tail) for process in self.processes_])

    def summary(self) -> str:
        """Return a table of `validation_scores_`: how well rows that were held out are predicted.

        Example:
            >>> from bieqno import PretrainedGGPRegressor
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

    def predict(
        self, X: Table, return_std: bool = False, return_cov: bool = False
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """Predict the mean, and on request the standard deviation or covariance of new noisy values."""
        if return_std and return_cov:
            raise ValueError("ask for return_std or return_cov, not both")
        rows = self._possible_inputs(X)
        means, stds = zip(*(mixture_moments(process, rows) for process in self.processes_), strict=True)
        if return_cov:
            X = self._checked_inputs(X)
            return self._stack(means), self._stack([process.covariance(X) for process in self.processes_])
        return (self._stack(means), self._stack(stds)) if return_std else self._stack(means)

    def posterior(self, X: Table) -> AbstractGaussian | tuple[AbstractGaussian, ...]:
        """Return the joint distribution of new noisy values at `X`; one per output if there are several.

        That of `GGPRegressor` is in single precision: for targets far from zero compared with their spread, prefer `predict`
        and `sample_y`. Targets whose variance is beyond its range are refused there.
        """
        X = self._checked_inputs(X)
        posteriors = tuple(process.posterior(X) for process in self.processes_)
        return posteriors[0] if self.single_output_ else posteriors

    def predict_quantiles(self, X: Table, probabilities: Sequence[float]) -> np.ndarray:
        """Return quantiles of new noisy values: ``(n, k)``, or ``(n, outputs, k)`` for several outputs."""
        rows = self._possible_inputs(X)
        if not all(0 < probability < 1 for probability in probabilities):
            raise ValueError(f"probabilities lie between 0 and 1, got {list(probabilities)}")
        return self._stack([mixture_quantiles(process, rows, probabilities) for process in self.processes_], axis=1)

    def predict_distribution(self, X: Table) -> PredictedDistribution:
        """Return the distribution of new noisy values at `X`: mean, std, var, ppf, cdf, log_pdf and joint samples.

        It is what skpro calls `predict_proba`, a name that scikit-learn's estimator checks forbid to regressors.
        """
        return PredictedDistribution(self, X, self._possible_inputs(X))

    def sample_y(
        self, X: Table, n_samples: int = 1, random_state: int | np.random.RandomState | None = None
    ) -> np.ndarray:
        """Draw joint samples at `X`: ``(n, n_samples)``, or ``(n, outputs, n_samples)`` for several outputs.

        Without a `random_state` the seed that `fit` drew from the estimator's own is used: equal calls, equal samples.
        """
        rows = self._possible_inputs(X)
        refuse_fork()
        if index(n_samples) < 1:
            raise ValueError(f"n_samples must be at least 1, got {n_samples}")
        random = check_random_state(self.seed_ if random_state is None else random_state)
        keys = jax.random.split(jax.random.key(draw_seed(random)), len(self.processes_))
        pairs = zip(self.processes_, keys, strict=True)
        return self._stack([mixture_sample(process, rows, index(n_samples), key) for process, key in pairs], axis=1)

    def log_predictive_density(self, X: Table, y: Table) -> float:
        """Return the logarithm of the joint density of new values `y` at `X`, summed over the outputs."""
        X = self._checked_inputs(X)
        columns = checked_targets(y, len(X), len(self.processes_))
        pairs = zip(self.processes_, columns.T, strict=True)
        with np.errstate(over="ignore"):
            density = sum(process.log_density(X, column) for process, column in pairs)
        if not np.isfinite(density):
            raise ValueError("y is too far from the prediction: its density is beyond what numbers hold")
        return density

    def _condition(self: R, X: Table, y: Table, alpha: float | Table, least: int) -> R:
        check_is_fitted(self)
        X, y, variances = self._checked_rows(X, y, alpha, reset=False, least=least)
        columns = y[:, None] if y.ndim == 1 else y
        if columns.shape[1] != len(self.processes_):
            raise ValueError(f"fitted to {len(self.processes_)} outputs, got y with {columns.shape[1]}")
        pairs = zip(self.processes_, columns.T, strict=True)
        self._use(process.conditioned(X, column, variances) for process, column in pairs)
        return self

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save the fitted regressor to one file; `load` reads it without the training data or script.

        `on_progress` is not saved, and a `random_state` that is a generator, not a number, is saved as None.
        """
        check_is_fitted(self)
        settings = self.get_params() | {"on_progress": None}
        settings["alpha"] = np.asarray(self.alpha, np.float64).tolist()
        if isinstance(self.random_state, np.random.RandomState):
            settings["random_state"] = None
        values = {name: getattr(self, name) for name in _FITTED if hasattr(self, name)}
        found = {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in values.items()}
        saved = Saved(type(self).__name__, settings, found, self.processes_, self.encoder_)
        persistence.save(path, saved, known=STORED)

    @classmethod
    def load(cls: type[R], path: str | os.PathLike[str]) -> R:
        """Load a regressor that `save` wrote; no code from the file is run, and a wrong file is a `PersistenceError`."""
        saved = persistence.load(path, known=STORED)
        if not isinstance(saved, Saved):
            raise PersistenceError(f"{path} holds a {type(saved).__name__}, not a regressor")
        kind = {one.__name__: one for one in AbstractRegressor.__subclasses__()}[saved.kind]
        if not issubclass(kind, cls):
            raise PersistenceError(f"{path} holds a {saved.kind}, not a {cls.__name__}")
        unknown = set(saved.settings) - set(kind().get_params())
        if unknown:
            raise PersistenceError(f"{path} has settings that this version does not know: {sorted(unknown)}")
        model = kind(**saved.settings)
        try:
            model._validate_params()
            model._use(saved.processes)
        except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, np.linalg.LinAlgError) as error:
            raise PersistenceError(f"{path} cannot be used: {error}") from error
        model.encoder_ = saved.encoder
        for name, value in saved.found.items():
            setattr(model, name, np.asarray(value) if isinstance(value, list) else value)
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

    def _use(self, processes: Iterable[FittedEnsemble | TableProcess]) -> None:
        """Take the processes, and build at once what all their predictions share."""
        self.processes_ = tuple(processes)
        use_compilation_cache()
        for process in self.processes_:
            process.prepare()

    def _checked_rows(
        self, X: Table, y: Table, alpha: Table, *, reset: bool, least: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return checked rows of numbers; a fit (`reset`) finds out how frames become numbers."""
        if reset:
            self.encoder_ = FrameEncoder.of(X)
        if self.encoder_ is None:
            return checked_rows(self, X, y, alpha, reset=reset, least=least)
        empty = [repr(column.name) for column in self.encoder_.columns if column.kind == "empty"]
        if reset and empty:
            warnings.warn(f"columns without any value are left out: {', '.join(empty)}", UserWarning, stacklevel=4)
        self.n_features_in_, self.feature_names_in_ = len(self.encoder_.names), np.array(self.encoder_.names, object)
        # Names and numbers are checked by the encoder, hence by no estimator.
        return checked_rows(BaseEstimator(), self.encoder_.encode(X), y, alpha, reset=True, least=least)

    def _checked_inputs(self, X: Table) -> np.ndarray:
        check_is_fitted(self)
        if self.encoder_ is not None:
            return self.encoder_.encode(X)
        return validate_data(self, X, reset=False, dtype=np.float64)

    def _possible_inputs(self, X: Table) -> list[np.ndarray]:
        """Return checked inputs; several arrays of what they may be where values are missing of which none was in the fit."""
        check_is_fitted(self)
        return [self._checked_inputs(X)] if self.encoder_ is None else self.encoder_.possible(X)

    def _stack(self, columns: Sequence[np.ndarray], axis: int = -1) -> np.ndarray:
        """Return predictions of all outputs, which are finite or an error."""
        if not all(np.isfinite(column).all() for column in columns):
            raise ValueError("a prediction is not finite: the inputs or the targets of the fit are too large")
        return columns[0] if self.single_output_ else np.stack(columns, axis=axis)


def draw_seed(random: np.random.RandomState) -> int:
    """Draw a seed for JAX or NumPy."""
    return int(random.randint(2**31 - 1))
