"""Regression methods of a comparison: gGP in its forms, tuned Gaussian processes and boosted trees, on the same data sets.

Every method gets the same observations and is scored at the same points on the same noisy new values.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from types import MappingProxyType
from typing import Any, TypeAlias, cast

import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Bool, Float, Int

from bieqno.gaussian import LowRankGaussian
from bieqno.lab.compare import Arrays, Case, Method, Outcome, compare
from bieqno.lab.methods import classical_regressors as baselines
from bieqno.lab.methods.classical_regressors import as_in_the_paper
from bieqno.lab.methods.ggp_paper import PaperTraining, fit_paper_form, levelled
from bieqno.lab.study import Findings, Run
from bieqno.regression import GGPRegressor, PretrainedGGPRegressor, metrics

RELIABILITY_LEVELS = np.concatenate([np.arange(0.05, 0.96, 0.05), [0.99]])
BEST_GP = "gp-best"
"""The Gaussian process whose kernel is chosen anew in every repetition by the marginal likelihood, as a user would."""

Function: TypeAlias = Callable[[np.ndarray], np.ndarray]

# The order of tables and figures. The kernels know the noise unless their name says otherwise, gGP only if its name says so.
_GGP = ("ggp", "ggp-fine-tuned", "ggp-experts", "ggp-known-noise", "ggp-trained", "ggp-paper")
_GP = ("gp-se", "gp-se-learned-noise", "gp-paper", "gp-matern12", "gp-matern32", "gp-matern52", "gp-two-se")
METHODS = (*_GGP, *_GP)
TINY_GGP = {"max_steps": 20, "members": 2, "width": 16, "depth": 2, "rank": 4}
"""Settings of a `GGPRegressor` for smoke tests."""
PAPER_FORM = "ggp-paper"
HISTORY = ("loss", "rmse", "nlpd")
"""What is recorded after each epoch of the paper's form: its training loss, and two scores that decide nothing."""


@dataclass(frozen=True)
class Problem:
    """One data set and what is asked about it: predictions of noisy new `values` at some `points`.

    `truth` is the clean function there or, where it is not known, the values; `noise` their standard deviation, if it is known.
    Of the points in `cut` the joint covariance is kept; `jump` says which points lie near a jump, if there are jumps.
    """

    x: Float[np.ndarray, "m d"]
    y: Float[np.ndarray, "m"]
    points: Float[np.ndarray, "n d"]
    truth: Float[np.ndarray, "n"]
    values: Float[np.ndarray, "n"]
    noise: float | None
    cut: Int[np.ndarray, "k"]
    jump: Bool[np.ndarray, "n"] | None = None


def noisy_problem(
    rng: np.random.Generator, function: Function, x: np.ndarray, points: np.ndarray, *, noise: float, **more: Any
) -> Problem:
    """Observe a function with noise; `more` is what else a `Problem` has."""
    truth = function(points)
    y = function(x) + noise * rng.standard_normal(len(x))
    return Problem(x, y, points, truth, truth + noise * rng.standard_normal(len(points)), noise, **more)


def grid(first: np.ndarray, second: np.ndarray) -> Float[np.ndarray, "n 2"]:
    """Return all pairs of two coordinates, the first one the slow one."""
    return np.stack(np.meshgrid(first, second, indexing="ij"), axis=-1).reshape(-1, 2).astype(float)


@dataclass(frozen=True)
class PaperSettings:
    """What is run in a study of one of the paper's functions, with `points` along each dimension, both ends among them.

    The paper's form is trained on so many `pairs` of targets and observations, for at most so many `epochs`, on the first
    `paper_repetitions` data sets; the opponents' tuning starts from `lengths`.
    """

    preset: str = "quick"
    repetitions: int = 5
    pairs: int = 20_000
    epochs: int = 20
    paper_repetitions: int = 3
    points: int = 1000
    ggp: Mapping[str, Any] = field(default_factory=dict)
    lengths: int = 7


