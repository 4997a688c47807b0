"""The experiments of the paper and beyond: each a file with settings, presets and a study."""

from typing import Any

from bieqno.experiments import (
    demo,
    ennf_options,
    irregular,
    large,
    lorenz63,
    lorenz63_truth,
    lorenz96,
    lorenz96_truth,
    meta_1d,
    mnmef,
    real_data,
    step_1d,
    super_filter,
    trig_2d,
)
from bieqno.experiments.cases import Cases
from bieqno.experiments.experiment import Description, Experiment
from bieqno.experiments.provenance import provenance, run_key
from bieqno.experiments.results import Progress, Result, Row, read_result, write_result

EXPERIMENTS: dict[str, Experiment[Any]] = {
    module.EXPERIMENT.name: module.EXPERIMENT
    for module in (
        demo, step_1d, trig_2d, real_data, meta_1d, lorenz63, lorenz96, super_filter, ennf_options,
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
    "meta_1d",
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
