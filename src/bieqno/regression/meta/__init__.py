"""A posterior map that is learned from tasks of known units, and predicts values one after the other by the chain rule."""

from bieqno.regression.meta.bank import Bank
from bieqno.regression.meta.chain_process import ChainProcess
from bieqno.regression.meta.mixture import Mixture

__all__ = ["Bank", "ChainProcess", "Mixture"]
