"""Dynamics: functions from one state to the state one window later."""

from bieqno.assimilation.models.forecast import AbstractEnsembleModel, HostModel, LinearModel, NoisyModel, forecast
from bieqno.assimilation.models.integration import Flow, rk4
from bieqno.assimilation.models.lorenz import Lorenz63, Lorenz96

__all__ = [
    "AbstractEnsembleModel",
    "Flow",
    "HostModel",
    "LinearModel",
    "Lorenz63",
    "Lorenz96",
    "NoisyModel",
    "forecast",
    "rk4",
]
