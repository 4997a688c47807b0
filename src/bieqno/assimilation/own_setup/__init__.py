"""Assimilation with a model of the user's own, described by one TOML file."""

from bieqno.assimilation.own_setup.contest import Entry, contest, contest_dataset
from bieqno.assimilation.own_setup.learning import learn, lessons_of
from bieqno.assimilation.own_setup.reading import OwnSetup, read_setup
from bieqno.assimilation.own_setup.series import (
    last_ensemble,
    observations_dataset,
    read_observations,
    with_observations,
)

__all__ = [
    "Entry",
    "OwnSetup",
    "contest",
    "contest_dataset",
    "last_ensemble",
    "learn",
    "lessons_of",
    "observations_dataset",
    "read_observations",
    "read_setup",
    "with_observations",
]
