"""Assimilation with a model of the user's own, described by one TOML file."""

from bieqno.lab.system_files.learning import learn, lessons_of
from bieqno.lab.system_files.reading import OwnSetup, read_setup
from bieqno.lab.system_files.series import last_ensemble, observations_dataset, read_observations, with_observations

__all__ = [
    "OwnSetup",
    "last_ensemble",
    "learn",
    "lessons_of",
    "observations_dataset",
    "read_observations",
    "read_setup",
    "with_observations",
]
