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
from bieqno.persistence import PersistenceError, load, save
from bieqno.regression import GGPRegressor, PretrainedGGPRegressor
from bieqno.training import FitResult, Progress, StoredData, TrainingError, fit

__all__ = ["MLP", "FourierFeatures", "LowRankGaussian"]
__all__ += ["AbstractPool", "AttentionPool", "CrossAttentionPool", "CustomPool", "MeanPool"]
__all__ += ["ElementwiseOperator", "EquivariantOperator", "InvariantOperator", "PosteriorOperator"]
__all__ += ["FitResult", "GGPRegressor", "PretrainedGGPRegressor", "Progress", "StoredData", "TrainingError", "fit"]
__all__ += ["PersistenceError", "load", "save"]
