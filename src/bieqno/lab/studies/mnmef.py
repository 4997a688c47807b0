"""Study ``mnmef``: a published benchmark of learned filters (Bach, Baptista, Calvello, Chen and Stuart 2025).

Lorenz-96 with 40 variables, every fourth observed with a standard deviation of 1 every 0.15: far apart in time, so that errors
grow well beyond what is linear between two observations.
"""

from dataclasses import replace
from typing import Any

from jaxtyping import PRNGKeyArray

from bieqno.assimilation import System, make_trials
from bieqno.lab.compare import Arrays
from bieqno.lab.methods import filters
from bieqno.lab.methods.ennf_truth import truth_study
from bieqno.lab.methods.filters import FilterSettings, Tuned, classical_filters
from bieqno.lab.papers import MNMEF, sparse_ring
from bieqno.lab.results import Row
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
LESSONS = {5: 5, 10: 3, 20: 2, 40: 2}
_FINE, _LONG = {"steps": 400, "learning_rate": 3e-4}, {"sizes": LESSONS, "steps": 5000}
_SMALL: dict[str, Any] = {"student": {"width": 8, "channels": 2}, "training": {"sizes": {5: 4}, "steps": 4}}
SMOKE = replace(filters.SMOKE, sizes=(5,), tuned_sizes=(5,), burn_in=5, **_SMALL)
PRESETS = {
    "smoke": SMOKE,
    "quick": FilterSettings("quick", SIZES, SIZES, 16, 500, 100, (4, 200), training={"sizes": LESSONS, "steps": 2000}),
    "paper": FilterSettings("paper", SIZES, SIZES, 64, 1500, 100, (8, 400), training=_LONG, fine_tuning=_FINE),
}


def opponents(system: System, radius: tuple[float, ...] = (4.0, 6.0, 9.0, 13.0, 19.0)) -> dict[str, Tuned]:
    """Return the classical filters of a system, with inflation and radius to be found."""
    return classical_filters(system, inflation=(1.0, 1.03, 1.07, 1.12, 1.2, 1.3, 1.45), radius=radius)


def tuned_settings(
    members: int, tuning: tuple[int, int, int], truth_key: PRNGKeyArray, run_key: PRNGKeyArray
) -> Arrays:
    """Return inflation and radius of the LETKF, tuned on so many truths of so many windows and variables."""
    truths, windows, size = tuning
    system = sparse_ring(size)
    practice = make_trials(system, windows, truths=truths, members=members, key=truth_key)
    return letkf(system).tune(system, practice, windows // 10, run_key)


def letkf(system: System, *radius: float) -> Tuned:
    """Return the LETKF among them, with other radii if any are given."""
    return (opponents(system, radius) if radius else opponents(system))["LETKF tuned"]


def study(s: FilterSettings, run: Run) -> Findings:
    """Train against truths of the benchmark, and compare with the LETKF and with what was published."""
    published = [
        Row(f"N={size}", f"{method} (published)", "rmse", value, None, 64, size, "unseen")
        for method, values in MNMEF.items()
        for size, value in values.items()
        if size in s.sizes
    ]
    tuned = opponents(sparse_ring())
    return truth_study(s, run, sparse_ring(), [tuned[name] for name in TUNED], published=published)


EXPERIMENT = Experiment("mnmef", DESCRIPTION, PRESETS, study)
