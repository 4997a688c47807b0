"""Study ``qg``: a wind-driven ocean of 129 x 129 points, a few of which are observed (Sakov and Oke 2008, Tellus 60A)."""

from dataclasses import dataclass
from typing import Any

from bieqno.lab.methods.ennf_truth import published_rows, truth_study
from bieqno.lab.methods.filters import SMOKE_VALIDATION, FilterSettings, classical_filters
from bieqno.lab.papers import SAKOV_QG, sakov_qg
from bieqno.lab.results import Row
from bieqno.lab.study import Description, Experiment, Findings, Run

_PUBLISHED = tuple(f"{method} (published)" for method in SAKOV_QG)
DESCRIPTION = Description(
    title="Ocean gyres in two dimensions",
    question="The stream function of a square ocean, two per cent of it observed, at other places every time. Does a filter that "
    "was trained on a smaller basin serve on the large one, and how does it compare with a tuned LETKF there?",
    claim="None; the paper does not go there. The scores that DAPPER records for this set-up stand beside.",
    minutes={"smoke": 2.0, "quick": 40.0, "paper": 300.0},
    methods=("EnNF", "LETKF tuned", *_PUBLISHED),
)
INFLATIONS = (1.0, 1.02, 1.04, 1.07, 1.12)
RADII = (12.0, 18.0, 26.0, 36.0)  # of the support, 3.64 times the length that DAPPER gives: 36 are 10 there


@dataclass(frozen=True)
class Settings(FilterSettings):
    """Settings of a study of filters, and of its basins: points a side in training and in the test, and windows to spin up."""

    trained_side: int = 65
    side: int = 129
    spin: int = 2000


_STUDENT: Any = {"radius": 26.0, "width": 16, "channels": 4}
_TINY: Any = {
    "student": {"radius": 8.0, "width": 4, "channels": 2},
    "training": {"sizes": {4: 2}, "steps": 2, "unroll": 1},
}
_TINY |= {"validation": SMOKE_VALIDATION, "trained_side": 9, "side": 11, "spin": 4}
_FEW = {"truths": 4, "windows": 60, "burn_in": 20}
_QUICK: Any = {"student": _STUDENT, "training": {"sizes": {25: 2}, "steps": 600, "unroll": 2}, "validation": _FEW}
_QUICK |= {"trained_side": 33, "side": 33}
PRESETS = {
    "smoke": Settings("smoke", (4,), (4,), 2, 12, 2, (2, 12), **_TINY),
    "quick": Settings("quick", (25,), (25,), 4, 150, 50, (2, 80), **_QUICK),
    "paper": Settings("paper", (25,), (25,), 4, 300, 50, (2, 100), **(_QUICK | {"trained_side": 65, "side": 129})),
}


def published(side: int) -> list[Row]:
    """Return the scores that are published for a basin: those of the large one."""
    return published_rows(SAKOV_QG) if side == 129 else []


def study(s: Settings, run: Run) -> Findings:
    """Train on the small basin, tune the LETKF on the large one, and compare there."""
    system, small = (sakov_qg(side, spin=s.spin) for side in (s.side, s.trained_side))
    letkf = classical_filters(system, inflation=INFLATIONS, radius=RADII)["LETKF tuned"]
    about: Any = {"published": published(s.side), "climate": True, "side": s.side}
    return truth_study(s, run, system, [letkf], trained_on=None if small is system else small, **about)


EXPERIMENT = Experiment("qg", DESCRIPTION, PRESETS, study)
