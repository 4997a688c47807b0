"""`GGPRegressor`: the generalized Gaussian process with the face of a scikit-learn estimator."""

import os
from operator import index
from typing import Any

import jax
import numpy as np
from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from bieqno import persistence
from bieqno.gaussian import LowRankGaussian
from bieqno.persistence.tensorfile import PersistenceError
from bieqno.regression.checking import Table, checked_rows, checked_targets
from bieqno.regression.held_out import as_text, stacked
from bieqno.regression.outputs import from_prior, trained
from bieqno.regression.pretrained import ZeroShot
from bieqno.regression.saved import FOUND, STORED, Saved, plain
from bieqno.regression.settings import Settings
from bieqno.regression.trained.fitted import FittedProcess
from bieqno.regression.trained.fitting import LEAST_ROWS


class GGPRegressor(MultiOutputMixin, RegressorMixin, BaseEstimator):
    """Regression with calibrated joint uncertainty and no kernel to choose.

    Nothing is trained by default: each point is predicted from the observations round it by a process that has learned from
    many functions of one to four inputs before (``prior="functions"``), or by a mixture of local Gaussian processes that
    have learned nothing (``prior="experts"``). Of more inputs it is always the latter, round a linear trend.

    With ``prior=None`` a small ensemble of generalized Gaussian processes is trained to predict random parts of the data from
    the rest. Each member holds out another fold; their held-out loss decides when to stop and how wide the predictions
    must be. This form can be told how noisy each row is (`alpha`), and takes minutes.

    Args:
        prior: what to start from: ``functions``, ``experts``, or None to train on the data alone. With
            a prior, only `same_units`, `fine_tune`, `noise` and `alpha` are used of the settings below.
        same_units: with a prior, whether all inputs have one unit, as coordinates in space have; predictions then do not
            depend on the frame. Otherwise each input is scaled by itself.
        fine_tune: with a prior, whether its weights are trained on the data, where rows that were left out say that it
            helps; takes half a minute. Never done with fewer than 40 rows.
        noise: known standard deviation of the noise in `y`; None learns it.
        alpha: variance of further noise in `y` that new values will not have: a number or, without a prior, one value per
            training row. With one value per row, the process also sees it beside each observation and learns to trust the
            noisier ones less.
        rank: number of columns of each member's covariance factor.
        width: length of embeddings and hidden layers.
        depth: number of layers of each network.
        members: number of members; with 1 nothing is held out, nothing is calibrated and training uses all its steps.
        set_interaction: the paper's form, in which a prediction depends on the other points asked for at the same time.
        targets: number of points predicted in each random split (M' of the paper); None draws it.
        observations: most observations that they are predicted from; None takes all others, as the paper does.
        max_steps: most training steps.
        batch_size: random splits per member and step.
        patience: stop after that many times 50 steps without improvement on the held-out folds.
        learning_rate: step size of Adam.
        warm_start: go on from the previous fit's weights; the data may change, the network may not.
        random_state: seed of weights, folds and splits.
        verbose: show a progress bar.

    Attributes:
        n_features_in_: number of input variables.
        target_names_: names of the targets, where `y` was a named column or columns of a data frame; None otherwise.
        n_iter_: training steps whose weights are used (largest over the outputs).
        held_out_: scores of predictions of rows that they did not know, by name, one row an output: number of `rows`,
            `rmse`, `nlpd`, `coverage_50`, `coverage_90`, `coverage_95`, and `pit`, the shares of the probability integral
            transform in ten bins. See also `summary`.
        calibration_: factor of each output's predicted variance found on the held-out points.

    Example:
        >>> import numpy as np
        >>> X = np.linspace(0, 1, 40)[:, None]
        >>> model = GGPRegressor().fit(X, np.sin(6 * X[:, 0]))
        >>> mean, std = model.predict(X[:3], return_std=True)
        >>> mean.shape, std.shape, model.sample_y(X[:3], 5).shape
        ((3,), (3,), (3, 5))
    """

    def __init__(
        self,
        *,
        prior: str | None = "functions",
        same_units: bool = False,
        fine_tune: bool = False,
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
        verbose: bool = False,
    ) -> None:
        self.prior = prior
        self.same_units = same_units
        self.fine_tune = fine_tune
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
        self.verbose = verbose

    def fit(self, X: Table, y: Table) -> "GGPRegressor":
        """Train on the rows of `X` and their targets; rows whose target is NaN are left out with a warning."""
        settings = Settings.checked(self.get_params())
        self.target_names_ = _names(y)
        X, y, alpha = checked_rows(self, X, y, self.alpha, reset=True, least=LEAST_ROWS)
        columns = y[:, None] if y.ndim == 1 else y
        random = check_random_state(self.random_state)
        processes: tuple[FittedProcess | ZeroShot, ...]
        if self.prior is not None:
            if np.ndim(self.alpha):
                raise ValueError(
                    "a prior does not weigh observations by one alpha each; use prior=None, or give one number"
                )
            processes, steps = from_prior(
                str(self.prior), X, columns, settings, further=float(alpha[0]), verbose=self.verbose
            )
            fold_seed = 0
        else:
            previous = getattr(self, "processes_", None) if self.warm_start else None
            fold_seed = int(random.randint(2**31 - 1)) if previous is None else self.fold_seed_
            processes, steps = trained(
                X, columns, alpha, settings, uncertain=np.ndim(self.alpha) > 0, random=random,
                fold_seed=fold_seed, previous=previous, verbose=self.verbose,
            )  # fmt: skip
        self.processes_: tuple[FittedProcess | ZeroShot, ...] = processes
        self.single_output_ = y.ndim == 1
        self.fold_seed_: int = fold_seed
        self.n_iter_ = steps
        return self

    @property
    def held_out_(self) -> dict[str, np.ndarray]:
        """Scores of predictions of rows that they did not know."""
        check_is_fitted(self, "processes_")
        return stacked([own.held_out.scores(float(own.scaling.target_scale)) for own in self.processes_])

    def summary(self) -> str:
        """What the fit knows about itself: how well it predicted rows that it did not know.

        With a prior each row is predicted from all others (of more than 2,048, a random choice of them); otherwise each
        member of the ensemble predicts the fold that it has not seen. The factor of the variance was found on the same rows.

        Example:
            >>> X = np.linspace(0, 1, 40)[:, None]
            >>> print(GGPRegressor(prior="experts").fit(X, np.floor(3 * X[:, 0])).summary())  # doctest: +ELLIPSIS
               rows   RMSE    NLPD  50 %  90 %  95 %  PIT, % in tenths
            y    40 ...
        """
        scores = self.held_out_
        if not scores["rows"].any():
            return "no rows were held out (members=1)"
        names = ["y"] if self.single_output_ else [f"y{i}" for i in range(len(self.processes_))]
        return as_text(scores, names if self.target_names_ is None else list(self.target_names_))

    @property
    def calibration_(self) -> np.ndarray:
        """Factor of each output's predicted variance found on the held-out points."""
        check_is_fitted(self, "processes_")
        return np.array([float(process.variance_factor) for process in self.processes_])

    def condition(self, X: Table, y: Table, alpha: float | Table = 0.0) -> "GGPRegressor":
        """Take `X`, `y` as the observations from now on, in place of those before, without training again.

        With a prior that is a new fit, but that weights which were fine-tuned stay as they are. Otherwise what is known of
        held-out rows stays that of the fit.

        Args:
            X: inputs.
            y: targets; rows with a NaN are left out with a warning.
            alpha: variance of their further noise, for a process that was fitted with one value per row.
        """
        check_is_fitted(self)
        # From a single value a prior could not tell how far values spread.
        least = LEAST_ROWS if isinstance(self.processes_[0], ZeroShot) else 1
        X, y, variances = checked_rows(self, X, y, alpha, reset=False, least=least)
        columns = y[:, None] if y.ndim == 1 else y
        if columns.shape[1] != len(self.processes_):
            raise ValueError(f"fitted to {len(self.processes_)} outputs, got y with {columns.shape[1]}")
        if variances.any() and not self.processes_[0].uncertain:
            raise ValueError(
                "this process was fitted with a prior or without one alpha per row, so it cannot weigh observations by it"
            )
        self.processes_ = tuple(
            process.conditioned(X, column, variances)
            for process, column in zip(self.processes_, columns.T, strict=True)
        )
        return self

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
        """The joint distribution of new noisy values at `X`; one for each output if there are several.

        In single precision: where the targets lie far from zero beside their spread, `predict` and `sample_y` are exact.
        """
        X = self._checked_inputs(X)
        posteriors = tuple(process.posterior(X) for process in self.processes_)
        return posteriors[0] if self.single_output_ else posteriors

    def sample_y(
        self, X: Table, n_samples: int = 1, random_state: int | np.random.RandomState | None = 0
    ) -> np.ndarray:
        """Draw joint samples at `X`: ``(n, n_samples)``, or ``(n, outputs, n_samples)`` for several outputs."""
        X = self._checked_inputs(X)
        if index(n_samples) < 1:
            raise ValueError(f"n_samples must be at least 1, got {n_samples}")
        key = jax.random.key(check_random_state(random_state).randint(2**31 - 1))
        keys = jax.random.split(key, len(self.processes_))
        draws = [
            process.sample(X, index(n_samples), key=key) for process, key in zip(self.processes_, keys, strict=True)
        ]
        return draws[0] if self.single_output_ else np.stack(draws, axis=1)

    def log_predictive_density(self, X: Table, y: Table) -> float:
        """Logarithm of the joint density of new values `y` at `X`, summed over the outputs."""
        X = self._checked_inputs(X)
        columns = checked_targets(y, len(X), len(self.processes_))
        return sum(process.log_density(X, column) for process, column in zip(self.processes_, columns.T, strict=True))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save the fitted regressor to one file; `GGPRegressor.load` reads it without the training data or script.

        A `random_state` that is a generator, not a number, is saved as None.
        """
        check_is_fitted(self)
        settings = self.get_params()
        settings["alpha"] = np.asarray(self.alpha, np.float64) if np.ndim(self.alpha) else float(self.alpha)
        settings["random_state"] = None if isinstance(self.random_state, np.random.RandomState) else self.random_state
        found = {name: plain(getattr(self, name)) for name in FOUND if hasattr(self, name)}
        persistence.save(path, Saved(settings, found, self.processes_), known=STORED)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "GGPRegressor":
        """Load a regressor that `save` wrote; no code from the file is run."""
        saved = persistence.load(path, known=STORED)
        if not isinstance(saved, Saved):
            raise PersistenceError(f"{path} holds a {type(saved).__name__}, not a regressor")
        differing = set(saved.settings) ^ set(cls().get_params())
        if differing:
            raise PersistenceError(f"{path} differs from this version in the settings {sorted(differing)}")
        try:
            Settings.checked(saved.settings)
        except ValueError as error:
            raise PersistenceError(f"{path} cannot be used: {error}") from error
        model = cls(**saved.settings)
        model.processes_ = saved.processes
        for name, value in saved.found.items():
            setattr(model, name, np.asarray(value) if isinstance(value, list) else value)
        return model

    def __getstate__(self) -> dict[str, Any]:
        """For pickle and joblib, in the project's own format: JAX's functions cannot be pickled."""
        state = dict(super().__getstate__())
        if "processes_" in state:
            state["processes_"] = [persistence.to_bytes(process, known=STORED) for process in self.processes_]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "processes_" in state:
            self.processes_ = tuple(persistence.from_bytes(process, known=STORED) for process in state["processes_"])

    def _checked_inputs(self, X: Table) -> np.ndarray:
        check_is_fitted(self)
        return validate_data(self, X, reset=False, dtype=np.float64)

    def _stack(self, columns: list[np.ndarray]) -> np.ndarray:
        return columns[0] if self.single_output_ else np.stack(columns, axis=-1)


def _names(y: Table) -> np.ndarray | None:
    """The names of a data frame's columns or of a series; None if there are none, or some are not texts."""
    names = list(getattr(y, "columns", [getattr(y, "name", None)]))
    return np.array(names) if all(isinstance(name, str) for name in names) else None
