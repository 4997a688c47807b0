"""The studies of the paper and beyond: each with settings, presets and ``study(settings, run) -> rows, arrays``."""

from typing import Any

from bieqno.lab.results import Result, Row, provenance, read_result, run_key, write_result
from bieqno.lab.studies import (
    demo,
    ennf_options,
    irregular,
    large,
    lorenz63,
    lorenz96,
    mnmef,
    neural_process,
    real_data,
    step_1d,
    super_filter,
    trig_2d,
)
from bieqno.lab.study import Cases, Description, Experiment, Progress

_ALL: tuple[Experiment[Any], ...] = (
    demo.EXPERIMENT,
    step_1d.EXPERIMENT,
    trig_2d.EXPERIMENT,
    real_data.EXPERIMENT,
    neural_process.EXPERIMENT,
    lorenz63.EXPERIMENT,
    lorenz96.EXPERIMENT,
    super_filter.EXPERIMENT,
    ennf_options.EXPERIMENT,
    lorenz63.AGAINST_TRUTH,
    lorenz96.AGAINST_TRUTH,
    mnmef.EXPERIMENT,
    irregular.EXPERIMENT,
    large.EXPERIMENT,
)
EXPERIMENTS = {experiment.name: experiment for experiment in _ALL}

__all__ = [
    "EXPERIMENTS",
    "Cases",
    "Description",
    "Experiment",
    "Progress",
    "Result",
    "Row",
    "provenance",
    "read_result",
    "run_key",
    "write_result",
]
