"""The comparisons behind ``bieqno compare`` and ``bieqno evaluate``: a user's own system, and a user's own table."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, TypeAlias

import jax
import numpy as np
import scoringrules
import xarray as xr
from jaxtyping import Float, Int, PRNGKeyArray
from scipy.stats import norm
from sklearn.base import clone

import bieqno.assimilation as da
from bieqno.lab.compare import DIVERGED, Case, Method, Outcome, compare
from bieqno.lab.methods import filters as twins
from bieqno.lab.methods import regression
from bieqno.lab.methods.classical_regressors import KERNELS
from bieqno.lab.results import Row
from bieqno.lab.study import Run
from bieqno.regression import GGPRegressor, PretrainedGGPRegressor, metrics

LEVELS = np.linspace(0.05, 0.95, 19)
"""Probabilities at which the calibration is looked at."""
OnProgress: TypeAlias = Callable[[int, int, str], None]
"""Called before each part with how many are done, how many there are, and its name."""


@dataclass(frozen=True)
class Entry:
    """A filter with one ensemble size on all truths of `compare_filters_on`.

    `settings` are what tuning chose. `errors` is the RMSE of the analysis mean on each truth after the burn-in, `spreads` the
    spread of the analysis ensemble, both NaN where the run diverged; `diverged` is the window in which it did, or -1; `mean` are
    the analysis means, NaN from a divergence on.
    """

    method: str
    members: int
    settings: dict[str, float]
    errors: Float[np.ndarray, "r"]
    spreads: Float[np.ndarray, "r"]
    diverged: Int[np.ndarray, "r"]
    mean: Float[np.ndarray, "r T n"]

    @property
    def lost(self) -> int:
        """Number of runs that diverged."""
        return int(np.sum(self.diverged >= 0))

    def average(self, values: Float[np.ndarray, "r"]) -> tuple[float, float]:
        """Return mean and standard error over the runs that did not diverge; NaN if there are too few."""
        row = Row.of("", "", "", values[self.diverged < 0].tolist())
        return row.value, math.nan if row.stderr is None else row.stderr

    def numbers(self) -> dict[str, Any]:
        """Return what a file of numbers holds of it."""
        error, stderr = self.average(self.errors)
        about = {"method": self.method, "members": self.members, "settings": self.settings, "truths": len(self.errors)}
        spread = self.average(self.spreads)[0]
        return {**about, "diverged": self.lost, "rmse": error, "rmse_stderr": stderr, "spread": spread}


def compare_filters_on(
    system: da.System,
    filters: Mapping[str, da.Filter],
    *,
    sizes: Sequence[int],
    truths: int,
    windows: int,
    burn_in: int,
    tuning: tuple[int, int],
    inflation: Sequence[float] = twins.INFLATIONS,
    radius: Sequence[float] = twins.RADII,
    trials: Callable[..., da.Trials] | None = None,
    on_progress: OnProgress | None = None,
    key: PRNGKeyArray,
) -> tuple[list[Entry], Float[np.ndarray, "r T n"]]:
    """Run ready filters beside all classical ones, tuned for every ensemble size, on truths that none of them has seen.

    `tuning` is the number and length of the truths that the classical filters are tuned on, over the values of `inflation` and,
    where the system has places, of `radius`. `trials` makes trials from a number of windows, `truths`, `members` and a `key`;
    None for `make_trials` of the system. Return an entry for each filter and size, and the unseen truths.
    """
    test_key, tuning_key, run_key = jax.random.split(key, 3)
    make = partial(da.make_trials, system) if trials is None else trials

    @cache
    def draw(size: int, repetition: int) -> twins.TwinTest:
        def practice() -> tuple[da.Trials, int]:
            chosen = make(tuning[1], truths=tuning[0], members=size, key=tuning_key)
            return chosen, min(burn_in, tuning[1] // 2)

        test = make(windows, truths=truths, members=size, key=test_key)
        return twins.TwinTest(system, test, practice, run_key, burn_in, label=f"N={size}")

    run, ready = _silent(on_progress), {"baseline": twins.no_assimilation, **filters}
    methods = [Method(name, partial(twins.run_filter, filter)) for name, filter in ready.items()]
    opponents = twins.classical_filters(system, inflation=inflation, radius=radius).values()
    methods += [twins.tuned(opponent, run) for opponent in opponents]
    cases = [Case(f"N={size}", partial(draw, size), about={"ensemble_size": size}) for size in sizes]
    plan = [(case, method) for case in cases for method in methods]
    entries = []
    for outcome in compare(run, plan, twins.score_filter, keep=("mean",)):
        scores, lost = outcome.scores, outcome.scores[DIVERGED] >= 0
        errors, spreads = (np.where(lost, np.nan, scores[name]) for name in ("rmse", "spread"))
        size, mean = outcome.case.about["ensemble_size"], outcome.kept[0]["mean"]
        entries.append(Entry(outcome.method, size, outcome.settings, errors, spreads, scores[DIVERGED], mean))
    return entries, np.asarray(draw(sizes[0], 0).trials.twins.truth)


def entries_dataset(entries: Sequence[Entry], truth: Float[np.ndarray, "r T n"], *, window: float = 1.0) -> xr.Dataset:
    """Return truths and analysis means of all filters."""
    means = np.stack([entry.mean for entry in entries])
    about = {"long_name": "mean of the analysis ensemble, missing from a divergence on"}
    labels = {name: ("entry", [getattr(entry, name) for entry in entries]) for name in ("method", "members")}
    return xr.Dataset(
        {
            "truth": (("run", "time", "state"), truth, {"long_name": "true state"}),
            "mean": (("entry", "run", "time", "state"), means, about),
            "error": (("entry", "run"), np.stack([entry.errors for entry in entries]), {"long_name": "RMSE"}),
            "diverged": (("entry", "run"), np.stack([entry.diverged for entry in entries])),
        },
        {**labels, "time": ("time", window * np.arange(1, truth.shape[1] + 1))},
        {"source": "bieqno", "title": "Filters compared in a twin experiment"},
    )


@dataclass(frozen=True)
class Forecast:
    """Predicted mean and standard deviation of held-out values; `likelihood` is the marginal one of a Gaussian process."""

    mean: Float[np.ndarray, "k"]
    std: Float[np.ndarray, "k"]
    seconds: float
    likelihood: float | None = None

    def losses(self, y: Float[np.ndarray, "k"]) -> dict[str, Float[np.ndarray, "k"]]:
        """Return negative log predictive density and continuous ranked probability score of each value."""
        nlpd = -norm.logpdf(y, self.mean, self.std)
        return {"nlpd": nlpd, "crps": np.asarray(scoringrules.crps_normal(y, self.mean, self.std))}


@dataclass(frozen=True)
class Evaluation:
    """The held-out values of a table, the forecast of each method, and the number of rows that they learned from."""

    observed: Float[np.ndarray, "k"]
    forecasts: Mapping[str, Forecast]
    trained: int

    @property
    def opponent(self) -> str:
        """The Gaussian process that one would use: the one with the highest marginal likelihood."""
        likelihoods = {name: f.likelihood for name, f in self.forecasts.items() if f.likelihood is not None}
        return max(likelihoods, key=lambda name: likelihoods[name])

    def scores(self, name: str) -> dict[str, float]:
        """Return the scores of a method; those that are means over rows with their standard errors."""
        forecast, y = self.forecasts[name], self.observed
        found = {"rmse": metrics.rmse(forecast.mean, y), **_means(forecast.losses(y))}
        for level in metrics.COVERAGE_LEVELS:
            found[f"coverage_{level * 100:g}"] = metrics.coverage(forecast.mean, forecast.std, y, level)
        return found | {"seconds": forecast.seconds}

    def difference(self) -> dict[str, float]:
        """Return the scores of gGP minus those of its opponent, row by row: negative is better."""
        ours, theirs = (self.forecasts[name].losses(self.observed) for name in ("ggp", self.opponent))
        return _means({name: ours[name] - theirs[name] for name in ours})

    def reliability(self, name: str) -> Float[np.ndarray, "l"]:
        """Return the share of the held-out values inside central intervals, at each of `LEVELS`."""
        forecast = self.forecasts[name]
        return metrics.reliability(forecast.mean, forecast.std, self.observed, LEVELS)


Split: TypeAlias = tuple[Int[np.ndarray, "t"], Int[np.ndarray, "k"]]
"""Numbers of the rows to learn from, and of those to predict."""


def split_rows(rows: int, *, held_out: float, most: int, seed: int) -> Split:
    """Return random rows to learn from, at most so many, and others to test on.

    Example:
        >>> train, test = split_rows(100, held_out=0.2, most=50, seed=0)
        >>> len(train), len(test), len(set(train) & set(test))
        (50, 20, 0)
    """
    order = np.random.default_rng(seed).permutation(rows)
    count = max(2, round(held_out * rows))
    if rows - count < 3:
        raise ValueError(f"{rows} rows are too few to hold {count} of them out: at least 3 must remain to learn from")
    return order[count:][:most], order[:count]


def evaluate(
    X: Float[np.ndarray, "n d"],
    y: Float[np.ndarray, "n"],
    splits: Sequence[Split],
    *,
    ggp: GGPRegressor | PretrainedGGPRegressor,
    on_progress: OnProgress | None = None,
) -> Evaluation:
    """Fit an unfitted gGP, tuned Gaussian processes and boosted trees to some rows, and let them predict the others.

    Several splits make a cross-validation; `on_progress` is called before each fit.
    """

    @cache
    def trial(split: int) -> regression.Trial:
        train, test = splits[split]
        return regression.Problem(X[train], y[train], X[test], y[test], y[test], None, np.arange(1)), 0

    def own(problem: regression.Problem, seed: int) -> regression.Prediction:
        mean, std = clone(ggp).fit(problem.x, problem.y).predict(problem.points, return_std=True)
        return regression.Prediction(mean, std, np.diag(std[:1] ** 2))

    processes = {f"gp-{kernel}": regression.tuned_gp(kernel, known=False) for kernel in KERNELS}
    fits: dict[str, regression.Fit] = {"ggp": own, **processes, "trees": regression.of_trees}
    case = Case("table", trial, len(splits))
    plan = [(case, regression.as_method(name, fit)) for name, fit in fits.items()]
    outcomes = compare(_silent(on_progress), plan, regression.score_prediction, keep=("mean", "std"))

    def forecast(outcome: Outcome[regression.Trial]) -> Forecast:
        mean, std = (np.concatenate([kept[name] for kept in outcome.kept]) for name in ("mean", "std"))
        likelihood = outcome.scores.get("log_marginal_likelihood")
        total = None if likelihood is None else float(np.sum(likelihood))
        return Forecast(mean, std, float(np.sum(outcome.scores["seconds"])), total)

    observed = np.concatenate([y[test] for _, test in splits])
    return Evaluation(observed, {o.method: forecast(o) for o in outcomes}, len(splits[0][0]))


def _means(each: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Return means with their standard errors."""
    rows = {name: Row.of("", "", name, values.tolist()) for name, values in each.items()}
    return {k: v for name, row in rows.items() for k, v in ((name, row.value), (f"{name}_stderr", row.stderr or 0.0))}


def _silent(on_progress: OnProgress | None) -> Run:
    """Return a run that keeps nothing and reports to `on_progress`."""
    return Run(on_progress=None if on_progress is None else lambda p: on_progress(int(p.done), int(p.total), p.part))
