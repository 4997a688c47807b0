"""Study ``step-1d``: regression on a discontinuous function of one variable (section 3.1.1 of the paper)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from jaxtyping import Float

from bieqno.lab.methods import regression
from bieqno.lab.study import Description, Experiment, Findings, Run

DESCRIPTION = Description(
    title="A function with two jumps",
    question="A function that is 0, then 1, then 0 again is observed at 30 or 100 places with small noise. "
    "How well is it predicted in between, and is the predicted uncertainty calibrated near the jumps? Functions with two levels "
    "are among those that the shipped prior of gGP was trained on; chirp-1d has one that is not.",
    claim="The generalized Gaussian process (gGP) captures the jumps, most of all with few observations, where a Gaussian "
    "process with a squared exponential kernel smooths them (section 3.1.1).",
    minutes={"smoke": 0.3, "quick": 13.0, "paper": 36.0},
    methods=(*regression.METHODS, "limit"),
)
JUMPS = (0.3, 0.7)
NOISE = 0.01


@dataclass(frozen=True)
class Settings(regression.PaperSettings):
    """What is run: `targets` are the paper's M' for each number of observations M.

    These are ``random`` (uniformly drawn) or ``even`` (on a grid with both ends): the paper's "uniformly sampled" allows either.
    """

    layouts: tuple[str, ...] = ("random", "even")
    targets: Mapping[int, int] = field(default_factory=lambda: {30: 20, 100: 10})


PRESETS = {
    "smoke": Settings("smoke", 1, 320, 2, 1, 1, 200, regression.TINY_GGP, lengths=3, layouts=("random",)),
    "quick": Settings("quick"),
    "paper": Settings("paper", repetitions=10, epochs=300, halving=15, lengths=12),
}


def function(x: Float[np.ndarray, "n"]) -> Float[np.ndarray, "n"]:
    """Return the paper's target: 1 on [0.3, 0.7), 0 elsewhere."""
    return np.where((x >= JUMPS[0]) & (x < JUMPS[1]), 1.0, 0.0)


def draw(
    rng: np.random.Generator,
    *,
    layout: str,
    count: int,
    points: int,
    target: regression.Function = function,
    jumps: tuple[float, ...] = JUMPS,
) -> regression.Problem:
    """Draw a data set of the study, and new values at the test points; `target` may be another function with other `jumps`."""
    if layout not in ("random", "even"):
        raise ValueError(f"expected the layout 'random' or 'even', got {layout!r}")
    observed = np.sort(rng.uniform(size=count)) if layout == "random" else np.linspace(0.0, 1.0, count)
    asked = np.linspace(0.0, 1.0, points)[:, None]
    # Slightly more than 0.05, so that a point at exactly that distance counts whichever way it is rounded.
    near = np.min(np.abs(asked - np.array(jumps)), axis=1) <= 0.05 * (1 + 1e-9) if jumps else None
    cut = np.arange(0, points, max(1, points // 250))
    about: Any = {"noise": NOISE, "cut": cut, "jump": near}
    return regression.noisy_problem(rng, lambda x: target(x[:, 0]), observed[:, None], asked, **about)


def limit(problem: regression.Problem, seed: int) -> regression.Prediction:
    """Predict as one who knows that there are two levels and a jump anywhere in the gap between observations of different ones.

    Nobody can have a lower error on average: the mean rises evenly across the gap.
    """
    order = np.argsort(problem.x[:, 0])
    at, level = problem.x[order, 0], np.round(problem.y[order])
    mean = np.interp(problem.points[:, 0], at, level)
    std = np.sqrt(mean * (1 - mean) + NOISE**2)
    return regression.Prediction(mean, std, np.diag(std[problem.cut] ** 2))


def step_methods(**settings: Any) -> dict[str, regression.Fit]:
    """Return those of all regression studies, given what `regression_methods` is given, and the limit."""
    return {**regression.regression_methods(**settings), "limit": limit}


def study(
    s: Settings, run: Run, methods: regression.Methods = step_methods, draw: Callable[..., regression.Problem] = draw
) -> Findings:
    """Run all methods on every layout and number of observations.

    `methods` makes them from what `regression_methods` is given; `draw` draws a data set of another function.
    """
    problems, chosen = {}, {}
    for layout, (count, targets) in product(s.layouts, s.targets.items()):
        problems[f"{layout}-{count}"] = partial(draw, layout=layout, count=count, points=s.points)
        chosen[f"{layout}-{count}"] = methods(targets=targets, **s.for_methods())
    fewer = {regression.PAPER_FORM: s.paper_repetitions}
    return regression.compare_regressors(run, problems, chosen, s.repetitions, fewer)


EXPERIMENT = Experiment("step-1d", DESCRIPTION, PRESETS, study)
