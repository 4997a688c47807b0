"""Regression methods of a comparison: gGP in its forms, tuned Gaussian processes and boosted trees, on the same data sets.

Every method gets the same observations and is scored at the same points on the same noisy new values.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from types import MappingProxyType
from typing import Any, TypeAlias, cast

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from bieqno.gaussian import AbstractGaussian
from bieqno.lab.compare import Arrays, Case, Method, compare
from bieqno.lab.methods import classical_regressors as baselines
from bieqno.lab.methods.classical_regressors import as_in_the_paper
from bieqno.lab.methods.ggp_paper import PaperTraining, fit_paper_form, levelled
from bieqno.lab.methods.regression_outcomes import as_dataset, with_best_kernel
from bieqno.lab.study import Findings, Run
from bieqno.regression import GGPRegressor, PretrainedGGPRegressor, metrics

Function: TypeAlias = Callable[[np.ndarray], np.ndarray]

# The order of tables and figures. The kernels know the noise unless their name says otherwise, gGP only if its name says so.
_GGP = ("ggp", "ggp-fine-tuned", "ggp-experts", "ggp-known-noise", "ggp-trained", "ggp-paper")
_GP = ("gp-se", "gp-se-learned-noise", "gp-paper", "gp-matern12", "gp-matern32", "gp-matern52", "gp-two-se")
METHODS = (*_GGP, *_GP)
TINY_GGP = {"max_steps": 20, "members": 2, "width": 16, "depth": 2, "rank": 4}
"""Settings of a `GGPRegressor` for smoke tests."""
PAPER_FORM = "ggp-paper"


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

    The paper's form is trained on the first `paper_repetitions` data sets, on so many `pairs` of targets and observations, for at
    most so many `epochs`, in `halving` of which the learning rate halves; the opponents' tuning starts from `lengths`.
    """

    preset: str = "quick"
    repetitions: int = 5
    pairs: int = 20_000
    epochs: int = 20
    halving: int = 2
    paper_repetitions: int = 3
    points: int = 1000
    ggp: Mapping[str, Any] = field(default_factory=dict)
    lengths: int = 7

    def for_methods(self) -> dict[str, Any]:
        """Return what `regression_methods` is given of them."""
        return {name: getattr(self, name) for name in ("pairs", "epochs", "halving", "ggp", "lengths")}


@dataclass(frozen=True)
class Prediction:
    """Predicted mean and standard deviation of noisy new values, their covariance along the cut, the `HISTORY` of a training.

    `tail` is that of the law of each value, 0 for normal laws.
    """

    mean: Float[np.ndarray, "n"]
    std: Float[np.ndarray, "n"]
    covariance: Float[np.ndarray, "k k"]
    log_marginal_likelihood: float | None = None
    history: Float[np.ndarray, "epochs 3"] | None = None
    tail: float = 0.0

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
    outcomes = compare(run, plan, score_prediction, keep=("mean", "std", "tail", "covariance", "history"))
    rows, arrays = [], {}
    for name, case in cases.items():
        own = with_best_kernel([outcome for outcome in outcomes if outcome.case.name == name])
        rows += [row for outcome in own for row in outcome.rows()]
        if own:
            arrays[name] = as_dataset(case, own)
    return rows, arrays


def as_method(name: str, fit: Fit) -> Method[Trial]:
    """Return the method of a comparison that fits and predicts."""
    return Method(name, lambda trial: fit(*trial).arrays())


def score_prediction(trial: Trial, found: Arrays) -> dict[str, float]:
    """Score the predicted values of a problem."""
    asked, law = trial[0], {name: found[name] for name in ("mean", "std", "tail")}
    scores = metrics.scores(**law, truth=asked.truth, values=asked.values, noise=asked.noise, jump=asked.jump)
    if "history" in found:
        scores |= {"epochs": float(len(found["history"])), "levelled": float(levelled(found["history"][:, 0]))}
    return scores | {name: float(found[name]) for name in ("log_marginal_likelihood", "seconds") if name in found}


def of_gp(model: baselines.TunedGP, problem: Problem) -> Prediction:
    """Return what a tuned Gaussian process predicts."""
    mean, std = model.predict(problem.points)
    return Prediction(mean, std, model.covariance(problem.points[problem.cut]), model.log_marginal_likelihood)


def of_ggp(regressor: GGPRegressor | PretrainedGGPRegressor, problem: Problem) -> Prediction:
    """Return what a regressor predicts once it is fitted."""
    posterior = cast(AbstractGaussian, regressor.fit(problem.x, problem.y).posterior(problem.points))  # of one output
    return replace(_prediction(posterior, problem), tail=float(regressor.tail_[0]))


def _prediction(posterior: AbstractGaussian, problem: Problem, history: np.ndarray | None = None) -> Prediction:
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
    *, targets: int, pairs: int, epochs: int, halving: int, ggp: Mapping[str, Any], lengths: int
) -> dict[str, Fit]:
    """Return all methods of a case of the paper.

    `targets` is the paper's M', how many points of each pair are predicted. Of `ggp`, the settings of a `GGPRegressor`, the
    paper's form takes width, depth and rank. `pairs`, `epochs`, `halving` and `lengths` are those of `PaperSettings`.
    """
    shape = {name: ggp[name] for name in ("width", "depth", "rank") if name in ggp}
    return {
        **PRETRAINED_FORMS,
        "ggp-known-noise": lambda problem, seed: of_ggp(PretrainedGGPRegressor(noise=problem.noise), problem),
        "ggp-trained": trained_ggp(ggp),
        PAPER_FORM: paper_ggp(PaperTraining(pairs, targets, epochs, halving, shape=shape)),
        "gp-se": tuned_gp("se", lengths=lengths),
        "gp-se-learned-noise": tuned_gp("se", known=False, lengths=lengths),
        "gp-paper": lambda problem, seed: of_gp(as_in_the_paper(problem.x, problem.y, noise=problem.noise), problem),
        **{f"gp-{kernel}": tuned_gp(kernel, lengths=lengths) for kernel in baselines.KERNELS if kernel != "se"},
    }
