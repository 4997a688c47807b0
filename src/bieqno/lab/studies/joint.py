"""Study ``joint``: does the joint distribution of many values know as much as the regressor does, point after point?

The reference is the chain: the regressor is fitted anew before each value, with the earlier values among its rows, and predicts
it alone. Its gain in density over the marginals is what a joint distribution from one fit can hope for. Functions are draws of
processes with a squared exponential and a Matern-3/2 kernel and functions with one to three jumps, of one and two inputs.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import product

import numpy as np
from jaxtyping import Float
from scipy.spatial.distance import cdist
from scipy.stats import multivariate_normal

from bieqno.lab.compare import Case, Method, compare
from bieqno.lab.results import Result, Row
from bieqno.lab.study import Description, Experiment, Findings, Run
from bieqno.regression import PretrainedGGPRegressor

METRIC, SHARE = "log_likelihood", "share_of_chain"
NOISE = 0.05
KERNELS: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "eq": lambda r: np.exp(-(r**2) / 2),
    "matern32": lambda r: (1 + 3**0.5 * r) * np.exp(-(3**0.5) * r),
}
FAMILIES = (*KERNELS, "step")
LENGTHS, OBSERVED = {1: 0.1, 2: 0.25}, {1: 20, 2: 60}
LEAST_SHARE = 0.85
DESCRIPTION = Description(
    title="Joint densities",
    question="Forty values of a function are asked for at once. How much of their dependence is in their joint "
    "distribution, compared with a regressor that is fitted anew after each of them?",
    minutes={"smoke": 0.3, "quick": 12.0, "paper": 60.0},
    methods=("ggp", "ggp-marginals", "ggp-chain", "gp-true"),
)


@dataclass(frozen=True)
class Settings:
    """What is run: so many functions of every family, each asked for so many values."""

    preset: str = "quick"
    tasks: int = 16
    asked: int = 40
    families: tuple[str, ...] = FAMILIES
    inputs: tuple[int, ...] = (1, 2)


PRESETS = {"smoke": Settings("smoke", 1, 3, ("eq", "step"), (1,)), "quick": Settings(), "paper": Settings("paper", 96)}


@dataclass(frozen=True)
class Task:
    """One function: some noisy values that are known, and others to be predicted together."""

    family: str
    x: Float[np.ndarray, "m d"]
    y: Float[np.ndarray, "m"]
    points: Float[np.ndarray, "n d"]
    values: Float[np.ndarray, "n"]


def draw(rng: np.random.Generator, family: str, inputs: int, asked: int) -> Task:
    """Draw a function at random places of the unit cube.

    Example:
        >>> draw(np.random.default_rng(0), "step", 2, 5).values.shape
        (5,)
    """
    count = OBSERVED[inputs]
    x = rng.uniform(size=(count + asked, inputs))
    if family in KERNELS:
        y = np.linalg.cholesky(covariance(family, x)) @ rng.standard_normal(len(x))
    else:
        y = NOISE * rng.standard_normal(len(x))
        for _ in range(rng.integers(1, 4)):
            across, place = rng.standard_normal(inputs), rng.uniform(0.15, 0.85, inputs)
            y += rng.standard_normal() * ((x - place) @ across > 0)
    return Task(family, x[:count], y[:count], x[count:], y[count:])


def covariance(family: str, x: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n n"]:
    """Return the covariance of noisy values under the process of a family."""
    return KERNELS[family](cdist(x, x) / LENGTHS[x.shape[1]]) + NOISE**2 * np.eye(len(x))


def fitted(x: Float[np.ndarray, "m d"], y: Float[np.ndarray, "m"]) -> PretrainedGGPRegressor:
    """Return the regressor as it ships, given rows."""
    return PretrainedGGPRegressor(random_state=0).fit(x, y)


def in_turn(task: Task) -> float:
    """Return the log-density of the values one after the other, each then added to the rows."""
    x, y = np.concatenate([task.x, task.points]), np.concatenate([task.y, task.values])
    total = 0.0
    for row in range(len(task.x), len(x)):
        total += float(fitted(x[:row], y[:row]).predict_distribution(x[row : row + 1]).log_pdf(y[row])[0])
    return total


def alone(task: Task) -> float:
    """Return the sum of the log-densities of all values under the marginals."""
    return float(fitted(task.x, task.y).predict_distribution(task.points).log_pdf(task.values).sum())


def oracle(task: Task) -> float:
    """Return the log-density under the process that the function was drawn from."""
    count, K = len(task.x), covariance(task.family, np.concatenate([task.x, task.points]))
    gain = np.linalg.solve(K[:count, :count], K[:count, count:]).T
    return float(multivariate_normal(gain @ task.y, K[count:, count:] - gain @ K[:count, count:]).logpdf(task.values))


def study(s: Settings, run: Run) -> Findings:
    """Score the joint distribution, its marginals and the chain on the same functions of every family."""

    def tasks(place: int, family: str, inputs: int, repetition: int) -> Sequence[Task]:
        return [draw(np.random.default_rng([run.seed, place, n]), family, inputs, s.asked) for n in range(s.tasks)]

    def method(name: str, score: Callable[[Task], float]) -> Method[Sequence[Task]]:
        return Method(name, lambda tasks: {METRIC: np.array([score(task) for task in tasks]) / s.asked})

    ours = [
        method("ggp", lambda task: fitted(task.x, task.y).log_predictive_density(task.points, task.values)),
        method("ggp-marginals", alone),
        method("ggp-chain", in_turn),
    ]
    plan = []
    for place, (family, inputs) in enumerate(product(s.families, s.inputs)):
        own = Case(f"{family}, {inputs}-D", cache(partial(tasks, place, family, inputs)))
        plan += [(own, one) for one in (*ours, *[method("gp-true", oracle)] * (family in KERNELS))]
    outcomes = compare(run, plan, lambda _, found: {METRIC: found[METRIC]})
    rows = [row for outcome in outcomes for row in outcome.rows()]
    found = {(row.case, row.method): row.value for row in rows}
    for case in dict.fromkeys(case for case, _ in found if run.wants("ggp-chain") and (case, "ggp") in found):
        marginal, reached, chain = (found[case, name] for name in ("ggp-marginals", "ggp", "ggp-chain"))
        rows.append(Row(case, "ggp", SHARE, (reached - marginal) / (chain - marginal), None, s.tasks))
    return rows, {}


def misses(result: Result) -> list[str]:
    """Say where the joint distribution has less than `LEAST_SHARE` of the chain's gain."""
    low = [row for row in result.rows if row.metric == SHARE and row.value < LEAST_SHARE]
    return [f"{row.case}: {row.value:.0%} of the chain's gain, not {LEAST_SHARE:.0%}" for row in low]


EXPERIMENT = Experiment("joint", DESCRIPTION, PRESETS, study, misses)
