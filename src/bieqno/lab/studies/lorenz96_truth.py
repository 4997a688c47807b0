"""Experiment ``lorenz96-truth``: the paper's second set-up, with a local filter that is trained against the truth."""

from dataclasses import replace

from jaxtyping import Array

from bieqno.assimilation import ETKF, Filter, Floored, Inflated, Places, Rotated
from bieqno.lab.filter_experiment import Tuned
from bieqno.lab.papers import paper_lorenz96
from bieqno.lab.studies import lorenz96
from bieqno.lab.studies.lorenz63_truth import further_opponents
from bieqno.lab.study import Description, Experiment, Findings, Run
from bieqno.lab.truth_scores import System
from bieqno.lab.truth_study import Settings, run_study

DESCRIPTION = Description(
    title="Lorenz's model of 1996, trained against the truth",
    question="The paper's filter sees all observations from every variable and imitates an EnKF on one truth. How good does a "
    "local one become that is trained against truths of the model, when it is tested on truths that it never saw?",
    claim="None; the paper's filter imitates an EnKF.",
    minutes={"smoke": 1.5, "quick": 12.0, "paper": 90.0},
    methods=(
        "EnNF", "EnKF tuned", "ETKF tuned", "LETKF tuned", "iterative EnKF tuned", "particle filter tuned",
    ),
)  # fmt: skip
_PAPER = Settings(
    "paper",
    sizes=(2, 4, 8, 16, 32, 64),
    tuned_sizes=(2, 4, 8, 16, 32, 64),
    truths=64,
    tuning=(8, 200),
    training={"steps": 16_000},
)
PRESETS = {
    "smoke": Settings(
        "smoke", (2, 4), (4,), 2, 15, 0, (2, 15), {"sizes": {2: 4}, "steps": 4, "settings": {"width": 8, "small": 8}}
    ),
    "quick": replace(
        _PAPER, preset="quick", tuned_sizes=(8, 16), tuning=(4, 150), training={**_PAPER.training, "steps": 2400}
    ),
    "paper": _PAPER,
}  # fmt: skip


def opponents() -> list[Tuned]:
    """The classical filters, with inflation, localization or jitter to be found."""

    def etkf(inflation: float | Array) -> Filter:
        return Rotated(Inflated(Floored(ETKF(), lorenz96.FLOOR), inflation))

    return [
        *lorenz96.opponents(),
        Tuned("ETKF tuned", etkf, {"inflation": lorenz96.INFLATIONS}),
        *further_opponents(paper_lorenz96().model, lorenz96.FLOOR, lorenz96.INFLATIONS),
    ]


def study(s: Settings, run: Run) -> Findings:
    """Train against truths of the paper's set-up, and compare."""
    setup = paper_lorenz96()
    system = System(setup.model, setup.observation, setup.state, Places.grid(24, period=24.0), setup.limit)
    return run_study(s, run, system, opponents())


EXPERIMENT = Experiment("lorenz96-truth", DESCRIPTION, PRESETS, study)
run = EXPERIMENT.run
