"""A linear trend for data with many inputs: where nothing is near, it is most of what can be known."""

import equinox as eqx
import numpy as np
from jaxtyping import Float
from sklearn.linear_model import RidgeCV

from bieqno.regression.pretrained.layouts import MAX_DIMENSION

_LEAST_ROWS = 3


class Trend(eqx.Module):
    """A ridge regression on more inputs than a prior has learned from; of fewer, of which experts see the trend, none.

    Attributes:
        slope: along each input.
        leverage: of each observation, how much of its own deviation the trend follows.
    """

    slope: Float[np.ndarray, "d"]
    leverage: Float[np.ndarray, "n"]

    def __check_init__(self) -> None:
        if not (np.isfinite(self.slope).all() and np.all((self.leverage >= 0) & (self.leverage < 1))):
            raise ValueError("a trend has finite slopes, and leverages between 0 and 1")

    @classmethod
    def of(cls, inputs: Float[np.ndarray, "n d"], targets: Float[np.ndarray, "n"]) -> "Trend":
        """Fit the trend, as steep as leaving out one row after the other says.

        Example:
            >>> inputs = np.random.default_rng(0).normal(size=(50, 5))
            >>> trend = Trend.of(inputs, 3 * inputs[:, 0])
            >>> trend.slope.round(2)[:2].tolist(), bool(trend.leverage.sum() < 5)
            ([3.0, 0.0], True)
        """
        if inputs.shape[1] <= MAX_DIMENSION or len(targets) < _LEAST_ROWS:
            return cls(np.zeros(inputs.shape[1]), np.zeros(len(targets)))
        inputs = np.asarray(inputs, np.float64)
        ridge = RidgeCV(np.geomspace(1e-3, 1e5, 17)).fit(inputs, targets)
        centred = inputs - inputs.mean(axis=0)
        gram = centred.T @ centred + ridge.alpha_ * np.eye(inputs.shape[1])
        leverage = np.sum(centred * np.linalg.solve(gram, centred.T).T, axis=1)
        return cls(np.asarray(ridge.coef_, np.float64), np.clip(leverage, 0, 1 - 1e-6))
