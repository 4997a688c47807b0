"""Experiment ``mnmef``: a published benchmark of learned filters (Bach, Baptista, Calvello, Chen and Stuart 2025).

Lorenz-96 with 40 variables, every fourth observed with a standard deviation of 1 every 0.15: far apart in time, so that errors
grow well beyond what is linear between two observations.
"""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from bieqno.assimilation import LETKF, Filter, Inflated, Lorenz96, Neighbours, Observation, Places, Rotated
from bieqno.lab.filter_experiment import Tuned
from bieqno.lab.results import Row
from bieqno.lab.study import Description, Experiment, Findings, Run
from bieqno.lab.truth_scores import System
from bieqno.lab.truth_study import Settings, run_study

DESCRIPTION = Description(
    title="A published benchmark of learned filters",
    question="Forty variables on a ring, every fourth observed, and so long between observations that errors grow beyond what is "
    "linear. Does a filter trained for minutes against the truth beat a tuned LETKF and the best published learned filter?",
    claim="None; the paper does not go there. Bach et al. (2025) report their MNMEF, trained for hours on a GPU and "
    "fine-tuned for each ensemble size (its errors here are read off a figure, to one or two per cent).",
    minutes={"smoke": 1.5, "quick": 15.0, "paper": 100.0},
    methods=("EnNF", "EnNF fine-tuned", "LETKF tuned", "MNMEF (published)", "LETKF (published)"),
)
STATIONS = tuple(range(0, 40, 4))
SIZES = (5, 10, 20, 40, 100)
LESSONS = {5: 48, 10: 32, 20: 16, 40: 8}
INFLATIONS = (1.0, 1.03, 1.07, 1.12, 1.2, 1.3, 1.45)
RADII = (4.0, 6.0, 9.0, 13.0, 19.0)

# Error of the analysis mean, 64 truths x 1,500 windows: MNMEF fine-tuned for each size, read off the authors' figure to
# one or two per cent, and the LETKF of their tables, by grid search.
_PUBLISHED = {
    "MNMEF (published)": {5: 1.61, 10: 1.48, 20: 1.35, 40: 1.25, 100: 1.15},
    "LETKF (published)": {5: 2.635, 10: 2.020, 20: 1.577, 40: 1.396, 100: 1.304},
}

_PAPER = Settings(
    "paper",
    sizes=SIZES,
    tuned_sizes=SIZES,
    truths=64,
    windows=1500,
    burn_in=100,
    tuning=(8, 400),
    training={"sizes": {**LESSONS, 100: 4}, "steps": 6000},
    fine_tuning={"steps": 400, "learning_rate": 3e-4},
)
PRESETS = {
    "smoke": Settings(
        "smoke", (5,), (5,), 2, 20, 5, (2, 20), {"sizes": {5: 4}, "steps": 4, "settings": {"width": 8, "small": 8}},
    ),
    "quick": replace(
        _PAPER, preset="quick", truths=16, windows=500, tuning=(4, 200), fine_tuning={},
        training={"sizes": LESSONS, "steps": 2000},
    ),
    "paper": _PAPER,
}  # fmt: skip


def system() -> System:
    """The benchmark's set-up."""
    model = Lorenz96(40, 8.0, window=0.15, step=0.05)
    return System(model, Observation(STATIONS, 1.0), jnp.full(40, 8.0), Places.grid(40, period=40.0))


def letkf(size: int, stations: np.ndarray | tuple[int, ...], reach: float = max(RADII)) -> Tuned:
    """The LETKF on a ring, with inflation and radius to be found, the latter up to `reach`."""
    ring = np.arange(float(size))[:, None]
    near = Neighbours.within(reach, ring, np.asarray(stations, float)[:, None], period=float(size))

    def build(inflation: float | Array, radius: float | Array) -> Filter:
        return Rotated(Inflated(LETKF(near, radius), inflation))

    return Tuned("LETKF tuned", build, {"inflation": INFLATIONS, "radius": RADII})


def study(s: Settings, run: Run) -> Findings:
    """Train against truths of the benchmark, and compare with the LETKF and with what was published."""
    published = [
        Row(f"N={size}", method, "rmse", value, None, 64, ensemble_size=size, protocol="unseen")
        for method, values in _PUBLISHED.items() for size, value in values.items() if size in s.sizes
    ]  # fmt: skip
    return run_study(s, run, system(), [letkf(40, STATIONS)], published=published)


EXPERIMENT = Experiment("mnmef", DESCRIPTION, PRESETS, study)
run = EXPERIMENT.run
