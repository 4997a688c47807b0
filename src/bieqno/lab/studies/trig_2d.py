"""Study ``trig-2d``: regression on a multi-scale function of two variables (section 3.1.2 of the paper)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Float

from bieqno.lab.methods.regression import METHODS, TINY_GGP, Fit, Problem, compare_regressors, regression_methods
from bieqno.lab.study import Description, Experiment, Findings, Run

DESCRIPTION = Description(
    title="A function with four length scales",
    question="A function of two variables with waves of four lengths, each in a region of its own, is observed on a grid of "
    "16 x 16 or 32 x 32 points. Can one method find all four scales, and know where it is unsure?",
    claim="gGP captures all four scales, while a Gaussian process with a squared exponential kernel finds at best the first two "
    "or three (section 3.1.2).",
    minutes={"smoke": 0.4, "quick": 25.0, "paper": 80.0},
    methods=METHODS,
)
NOISE = 0.01


@dataclass(frozen=True)
class Settings:
    """What is run.

    Attributes:
        repetitions: number of data sets; the grid is always the same, the noise is drawn anew.
        sides: observations along each dimension.
        targets: the paper's M'.
        pairs: number of (targets, observations) pairs that the paper's form is trained on.
        points: test points along each dimension, evenly spaced with both ends.
        lengths: number of length scales that the opponents' tuning starts from.
    """

    preset: str = "quick"
    repetitions: int = 5
    sides: tuple[int, ...] = (16, 32)
    targets: int = 32
    pairs: int = 50_000
    points: int = 128
    ggp: Mapping[str, Any] = field(default_factory=dict)
    lengths: int = 7


PRESETS = {
    "smoke": Settings("smoke", 1, sides=(7, 8), pairs=320, points=24, lengths=3, ggp=TINY_GGP),
    # A fifth of the paper's pairs, so that a data set takes well under a minute.
    "quick": Settings("quick", pairs=10_000),
    "paper": Settings("paper", repetitions=10),
}


def function(x: Float[np.ndarray, "n 2"]) -> Float[np.ndarray, "n"]:
    """Return the paper's target: waves of length 1 everywhere, 1/2, 1/4 and 1/8 each in a square of its own.

    The waves vanish on the borders of their squares: the function has kinks, but no jumps.
    """

    def inside(low: float, high: float) -> Float[np.ndarray, "n"]:
        return np.all((x >= low) & (x <= high), axis=1).astype(float)

    def wave(k: int) -> Float[np.ndarray, "n"]:
        return np.prod(np.sin(k * np.pi * x), axis=1)

    return (
        np.prod(np.cos(2 * np.pi * x), axis=1)
        + wave(4) * inside(1 / 4, 3 / 4)
        + wave(8) * inside(1 / 2, 3 / 4)
        + wave(16) * inside(1 / 4, 1 / 2)
    )


def draw(rng: np.random.Generator, *, side: int, points: int) -> Problem:
    """Draw a data set of the study, and new values at the test points."""
    # At the centres of the cells: on the grid i / 16 the finest wave is zero at every point.
    observed = _grid((np.arange(side) + 0.5) / side)
    asked = _grid(np.linspace(0.0, 1.0, points))
    truth = function(asked)
    return Problem(
        x=observed,
        y=function(observed) + NOISE * rng.standard_normal(len(observed)),
        points=asked,
        truth=truth,
        values=truth + NOISE * rng.standard_normal(len(asked)),
        noise=NOISE,
        cut=np.arange(points) * (points + 1),  # the diagonal
    )


def study(s: Settings, run: Run, methods: Callable[..., Mapping[str, Fit]] = regression_methods) -> Findings:
    """Run all methods on every grid, made by `methods` from what `regression_methods` is given."""
    names = {side: f"grid-{side}" for side in s.sides}
    problems = {name: partial(draw, side=side, points=s.points) for side, name in names.items()}
    made = methods(targets=s.targets, pairs=s.pairs, ggp=s.ggp, lengths=s.lengths)
    chosen = dict.fromkeys(names.values(), made)
    return compare_regressors(run, problems, chosen, s.repetitions)


EXPERIMENT = Experiment("trig-2d", DESCRIPTION, PRESETS, study)


def _grid(axis: Float[np.ndarray, "k"]) -> Float[np.ndarray, "k*k 2"]:
    """Return all pairs, the first variable the slow one."""
    return np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)