@dataclass(frozen=True)
class Prediction:
    """Predicted mean and standard deviation of noisy new values, their covariance along the cut, the `HISTORY` of a training."""

    mean: Float[np.ndarray, "n"]
    std: Float[np.ndarray, "n"]
    covariance: Float[np.ndarray, "k k"]
    log_marginal_likelihood: float | None = None
    history: Float[np.ndarray, "epochs 3"] | None = None

    def arrays(self) -> dict[str, np.ndarray]:
        """Return what is known, by name."""
        return {name: np.asarray(value) for name, value in vars(self).items() if value is not None}


Fit: TypeAlias = Callable[[Problem, int], Prediction]
"""Fits a problem and predicts, given a seed for what is random in it."""
Methods: TypeAlias = Callable[..., Mapping[str, Fit]]
"""Makes the methods of a case by name from what `regression_methods` is given."""
Trial: TypeAlias = tuple[Problem, int]


def compare_regressors(
    run: Run,
    problems: Mapping[str, Callable[[np.random.Generator], Problem]],
    methods: Mapping[str, Mapping[str, Fit]],
    repetitions: int,
    fewer: Mapping[str, int] = MappingProxyType({}),
) -> Findings:
    """Run every wanted method of every case on `repetitions` data sets, or on the first ones if `fewer` names it.

    `problems` draws the data sets of each case, `methods` names its methods. Of those that state a marginal likelihood, the best
    in each repetition is reported once more as `BEST_GP`, unless its name ends in ``-paper`` or ``-learned-noise``.
    """

    def trial(draw: Callable[[np.random.Generator], Problem], repetition: int) -> Trial:
        data_seed, fit_seed = np.random.SeedSequence([run.seed, repetition]).spawn(2)
        return draw(np.random.default_rng(data_seed)), int(fit_seed.generate_state(1)[0] >> 1)

    cases = {name: Case(name, cache(partial(trial, draw)), repetitions) for name, draw in problems.items()}
    plan = [
        (replace(case, repetitions=min(repetitions, fewer.get(method, repetitions))), as_method(method, fit))
        for name, case in cases.items()
        for method, fit in methods[name].items()
    ]
    outcomes = compare(run, plan, score_prediction, keep=("mean", "std", "covariance", "history"))
    rows, arrays = [], {}
    for name, case in cases.items():
        own = _with_best([outcome for outcome in outcomes if outcome.case.name == name])
        rows += [row for outcome in own for row in outcome.rows()]
        if own:
            arrays[name] = _dataset(case, own)
    return rows, arrays


def as_method(name: str, fit: Fit) -> Method[Trial]:
    """Return the method of a comparison that fits and predicts."""
    return Method(name, lambda trial: fit(*trial).arrays())


def score_prediction(trial: Trial, found: Arrays) -> dict[str, float]:
    """Score the predicted values of a problem."""
    mean, std, asked = found["mean"], found["std"], trial[0]
    scores = metrics.scores(mean, std, truth=asked.truth, values=asked.values, noise=asked.noise, jump=asked.jump)
    if "history" in found:
        scores |= {"epochs": float(len(found["history"])), "levelled": float(levelled(found["history"][:, 0]))}
    return scores | {name: float(found[name]) for name in ("log_marginal_likelihood", "seconds") if name in found}


def _with_best(outcomes: Sequence[Outcome[Trial]]) -> list[Outcome[Trial]]:
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


def _dataset(case: Case[Trial], outcomes: Sequence[Outcome[Trial]]) -> xr.Dataset:
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
        each = [metrics.reliability(k["mean"], k["std"], problem.values, RELIABILITY_LEVELS) for k, problem in found]
        return np.mean(each, axis=0)

    each, of_std = ("repetition", "method", "point"), {"long_name": "predicted standard deviation of noisy values"}
    covariance = np.stack([outcome.kept[0]["covariance"] for outcome in outcomes]).astype(np.float32)
    of_covariance = {"long_name": "predicted covariance of noisy values along the cut, first repetition"}
    histories = [
        kept["history"] for outcome in outcomes for kept in outcome.kept if "history" in kept
    ]  # of the paper's form
    longest = max(map(len, histories), default=0)
    recorded = (
        {}
        if not longest
        else {"history": (("repetition", "epoch", "recorded"), _filled(histories, repetitions, longest, len(HISTORY)))}
    )
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


