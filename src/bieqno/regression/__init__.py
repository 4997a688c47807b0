"""Regression with the generalized Gaussian process."""

from bieqno.regression.distribution import PredictedDistribution
from bieqno.regression.estimators import GGPRegressor, PretrainedGGPRegressor, load_regressor
from bieqno.regression.trained.process import GeneralizedGaussianProcess

__all__ = ["GGPRegressor", "GeneralizedGaussianProcess", "PredictedDistribution"]
__all__ += ["PretrainedGGPRegressor", "load_regressor"]
