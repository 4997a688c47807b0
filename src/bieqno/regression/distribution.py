"""What a regressor predicts as an object: a distribution for each row, and joint samples of all rows."""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np

from bieqno.regression.data import Table
from bieqno.regression.predictive import AbstractPredictive


@runtime_checkable
class Regressor(Protocol):
    """What a distribution asks of a fitted regressor."""

    processes_: Sequence[AbstractPredictive]
    single_output_: bool

    def predict(self, X: Table, return_std: bool = False) -> Any:
        """Return the mean, and on request the standard deviation."""

    def predict_quantiles(self, X: Table, probabilities: Sequence[float]) -> np.ndarray:
        """Return quantiles along a last axis."""

    def sample_y(self, X: Table, n_samples: int = 1, random_state: Any = None) -> np.ndarray:
        """Draw joint samples along a last axis."""


class PredictedDistribution:
    """The distribution of new noisy values at some rows, with the methods of skpro's and SciPy's distributions.

    Methods take and return arrays of one value per row, ``(n,)``, or ``(n, outputs)`` for several outputs. They are
    about each row by itself; `sample` is joint.

    Example:
        >>> from bieqno import PretrainedGGPRegressor
        >>> X = np.linspace(0, 1, 40)[:, None]
        >>> law = PretrainedGGPRegressor(correction=False).fit(X, np.sin(6 * X[:, 0])).predict_distribution(X[:3])
        >>> law.mean().shape, law.ppf(0.5).shape, law.ppf([0.05, 0.95]).shape, law.sample(10).shape
        ((3,), (3,), (2, 3), (10, 3))
        >>> np.round(law.cdf(law.ppf(0.9)), 6).tolist()
        [0.9, 0.9, 0.9]
    """

    def __init__(self, model: Regressor, X: Table, rows: Sequence[np.ndarray]) -> None:
        # Several rows of numbers for each of `X` are equally likely where a value is missing.
        self._model, self._X, self._rows = model, X, rows

    @cached_property
    def _moments(self) -> tuple[np.ndarray, np.ndarray]:
        mean, std = self._model.predict(self._X, return_std=True)
        return mean, std

    def mean(self) -> np.ndarray:
        """Return the mean of each row."""
        return self._moments[0]

    def std(self) -> np.ndarray:
        """Return the standard deviation of each row."""
        return self._moments[1]

    def var(self) -> np.ndarray:
        """Return the variance of each row."""
        return self._moments[1] ** 2

    def ppf(self, probability: float | Sequence[float] | np.ndarray) -> np.ndarray:
        """Return a quantile of each row; several probabilities run along further axes in front."""
        wanted = np.asarray(probability, np.float64)
        found = self._model.predict_quantiles(self._X, wanted.ravel().tolist())
        return np.moveaxis(found, -1, 0).reshape(*wanted.shape, *found.shape[:-1])

    def cdf(self, value: Any) -> np.ndarray:
        """Return the probability that a new value of each row is at most `value`, a number or one per row."""
        return self._of_each(
            lambda process, own: np.mean([process.cdf(rows, own) for rows in self._rows], axis=0), value
        )

    def log_pdf(self, value: Any) -> np.ndarray:
        """Return the logarithm of the density of each row at `value`; for the joint one see `log_predictive_density`."""

        def log_density(process: AbstractPredictive, own: np.ndarray) -> np.ndarray:
            each = [process.log_densities(rows, own) for rows in self._rows]
            return np.logaddexp.reduce(each, axis=0) - np.log(len(each))

        return self._of_each(log_density, value)

    def sample(self, count: int = 1, random_state: int | np.random.RandomState | None = None) -> np.ndarray:
        """Draw joint samples of all rows along a first axis; see `sample_y`."""
        return np.moveaxis(self._model.sample_y(self._X, count, random_state), -1, 0)

    def _of_each(self, function: Callable[[AbstractPredictive, np.ndarray], np.ndarray], value: Any) -> np.ndarray:
        """Return what a function says of each output's values."""
        processes, count = self._model.processes_, len(self._rows[0])
        shape = (count,) if self._model.single_output_ else (count, len(processes))
        try:
            values = np.broadcast_to(np.asarray(value, np.float64), shape)
        except ValueError:
            raise ValueError(f"expected a number or values of shape {shape}, got shape {np.shape(value)}") from None
        columns = values.reshape(count, len(processes)).T
        found = [function(process, own) for process, own in zip(processes, columns, strict=True)]
        return found[0] if self._model.single_output_ else np.stack(found, axis=1)