def of_gp(model: baselines.TunedGP, problem: Problem) -> Prediction:
    """Return what a tuned Gaussian process predicts."""
    mean, std = model.predict(problem.points)
    return Prediction(mean, std, model.covariance(problem.points[problem.cut]), model.log_marginal_likelihood)


def of_ggp(regressor: GGPRegressor | PretrainedGGPRegressor, problem: Problem) -> Prediction:
    """Return what a regressor predicts once it is fitted."""
    posterior = cast(LowRankGaussian, regressor.fit(problem.x, problem.y).posterior(problem.points))  # of one output
    return _prediction(posterior, problem)


def _prediction(posterior: LowRankGaussian, problem: Problem, history: np.ndarray | None = None) -> Prediction:
    # The cut is taken from the distribution at all points: the set form depends on what is asked together.
    along_cut = posterior.marginal(jnp.asarray(problem.cut))
    mean, std, covariance = (np.asarray(a, np.float64) for a in (posterior.mean, posterior.std, along_cut.covariance()))
    return Prediction(mean, std, covariance, history=history)


def of_trees(problem: Problem, seed: int) -> Prediction:
    """Return what tuned boosted trees predict."""
    mean, std = baselines.predict_by_trees(problem.x, problem.y, problem.points, seed=seed)
    return Prediction(mean, std, np.diag(std[problem.cut] ** 2))


# The pretrained regressor and its relatives: nothing is trained, unless fine-tuning helps, and the noise is learned.
PRETRAINED_FORMS: Mapping[str, Fit] = {
    "ggp": lambda problem, seed: of_ggp(PretrainedGGPRegressor(), problem),
    "ggp-fine-tuned": lambda problem, seed: of_ggp(PretrainedGGPRegressor(fine_tune=True), problem),
    "ggp-experts": lambda problem, seed: of_ggp(PretrainedGGPRegressor(correction=False), problem),
}


def tuned_gp(kernel: str, *, known: bool = True, **settings: Any) -> Fit:
    """Return a tuned Gaussian process that knows the noise, or learns it."""

    def fit(problem: Problem, seed: int) -> Prediction:
        noise = problem.noise if known else None
        return of_gp(baselines.tune(problem.x, problem.y, kernel=kernel, noise=noise, **settings), problem)

    return fit


def trained_ggp(settings: Mapping[str, Any]) -> Fit:
    """Return gGP trained on the data, with what the package adds to the paper's form."""
    return lambda problem, seed: of_ggp(GGPRegressor(**settings, random_state=seed), problem)


def paper_ggp(training: PaperTraining) -> Fit:
    """Return gGP in the paper's form."""

    def fit(problem: Problem, seed: int) -> Prediction:
        asked = {"points": problem.points, "truth": problem.truth, "values": problem.values}
        fitted, history = fit_paper_form(problem.x, problem.y, training, **asked, seed=seed)
        return _prediction(fitted.posterior(problem.points), problem, history)

    return fit


def regression_methods(
    *, targets: int, pairs: int, epochs: int, ggp: Mapping[str, Any], lengths: int
) -> dict[str, Fit]:
    """Return all methods of a case of the paper.

    `targets` is the paper's M', how many points of each pair are predicted. Of `ggp`, the settings of a `GGPRegressor`, the
    paper's form takes width, depth and rank. `pairs`, `epochs` and `lengths` are those of `PaperSettings`.
    """
    shape = {name: ggp[name] for name in ("width", "depth", "rank") if name in ggp}
    return {
        **PRETRAINED_FORMS,
        "ggp-known-noise": lambda problem, seed: of_ggp(PretrainedGGPRegressor(noise=problem.noise), problem),
        "ggp-trained": trained_ggp(ggp),
        PAPER_FORM: paper_ggp(PaperTraining(pairs, targets, epochs, shape=shape)),
        "gp-se": tuned_gp("se", lengths=lengths),
        "gp-se-learned-noise": tuned_gp("se", known=False, lengths=lengths),
        "gp-paper": lambda problem, seed: of_gp(as_in_the_paper(problem.x, problem.y, noise=problem.noise), problem),
        **{f"gp-{kernel}": tuned_gp(kernel, lengths=lengths) for kernel in baselines.KERNELS if kernel != "se"},
    }
