"""Regression with the generalized Gaussian process."""

from bieqno.regression.estimators import GGPRegressor
from bieqno.regression.trained.process import GeneralizedGaussianProcess

__all__ = ["GGPRegressor", "GeneralizedGaussianProcess"]
