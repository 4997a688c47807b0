"""Studies ``lorenz96`` and ``lorenz96-truth``: the paper's Lorenz-96 (section 3.2.2), by imitation and against the truth."""

from dataclasses import replace

from bieqno.lab.methods.ennf_paper import imitation_study
from bieqno.lab.methods.ennf_truth import truth_study
from bieqno.lab.methods.filters import SMOKE_VALIDATION, FilterSettings, Tuned, classical_filters
from bieqno.lab.papers import paper_lorenz96
from bieqno.lab.study import Description, Experiment, Findings, Run

FLOOR = 0.05  # least error that the tuned filters believe in, for the law passes through zero
TUNED = ("EnKF tuned", "LETKF tuned", "ETKF tuned", "iterative EnKF tuned", "particle filter tuned")

DESCRIPTION = Description(
    title="Lorenz's model of 1996, 24 variables",
    question="Waves travel around a ring of 24 places, of which every third is observed with errors. Can a small ensemble follow "
    "them where the ensemble Kalman filter needs a hundred members?",
    claim="The EnNF, trained on an EnKF of 100 members, works with two members and has lower errors than the EnKF for all sizes "
    "from 2 to 64 (section 3.2.2).",
    minutes={"smoke": 1.0, "quick": 12.0, "paper": 20.0},
    methods=("baseline", "EnKF", "EnNF", *TUNED[:2]),
)
# One operator for all variables cannot know which observations are near: nearly all is learned in the fine-tuning. The steps are
# a budget: validation on truths of its own stops a training that learns the 150 windows by heart.
_LESSONS = {"members": 256, "shift": 0.1, "noise": 0.1}
_QUICK = FilterSettings(
    "quick",
    sizes=(2, 4, 8, 16, 24, 32, 48, 64),
    tuned_sizes=(8, 32),
    teacher_runs=30,
    teacher_members=100,
    truths=5,
    tuning=(2, 100),
    training={"steps": 200, **_LESSONS},
    fine_tuning={"steps": 3500, **_LESSONS},
)
_TEACHER = {"teacher_runs": 2, "teacher_members": 40, "training_windows": 10, "runs": 2}
_BRIEF = ({"width": 8, "depth": 2}, {"steps": 10, "members": 32}, {"steps": 4, "members": 32}, SMOKE_VALIDATION)
_LONG = {"training": {"steps": 1000, **_LESSONS}, "fine_tuning": {"steps": 12_000, **_LESSONS}}
PRESETS = {
    "smoke": FilterSettings("smoke", (2, 4), (4,), 2, 15, 0, (2, 20), *_BRIEF, **_TEACHER),
    "quick": _QUICK,
    "paper": replace(_QUICK, preset="paper", tuned_sizes=_QUICK.sizes, tuning=(4, 200), **_LONG),
}

TRUTH_DESCRIPTION = Description(
    title="Lorenz's model of 1996, trained against the truth",
    question="The paper's filter sees all observations from every variable and imitates an EnKF on one truth. How good does a "
    "local one become that is trained against truths of the model, when it is tested on truths that it never saw?",
    claim="None; the paper's filter imitates an EnKF.",
    minutes={"smoke": 1.5, "quick": 12.0, "paper": 90.0},
    methods=("EnNF", *TUNED),
)
_SIZES = (2, 4, 8, 16, 32, 64)
_BRIEF_TRUTH = ({"width": 8, "small": 8}, {"sizes": {2: 4}, "steps": 4}, {}, SMOKE_VALIDATION)
TRUTH_PRESETS = {
    "smoke": FilterSettings("smoke", (2, 4), (4,), 2, 15, 0, (2, 15), *_BRIEF_TRUTH),
    "quick": FilterSettings("quick", _SIZES, (8, 16), tuning=(4, 150), training={"steps": 2400}),
    "paper": FilterSettings("paper", _SIZES, _SIZES, tuning=(8, 200), training={"steps": 16_000}),
}


def opponents() -> list[Tuned]:
    """Return the classical filters, with inflation, localization or jitter to be found."""
    found = classical_filters(paper_lorenz96().system, floor=FLOOR)
    return [found[name] for name in TUNED]


def study(s: FilterSettings, run: Run) -> Findings:
    """Run the paper's study."""
    return imitation_study(s, run, paper_lorenz96(), opponents()[:2])


def truth_comparison(s: FilterSettings, run: Run) -> Findings:
    """Train against truths of the paper's set-up, and compare."""
    return truth_study(s, run, paper_lorenz96().system, opponents())


EXPERIMENT = Experiment("lorenz96", DESCRIPTION, PRESETS, study)
AGAINST_TRUTH = Experiment("lorenz96-truth", TRUTH_DESCRIPTION, TRUTH_PRESETS, truth_comparison)
