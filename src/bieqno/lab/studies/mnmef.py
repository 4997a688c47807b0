"""Studies ``mnmef`` and ``standard``: Lorenz-96 with 40 variables, in a benchmark of learned filters and in the usual one.

In ``mnmef`` (Bach, Baptista, Calvello, Chen and Stuart 2025) every fourth variable is observed with a standard deviation of 1
every 0.15: far apart in time, so that errors grow well beyond what is linear between two observations. In ``standard`` (Sakov
and Oke 2008) all are, every 0.05.
"""

from dataclasses import replace
from typing import Any

from jaxtyping import PRNGKeyArray

from bieqno.assimilation import System, make_trials
from bieqno.lab.compare import Arrays
from bieqno.lab.methods import filters
from bieqno.lab.methods.ennf_truth import published_rows, truth_study
from bieqno.lab.methods.filters import FilterSettings, Tuned, classical_filters
from bieqno.lab.papers import MNMEF, sakov_lorenz96, sparse_ring
from bieqno.lab.study import Description, Experiment, Findings, Run

TUNED = ("LETKF tuned", "ETKF tuned", "local EnKF tuned", "iterative EnKF tuned")
DESCRIPTION = Description(
    title="A published benchmark of learned filters",
    question="Forty variables on a ring, every fourth observed, and so long between observations that errors grow beyond what is "
    "linear. Does a filter trained for minutes against the truth beat a tuned LETKF and the best published learned filter?",
    claim="None; the paper does not go there. Bach et al. (2025) report their MNMEF, trained for hours on a GPU and "
    "fine-tuned for each ensemble size (its errors here are read off a figure, to one or two per cent).",
    minutes={"smoke": 1.5, "quick": 15.0, "paper": 100.0},
    methods=("EnNF", "EnNF fine-tuned", *TUNED, "MNMEF (published)", "LETKF (published)"),
)
SIZES = (5, 10, 20, 40, 100)
TRUTHS = {5: 5, 10: 3, 20: 2, 40: 2}  # in training, by ensemble size
_FINE, _LONG = {"steps": 400, "learning_rate": 3e-4}, {"sizes": TRUTHS, "steps": 5000}
_SMALL: dict[str, Any] = {"student": {"width": 8, "channels": 2}, "training": {"sizes": {5: 4}, "steps": 4}}
SMOKE = replace(filters.SMOKE, sizes=(5,), tuned_sizes=(5,), burn_in=5, **_SMALL)
PRESETS = {
    "smoke": SMOKE,
    "quick": FilterSettings("quick", SIZES, SIZES, 16, 500, 100, (4, 200), training={"sizes": TRUTHS, "steps": 2000}),
    "paper": FilterSettings("paper", SIZES, SIZES, 64, 1500, 100, (8, 400), training=_LONG, fine_tuning=_FINE),
}


def opponents(system: System, radius: tuple[float, ...] = (4.0, 6.0, 9.0, 13.0, 19.0)) -> dict[str, Tuned]:
    """Return the classical filters of a system, with inflation and radius to be found."""
    return classical_filters(system, inflation=(1.0, 1.03, 1.07, 1.12, 1.2, 1.3, 1.45), radius=radius)


def tuned_settings(members: int, tuning: tuple[int, int, int], truth_key: PRNGKeyArray, key: PRNGKeyArray) -> Arrays:
    """Return inflation and radius of the LETKF, tuned on so many truths of so many windows and variables."""
    truths, windows, size = tuning
    system = sparse_ring(size)
    tuning_trials = make_trials(system, windows, truths=truths, members=members, key=truth_key)
    return letkf(system).tune(system, tuning_trials, windows // 10, key)


def letkf(system: System, *radius: float) -> Tuned:
    """Return the LETKF among them, with other radii if any are given."""
    return (opponents(system, radius) if radius else opponents(system))["LETKF tuned"]


def study(s: FilterSettings, run: Run) -> Findings:
    """Train against truths of the benchmark, and compare with the LETKF and with what was published."""
    published = [row for row in published_rows(MNMEF, n=64) if row.ensemble_size in s.sizes]
    tuned = opponents(sparse_ring())
    return truth_study(s, run, sparse_ring(), [tuned[name] for name in TUNED], published=published)


EXPERIMENT = Experiment("mnmef", DESCRIPTION, PRESETS, study)


def standard(s: FilterSettings, run: Run) -> Findings:
    """Train against truths of the usual benchmark, and compare with the LETKF and the ETKF, tuned for each ensemble size."""
    system = sakov_lorenz96()
    radius = (5.0, 8.0, 11.0, 14.5, 18.0, 24.0)
    inflation = (1.0, 1.01, 1.02, 1.03, 1.045, 1.06, 1.09, 1.13)
    tuned = classical_filters(system, inflation=inflation, radius=radius)
    return truth_study(s, run, system, [tuned[name] for name in TUNED[:2]])


_SIZES, _LEARNED = ((5, 7, 10, 20, 40),) * 2, {"sizes": {5: 4, 10: 2, 20: 1, 40: 1}}
STANDARD = Experiment(
    "standard",
    Description(
        title="The standard benchmark of ensemble filters",
        question="Forty variables on a ring, all observed every 0.05 with a standard deviation of 1: so often that errors stay "
        "small and Kalman filters are nearly optimal. Is a filter trained against the truth as good as the best of them?",
        minutes={"smoke": 1.5, "quick": 8.0, "paper": 90.0},
        methods=("EnNF", *TUNED[:2]),
    ),
    {
        "smoke": replace(SMOKE, sizes=(5,), tuned_sizes=(5,)),
        "quick": FilterSettings("quick", *_SIZES, 16, 500, 100, (4, 200), training={**_LEARNED, "steps": 1200}),
        "paper": FilterSettings("paper", *_SIZES, 64, 1100, 100, (16, 400), training={**_LEARNED, "steps": 10000}),
    },
    standard,
)
