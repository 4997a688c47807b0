"""Study ``coverage``: do intervals of the regressor hold at the rows that it learned from, next to them and away from them?

New values of smooth functions of up to three of 1 to 10 inputs, with noise of 0.05 to 1 of the function's spread, from 100 and
2,000 rows: each at its own place, four at each place, or all of them copied four-fold, values and all. The share of new values
inside the 95 % interval is computed from the function and the law of the noise, not counted. The study fails where it is out of
`BOUNDS` on average over functions.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from itertools import product

import numpy as np
from jaxtyping import Float
from scipy.stats import norm

from bieqno.lab.compare import Case, Method, compare
from bieqno.lab.results import Result
from bieqno.lab.study import Description, Experiment, Findings, Run
from bieqno.regression import PretrainedGGPRegressor

METRIC, BOUNDS = "coverage_95", (0.92, 0.98)
PLACES = ("at rows", "next to rows", "away")
REPEATS = {"once": (1, False), "four values a place": (4, False), "copied four-fold": (4, True)}
_BESIDE = 0.01  # distance of points next to rows, along each input of the unit cube
DESCRIPTION = Description(
    title="Intervals at the data",
    question="A regressor that follows its data too closely is sure of their noise. Do 95 % intervals hold 95 % of new values "
    "at the rows that it learned from, next to them, and elsewhere, also where rows come several times?",
    minutes={"smoke": 0.2, "quick": 10.0, "paper": 20.0},
    methods=PLACES,
)


@dataclass(frozen=True)
class Settings:
    """What is run: every combination, with so many functions for each number of rows."""

    preset: str = "quick"
    functions: tuple[tuple[int, int], ...] = ((100, 8), (2000, 1))  # rows, functions
    inputs: tuple[int, ...] = (1, 2, 4, 5, 10)
    noises: tuple[float, ...] = (0.05, 0.3, 1.0)
    repeats: tuple[str, ...] = tuple(REPEATS)


PRESETS = {
    "smoke": Settings("smoke", ((40, 1),), (1,), (0.3,), ("once", "copied four-fold")),
    "quick": Settings(),
    "paper": Settings("paper", ((100, 16), (2000, 2))),
}


@dataclass(frozen=True)
class Fitted:
    """A regressor fitted to noisy values of a function of known noise, and where it learned."""

    model: PretrainedGGPRegressor
    function: Callable[[np.ndarray], np.ndarray]
    noise: float
    x: Float[np.ndarray, "n d"]
    away: Float[np.ndarray, "m d"]


def draw_function(rng: np.random.Generator, inputs: int) -> Callable[[np.ndarray], np.ndarray]:
    """Draw a smooth function on the unit cube: waves along up to three of the inputs, and products of two."""
    used = min(inputs, 3)
    chosen = rng.permutation(inputs)[:used]
    frequency, phase, height = rng.uniform(2, 6, used), rng.uniform(0, 2 * np.pi, used), rng.uniform(0.5, 1.5, used)
    product_of = rng.normal(size=used)

    def function(x: np.ndarray) -> np.ndarray:
        z = x[:, chosen]
        return np.sin(frequency * z + phase) @ height + (z * np.roll(z, 1, axis=1)) @ product_of

    return function


def fit(rng: np.random.Generator, inputs: int, rows: int, noise: float, repeats: str) -> Fitted:
    """Draw a function with noise of so much of its spread, and fit the regressor to so many rows, not counting copies."""
    times, copied = REPEATS[repeats]
    function = draw_function(rng, inputs)
    places = rng.uniform(size=(rows if copied else rows // times, inputs))
    away = rng.uniform(size=(500, inputs))
    noise = noise * float(function(away).std())
    x = np.repeat(places, times, axis=0)
    errors = np.repeat(rng.standard_normal(len(places)), times) if copied else rng.standard_normal(len(x))
    model = PretrainedGGPRegressor(random_state=0).fit(x, function(x) + noise * errors)
    return Fitted(model, function, noise, places[:500], away)


def covered(fitted: Fitted, place: str, rng: np.random.Generator) -> float:
    """Return the probability that a new value lies in the 95 % interval, on average over points of a kind."""
    beside = fitted.x + _BESIDE * rng.standard_normal(fitted.x.shape)
    points = {"at rows": fitted.x, "next to rows": beside, "away": fitted.away}[place]
    ends = fitted.model.predict_quantiles(points, (0.025, 0.975)).T
    low, high = (norm.cdf((end - fitted.function(points)) / fitted.noise) for end in ends)
    return float(np.mean(high - low))


def study(s: Settings, run: Run) -> Findings:
    """Measure the coverage of all combinations."""

    def method(place: str) -> Method[Fitted]:
        return Method(place, lambda fitted: {METRIC: np.array(covered(fitted, place, np.random.default_rng(run.seed)))})

    plan = []
    cells = product(s.inputs, s.functions, s.noises, s.repeats)
    for number, (inputs, (rows, functions), noise, repeats) in enumerate(cells):
        fits = partial(_fit_of, (run.seed, number), inputs=inputs, rows=rows, noise=noise, repeats=repeats)
        own = Case(f"{inputs} inputs, {rows} rows, noise {noise:g}, {repeats}", cache(fits), functions)
        plan += [(own, method(place)) for place in PLACES]
    outcomes = compare(run, plan, lambda _, found: {METRIC: found[METRIC]})
    return [row for outcome in outcomes for row in outcome.rows()], {}


def _fit_of(seed: tuple[int, int], repetition: int, *, inputs: int, rows: int, noise: float, repeats: str) -> Fitted:
    return fit(np.random.default_rng([*seed, repetition]), inputs, rows, noise, repeats)


def misses(result: Result) -> list[str]:
    """Say where the coverage is out of bounds."""
    low, high = BOUNDS
    return [f"{row.case}, {row.method}: {row.value:.3f}" for row in result.rows if not low <= row.value <= high]


EXPERIMENT = Experiment("coverage", DESCRIPTION, PRESETS, study, misses)
