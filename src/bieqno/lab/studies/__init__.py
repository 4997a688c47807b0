"""The experiments of the paper and beyond: each a file with settings, presets and a study."""

from typing import Any

from bieqno.lab.cases import Cases
from bieqno.lab.provenance import provenance, run_key
from bieqno.lab.results import Progress, Result, Row, read_result, write_result
from bieqno.lab.studies import (
    demo,
    ennf_options,
    irregular,
    large,
    lorenz63,
    lorenz63_truth,
    lorenz96,
    lorenz96_truth,
    mnmef,
    real_data,
    step_1d,
    super_filter,
    trig_2d,
)
from bieqno.lab.study import Description, Experiment

EXPERIMENTS: dict[str, Experiment[Any]] = {
    module.EXPERIMENT.name: module.EXPERIMENT
    for module in (
        demo, step_1d, trig_2d, real_data, lorenz63, lorenz96, super_filter, ennf_options,
        lorenz63_truth, lorenz96_truth, mnmef, irregular, large,
    )
}  # fmt: skip

__all__ = [
    "EXPERIMENTS",
    "Cases",
    "Description",
    "Experiment",
    "Progress",
    "Result",
    "Row",
    "demo",
    "ennf_options",
    "irregular",
    "large",
    "lorenz63",
    "lorenz63_truth",
    "lorenz96",
    "lorenz96_truth",
    "mnmef",
    "provenance",
    "read_result",
    "real_data",
    "run_key",
    "step_1d",
    "super_filter",
    "trig_2d",
    "write_result",
]
