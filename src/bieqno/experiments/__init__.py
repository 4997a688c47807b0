"""The experiments of the paper and beyond: each a file with settings, presets and ``run() -> Result``."""

from bieqno.experiments import step_1d, trig_2d
from bieqno.experiments.results import Progress, Result, Row, read_result, write_result

EXPERIMENTS = {module.NAME: module for module in (step_1d, trig_2d)}

__all__ = ["EXPERIMENTS", "Progress", "Result", "Row", "read_result", "step_1d", "trig_2d", "write_result"]
