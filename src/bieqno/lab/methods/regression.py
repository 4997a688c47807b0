"""The methods that the regression studies compare, each a function of a problem and a seed."""

import math
from collections.abc import Mapping
from typing import Any, cast

import jax.numpy as jnp
import numpy as np

from bieqno.gaussian import LowRankGaussian
from bieqno.lab.comparison import Method, Prediction, Problem
from bieqno.lab.methods import gaussian_processes as baselines
from bieqno.regression import GGPRegressor

# The order of tables and figures. The kernels know the noise unless their name says otherwise, gGP only if its name says so.
METHODS = (
    "ggp",
    "ggp-fine-tuned",
    "ggp-experts",
    "ggp-known-noise",
    "ggp-trained",
    "ggp-paper",
    "gp-se",
    "gp-se-learned-noise",
    "gp-paper",
    "gp-matern12",
    "gp-matern32",
    "gp-matern52",
    "gp-two-se",
)

# The default and its relatives: nothing is trained, unless fine-tuning helps, and the noise is learned.
PRIOR_FORMS: Mapping[str, Method] = {
    "ggp": lambda problem, seed: of_ggp({}, problem),
    "ggp-fine-tuned": lambda problem, seed: of_ggp({"fine_tune": True}, problem),
    "ggp-experts": lambda problem, seed: of_ggp({"prior": "experts"}, problem),
}


def regression_methods(
    *, targets: int, pairs: int, ggp: Mapping[str, Any], lengths: int, batch_size: int = 32
) -> dict[str, Method]:
    """All methods of a case.

    Args:
        targets: the paper's M', how many points of each random split are predicted.
        pairs: the paper's number of sampled pairs.
        ggp: settings of a `GGPRegressor` that trains on the data; width, depth and rank are used for the paper's form too.
        lengths: number of length scales that the tuned processes start from.
        batch_size: pairs in a step of the paper's form.
    """
    shape = {name: ggp[name] for name in ("width", "depth", "rank") if name in ggp}
    # Nothing is held out and no noise is known: every pair is seen once, as in the paper.
    paper = shape | {
        "prior": None, "noise": None, "members": 1, "set_interaction": True, "targets": targets, "observations": None,
        "max_steps": math.ceil(pairs / batch_size), "batch_size": batch_size,
    }  # fmt: skip

    def tuned(kernel: str, *, known: bool = True) -> Method:
        def method(problem: Problem, seed: int) -> Prediction:
            noise = problem.noise if known else None
            return of_gp(baselines.tune(problem.x, problem.y, kernel=kernel, noise=noise, lengths=lengths), problem)

        return method

    def untuned(problem: Problem, seed: int) -> Prediction:
        noise = cast(float, problem.noise)  # the paper's functions have a known one
        return of_gp(baselines.as_in_the_paper(problem.x, problem.y, noise=noise), problem)

    return {
        **PRIOR_FORMS,
        "ggp-known-noise": lambda problem, seed: of_ggp({"noise": problem.noise}, problem),
        "ggp-trained": lambda problem, seed: of_ggp({**ggp, "prior": None, "random_state": seed}, problem),
        "ggp-paper": lambda problem, seed: of_ggp({**paper, "random_state": seed}, problem),
        "gp-se": tuned("se"),
        "gp-se-learned-noise": tuned("se", known=False),
        "gp-paper": untuned,
        **{f"gp-{kernel}": tuned(kernel) for kernel in baselines.KERNELS if kernel != "se"},
    }


def of_gp(model: baselines.TunedGP, problem: Problem) -> Prediction:
    """What a tuned Gaussian process predicts."""
    mean, std = model.predict(problem.points)
    return Prediction(mean, std, model.covariance(problem.points[problem.cut]), model.log_marginal_likelihood)


def of_ggp(settings: Mapping[str, Any], problem: Problem) -> Prediction:
    """What a `GGPRegressor` with these settings predicts."""
    fitted = GGPRegressor(**settings).fit(problem.x, problem.y)
    posterior = cast(LowRankGaussian, fitted.posterior(problem.points))  # of one output
    # The cut is taken from the distribution at all points: the set form depends on what is asked together.
    along_cut = posterior.marginal(jnp.asarray(problem.cut))
    mean, std, covariance = (np.asarray(a, np.float64) for a in (posterior.mean, posterior.std, along_cut.covariance()))
    return Prediction(mean, std, covariance)
