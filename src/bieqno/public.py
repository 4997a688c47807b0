"""What `import bieqno` offers."""

from bieqno.gaussian import LowRankGaussian
from bieqno.operators import (
    MLP,
    AbstractPool,
    AttentionPool,
    CrossAttentionPool,
    CustomPool,
    ElementwiseOperator,
    EquivariantOperator,
    FourierFeatures,
    InvariantOperator,
    MeanPool,
    PosteriorOperator,
)
from bieqno.persistence import load, save
from bieqno.persistence.tensorfile import PersistenceError
from bieqno.regression import GGPRegressor, PretrainedGGPRegressor
from bieqno.training import FitResult, Progress, StoredData, TrainingError, fit

__all__ = [
    "MLP",
    "AbstractPool",
    "AttentionPool",
    "CrossAttentionPool",
    "CustomPool",
    "ElementwiseOperator",
    "EquivariantOperator",
    "FitResult",
    "FourierFeatures",
    "GGPRegressor",
    "InvariantOperator",
    "LowRankGaussian",
    "MeanPool",
    "PersistenceError",
    "PosteriorOperator",
    "PretrainedGGPRegressor",
    "Progress",
    "StoredData",
    "TrainingError",
    "fit",
    "load",
    "save",
]
