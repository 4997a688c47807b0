"""Studies ``lorenz63`` and ``lorenz96``: the paper's filter (section 3.2), which imitates another; ``-truth``: one that does not.

The numbers of training steps are budgets: a validation on truths of its own stops each training.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import bieqno.assimilation as da
from bieqno.lab.methods.ennf_paper import PAPER_FORM
from bieqno.lab.methods.ennf_truth import truth_study
from bieqno.lab.methods.filters import INFLATIONS, SMOKE, FilterSettings, Tuned, classical_filters
from bieqno.lab.methods.imitation import imitation_study
from bieqno.lab.papers import PaperSystem, paper_lorenz63, paper_lorenz96
from bieqno.lab.study import Description, Experiment, Findings, Run

FLOOR = 0.05  # least error that the tuned filters assume, for the law passes through zero
INFLATIONS_63 = (*INFLATIONS, 1.5, 2.0)
TUNED_63 = ("EnKF tuned", "ETKF tuned", "iterative EnKF tuned", "particle filter tuned")
TUNED_96 = ("EnKF tuned", "LETKF tuned", "ETKF tuned", "iterative EnKF tuned", "particle filter tuned")


def opponents(paper: PaperSystem) -> list[Tuned]:
    """Return the classical filters of a set-up, with inflation, localization or jitter to be found."""
    names, inflation = (TUNED_63, INFLATIONS_63) if paper.system.places is None else (TUNED_96, INFLATIONS)
    found = classical_filters(paper.system, inflation=inflation, floor=FLOOR)
    return [found[name] for name in names]


def imitation(make: Callable[[], PaperSystem], limit: da.Filter | None, s: FilterSettings, run: Run) -> Findings:
    """Run the paper's study, with a `limit` that shows what is possible."""
    paper = make()
    return imitation_study(s, run, paper, opponents(paper)[:2], limit)


_SMOKE = replace(SMOKE, student={"width": 8, "depth": 2}, teacher_runs=2, training_windows=10, runs=2)
_NEAR = {"shift": 0.03, "noise": 0.02}
_EVEN = (2, 4, 6, 8, 10, 12, 14, 16)
_TEACHER_63: dict[str, Any] = {"truths": 5, "teacher_runs": 10, "teacher_members": 50, "particles": 100_000}
_QUICK_63 = FilterSettings(
    "quick", _EVEN, (2, 4, 8, 16), training={"steps": 8000, **_NEAR}, paper={"epochs": 200}, **_TEACHER_63
)
_LONG_63: dict[str, Any] = {"tuning": (8, 400), "training": {"steps": 30_000, **_NEAR}, "paper": {"epochs": 2000}}
LORENZ63 = Experiment(
    "lorenz63",
    Description(
        title="Imitation of an EnKF on Lorenz's model of 1963",
        question="Two of the three variables of a chaotic system are observed now and then, with errors, and an ensemble of "
        "model runs is corrected by each observation. How close does its mean stay to the truth when there are only a few runs?",
        claim="The ensemble neural filter (EnNF), trained on an ensemble Kalman filter (EnKF) of 50 members, works with two "
        "members, keeps its accuracy for all sizes from 2 to 16 and has lower errors than the EnKF (section 3.2.1).",
        minutes={"smoke": 0.5, "quick": 9.0, "paper": 52.0},
        methods=("baseline", "EnKF", "EnNF", PAPER_FORM, *TUNED_63[:2], "particle filter"),
    ),
    {
        "smoke": replace(
            _SMOKE, training={"steps": 20, "members": 32}, teacher_members=20, particles=200, paper={"epochs": 2}
        ),
        "quick": _QUICK_63,
        "paper": replace(_QUICK_63, preset="paper", tuned_sizes=_EVEN, **_LONG_63),
    },
    partial(imitation, paper_lorenz63, da.ParticleFilter(0.2)),
)

# One operator for all variables cannot know which observations are near: nearly all is learned in the fine-tuning.
_FAR = {"members": 256, "shift": 0.1, "noise": 0.1}
_BRIEF: dict[str, Any] = {"training": {"steps": 10, "members": 32}, "fine_tuning": {"steps": 4, "members": 32}}
_BRIEF |= {"paper": {"epochs": 2, "fine_tuning": 1}}
_BOTH: dict[str, Any] = {"training": {"steps": 200, **_FAR}, "fine_tuning": {"steps": 4000, **_FAR}}
_BOTH |= {"paper": {"epochs": 1, "fine_tuning": 1}}
_LONG: dict[str, Any] = {"training": {"steps": 1000, **_FAR}, "fine_tuning": {"steps": 12_000, **_FAR}}
_LONG |= {"paper": {"epochs": 40, "fine_tuning": 25}}  # 40 minutes of two cores; the paper has 2,000 and a few hundred
_UP_TO_64 = (2, 4, 8, 16, 24, 32, 48, 64)
_TEACHER_96: dict[str, Any] = {"truths": 5, "teacher_runs": 30, "teacher_members": 100}
_QUICK_96 = FilterSettings("quick", _UP_TO_64, (8, 32), tuning=(2, 100), **_BOTH, **_TEACHER_96)
LORENZ96 = Experiment(
    "lorenz96",
    Description(
        title="Imitation of an EnKF on Lorenz's model of 1996",
        question="Waves travel around a ring of 24 places, of which every third is observed with errors. Can a small ensemble "
        "follow them where the ensemble Kalman filter needs a hundred members?",
        claim="The EnNF, trained on an EnKF of 100 members, works with two members and has lower errors than the EnKF for all "
        "sizes from 2 to 64 (section 3.2.2).",
        minutes={"smoke": 1.0, "quick": 14.0, "paper": 60.0},
        methods=("baseline", "EnKF", "EnNF", PAPER_FORM, *TUNED_96[:2]),
    ),
    {
        "smoke": replace(_SMOKE, teacher_members=40, **_BRIEF),
        "quick": _QUICK_96,
        "paper": replace(_QUICK_96, preset="paper", tuned_sizes=_UP_TO_64, tuning=(4, 200), **_LONG),
    },
    partial(imitation, paper_lorenz96, None),
)


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
