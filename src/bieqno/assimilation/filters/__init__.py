"""Analyses: one file each, one call signature."""

from bieqno.assimilation.filters.dressed import Dressed as Dressed
from bieqno.assimilation.filters.enkf import EnKF as EnKF
from bieqno.assimilation.filters.enkf import LocalEnKF as LocalEnKF
from bieqno.assimilation.filters.iterative import IterativeEnKF as IterativeEnKF
from bieqno.assimilation.filters.learned.ennf import EnNF as EnNF
from bieqno.assimilation.filters.learned.ennf import Scaling as Scaling
from bieqno.assimilation.filters.learned.learned_gain import LearnedGain as LearnedGain
from bieqno.assimilation.filters.learned.local import LocalEnNF as LocalEnNF
from bieqno.assimilation.filters.learned.pretrained import PretrainedEnNF as PretrainedEnNF
from bieqno.assimilation.filters.learned.record import RecordEnNF as RecordEnNF
from bieqno.assimilation.filters.particle import ParticleFilter as ParticleFilter
from bieqno.assimilation.filters.serial import SerialEnSRF as SerialEnSRF
from bieqno.assimilation.filters.static import Climatology as Climatology
from bieqno.assimilation.filters.static import ThreeDVar as ThreeDVar
from bieqno.assimilation.filters.transform import ETKF as ETKF
from bieqno.assimilation.filters.transform import LETKF as LETKF
from bieqno.assimilation.filters.transformed import Coordinates as Coordinates
from bieqno.assimilation.filters.transformed import Transformed as Transformed
from bieqno.assimilation.filters.wrappers import Floored as Floored
from bieqno.assimilation.filters.wrappers import Inflated as Inflated
from bieqno.assimilation.filters.wrappers import PriorInflated as PriorInflated
from bieqno.assimilation.filters.wrappers import Relaxed as Relaxed
from bieqno.assimilation.filters.wrappers import Rotated as Rotated
from bieqno.assimilation.filters.wrappers import inflate as inflate
from bieqno.assimilation.filters.wrappers import random_rotation as random_rotation
