"""Regression with the generalized Gaussian process."""

from bieqno.regression.estimator import GGPRegressor
from bieqno.regression.process import GeneralizedGaussianProcess

__all__ = ["GGPRegressor", "GeneralizedGaussianProcess"]
