"""Assimilation with the user's own model, described by one TOML file."""

from bieqno.lab.system_files.reading import SystemFile, check_filter, read_system_file
from bieqno.lab.system_files.series import analysis_dataset, last_analysis, observations_dataset, read_observations
from bieqno.lab.system_files.training import train_student

__all__ = [
    "SystemFile",
    "analysis_dataset",
    "check_filter",
    "last_analysis",
    "observations_dataset",
    "read_observations",
    "read_system_file",
    "train_student",
]
