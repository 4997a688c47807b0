"""Studies ``chirp-1d`` and ``kink-2d``: the paper's regression studies on functions that the shipped prior was not trained on.

Functions with two levels and functions with a fine patch, as those of the paper, are among the random functions of
`bieqno.lab.pretraining.functions`. These two are not: a wave whose length changes all along on a slope, and a cone on a smooth
ground, across whose edge the slope jumps. The kinks of the prior are reflections of a random function, with no cone among them.
"""

from functools import partial

import numpy as np
from jaxtyping import Float

from bieqno.lab.methods import regression
from bieqno.lab.studies import step_1d, trig_2d
from bieqno.lab.study import Description, Experiment

CENTRE, RADIUS = np.array([0.45, 0.55]), 0.3


def chirp(x: Float[np.ndarray, "n"]) -> Float[np.ndarray, "n"]:
    """Return a trend of slope one with a wave whose frequency rises from one to nine."""
    return x + 0.5 * np.sin(2 * np.pi * (x + 4 * x**2))


def kink(x: Float[np.ndarray, "n 2"]) -> Float[np.ndarray, "n"]:
    """Return a smooth wave with a cone of height 0.9 on it."""
    distance = np.linalg.norm(x - CENTRE, axis=1)
    return 0.5 * np.sin(3 * x[:, 0] + 2 * x[:, 1]) + 3 * np.maximum(RADIUS - distance, 0)


_NOT_TRAINED_ON = "The shipped prior of gGP was not trained on functions of this kind."
CHIRP = Experiment(
    "chirp-1d",
    Description(
        title="A rising slope with a wave that becomes shorter",
        question="A function that rises and swings faster and faster is observed at 30 or 100 places with small noise. "
        f"How well is it predicted in between, and is the predicted uncertainty calibrated? {_NOT_TRAINED_ON}",
        claim="None; the paper does not test it.",
        minutes=step_1d.DESCRIPTION.minutes,
        methods=regression.METHODS,
    ),
    step_1d.PRESETS,
    partial(step_1d.study, methods=regression.regression_methods, draw=partial(step_1d.draw, target=chirp, jumps=())),
)
KINK = Experiment(
    "kink-2d",
    Description(
        title="A cone on a smooth ground",
        question="A smooth function of two variables carries a cone, across whose edge the slope jumps, and is observed on a "
        f"grid of 16 x 16 or 32 x 32 points. How well are edge and tip predicted? {_NOT_TRAINED_ON}",
        claim="None; the paper does not test it.",
        minutes=trig_2d.DESCRIPTION.minutes,
        methods=regression.METHODS,
    ),
    trig_2d.PRESETS,
    partial(trig_2d.study, draw=partial(trig_2d.draw, target=kink)),
)
