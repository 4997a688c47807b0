"""Assimilation with the user's own model, described by one TOML file."""

<<<<<<< HEAD
from bieqno.lab.system_files.reading import SystemFile, check_filter, read_system_file
from bieqno.lab.system_files.series import analysis_dataset, last_analysis, observations_dataset, read_observations
from bieqno.lab.system_files.training import train_student

__all__ = [
    "SystemFile",
    "analysis_dataset",
    "check_filter",
    "last_analysis",
=======
from bieqno.lab.system_files.learning import learn, lessons_of
from bieqno.lab.system_files.reading import OwnSetup, read_setup
from bieqno.lab.system_files.series import last_ensemble, observations_dataset, read_observations, with_observations

__all__ = [
    "OwnSetup",
    "last_ensemble",
    "learn",
    "lessons_of",
>>>>>>> report
    "observations_dataset",
    "read_observations",
    "read_system_file",
    "train_student",
]
