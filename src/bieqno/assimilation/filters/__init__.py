"""Analyses: one file each, one call signature."""

from bieqno.assimilation.filters.enkf import EnKF
from bieqno.assimilation.filters.etkf import ETKF
from bieqno.assimilation.filters.iterative import IterativeEnKF
from bieqno.assimilation.filters.learned.ennf import EnNF, Scaling
from bieqno.assimilation.filters.learned.learned_gain import LearnedGain
from bieqno.assimilation.filters.learned.local import LocalEnNF
from bieqno.assimilation.filters.learned.local_update import LocalUpdate
from bieqno.assimilation.filters.letkf import LETKF
from bieqno.assimilation.filters.particle import ParticleFilter
from bieqno.assimilation.filters.serial import SerialEnSRF
from bieqno.assimilation.filters.static import Climatology, ThreeDVar
from bieqno.assimilation.filters.wrappers import (
    Floored,
    Inflated,
    PriorInflated,
    Relaxed,
    Rotated,
    inflate,
    random_rotation,
)

__all__ = [
    "ETKF",
    "LETKF",
    "Climatology",
    "EnKF",
    "EnNF",
    "Floored",
    "Inflated",
    "IterativeEnKF",
    "LearnedGain",
    "LocalEnNF",
    "LocalUpdate",
    "ParticleFilter",
    "PriorInflated",
    "Relaxed",
    "Rotated",
    "Scaling",
    "SerialEnSRF",
    "ThreeDVar",
    "inflate",
    "random_rotation",
]
