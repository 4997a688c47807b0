"""Analyses: one file each, one call signature."""

from bieqno.assimilation.filters.climatology import Climatology
from bieqno.assimilation.filters.enkf import EnKF
from bieqno.assimilation.filters.etkf import ETKF
from bieqno.assimilation.filters.filter import Filter
from bieqno.assimilation.filters.flooring import Floored
from bieqno.assimilation.filters.inflation import Inflated, PriorInflated, inflate
from bieqno.assimilation.filters.iterative import IterativeEnKF
from bieqno.assimilation.filters.learned.ennf import EnNF
from bieqno.assimilation.filters.learned.learned_gain import LearnedGain
from bieqno.assimilation.filters.learned.local import LocalEnNF
from bieqno.assimilation.filters.learned.local_update import LocalUpdate
from bieqno.assimilation.filters.learned.scaling import Scaling
from bieqno.assimilation.filters.letkf import LETKF
from bieqno.assimilation.filters.particle import ParticleFilter
from bieqno.assimilation.filters.relaxation import Relaxed
from bieqno.assimilation.filters.rotation import Rotated, random_rotation
from bieqno.assimilation.filters.serial import SerialEnSRF
from bieqno.assimilation.filters.variational import ThreeDVar

__all__ = [
    "ETKF",
    "LETKF",
    "Climatology",
    "EnKF",
    "EnNF",
    "Filter",
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
