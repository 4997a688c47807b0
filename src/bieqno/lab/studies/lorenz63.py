"""Studies ``lorenz63`` and ``lorenz63-truth``: the paper's Lorenz-63 (section 3.2.1), by imitation and against the truth."""

from dataclasses import replace

from bieqno.assimilation import ParticleFilter
from bieqno.lab.methods.ennf_paper import imitation_study
from bieqno.lab.methods.ennf_truth import truth_study
from bieqno.lab.methods.filters import SMOKE_VALIDATION, FilterSettings, Tuned, classical_filters
from bieqno.lab.papers import paper_lorenz63
from bieqno.lab.study import Description, Experiment, Findings, Run

FLOOR = 0.05  # least error that the tuned filters believe in, for the law passes through zero
INFLATIONS = (1.0, 1.02, 1.05, 1.1, 1.2, 1.35, 1.5, 2.0)
TUNED = ("EnKF tuned", "ETKF tuned", "iterative EnKF tuned", "particle filter tuned")

DESCRIPTION = Description(
    title="Lorenz's model of 1963",
    question="Two of the three variables of a chaotic system are observed now and then, with errors, and an ensemble of model "
    "runs is corrected by each observation. How close does its mean stay to the truth when there are only a few runs?",
    claim="The ensemble neural filter (EnNF), trained on an ensemble Kalman filter (EnKF) of 50 members, works with two members, "
    "keeps its accuracy for all sizes from 2 to 16 and has lower errors than the EnKF (section 3.2.1).",
    minutes={"smoke": 0.5, "quick": 6.0, "paper": 25.0},
    methods=("baseline", "EnKF", "EnNF", *TUNED[:2], "particle filter"),
)
_QUICK = FilterSettings(
    "quick",
    sizes=(2, 4, 6, 8, 10, 12, 14, 16),
    tuned_sizes=(2, 4, 8, 16),
    teacher_runs=10,
    teacher_members=50,
    truths=5,
    training={"steps": 8000, "shift": 0.03, "noise": 0.02},
    particles=100_000,
)
_TEACHER = {"teacher_runs": 2, "teacher_members": 20, "training_windows": 15, "runs": 2}
_BRIEF = ({"width": 8, "depth": 2}, {"steps": 20, "members": 32}, {}, SMOKE_VALIDATION)
_LONG = {"steps": 30_000, "shift": 0.03, "noise": 0.02}
PRESETS = {
    "smoke": FilterSettings("smoke", (2, 4), (4,), 2, 20, 0, (2, 20), *_BRIEF, **_TEACHER, particles=200),
    "quick": _QUICK,
    "paper": replace(_QUICK, preset="paper", tuned_sizes=_QUICK.sizes, tuning=(8, 400), training=_LONG),
}

TRUTH_DESCRIPTION = Description(
    title="Lorenz's model of 1963, trained against the truth",
    question="A filter that imitates another cannot be better than it. How good does one become that is trained against truths "
    "of the model itself, when it is tested on truths that it never saw?",
    claim="None; the paper's filter imitates an EnKF.",
    minutes={"smoke": 1.0, "quick": 10.0, "paper": 80.0},
    methods=("EnNF", *TUNED),
)
_SIZES = (2, 4, 8, 16, 32, 64)
_LESSONS = {2: 160, 4: 128, 8: 80, 16: 40, 32: 20}
_BRIEF_TRUTH = ({"width": 8, "small": 8}, {"sizes": {2: 8}, "steps": 4}, {}, SMOKE_VALIDATION)
TRUTH_PRESETS = {
    "smoke": FilterSettings("smoke", (2, 4), (4,), 2, 15, 0, (2, 15), *_BRIEF_TRUTH),
    "quick": FilterSettings("quick", _SIZES, (2, 8, 64), tuning=(8, 200), training={"sizes": _LESSONS, "steps": 5000}),
    "paper": FilterSettings("paper", _SIZES, _SIZES, tuning=(16, 400), training={"sizes": _LESSONS, "steps": 20_000}),
}


def opponents() -> list[Tuned]:
    """Return the classical filters, with inflation or jitter to be found."""
    found = classical_filters(paper_lorenz63().system, inflation=INFLATIONS, floor=FLOOR)
    return [found[name] for name in TUNED]


def study(s: FilterSettings, run: Run) -> Findings:
    """Run the paper's study, with a particle filter that shows what is possible."""
    return imitation_study(s, run, paper_lorenz63(), opponents()[:2], ParticleFilter(0.2))


def truth_comparison(s: FilterSettings, run: Run) -> Findings:
    """Train against truths of the paper's set-up, and compare."""
    return truth_study(s, run, paper_lorenz63().system, opponents())


EXPERIMENT = Experiment("lorenz63", DESCRIPTION, PRESETS, study)
AGAINST_TRUTH = Experiment("lorenz63-truth", TRUTH_DESCRIPTION, TRUTH_PRESETS, truth_comparison)
