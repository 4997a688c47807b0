"""Predictions of a record without a model of it, with the parameters of the largest likelihood.

A prediction is a number for each time and a law about it; it is scored as a forecast ensemble of one member is.
"""

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.optimize import minimize

from bieqno.assimilation import AbstractDensity, LogNormal, NegativeBinomial, Observation, keep_scores

HARMONICS = 2  # of the year
RAIN_CLASSES = (0.1, 2.0, 10.0, 25.0)  # mm in a day


class Prediction(NamedTuple):
    """What is predicted of each value, and the law about it."""

    predicted: Float[Array, "T"]
    law: AbstractDensity


def scores(prediction: Prediction, values: Float[np.ndarray, "T"], *, seed: int = 0) -> dict[str, np.ndarray]:
    """Return log score, CRPS and PIT of each value, and the predicted mean.

    Example:
        >>> from bieqno.assimilation import Poisson
        >>> found = scores(Prediction(jnp.full(2, 3.0), Poisson()), np.array([3.0, 1.0]))
        >>> found["log_score"].round(2).tolist()
        [-1.5, -1.899999976158142]
    """
    member = prediction.predicted[None]  # all times as values of one window, each with its own score
    observed = Observation(range(len(values)), prediction.law).window(jnp.asarray(values, float))
    found = jax.jit(keep_scores)(member, member, observed, key=jax.random.key(seed))
    densities = prediction.law.log_prob(observed.value, prediction.predicted)
    found["log_score"] = jnp.where(observed.mask, densities, jnp.nan)
    return {name: np.asarray(kept) for name, kept in found.items()}


