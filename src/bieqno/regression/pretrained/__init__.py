"""A posterior map for regression that is learned from many functions, and needs no fit to the data at hand."""

from bieqno.regression.pretrained.fine_tuning import fine_tune
from bieqno.regression.pretrained.layouts import MAX_DIMENSION
from bieqno.regression.pretrained.local_process import LocalProcess
from bieqno.regression.pretrained.neighbourhood import NEIGHBOURS
from bieqno.regression.pretrained.trend import Trend
from bieqno.regression.pretrained.weights import PRIORS, prior_named
from bieqno.regression.pretrained.zero_shot import ZeroShot, condition_prior

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
