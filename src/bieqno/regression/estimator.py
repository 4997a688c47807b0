"""`GGPRegressor`: the generalized Gaussian process with the face of a scikit-learn estimator."""

import os
import warnings
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from bieqno import persistence
from bieqno.gaussian import LowRankGaussian
from bieqno.progress import training_bar
from bieqno.regression.fitted import FittedProcess, Scaling, make_data, stack, unstack
from bieqno.regression.process import MIN_NOISE, GeneralizedGaussianProcess
from bieqno.regression.splits import (
    Data,
    HeldOutLoss,
    RandomSplits,
    Split,
    calibration,
    held_out,
    split_loss,
    standard_scores,
)
from bieqno.tensorfile import PersistenceError
from bieqno.training import FitResult, fit

Table: TypeAlias = Any
"""Whatever scikit-learn turns into an array: lists, NumPy arrays, data frames."""

_OPTIMIZERS: dict[float, optax.GradientTransformation] = {}
_STORED = (FittedProcess, GeneralizedGaussianProcess, Scaling, Data)
_CHUNK_STEPS = 50


class _Saved(eqx.Module):
    """What `GGPRegressor.save` writes."""

    settings: dict[str, Any] = eqx.field(static=True)
    single: bool = eqx.field(static=True)
    processes: tuple[FittedProcess, ...]


