"""Dynamics: functions from one state to the state one window later."""

from bieqno.assimilation.models.barotropic import Barotropic as Barotropic
from bieqno.assimilation.models.flows import Flow as Flow
from bieqno.assimilation.models.flows import Lorenz63 as Lorenz63
from bieqno.assimilation.models.flows import Lorenz96 as Lorenz96
from bieqno.assimilation.models.flows import UnevenFlow as UnevenFlow
from bieqno.assimilation.models.flows import rk4 as rk4
from bieqno.assimilation.models.forecast import AbstractEnsembleModel as AbstractEnsembleModel
from bieqno.assimilation.models.forecast import HostModel as HostModel
from bieqno.assimilation.models.forecast import LinearModel as LinearModel
from bieqno.assimilation.models.forecast import NoisyModel as NoisyModel
from bieqno.assimilation.models.forecast import StochasticModel as StochasticModel
from bieqno.assimilation.models.forecast import forecast as forecast
from bieqno.assimilation.models.quasi_geostrophic import QuasiGeostrophic as QuasiGeostrophic
