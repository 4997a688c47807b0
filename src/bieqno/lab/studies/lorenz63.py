"""Experiment ``lorenz63``: the ensemble neural filter on Lorenz's model of 1963 (section 3.2.1 of the paper)."""

from dataclasses import replace

from jaxtyping import Array

from bieqno.assimilation import ETKF, EnKF, Filter, Floored, Inflated, ParticleFilter, Rotated
from bieqno.lab.filter_experiment import Settings, Tuned, run_experiment
from bieqno.lab.papers import paper_lorenz63
from bieqno.lab.study import Description, Experiment, Findings, Run

DESCRIPTION = Description(
    title="Lorenz's model of 1963",
    question="Two of the three variables of a chaotic system are observed now and then, with errors, and an ensemble of model "
    "runs is corrected by each observation. How close does its mean stay to the truth when there are only a few runs?",
    claim="The ensemble neural filter (EnNF), trained on an ensemble Kalman filter (EnKF) of 50 members, works with two members, "
    "keeps its accuracy for all sizes from 2 to 16 and has lower errors than the EnKF (section 3.2.1).",
    minutes={"smoke": 0.5, "quick": 6.0, "paper": 25.0},
    methods=("baseline", "EnKF", "EnNF", "EnKF tuned", "ETKF tuned", "particle filter"),
)
FLOOR = 0.05  # least error that the tuned filters believe in, for the law passes through zero
INFLATIONS = (1.0, 1.02, 1.05, 1.1, 1.2, 1.35, 1.5, 2.0)

_QUICK = Settings(
    "quick",
    sizes=(2, 4, 6, 8, 10, 12, 14, 16),
    tuned_sizes=(2, 4, 8, 16),
    teacher_runs=10,
    teacher_members=50,
    training={"steps": 8000, "shift": 0.03, "noise": 0.02},
    particles=100_000,
)
PRESETS = {
    "smoke": Settings(
        "smoke", (2, 4), (4,), 2, 20, training_windows=15, windows=20, runs=2, truths=2, tuning=(2, 20),
        student={"width": 8, "depth": 2}, training={"steps": 20, "members": 32}, particles=200,
    ),
    "quick": _QUICK,
    "paper": replace(
        _QUICK, preset="paper", tuned_sizes=_QUICK.sizes, tuning=(8, 400),
        training={"steps": 30_000, "shift": 0.03, "noise": 0.02},
    ),
}  # fmt: skip


def opponents() -> list[Tuned]:
    """The classical filters, with inflation to be found."""

    def enkf(inflation: float | Array) -> Filter:
        return Inflated(Floored(EnKF(), FLOOR), inflation)

    def etkf(inflation: float | Array) -> Filter:
        return Rotated(Inflated(Floored(ETKF(), FLOOR), inflation))

    grid = {"inflation": INFLATIONS}
    return [Tuned("EnKF tuned", enkf, grid), Tuned("ETKF tuned", etkf, grid)]


def study(s: Settings, run: Run) -> Findings:
    """The paper's study, with a particle filter that shows what is possible."""
    return run_experiment(s, run, paper_lorenz63(), opponents(), ParticleFilter(0.2))


EXPERIMENT = Experiment("lorenz63", DESCRIPTION, PRESETS, study)
run = EXPERIMENT.run
