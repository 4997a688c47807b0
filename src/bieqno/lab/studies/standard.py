"""Study ``standard``: the field's standard benchmark, Lorenz-96 with all variables observed (Sakov and Oke 2008)."""

from dataclasses import replace

from bieqno.lab.methods.ennf_truth import truth_study
from bieqno.lab.methods.filters import FilterSettings, classical_filters
from bieqno.lab.papers import sakov_lorenz96
from bieqno.lab.studies import mnmef
from bieqno.lab.study import Description, Experiment, Findings, Run

DESCRIPTION = Description(
    title="The standard benchmark of ensemble filters",
    question="Forty variables on a ring, all observed every 0.05 with a standard deviation of 1: so often that errors stay small "
    "and Kalman filters are nearly optimal. Is a filter trained against the truth at least as good as the best of them?",
    claim="None; the paper does not go there.",
    minutes={"smoke": 1.5, "quick": 8.0, "paper": 90.0},
    methods=("EnNF", "LETKF tuned", "ETKF tuned"),
)
SIZES = (5, 7, 10, 20, 40)
LESSONS = {5: 4, 10: 2, 20: 1, 40: 1}
INFLATIONS = (1.0, 1.01, 1.02, 1.03, 1.045, 1.06, 1.09, 1.13)
RADII = (5.0, 8.0, 11.0, 14.5, 18.0, 24.0)
PRESETS = {
    "smoke": replace(mnmef.SMOKE, sizes=(5,), tuned_sizes=(5,)),
    "quick": FilterSettings("quick", SIZES, SIZES, 16, 500, 100, (4, 200), training={"sizes": LESSONS, "steps": 1200}),
    "paper": FilterSettings(
        "paper", SIZES, SIZES, 64, 1100, 100, (16, 400), training={"sizes": LESSONS, "steps": 10000}
    ),
}


def study(s: FilterSettings, run: Run) -> Findings:
    """Train against truths of the benchmark, and compare with the LETKF and the ETKF, tuned for each ensemble size."""
    system = sakov_lorenz96()
    opponents = classical_filters(system, inflation=INFLATIONS, radius=RADII)
    return truth_study(s, run, system, [opponents[name] for name in ("LETKF tuned", "ETKF tuned")])


EXPERIMENT = Experiment("standard", DESCRIPTION, PRESETS, study)
