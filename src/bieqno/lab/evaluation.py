"""Held-out scores on data of one's own: the generalized Gaussian process and tuned Gaussian processes on one split."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import scoringrules
from jaxtyping import Float, Int

from bieqno.lab.methods import gaussian_processes as baselines
from bieqno.regression import metrics
from bieqno.regression.estimators import GGPRegressor

LEVELS = np.linspace(0.05, 0.95, 19)
"""Probabilities at which the calibration is looked at."""


@dataclass(frozen=True)
class Forecast:
    """What a method says about the held-out rows.

    Attributes:
        mean: predicted mean.
        std: predicted standard deviation of noisy values.
        seconds: how long fitting and predicting took.
        likelihood: the marginal likelihood by which a Gaussian process is chosen; None for other methods.
    """

    mean: Float[np.ndarray, "k"]
    std: Float[np.ndarray, "k"]
    seconds: float
    likelihood: float | None = None


@dataclass(frozen=True)
class Evaluation:
    """All methods on one split.

    Attributes:
        observed: the held-out values.
        forecasts: what each method said about them, by its name.
        trained: number of rows that they learned from.
    """

    observed: Float[np.ndarray, "k"]
    forecasts: Mapping[str, Forecast]
    trained: int

    @property
    def opponent(self) -> str:
        """The Gaussian process that one would use: the one with the highest marginal likelihood."""
        likelihoods = {name: f.likelihood for name, f in self.forecasts.items() if f.likelihood is not None}
        return max(likelihoods, key=lambda name: likelihoods[name])

    def scores(self, name: str) -> dict[str, float]:
        """The scores of a method; those that are means over rows with their standard errors."""
        forecast, y = self.forecasts[name], self.observed
        each = {"nlpd": _nlpd(forecast, y), "crps": _crps(forecast, y)}
        found = {"rmse": metrics.rmse(forecast.mean, y)}
        for metric, values in each.items():
            found |= {metric: float(np.mean(values)), f"{metric}_stderr": _stderr(values)}
        for level in metrics.COVERAGE_LEVELS:
            found[f"coverage_{level * 100:g}"] = metrics.coverage(forecast.mean, forecast.std, y, level)
        return found | {"seconds": forecast.seconds}

    def difference(self) -> dict[str, float]:
        """Scores of the generalized process minus those of its opponent, row by row: negative is better."""
        ours, theirs = self.forecasts["ggp"], self.forecasts[self.opponent]
        gaps = {
            "nlpd": _nlpd(ours, self.observed) - _nlpd(theirs, self.observed),
            "crps": _crps(ours, self.observed) - _crps(theirs, self.observed),
        }
        return {key: value for name, gap in gaps.items() for key, value in
                ((name, float(np.mean(gap))), (f"{name}_stderr", _stderr(gap)))}  # fmt: skip

    def reliability(self, name: str) -> Float[np.ndarray, "l"]:
        """Share of the held-out values inside central intervals, at each of `LEVELS`."""
        forecast = self.forecasts[name]
        return metrics.reliability(forecast.mean, forecast.std, self.observed, LEVELS)


def split_rows(
    rows: int, *, held_out: float, most: int, seed: int
) -> tuple[Int[np.ndarray, "t"], Int[np.ndarray, "k"]]:
    """Random rows to learn from, at most so many, and others to test on.

    Example:
        >>> train, test = split_rows(100, held_out=0.2, most=50, seed=0)
        >>> len(train), len(test), len(set(train) & set(test))
        (50, 20, 0)
    """
    order = np.random.default_rng(seed).permutation(rows)
    count = max(2, round(held_out * rows))
    if rows - count < 3:
        raise ValueError(f"{rows} rows are too few to hold {count} of them out: at least 3 must remain to learn from")
    return order[count:][:most], order[:count]


def evaluate(
    X: Float[np.ndarray, "n d"],
    y: Float[np.ndarray, "n"],
    train: Int[np.ndarray, "t"],
    test: Int[np.ndarray, "k"],
    *,
    settings: Mapping[str, Any],
    on_progress: Callable[[int, int, str], None] | None = None,
) -> Evaluation:
    """Fit every method to the rows `train` and let it predict the rows `test`.

    Args:
        X: inputs.
        y: targets.
        train: numbers of the rows to learn from.
        test: numbers of the rows to predict.
        settings: of `GGPRegressor`.
        on_progress: called before each method with how many are done, how many there are, and its name.
    """

    def ggp() -> Forecast:
        mean, std = GGPRegressor(**settings).fit(X[train], y[train]).predict(X[test], return_std=True)
        return Forecast(mean, std, 0.0)

    def gp(kernel: str) -> Callable[[], Forecast]:
        def tuned() -> Forecast:
            process = baselines.tune(X[train], y[train], kernel=kernel, noise=None)
            return Forecast(*process.predict(X[test]), 0.0, process.log_marginal_likelihood)

        return tuned

    methods = {"ggp": ggp, **{f"gp-{kernel}": gp(kernel) for kernel in baselines.KERNELS}}
    forecasts = {}
    for done, (name, method) in enumerate(methods.items()):
        if on_progress is not None:
            on_progress(done, len(methods), name)
        begun = time.perf_counter()
        said = method()
        forecasts[name] = Forecast(said.mean, said.std, time.perf_counter() - begun, said.likelihood)
    return Evaluation(y[test], forecasts, len(train))


def _nlpd(forecast: Forecast, y: np.ndarray) -> np.ndarray:
    z = (y - forecast.mean) / forecast.std
    return 0.5 * z**2 + np.log(forecast.std) + 0.5 * math.log(2 * math.pi)


def _crps(forecast: Forecast, y: np.ndarray) -> np.ndarray:
    return np.asarray(scoringrules.crps_normal(y, forecast.mean, forecast.std))


def _stderr(values: np.ndarray) -> float:
    return float(np.std(values, ddof=1) / math.sqrt(len(values)))
