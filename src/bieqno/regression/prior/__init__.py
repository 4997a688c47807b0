"""A posterior map for regression that is learned from many functions, and needs no fit to the data at hand."""

from bieqno.regression.prior.fine_tuning import fine_tune
from bieqno.regression.prior.layouts import MAX_DIMENSION
from bieqno.regression.prior.local_process import LocalProcess
from bieqno.regression.prior.neighbourhood import NEIGHBOURS
from bieqno.regression.prior.trend import Trend
from bieqno.regression.prior.weights import PRIORS, prior_named
from bieqno.regression.prior.zero_shot import ZeroShot, condition_prior

__all__ = [
    "MAX_DIMENSION",
    "NEIGHBOURS",
    "PRIORS",
    "LocalProcess",
    "Trend",
    "ZeroShot",
    "condition_prior",
    "fine_tune",
    "prior_named",
]
