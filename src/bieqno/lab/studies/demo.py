"""Study ``demo``: a selection of cases of the others that shows both halves of the paper, at their best and at their limits."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import xarray as xr

from bieqno.lab.results import Row
from bieqno.lab.studies import lorenz, step_1d, trig_2d
from bieqno.lab.study import Description, Experiment, Findings, Run

_STUDIES: tuple[Experiment, ...] = (step_1d.EXPERIMENT, trig_2d.EXPERIMENT, lorenz.LORENZ63, lorenz.LORENZ96)
_LEFT_OUT = ("particle filter", "ggp-fine-tuned", "ggp-trained")
"""Methods for which there is no time. A particle filter of as many particles as there would be time for loses truths: it
would not show what is possible."""


def _methods(study: Experiment) -> list[str]:
    return [name for name in study.description.methods if name not in _LEFT_OUT]


DESCRIPTION = Description(
    title="A choice of everything",
    question="What can be seen of the paper in a few minutes? Smaller versions of four studies: fewer data sets, ensemble sizes "
    "and training steps, no particle filter, and for gGP in the paper's form 10,000 training pairs in 2-D where the paper has "
    "50,000; gGP itself is trained on nothing here, having learned from random functions before.",
    claim="Those of step-1d, trig-2d, lorenz63 and lorenz96.",
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
    "trig-2d": replace(_QUICK["trig-2d"], repetitions=1, sides=(16,)),
    "lorenz63": _fewer(
        _QUICK["lorenz63"], "training", 3000, sizes=(2, 4, 8, 16), tuned_sizes=(2, 8), paper={"epochs": 40}
    ),
    "lorenz96": _fewer(_QUICK["lorenz96"], "fine_tuning", 2000, sizes=(2, 8, 32), tuned_sizes=(8,), paper={}),
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
