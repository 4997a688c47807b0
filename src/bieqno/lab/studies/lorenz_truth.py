"""Studies ``lorenz63-truth`` and ``lorenz96-truth``: filters trained against truths of the paper's systems.

The numbers of training steps are budgets: a validation on truths of its own stops each training.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from bieqno.lab.methods.ennf_truth import truth_study
from bieqno.lab.methods.filters import SMOKE, FilterSettings
from bieqno.lab.papers import PaperSystem, paper_lorenz63, paper_lorenz96
from bieqno.lab.studies.lorenz import TUNED_63, TUNED_96, opponents
from bieqno.lab.study import Description, Experiment, Findings, Run


def against_truth(make: Callable[[], PaperSystem], s: FilterSettings, run: Run) -> Findings:
    """Train against truths of the paper's set-up, and compare."""
    paper = make()
    return truth_study(s, run, paper.system, opponents(paper))


_SIZES, _TRUTHS = (2, 4, 8, 16, 32, 64), {"sizes": {2: 20, 4: 16, 8: 12, 16: 4, 32: 3}}
_FEWER = {"sizes": {2: 5, 4: 5, 8: 4, 16: 2, 32: 2}}
_SMOKE_TRUTH = replace(SMOKE, student={"width": 8, "channels": 2}, training={"sizes": {2: 4}, "steps": 4})
LORENZ63_TRUTH = Experiment(
    "lorenz63-truth",
    Description(
        title="Lorenz's model of 1963, trained against the truth",
        question="A filter that imitates another cannot be better than it. How good does one become that is trained against "
        "truths of the model itself, when it is tested on truths that it never saw?",
        claim="None; the paper's filter imitates an EnKF.",
        minutes={"smoke": 1.0, "quick": 10.0, "paper": 80.0},
        methods=("EnNF", *TUNED_63),
    ),
    {
        "smoke": _SMOKE_TRUTH,
        "quick": FilterSettings("quick", _SIZES, (2, 8, 64), tuning=(8, 200), training={**_TRUTHS, "steps": 5000}),
        "paper": FilterSettings("paper", _SIZES, _SIZES, tuning=(16, 400), training={**_TRUTHS, "steps": 20_000}),
    },
    partial(against_truth, paper_lorenz63),
)
LORENZ96_TRUTH = Experiment(
    "lorenz96-truth",
    Description(
        title="Lorenz's model of 1996, trained against the truth",
        question="The paper's filter sees all observations from every variable and imitates an EnKF on one truth. How good does "
        "a local one become that is trained against truths of the model, when it is tested on truths that it never saw?",
        claim="None; the paper's filter imitates an EnKF.",
        minutes={"smoke": 1.5, "quick": 12.0, "paper": 90.0},
        methods=("EnNF", *TUNED_96),
    ),
    {
        "smoke": _SMOKE_TRUTH,
        "quick": FilterSettings("quick", _SIZES, (8, 16), tuning=(4, 150), training={**_FEWER, "steps": 2400}),
        "paper": FilterSettings("paper", _SIZES, _SIZES, tuning=(8, 200), training={**_FEWER, "steps": 16_000}),
    },
    partial(against_truth, paper_lorenz96),
)
