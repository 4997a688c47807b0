"""Several regression methods on the same data, repetition by repetition: the loop that both regression studies share.

Every method gets the same observations and is scored at the same points on the same noisy new values, so that the
comparison is paired.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import numpy as np
import xarray as xr
from jaxtyping import Bool, Float, Int

from bieqno.lab.results import Row, summarise
from bieqno.lab.study import Findings, Run
from bieqno.regression import metrics

RELIABILITY_LEVELS = np.concatenate([np.arange(0.05, 0.96, 0.05), [0.99]])

# The Gaussian process whose kernel is chosen anew in every repetition by the marginal likelihood, as a user would.
BEST_GP = "gp-best"


@dataclass(frozen=True)
class Problem:
    """One data set and what is asked about it.

    Attributes:
        x: where the function was observed.
        y: the noisy observations.
        points: where it is predicted.
        truth: the clean function there; where only noisy values are known, these.
        values: noisy new values there.
        noise: standard deviation of the noise; None if nobody knows it.
        cut: indices of the points whose joint covariance is kept.
        jump: which points lie near a jump, if the function has jumps.
    """

    x: Float[np.ndarray, "m d"]
    y: Float[np.ndarray, "m"]
    points: Float[np.ndarray, "n d"]
    truth: Float[np.ndarray, "n"]
    values: Float[np.ndarray, "n"]
    noise: float | None
    cut: Int[np.ndarray, "k"]
    jump: Bool[np.ndarray, "n"] | None = None


@dataclass(frozen=True)
class Prediction:
    """What a method says about noisy new values: mean, standard deviation and the covariance along the cut."""

    mean: Float[np.ndarray, "n"]
    std: Float[np.ndarray, "n"]
    covariance: Float[np.ndarray, "k k"]
    log_marginal_likelihood: float | None = None


Method: TypeAlias = Callable[[Problem, int], Prediction]
"""Fits a problem and predicts, given a seed for what is random in it."""


def compare(
    run: Run,
    problems: Mapping[str, Callable[[np.random.Generator], Problem]],
    methods: Mapping[str, Mapping[str, Method]],
    repetitions: int,
) -> Findings:
    """Run every wanted method of every case on `repetitions` data sets.

    Args:
        run: keeps finished fits, and tells before each fit.
        problems: for each case, what draws a problem.
        methods: for each case, its methods by name. Of those that state a marginal likelihood, the best in each
            repetition is reported once more as `BEST_GP`, unless its name ends in ``-paper`` or ``-learned-noise``.
        repetitions: number of data sets.
    """
    methods = {case: {name: m for name, m in own.items() if run.wants(name)} for case, own in methods.items()}
    total = repetitions * sum(len(methods[case]) for case in problems)
    done = 0
    rows: list[Row] = []
    arrays: dict[str, xr.Dataset] = {}
    for case, draw in problems.items():
        drawn: list[Problem] = []
        predictions: list[dict[str, Prediction]] = []
        scored: list[dict[str, dict[str, float]]] = []
        for repetition in range(repetitions):
            data_seed, fit_seed = np.random.SeedSequence([run.seed, repetition]).spawn(2)
            problem = draw(np.random.default_rng(data_seed))
            drawn.append(problem)
            predictions.append({})
            scored.append({})
            for name, method in methods[case].items():
                run.tell(f"{case}, data set {repetition + 1} of {repetitions}, {name}", done, total)
                own_seed = int(fit_seed.generate_state(1)[0] >> 1)
                found = run.cases.take(f"{case}/{repetition}/{name}", partial(_fit, method, problem, own_seed))
                predictions[-1][name] = prediction = _prediction(found)
                scored[-1][name] = _scores(problem, prediction) | {"seconds": float(found["seconds"])}
                done += 1
            _choose(predictions[-1], scored[-1])
        for name in scored[0]:
            rows += summarise(case, name, (repetition[name] for repetition in scored))
        arrays[case] = _dataset(drawn, predictions, scored)
    return rows, arrays


def _fit(method: Method, problem: Problem, seed: int) -> dict[str, np.ndarray]:
    """A prediction and how long it took, as arrays that can be kept."""
    begun = time.perf_counter()
    found = method(problem, seed)
    arrays = {"mean": found.mean, "std": found.std, "covariance": found.covariance}
    if found.log_marginal_likelihood is not None:
        arrays["log_marginal_likelihood"] = np.array(found.log_marginal_likelihood)
    return arrays | {"seconds": np.array(time.perf_counter() - begun)}


def _prediction(arrays: Mapping[str, np.ndarray]) -> Prediction:
    evidence = arrays.get("log_marginal_likelihood")
    return Prediction(
        arrays["mean"], arrays["std"], arrays["covariance"], None if evidence is None else float(evidence)
    )


def _scores(problem: Problem, prediction: Prediction) -> dict[str, float]:
    found = metrics.scores(
        prediction.mean,
        prediction.std,
        truth=problem.truth,
        values=problem.values,
        noise=problem.noise,
        jump=problem.jump,
    )
    if prediction.log_marginal_likelihood is not None:
        found["log_marginal_likelihood"] = prediction.log_marginal_likelihood
    return found


def _choose(predictions: dict[str, Prediction], scored: dict[str, dict[str, float]]) -> None:
    """Add the kernel that the marginal likelihood prefers, and to each candidate whether it was that one."""
    evidence = {
        name: found["log_marginal_likelihood"]
        for name, found in scored.items()
        # Likelihoods compare only under the same knowledge of the noise, and between tuned processes.
        if "log_marginal_likelihood" in found and not name.endswith(("-paper", "-learned-noise"))
    }
    if not evidence:
        return
    best = max(evidence, key=lambda name: evidence[name])
    for name in evidence:
        scored[name]["chosen"] = float(name == best)
    predictions[BEST_GP] = predictions[best]
    scored[BEST_GP] = {metric: value for metric, value in scored[best].items() if metric != "chosen"}
    scored[BEST_GP]["seconds"] = sum(scored[name]["seconds"] for name in evidence)


def _dataset(
    drawn: list[Problem], predictions: list[dict[str, Prediction]], scored: list[dict[str, dict[str, float]]]
) -> xr.Dataset:
    """What the figures of a case need, and the scores of each repetition.

    Points, truth and cut are those of the first repetition: in a study of a known function they are the same in all.
    """
    first = drawn[0]
    names = list(predictions[0])
    metric_names = list(dict.fromkeys(metric for found in scored[0].values() for metric in found))
    each_score = [[[found[name].get(metric, np.nan) for metric in metric_names] for name in names] for found in scored]

    def stacked(field: str) -> np.ndarray:
        return np.stack([[getattr(found[name], field) for name in names] for found in predictions]).astype(np.float32)

    reliabilities = [
        [metrics.reliability(found[name].mean, found[name].std, problem.values, RELIABILITY_LEVELS) for name in names]
        for problem, found in zip(drawn, predictions, strict=True)
    ]
    each = ("repetition", "method", "point")
    return xr.Dataset(
        {
            "x_observed": (("repetition", "observation", "input"), np.stack([problem.x for problem in drawn])),
            "y_observed": (("repetition", "observation"), np.stack([problem.y for problem in drawn])),
            "x": (("point", "input"), first.points),
            "truth": (("point",), first.truth),
            "mean": (each, stacked("mean"), {"long_name": "predicted mean"}),
            "std": (each, stacked("std"), {"long_name": "predicted standard deviation of noisy values"}),
            "covariance": (
                ("method", "cut", "other"),
                np.stack([predictions[0][name].covariance for name in names]).astype(np.float32),
                {"long_name": "predicted covariance of noisy values along the cut, first repetition"},
            ),
            "cut_point": (("cut",), first.cut),
            "reliability": (("method", "level"), np.mean(reliabilities, axis=0)),
            "score": (("repetition", "method", "metric"), np.array(each_score)),
        },
        {"method": names, "level": RELIABILITY_LEVELS, "metric": metric_names},
        {} if first.noise is None else {"noise": first.noise},
    )
