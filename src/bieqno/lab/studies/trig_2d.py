"""Study ``trig-2d``: regression on a multi-scale function of two variables (section 3.1.2 of the paper)."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from jaxtyping import Float

from bieqno.lab.methods import regression
from bieqno.lab.study import Description, Experiment, Findings, Run

DESCRIPTION = Description(
    title="A function with four length scales",
    question="A function of two variables with waves of four lengths, each in a region of its own, is observed on a grid of "
    "16 x 16 or 32 x 32 points. Can one method find all four scales, and know where it is unsure? Functions with a fine patch "
    "are among those that the shipped prior of gGP was trained on; kink-2d has one that is not.",
    claim="gGP captures all four scales, while a Gaussian process with a squared exponential kernel finds at best the first two "
    "or three (section 3.1.2).",
    minutes={"smoke": 0.4, "quick": 26.0, "paper": 90.0},
    methods=regression.METHODS,
)
NOISE = 0.01


@dataclass(frozen=True)
class Settings(regression.PaperSettings):
    """What is run: `sides` are numbers of observations along each dimension, `targets` is the paper's M'."""

    sides: tuple[int, ...] = (16, 32)
    targets: int = 32
    pairs: int = 50_000
    points: int = 128


PRESETS = {
    "smoke": Settings("smoke", 1, 320, 2, 1, 1, 24, regression.TINY_GGP, lengths=3, sides=(7, 8)),
    # A fifth of the paper's pairs, so that a data set takes well under a minute.
    "quick": Settings("quick", pairs=10_000),
    "paper": Settings("paper", repetitions=10, epochs=120, halving=6, paper_repetitions=2),
}


def function(x: Float[np.ndarray, "n 2"]) -> Float[np.ndarray, "n"]:
    """Return the paper's target: waves of length 1 everywhere, 1/2, 1/4 and 1/8 each in a square of its own.

    The waves vanish on the borders of their squares: the function has kinks, but no jumps.
    """

    def inside(low: float, high: float) -> Float[np.ndarray, "n"]:
        return np.all((x >= low) & (x <= high), axis=1).astype(float)

    def wave(k: int) -> Float[np.ndarray, "n"]:
        return np.prod(np.sin(k * np.pi * x), axis=1)

    coarse = np.prod(np.cos(2 * np.pi * x), axis=1) + wave(4) * inside(1 / 4, 3 / 4)
    return coarse + wave(8) * inside(1 / 2, 3 / 4) + wave(16) * inside(1 / 4, 1 / 2)


def draw(
    rng: np.random.Generator, *, side: int, points: int, target: regression.Function = function
) -> regression.Problem:
    """Draw a data set of the study, and new values at the test points; `target` may be another function."""
    # At the centres of the cells: on the grid i / 16 the finest wave is zero at every point.
    observed, asked = (np.arange(side) + 0.5) / side, np.linspace(0.0, 1.0, points)
    x, there = (regression.grid(axis, axis) for axis in (observed, asked))
    diagonal = np.arange(points) * (points + 1)
    return regression.noisy_problem(rng, target, x, there, noise=NOISE, cut=diagonal)


def study(
    s: Settings,
    run: Run,
    methods: regression.Methods = regression.regression_methods,
    draw: Callable[..., regression.Problem] = draw,
) -> Findings:
    """Run all methods on every grid, made by `methods` from what `regression_methods` is given; `draw` draws a data set."""
    problems = {f"grid-{side}": partial(draw, side=side, points=s.points) for side in s.sides}
    made = methods(targets=s.targets, **s.for_methods())
    fewer = {regression.PAPER_FORM: s.paper_repetitions}
    return regression.compare_regressors(run, problems, dict.fromkeys(problems, made), s.repetitions, fewer)


EXPERIMENT = Experiment("trig-2d", DESCRIPTION, PRESETS, study)
