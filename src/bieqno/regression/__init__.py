"""Regression with the generalized Gaussian process."""

from bieqno.regression.estimators import GGPRegressor, PretrainedGGPRegressor, load_regressor
from bieqno.regression.trained.process import GeneralizedGaussianProcess

__all__ = ["GGPRegressor", "GeneralizedGaussianProcess", "PretrainedGGPRegressor", "load_regressor"]