class GGPRegressor(MultiOutputMixin, RegressorMixin, BaseEstimator):
    """Regression with calibrated joint uncertainty and no kernel to choose.

    A small ensemble of generalized Gaussian processes is trained to predict random parts of the data from the rest.
    Each member holds out another fold; their held-out loss decides when to stop and how wide the predictions must be.

    Args:
        noise: known standard deviation of the noise in `y`; None learns it.
        alpha: variance of further noise in `y`, a number or one value per training row.
        rank: number of columns of each member's covariance factor.
        width: length of embeddings and hidden layers.
        depth: number of layers of each network.
        members: number of members; with 1 nothing is held out, nothing is calibrated and training uses all its steps.
        set_interaction: the paper's form, in which a prediction depends on the other points asked for at the same time.
        targets: number of points predicted in each random split (M' of the paper); None draws it.
        max_steps: most training steps.
        batch_size: random splits per member and step.
        patience: stop after that many times 50 steps without improvement on the held-out folds.
        learning_rate: step size of Adam.
        warm_start: go on from the previous fit's weights.
        random_state: seed of weights, folds and splits.
        verbose: show a progress bar.

    Attributes:
        n_features_in_: number of input variables.
        n_iter_: training steps whose weights are used (largest over the outputs).
        held_out_loss_: negative log-probability of the held-out points per output, in units of the standardised target.
        calibration_: factor of each output's predicted variance found on the held-out points.

    Example:
        >>> import numpy as np
        >>> X = np.linspace(0, 1, 40)[:, None]
        >>> model = GGPRegressor(max_steps=100, members=2, random_state=0).fit(X, np.sin(6 * X[:, 0]))
        >>> mean, std = model.predict(X[:3], return_std=True)
        >>> mean.shape, std.shape, model.sample_y(X[:3], 5).shape
        ((3,), (3,), (3, 5))
    """

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
        max_steps: int = 2000,
        batch_size: int = 16,
        patience: int = 12,
        learning_rate: float = 1e-3,
        warm_start: bool = False,
        random_state: int | np.random.RandomState | None = None,
        verbose: bool = False,
    ) -> None:
        self.noise = noise
        self.alpha = alpha
        self.rank = rank
        self.width = width
        self.depth = depth
        self.members = members
        self.set_interaction = set_interaction
        self.targets = targets
        self.max_steps = max_steps
        self.batch_size = batch_size
        self.patience = patience
        self.learning_rate = learning_rate
        self.warm_start = warm_start
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Table, y: Table) -> "GGPRegressor":
        """Train on the rows of `X` and their targets; rows whose target is NaN are left out with a warning."""
        X, y, alpha = self._checked(X, y, reset=True)
        columns = y[:, None] if y.ndim == 1 else y
        random = check_random_state(self.random_state)
        previous = getattr(self, "processes_", None) if self.warm_start else None
        fits = []
        for i in range(columns.shape[1]):
            label = "fit" if y.ndim == 1 else f"fit {i + 1}/{columns.shape[1]}"
            members = None if previous is None else stack(previous[i].members)
            fits.append(self._fit_one(X, columns[:, i], alpha, random.randint(2**31 - 1), label, members))
        self.processes_ = tuple(process for process, _ in fits)
        self.single_output_ = y.ndim == 1
        self.n_iter_ = max(result.best_step for _, result in fits)
        self.held_out_loss_ = np.array([min(result.validations, default=np.nan) for _, result in fits])
        self.calibration_ = np.array([float(process.variance_factor) for process in self.processes_])
        return self

    def condition(self, X: Table, y: Table) -> "GGPRegressor":
        """Take `X`, `y` as the observations from now on, in place of those before, without training again."""
        check_is_fitted(self)
        X, y, alpha = self._checked(X, y, reset=False)
        columns = y[:, None] if y.ndim == 1 else y
        if columns.shape[1] != len(self.processes_):
            raise ValueError(f"fitted to {len(self.processes_)} outputs, got y with {columns.shape[1]}")
        self.processes_ = tuple(
            process.conditioned(_scaled(process.scaling, X, column, alpha))
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
        if return_cov:
            posteriors = [process.posterior(X) for process in self.processes_]
            means = self._stack([np.asarray(p.mean) for p in posteriors])
            return means, self._stack([np.asarray(p.covariance()) for p in posteriors])
        moments = [process.moments(X) for process in self.processes_]
        mean = self._stack([mean for mean, _ in moments])
        return (mean, self._stack([std for _, std in moments])) if return_std else mean

    def posterior(self, X: Table) -> LowRankGaussian | tuple[LowRankGaussian, ...]:
        """The joint distribution of new noisy values at `X`; one for each output if there are several."""
        X = self._checked_inputs(X)
        posteriors = tuple(process.posterior(X) for process in self.processes_)
        return posteriors[0] if self.single_output_ else posteriors

    def sample_y(
        self, X: Table, n_samples: int = 1, random_state: int | np.random.RandomState | None = 0
    ) -> np.ndarray:
        """Draw joint samples at `X`: ``(n, n_samples)``, or ``(n, outputs, n_samples)`` for several outputs."""
        X = self._checked_inputs(X)
        keys = jax.random.split(
            jax.random.key(check_random_state(random_state).randint(2**31 - 1)), len(self.processes_)
        )
        draws = [
            np.asarray(process.posterior(X).sample(n_samples, key=key)).T
            for process, key in zip(self.processes_, keys, strict=True)
        ]
        return draws[0] if self.single_output_ else np.stack(draws, axis=1)

    def log_predictive_density(self, X: Table, y: Table) -> float:
        """Logarithm of the joint density of new values `y` at `X`, summed over the outputs."""
        X = self._checked_inputs(X)
        columns = np.asarray(y, float).reshape(len(X), -1)
        if columns.shape[1] != len(self.processes_):
            raise ValueError(f"fitted to {len(self.processes_)} outputs, got y with {columns.shape[1]}")
        return float(
            sum(
                process.posterior(X).log_prob(jnp.asarray(column, process.scaling.target_shift.dtype))
                for process, column in zip(self.processes_, columns.T, strict=True)
            )
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save the fitted regressor to one file; `GGPRegressor.load` reads it without the training data or script."""
        check_is_fitted(self)
        settings = {name: value for name, value in self.get_params().items() if name not in {"alpha", "random_state"}}
        saved = _Saved(settings, self.single_output_, self.processes_)
        persistence.save(path, saved, known=[_Saved, *_STORED])

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "GGPRegressor":
        """Load a regressor that `save` wrote; no code from the file is run."""
        saved = persistence.load(path, known=[_Saved, *_STORED])
        if not isinstance(saved, _Saved):
            raise PersistenceError(f"{path} holds a {type(saved).__name__}, not a regressor")
        model = cls(**saved.settings)
        model.processes_, model.single_output_ = saved.processes, saved.single
        model.n_features_in_ = int(saved.processes[0].scaling.input_shift.shape[0])
        model.calibration_ = np.array([float(process.variance_factor) for process in saved.processes])
        return model

    def __getstate__(self) -> dict[str, Any]:
        """For pickle and joblib, in the project's own format: JAX's functions cannot be pickled."""
        state = dict(super().__getstate__())
        if "processes_" in state:
            saved = _Saved({}, self.single_output_, state.pop("processes_"))
            state["saved"] = persistence.to_bytes(saved, known=[_Saved, *_STORED])
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = dict(state)
        saved = state.pop("saved", None)
        super().__setstate__(state)
        if saved is not None:
            self.processes_ = persistence.from_bytes(saved, known=[_Saved, *_STORED]).processes

    def _fit_one(
        self,
        X: np.ndarray,
        y: np.ndarray,
        alpha: np.ndarray,
        seed: int,
        label: str,
        start: GeneralizedGaussianProcess | None,
    ) -> tuple[FittedProcess, FitResult[GeneralizedGaussianProcess]]:
        scaling = _scaling(X, y)
        data = _scaled(scaling, X, y, alpha)
        # A fold needs a few points, and the rest must still be worth learning from.
        members = min(self.members, len(y) // 2) if len(y) >= 10 else 1
        member_key, fit_key = jax.random.split(jax.random.key(seed))
        noise = None if self.noise is None else max(self.noise / float(scaling.target_scale), MIN_NOISE)
        folds = np.full(data.mask.shape, -1)
        if members > 1:
            folds[: len(y)] = np.random.default_rng(seed).permutation(len(y)) % members
        module = start
        if module is None or module.log_noise.shape != (members,):
            module = _make_members(
                X.shape[1], self.rank, self.width, self.depth, self.set_interaction, noise is None,
                jnp.asarray(0.0 if noise is None else noise), jax.random.split(member_key, members),
            )  # fmt: skip
        splits = RandomSplits(data, jnp.asarray(folds), members, self._split_size(len(y)), self._batch_size(len(y)))
        validation = held_out(data, jnp.asarray(folds), members) if members > 1 else None
        with training_bar(label, visible=self.verbose) as on_progress:
            result = fit(
                module,
                split_loss,
                splits,
                steps=self.max_steps,
                chunk_steps=min(_CHUNK_STEPS, self.max_steps),
                optimizer=_OPTIMIZERS.setdefault(self.learning_rate, optax.adam(self.learning_rate)),
                validate=None if validation is None else HeldOutLoss(validation),
                patience=None if validation is None else self.patience,
                key=fit_key,
                on_progress=on_progress,
            )
        factor = jnp.ones(()) if validation is None else _calibrate(result.module, validation)
        return FittedProcess(unstack(result.module), data, scaling, factor), result

    def _split_size(self, count: int) -> int | None:
        return None if self.targets is None else min(self.targets, count - 1)

    def _batch_size(self, count: int) -> int:
        """Fewer splits of larger data sets: each of them costs more and tells more."""
        return max(4, min(self.batch_size, self.batch_size * 512 // count))

    def _checked(self, X: Table, y: Table, *, reset: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Finite float arrays without the rows whose target is missing."""
        self._check_settings()
        given = np.asarray(y) if y is not None else None
        missing = _missing_rows(given)
        filled = (
            given if given is None or missing is None else np.nan_to_num(given, nan=0.0, posinf=np.inf, neginf=-np.inf)
        )
        X, columns = validate_data(
            self, X, filled, reset=reset, multi_output=True, y_numeric=True, dtype=np.float64, ensure_min_samples=2
        )
        rows, values = np.asarray(X), np.asarray(columns, np.float64)
        alpha = np.asarray(self.alpha, np.float64)
        if alpha.ndim > 1 or (alpha.ndim == 1 and len(alpha) != len(rows)) or not (alpha >= 0).all():
            raise ValueError(f"alpha must be a variance or one for each of {len(rows)} rows, got shape {alpha.shape}")
        alpha = np.broadcast_to(alpha, len(rows))
        if missing is not None and missing.any():
            if missing.sum() > len(rows) - 2:
                raise ValueError(f"{missing.sum()} of {len(rows)} rows have a NaN target; at least two must remain")
            warnings.warn(f"{missing.sum()} rows with a NaN target are left out", UserWarning, stacklevel=3)
            rows, values, alpha = rows[~missing], values[~missing], alpha[~missing]
        return rows, values, alpha

    def _checked_inputs(self, X: Table) -> np.ndarray:
        check_is_fitted(self)
        return validate_data(self, X, reset=False, dtype=np.float64)

    def _check_settings(self) -> None:
        counts = ("rank", "width", "depth", "members", "max_steps", "batch_size", "patience")
        for name in counts:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.targets is not None and self.targets < 1:
            raise ValueError(f"targets must be at least 1, got {self.targets}")
        if self.noise is not None and self.noise < 0:
            raise ValueError(f"noise must not be negative, got {self.noise}")

    def _stack(self, columns: list[np.ndarray]) -> np.ndarray:
        # Computed in single precision, handed over as scikit-learn's users expect it.
        columns = [np.asarray(column, np.float64) for column in columns]
        return columns[0] if self.single_output_ else np.stack(columns, axis=-1)


@eqx.filter_jit
def _make_members(
    in_size: int, rank: int, width: int, depth: int, set_interaction: bool, learn_noise: bool,
    noise: jax.Array, keys: jax.Array,
) -> GeneralizedGaussianProcess:  # fmt: skip
    """Members with their own initial weights, stacked."""
    return eqx.filter_vmap(
        lambda key: GeneralizedGaussianProcess(
            in_size, rank=rank, width=width, depth=depth, set_interaction=set_interaction,
            noise=None if learn_noise else noise, key=key,
        )
    )(keys)  # fmt: skip


@eqx.filter_jit
def _calibrate(members: GeneralizedGaussianProcess, split: Split) -> jax.Array:
    score, _ = standard_scores(members, split)
    return calibration(score, split.point_mask)


def _scaling(X: np.ndarray, y: np.ndarray) -> Scaling:
    def spread(x: np.ndarray) -> np.ndarray:
        scale, size = x.std(axis=0), np.maximum(np.abs(x).max(axis=0), 1e-300)
        # A constant (or one but for rounding) has no spread; predictions shall stay within a thousandth of it.
        return np.where(scale > 1e-10 * size, scale, 1e-3 * size)

    values = (X.mean(axis=0), spread(X), y.mean(), spread(y))
    return Scaling(*(jnp.asarray(value, jnp.zeros(()).dtype) for value in values))


def _scaled(scaling: Scaling, X: np.ndarray, y: np.ndarray, alpha: np.ndarray) -> Data:
    return make_data(scaling.inputs(X), scaling.targets(y), alpha / float(scaling.target_scale) ** 2)


def _missing_rows(y: Any) -> np.ndarray | None:
    """Rows with a NaN among their targets; None if `y` is nothing that could have one."""
    if not isinstance(y, np.ndarray) or y.dtype.kind != "f" or y.ndim not in (1, 2):
        return None
    return np.asarray(np.isnan(y).any(axis=tuple(range(1, y.ndim))))
