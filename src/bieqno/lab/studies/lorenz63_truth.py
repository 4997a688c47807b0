"""Experiment ``lorenz63-truth``: the paper's first set-up, with a filter that is trained against the truth."""

from collections.abc import Sequence
from dataclasses import replace

from jaxtyping import Array

from bieqno.assimilation import Filter, Floored, Inflated, IterativeEnKF, Lorenz63, Lorenz96, ParticleFilter, Rotated
from bieqno.lab.filter_experiment import Tuned
from bieqno.lab.papers import paper_lorenz63
from bieqno.lab.studies import lorenz63
from bieqno.lab.study import Description, Experiment, Findings, Run
from bieqno.lab.truth_scores import System
from bieqno.lab.truth_study import Settings, run_study

DESCRIPTION = Description(
    title="Lorenz's model of 1963, trained against the truth",
    question="A filter that imitates another cannot be better than it. How good does one become that is trained against truths "
    "of the model itself, when it is tested on truths that it never saw?",
    claim="None; the paper's filter imitates an EnKF.",
    minutes={"smoke": 1.0, "quick": 10.0, "paper": 80.0},
    methods=("EnNF", "EnKF tuned", "ETKF tuned", "iterative EnKF tuned", "particle filter tuned"),
)
_PAPER = Settings(
    "paper",
    sizes=(2, 4, 8, 16, 32, 64),
    tuned_sizes=(2, 4, 8, 16, 32, 64),
    truths=64,
    tuning=(16, 400),
    training={"sizes": {2: 160, 4: 128, 8: 80, 16: 40, 32: 20}, "steps": 20_000},
)
PRESETS = {
    "smoke": Settings(
        "smoke", (2, 4), (4,), 2, 15, 0, (2, 15), {"sizes": {2: 8}, "steps": 4, "settings": {"width": 8, "small": 8}}
    ),
    "quick": replace(
        _PAPER, preset="quick", tuned_sizes=(2, 8, 64), tuning=(8, 200), training={**_PAPER.training, "steps": 5000}
    ),
    "paper": _PAPER,
}  # fmt: skip


def further_opponents(model: Lorenz63 | Lorenz96, floor: float, inflations: Sequence[float]) -> list[Tuned]:
    """The classical filters that the imitating studies do not have, with inflation or jitter to be found."""

    def iterative(inflation: float | Array) -> Filter:
        return Rotated(Inflated(Floored(IterativeEnKF(model), floor), inflation))

    def particles(jitter: float | Array) -> Filter:
        return Floored(ParticleFilter(jitter), floor)

    return [
        Tuned("iterative EnKF tuned", iterative, {"inflation": inflations}),
        Tuned("particle filter tuned", particles, {"jitter": (0.1, 0.25, 0.5, 1.0, 1.5)}),
    ]


def opponents() -> list[Tuned]:
    """The classical filters, with inflation or jitter to be found."""
    return [*lorenz63.opponents(), *further_opponents(paper_lorenz63().model, lorenz63.FLOOR, lorenz63.INFLATIONS)]


def study(s: Settings, run: Run) -> Findings:
    """Train against truths of the paper's set-up, and compare."""
    setup = paper_lorenz63()
    system = System(setup.model, setup.observation, setup.state, None, setup.limit)
    return run_study(s, run, system, opponents())


EXPERIMENT = Experiment("lorenz63-truth", DESCRIPTION, PRESETS, study)
run = EXPERIMENT.run
