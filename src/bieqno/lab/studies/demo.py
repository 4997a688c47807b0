"""Study ``demo``: the paper in small, in both forms, then the best there is here: a local filter and a table of real data."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import xarray as xr

from bieqno.lab.results import Row
from bieqno.lab.studies import lorenz, mnmef, real_data, step_1d
from bieqno.lab.study import Description, Experiment, Findings, Run

_STUDIES: tuple[Experiment, ...] = (step_1d.EXPERIMENT, lorenz.LORENZ63, mnmef.EXPERIMENT, real_data.EXPERIMENT)
_LEFT_OUT = ("particle filter", "ggp-fine-tuned", "ggp-trained", "EnNF fine-tuned", *mnmef.TUNED[2:])
"""Methods for which there is no time. A particle filter of as many particles as there would be time for loses truths: it
would not show what is possible."""


def _methods(study: Experiment) -> list[str]:
    return [name for name in study.description.methods if name not in _LEFT_OUT]


DESCRIPTION = Description(
    title="A choice of everything",
    question="What can be seen in a few minutes? The paper in small: its step function and Lorenz's model of 1963, in the "
    "paper's form and in bieqno's. Then the best there is here: a local filter, trained in the demo for forty variables of which "
    "ten are observed, beside tuned LETKF and ETKF; and a table of ten inputs, beside tuned Gaussian processes.",
    claim="Those of step-1d and lorenz63.",
    minutes={"smoke": 2.0, "quick": 7.0},
    methods=tuple(dict.fromkeys(name for study in _STUDIES for name in _methods(study))),
)


@dataclass(frozen=True)
class Settings:
    """What is run: the settings of each study that is taken over."""

    preset: str
    studies: Mapping[str, Any]


def _fewer(settings: Any, training: str, steps: int, **changes: Any) -> Any:
    """Return settings with other sizes and a smaller budget of training steps."""
    return replace(settings, **changes, **{training: {**getattr(settings, training), "steps": steps}})


_QUICK = {study.name: study.presets["quick"] for study in _STUDIES}
_CHOICE = {
    "step-1d": replace(_QUICK["step-1d"], repetitions=1, layouts=("random",)),
    "lorenz63": _fewer(
        _QUICK["lorenz63"], "training", 2000, sizes=(2, 4, 8, 16), tuned_sizes=(2, 8), paper={"epochs": 40}
    ),
    "mnmef": replace(
        _QUICK["mnmef"],
        sizes=(5, 10, 20),
        tuned_sizes=(5, 10, 20),
        truths=8,
        windows=250,
        burn_in=50,
        tuning=(4, 120),
        training={"sizes": {5: 3, 10: 3, 20: 2}, "steps": 500},
    ),
    "real-data": replace(_QUICK["real-data"], repetitions=1, sets=("diabetes",)),
}
_SMOKE = {study.name: study.presets["smoke"] for study in _STUDIES}
PRESETS = {"smoke": Settings("smoke", _SMOKE), "quick": Settings("quick", _CHOICE)}


def study(s: Settings, run: Run) -> Findings:
    """Run the studies one after another; of the wanted methods each has its own, and one that has none is left out."""
    wanted = [one for one in _STUDIES if one.name in s.studies and any(map(run.wants, one.description.methods))]
    rows: list[Row] = []
    arrays: dict[str, xr.Dataset] = {}
    for place, one in enumerate(wanted):
        part = run.between(place / len(wanted), (place + 1) / len(wanted), f"{one.name}, ")
        part = replace(part, only=run.only or _methods(one), cases=run.cases.within(one.name))
        own_rows, own_arrays = one.study(s.studies[one.name], part)
        rows += [replace(row, case=f"{one.name}/{row.case}") for row in own_rows]
        arrays |= {f"{one.name}/{name}": found for name, found in own_arrays.items()}
    return rows, arrays


EXPERIMENT = Experiment("demo", DESCRIPTION, PRESETS, study)
