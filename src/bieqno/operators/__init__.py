"""The mathematics of sets: operators that respect the order of what they are given."""

from bieqno.operators.attention import AttentionPool, CrossAttentionPool
from bieqno.operators.fixed import FourierFeatures, Standardiser, frozen
from bieqno.operators.networks import MLP
from bieqno.operators.pooling import AbstractPool, CustomPool, MeanPool
from bieqno.operators.posterior import ElementwiseOperator, PosteriorOperator
from bieqno.operators.sets import EquivariantOperator, InvariantOperator

__all__ = ["MLP", "FourierFeatures", "Standardiser", "frozen"]
__all__ += ["AbstractPool", "AttentionPool", "CrossAttentionPool", "CustomPool", "MeanPool"]
__all__ += ["ElementwiseOperator", "EquivariantOperator", "InvariantOperator", "PosteriorOperator"]
