"""What is made of the outcomes of compared regressors: the kernel that the likelihood prefers, and the arrays behind figures."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import xarray as xr

from bieqno.lab.compare import Case, Outcome
from bieqno.regression import metrics

RELIABILITY_LEVELS = np.concatenate([np.arange(0.05, 0.96, 0.05), [0.99]])
BEST_GP = "gp-best"
"""The Gaussian process whose kernel is chosen anew in every repetition by the marginal likelihood, as a user would."""
HISTORY = ("loss", "rmse", "nlpd")
"""What is recorded after each epoch of the paper's form: its training loss, and two scores that decide nothing."""
Trial: TypeAlias = Any  # a problem and a seed


def with_best_kernel(outcomes: Sequence[Outcome[Trial]]) -> list[Outcome[Trial]]:
    """Add the kernel that the marginal likelihood prefers in each repetition, and to each candidate whether it was that one."""
    # Likelihoods compare only under the same knowledge of the noise, and between tuned processes.
    others = ("-paper", "-learned-noise")
    stating = [outcome for outcome in outcomes if "log_marginal_likelihood" in outcome.scores]
    candidates = [outcome for outcome in stating if not outcome.method.endswith(others)]
    if not candidates:
        return list(outcomes)
    best = np.argmax([outcome.scores["log_marginal_likelihood"] for outcome in candidates], axis=0)
    seconds = np.sum([outcome.scores["seconds"] for outcome in candidates], axis=0)
    kept = [{**candidates[k].kept[i], "score.seconds": seconds[i]} for i, k in enumerate(best)]
    marked = {outcome.method: outcome for outcome in outcomes}
    for k, one in enumerate(candidates):
        pairs = zip(one.kept, (best == k).astype(float), strict=True)
        marked[one.method] = replace(one, kept=[{**kept, "score.chosen": own} for kept, own in pairs])
    return [*marked.values(), Outcome(candidates[0].case, BEST_GP, kept)]


def as_dataset(case: Case[Trial], outcomes: Sequence[Outcome[Trial]]) -> xr.Dataset:
    """Return scores of each repetition, NaN where there is none, and what figures need, of the first repetition."""
    drawn = [case.draw(repetition)[0] for repetition in range(case.repetitions)]
    first, repetitions = drawn[0], case.repetitions
    metric_names = list(dict.fromkeys(name for outcome in outcomes for name in outcome.scores))
    scores = [[_filled([o.scores.get(name, ())], 1, repetitions)[0] for name in metric_names] for o in outcomes]

    def stacked(name: str) -> np.ndarray:
        series = [_filled([kept[name] for kept in o.kept], repetitions, len(first.points)) for o in outcomes]
        return np.stack(series, axis=1).astype(np.float32)

    def reliability(outcome: Outcome[Trial]) -> np.ndarray:
        found = zip(outcome.kept, drawn, strict=False)
        each = [
            metrics.reliability(k["mean"], k["std"], problem.values, RELIABILITY_LEVELS, k["tail"])
            for k, problem in found
        ]
        return np.mean(each, axis=0)

    each, of_std = ("repetition", "method", "point"), {"long_name": "predicted standard deviation of noisy values"}
    covariance = np.stack([outcome.kept[0]["covariance"] for outcome in outcomes]).astype(np.float32)
    of_covariance = {"long_name": "predicted covariance of noisy values along the cut, first repetition"}
    # Only the paper's form has a history.
    histories = [kept["history"] for outcome in outcomes for kept in outcome.kept if "history" in kept]
    recorded = {}
    if histories:
        filled = _filled(histories, repetitions, max(map(len, histories)), len(HISTORY))
        recorded["history"] = (("repetition", "epoch", "recorded"), filled, {"long_name": ", ".join(HISTORY)})
    return xr.Dataset(
        {
            **recorded,
            "x_observed": (("repetition", "observation", "input"), np.stack([problem.x for problem in drawn])),
            "y_observed": (("repetition", "observation"), np.stack([problem.y for problem in drawn])),
            "x": (("point", "input"), first.points),
            "truth": (("point",), first.truth),
            "mean": (each, stacked("mean"), {"long_name": "predicted mean"}),
            "std": (each, stacked("std"), of_std),
            "covariance": (("method", "cut", "other"), covariance, of_covariance),
            "cut_point": (("cut",), first.cut),
            "reliability": (("method", "level"), np.stack([reliability(outcome) for outcome in outcomes])),
            "score": (("repetition", "method", "metric"), np.moveaxis(np.array(scores), -1, 0)),
        },
        {"method": [o.method for o in outcomes], "level": RELIABILITY_LEVELS, "metric": metric_names},
        {} if first.noise is None else {"noise": first.noise},
    )


def _filled(values: Sequence[Any], *shape: int) -> np.ndarray:
    """Return values stacked along a first axis in an array of this shape, NaN where there are none."""
    whole = np.full(shape, np.nan)
    for own, value in zip(whole, values, strict=False):
        own[: len(value)] = value
    return whole
