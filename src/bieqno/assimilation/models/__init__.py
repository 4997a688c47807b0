"""Dynamics: functions from one state to the state one window later."""

from bieqno.assimilation.models.forecast import AbstractEnsembleModel, HostModel, NoisyModel, forecast
from bieqno.assimilation.models.integration import Flow, rk4
from bieqno.assimilation.models.linear import LinearModel
from bieqno.assimilation.models.lorenz63 import Lorenz63
from bieqno.assimilation.models.lorenz96 import Lorenz96
from bieqno.assimilation.models.parameters import append_parameters

__all__ = [
    "AbstractEnsembleModel",
    "Flow",
    "HostModel",
    "LinearModel",
    "Lorenz63",
    "Lorenz96",
    "NoisyModel",
    "append_parameters",
    "forecast",
    "rk4",
]