def fit(
    predict: Callable[[Float[Array, "p"]], Prediction],
    values: Float[np.ndarray, "T"],
    start: Float[np.ndarray, "p"],
    part: slice | np.ndarray = slice(None),
) -> Prediction:
    """Return the prediction with the parameters of the largest likelihood, of all values or of a part of them.

    Example:
        >>> from bieqno.assimilation import Poisson
        >>> mean = fit(lambda p: Prediction(jnp.full(3, jnp.exp(p[0])), Poisson()), np.array([1.0, 2.0, 6.0]), np.zeros(1))
        >>> mean.predicted[0].round(2).item()
        3.0
    """
    seen = jnp.asarray(values, float)

    @jax.jit
    def loss(parameters: Float[Array, "p"]) -> Float[Array, ""]:
        prediction = predict(parameters)
        return -jnp.mean(prediction.law.log_prob(seen, prediction.predicted)[part])

    slope = jax.jit(jax.value_and_grad(loss))

    def of_numpy(parameters: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = slope(jnp.asarray(parameters, float))
        return float(value), np.asarray(gradient, float)

    found = minimize(of_numpy, start, jac=True, method="L-BFGS-B", options={"maxiter": 500})
    return predict(jnp.asarray(found.x, float))


def seasons(dates: Any) -> Float[np.ndarray, "T k"]:
    """Return waves of the year and its parts at some dates."""
    phase = 2 * np.pi * np.asarray(dates.day_of_year, float)[:, None] / 365.25 * np.arange(1, HARMONICS + 1)
    return np.concatenate([np.sin(phase), np.cos(phase)], axis=1)


def count_baselines(
    counts: Float[np.ndarray, "T"], before: Float[np.ndarray, "2"], dates: Any
) -> Mapping[str, Prediction]:
    """Return autoregression, persistence and climatology of counts, by negative-binomial laws.

    `before` are the two counts before the first. The autoregression has the logarithms of the last two counts and the season.
    """
    every = np.log1p(np.concatenate([before, counts]))
    last, earlier = every[1:-1], every[:-2]
    season = jnp.asarray(seasons(dates), float)
    one = np.ones_like(last)
    lags = jnp.asarray(np.stack([one, last, earlier], axis=1), float)

    def by(features: Float[Array, "T k"], offset: Any) -> Callable[[Float[Array, "p"]], Prediction]:
        def predict(p: Float[Array, "p"]) -> Prediction:
            return Prediction(jnp.exp(jnp.clip(features @ p[1:] + offset, -7, 12)), NegativeBinomial(jnp.exp(p[0])))

        return predict

    def start(features: Array) -> Float[np.ndarray, "p"]:
        return np.concatenate([[1.0], np.zeros(features.shape[1])])

    both, level = jnp.concatenate([lags, season], axis=1), jnp.asarray(one, float)[:, None]
    mean = np.concatenate([[1.0, np.log(counts.mean() + 0.1)], np.zeros(season.shape[1])])
    year = jnp.concatenate([level, season], axis=1)
    recent = jnp.asarray(last, float)
    lagged = start(both)
    lagged[2] = 0.9
    return {
        "autoregression": fit(by(both, 0.0), counts, lagged),
        "persistence": fit(by(level, recent), counts, start(level)),
        "climatology": fit(by(year, 0.0), counts, mean),
    }


def log_regression(
    known: "FlowFeatures", drift: Float[np.ndarray, "T k"], spread: Float[np.ndarray, "T l"], offset: Any, part: slice
) -> Prediction:
    """Return a prediction of the logarithm: an offset and a drift, with normal errors whose logarithm of the spread is linear."""
    columns, wide, begin = (jnp.asarray(x, float) for x in (drift, spread, offset))
    count = columns.shape[1]

    def predict(p: Float[Array, "p"]) -> Prediction:
        return Prediction(jnp.exp(begin + columns @ p[:count]), LogNormal(jnp.exp(wide @ p[count:])))

    return fit(predict, known.flow, np.concatenate([np.zeros(count), np.full(wide.shape[1], -1.0)]), part)


def before(series: Float[np.ndarray, "T"], days: int) -> Float[np.ndarray, "T"]:
    """Return a series some days earlier; the first days repeat the first value."""
    return np.concatenate([np.full(days, series[0]), series[: len(series) - days]])


@dataclass(frozen=True)
class FlowFeatures:
    """What is known of a day's flow before it is measured: the flow of the days before, the rain, and the season.

    Rain takes a while to reach the gauge: the share `evening` of a day's second half, and of the day before what is left of
    it and the share `slow` of the first half.
    """

    flow: Float[np.ndarray, "T"]
    rain: Float[np.ndarray, "T 4"]
    dates: Any
    evening: float
    slow: float

    @classmethod
    def of(
        cls, flow: Float[np.ndarray, "T"], rain: Float[np.ndarray, "T 4"], dates: Any, part: slice
    ) -> "FlowFeatures":
        """Return the features whose rain classes give the largest likelihood of a part of the record."""
        tried = [cls(flow, rain, dates, *shares) for shares in itertools.product((0.0, 0.5, 1.0), (0.0, 0.25, 0.5))]

        def likelihood(known: FlowFeatures) -> float:
            found = log_regression(known, known.classes, known.classes, known.last, part)
            return float(jnp.sum(found.law.log_prob(jnp.asarray(flow, float), found.predicted)[part]))

        return max(tried, key=likelihood)

    @cached_property
    def last(self) -> Float[np.ndarray, "T"]:
        """Logarithm of the flow of the day before."""
        return before(np.log(self.flow), 1)

    @cached_property
    def arrived(self) -> Float[np.ndarray, "T"]:
        """Rain that reaches the gauge on a day."""
        early, late = self.rain[:, :2].sum(axis=1), self.rain[:, 2:].sum(axis=1)
        return early + self.evening * late + (1 - self.evening) * before(late, 1) + self.slow * before(early, 1)

    @cached_property
    def classes(self) -> Float[np.ndarray, "T c"]:
        """Class of that rain, as indicators."""
        wet = np.digitize(self.arrived, RAIN_CLASSES)
        return (wet[:, None] == np.arange(len(RAIN_CLASSES) + 1)).astype(float)

    @cached_property
    def recent(self) -> Float[np.ndarray, "T k"]:
        """The flow of the day before, its change, and logarithms of the rain of this day and the one before."""
        fallen = self.rain.sum(axis=1)
        rains = [np.log1p(x) for x in (self.arrived, fallen, before(fallen, 1))]
        return np.stack([self.last - self.last.mean(), self.last - before(np.log(self.flow), 2), *rains], axis=1)

    @cached_property
    def one(self) -> Float[np.ndarray, "T 1"]:
        """A constant."""
        return np.ones((len(self.flow), 1))

    @cached_property
    def season(self) -> Float[np.ndarray, "T s"]:
        """Waves of the year."""
        return seasons(self.dates)


def flow_baselines(known: FlowFeatures, part: slice) -> Mapping[str, Prediction]:
    """Return predictions of a day's flow from those before and from the rain, fitted to a part of the record.

    All predict the logarithm with normal errors: persistence, persistence whose drift and spread depend on the class of the
    rain, an autoregression with the rain and the season, whose spread depends on that class too, and the season alone.
    """
    both = np.concatenate([known.one, known.recent, known.season], axis=1)
    year = np.concatenate([known.one, known.season], axis=1)
    return {
        "autoregression": log_regression(known, both, known.classes, known.last, part),
        "persistence": log_regression(known, known.one, known.one, known.last, part),
        "persistence by rain": log_regression(known, known.classes, known.classes, known.last, part),
        "climatology": log_regression(known, year, known.one, np.log(known.flow).mean(), part),
    }


def with_error_model(predicted: Float[np.ndarray, "T"], known: FlowFeatures, part: slice) -> Prediction:
    """Return a model's prediction corrected by what an autoregression knows, with a spread by the class of the rain."""
    offset = np.log(predicted)
    own = np.stack([offset - offset.mean(), known.last - offset], axis=1)
    drift = np.concatenate([known.one, own, known.recent[:, 1:], known.season], axis=1)
    return log_regression(known, drift, known.classes, offset, part)
