"""Experiment ``demo``: a choice of cases of the others that shows both halves of the paper, at their best and at their limits."""

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import xarray as xr

from bieqno.experiments import lorenz63, lorenz96, step_1d, trig_2d
from bieqno.experiments.cases import Cases
from bieqno.experiments.description import Description, settings_of
from bieqno.experiments.results import Progress, Result, Row

NAME = "demo"
_STUDIES = (step_1d, trig_2d, lorenz63, lorenz96)
_LEFT_OUT = ("particle filter", "ggp-fine-tuned", "ggp-trained")
"""Methods for which there is no time. A particle filter of as many particles as there would be time for loses truths: it
would not show what is possible."""
DESCRIPTION = Description(
    title="A choice of everything",
    question="What can be seen of the paper in a few minutes? Smaller versions of four studies: fewer data sets, ensemble sizes "
    "and training steps, no particle filter, and for gGP in the paper's form 5,000 (2-D: 2,500) training pairs where the paper "
    "has 20,000 (50,000). gGP itself is trained on nothing here: it has learned from random functions before.",
    claim="Those of step-1d, trig-2d, lorenz63 and lorenz96.",
    minutes={"smoke": 2.0, "quick": 7.0},
    methods=tuple(
        dict.fromkeys(name for study in _STUDIES for name in study.DESCRIPTION.methods if name not in _LEFT_OUT)
    ),
)


@dataclass(frozen=True)
class Settings:
    """What is run.

    Attributes:
        preset: name of the settings.
        studies: the settings of each study that is taken over.
    """

    preset: str
    studies: Mapping[str, Any]


# Ten minutes with the installation are all there is.
PRESETS = {
    "smoke": Settings("smoke", {
        **{study.NAME: study.PRESETS["smoke"] for study in _STUDIES},
    }),
    "quick": Settings("quick", {
        "step-1d": replace(step_1d.PRESETS["quick"], repetitions=1, layouts=("random",), pairs=5_000),
        "trig-2d": replace(trig_2d.PRESETS["quick"], repetitions=1, sides=(16,), pairs=2_500),
        "lorenz63": replace(
            lorenz63.PRESETS["quick"], sizes=(2, 4, 8, 16), tuned_sizes=(2, 8),
            training={**lorenz63.PRESETS["quick"].training, "steps": 3000},
        ),
        "lorenz96": replace(
            lorenz96.PRESETS["quick"], sizes=(2, 8, 32), tuned_sizes=(8,),
            fine_tuning={**lorenz96.PRESETS["quick"].fine_tuning, "steps": 2000},
        ),
    }),
}  # fmt: skip


def run(
    settings: Settings | str = "quick",
    *,
    seed: int = 0,
    only: Collection[str] = (),
    cases: Cases | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> Result:
    """Run the experiment.

    Args:
        settings: what to run, or the name of a preset: smoke or quick.
        seed: what everything random grows from.
        only: the methods to run, all if empty; a study that has none of them is left out.
        cases: where finished cases are kept.
        on_progress: called before each part of each study.
    """
    s, kept = settings_of(settings, PRESETS), Cases() if cases is None else cases
    started = time.perf_counter()
    wanted = [
        study for study in _STUDIES
        if study.NAME in s.studies and (not only or set(only) & set(study.DESCRIPTION.methods))
    ]  # fmt: skip
    rows: list[Row] = []
    arrays: dict[str, xr.Dataset] = {}
    for place, study in enumerate(wanted):

        def tell(p: Progress, name: str = study.NAME, before: int = place) -> None:
            if on_progress is not None:
                done, seconds = before + p.done / p.total, time.perf_counter() - started
                on_progress(p._replace(part=f"{name}, {p.part}", done=done, total=len(wanted), seconds=seconds))

        chosen = only or [name for name in study.DESCRIPTION.methods if name not in _LEFT_OUT]
        part = study.run(s.studies[study.NAME], seed=seed, only=chosen, cases=kept.within(study.NAME), on_progress=tell)
        rows += [replace(row, case=f"{study.NAME}/{row.case}") for row in part.rows]
        arrays |= {f"{study.NAME}/{name}": found for name, found in part.arrays.items()}
    return Result(NAME, s.preset, seed, tuple(rows), arrays)
