"""The experiments of the paper and beyond: each a file with settings, presets and ``run() -> Result``."""

from bieqno.experiments import ennf_options, lorenz63, lorenz96, step_1d, super_filter, trig_2d
from bieqno.experiments.results import Progress, Result, Row, read_result, write_result

EXPERIMENTS = {module.NAME: module for module in (step_1d, trig_2d, lorenz63, lorenz96, super_filter, ennf_options)}

__all__ = [
    "EXPERIMENTS",
    "Progress",
    "Result",
    "Row",
    "ennf_options",
    "lorenz63",
    "lorenz96",
    "read_result",
    "step_1d",
    "super_filter",
    "trig_2d",
    "write_result",
]
