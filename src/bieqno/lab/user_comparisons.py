"""The comparisons behind ``bieqno compare`` and ``bieqno evaluate``: a user's own system, and a user's own table."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, TypeAlias

import jax
import numpy as np
import xarray as xr
from jaxtyping import Float, Int, PRNGKeyArray
from sklearn.base import clone

import bieqno.assimilation as da
from bieqno.assimilation.dataset import KNOWN
from bieqno.lab.compare import DIVERGED, Case, Method, Outcome, compare
from bieqno.lab.methods import boosting, regression
from bieqno.lab.methods import filters as twins
from bieqno.lab.methods.classical_regressors import KERNELS
from bieqno.lab.results import Row
from bieqno.lab.study import Run
from bieqno.regression import GGPRegressor, PretrainedGGPRegressor, metrics, tails

LEVELS = np.linspace(0.05, 0.95, 19)
"""Probabilities at which the calibration is looked at."""
OnProgress: TypeAlias = Callable[[int, int, str], None]
"""Called before each part with how many are done, how many there are, and its name."""


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
    radius: Sequence[float] = (),
    trials: Callable[..., da.Trials] | None = None,
    on_progress: OnProgress | None = None,
    key: PRNGKeyArray,
) -> tuple[list[Outcome[twins.TwinTest]], Float[np.ndarray, "r T n"]]:
    """Run ready filters beside all classical ones, tuned for every ensemble size, on truths that none of them has seen.

    `tuning` is the number and length of the truths that the classical filters are tuned on, over the values of `inflation` and,
    where the system has places, of `radius` (none: `suitable_radii`). `trials` makes trials from a number of windows, `truths`,
    `members` and a `key`; None for `make_trials` of the system. Return outcomes by filter and size, and the unseen truths.
    """
    test_key, tuning_key, run_key = jax.random.split(key, 3)
    make = partial(da.make_trials, system) if trials is None else trials

    @cache
    def draw(size: int, repetition: int) -> twins.TwinTest:
        tuning_trials = partial(make, tuning[1], truths=tuning[0], members=size, key=tuning_key)
        test, skipped = make(windows, truths=truths, members=size, key=test_key), min(burn_in, tuning[1] // 2)
        about: Any = {"label": f"N={size}", "predictive": True}
        return twins.TwinTest(system, test, lambda: (tuning_trials(), skipped), run_key, burn_in, **about)

    run, ready = _silent(on_progress), {"baseline": twins.no_assimilation, **filters}
    methods = [Method(name, partial(twins.run_filter, filter)) for name, filter in ready.items()]
    opponents = twins.classical_filters(system, inflation=inflation, radius=radius or suitable_radii(system)).values()
    methods += [twins.tuned(opponent, run) for opponent in opponents]
    about = [{"ensemble_size": size, "protocol": "unseen"} for size in sizes]
    cases = [Case(f"N={size}", partial(draw, size), about=own) for size, own in zip(sizes, about, strict=True)]
    plan = [(case, method) for case in cases for method in methods]
    outcomes = compare(run, plan, twins.score_filter, keep=("mean", *twins.KEPT_SCORES))
    return outcomes, np.asarray(draw(sizes[0], 0).trials.twins.truth)


def suitable_radii(system: da.System) -> list[float]:
    """Return radii to try in the units of a system's places: those that the base of a `LocalEnNF` is tuned over.

    Example:
        >>> ring = da.Places(1e3 * np.arange(400)[:, None], period=4e5)  # a place every thousand metres
        >>> suitable_radii(da.System(da.Lorenz96(400), da.Observation(range(400), 1.0), np.full(400, 8.0), ring))
        [2000.0, 4000.0, 7000.0, 12000.0, 20000.0, 40000.0]
    """
    if system.places is None or system.observation_places is None:
        return []  # no local filters
    own = system.neighbourhoods().radius
    return [round(share * own, 12) for share in da.LocalEnNF.base_settings["radius"]]


def entry_numbers(entry: Outcome[twins.TwinTest]) -> dict[str, Any]:
    """Return what a file of numbers holds of a filter with one ensemble size."""
    error, spread = entry.rows(("rmse", "spread"))
    runs, found = len(entry.scores["rmse"]), {"rmse": error.value, "rmse_stderr": error.stderr, "spread": spread.value}
    about = {"method": entry.method, "members": error.ensemble_size, "settings": entry.settings, "truths": runs}
    predicted = {row.metric.removeprefix("predictive_"): row.value for row in entry.rows(twins.PREDICTIVE)}
    return {**about, "diverged": error.diverged, **found, "predicted": predicted}


def entries_dataset(
    entries: Sequence[Outcome[twins.TwinTest]], truth: Float[np.ndarray, "r T n"], *, window: float = 1.0
) -> xr.Dataset:
    """Return truths and analysis means of all filters, and the scores of what they predicted of the observations."""
    labels, runs = twins.entry_labels(entries), ("entry", "run")
    scored = {
        name: (
            (*runs, *KNOWN[name][0]),
            np.stack([entry.kept[0][name] for entry in entries]),
            {"long_name": KNOWN[name][1]},
        )
        for name in twins.KEPT_SCORES
    }
    about = {"long_name": "mean of the analysis ensemble, missing from a divergence on"}
    return xr.Dataset(
        {
            "truth": (("run", "time", "state"), truth, {"long_name": "true state"}),
            "mean": ((*runs, "time", "state"), np.stack([entry.kept[0]["mean"] for entry in entries]), about),
            "error": (runs, np.stack([entry.scores["rmse"] for entry in entries]), {"long_name": "RMSE"}),
            "diverged": (runs, np.stack([entry.scores[DIVERGED] for entry in entries])),
            **scored,
        },
        {
            "method": labels["method"],
            "members": labels["ensemble_size"],
            "time": window * np.arange(1, 1 + len(truth[0])),
        },
        {"source": "bieqno", "title": "Filters compared in a twin experiment"},
    )


@dataclass(frozen=True)
class Evaluation:
    """The held-out values of a table, the forecasts of each method, and the number of rows that they learned from."""

    observed: Float[np.ndarray, "k"]
    forecasts: Mapping[str, Outcome[regression.Trial]]
    trained: int

    def forecast(self, name: str) -> dict[str, Float[np.ndarray, "k"]]:
        """Return predicted `mean` and standard deviation, `std`, of the held-out values, and the `tail` of their laws."""
        kept = [{**one, "tail": np.full(len(one["mean"]), one["tail"])} for one in self.forecasts[name].kept]
        return {part: np.concatenate([one[part] for one in kept]) for part in ("mean", "std", "tail")}

    def losses(self, name: str) -> dict[str, Float[np.ndarray, "k"]]:
        """Return negative log predictive density and continuous ranked probability score of each value."""
        mean, std, tail = self.forecast(name).values()
        t = (self.observed - mean) / std
        return {"nlpd": np.log(std) - tails.log_density(t, tail), "crps": std * tails.crps(t, tail)}

    @property
    def opponent(self) -> str:
        """The Gaussian process that one would use: the one with the highest marginal likelihood."""
        stating = [one for one in self.forecasts.values() if "log_marginal_likelihood" in one.scores]
        return max(stating, key=lambda one: float(np.sum(one.scores["log_marginal_likelihood"]))).method

    def scores(self, name: str) -> dict[str, float]:
        """Return the scores of a method; those that are means over rows with their standard errors."""
        seconds, y = float(np.sum(self.forecasts[name].scores["seconds"])), self.observed
        found = metrics.scores(**self.forecast(name), truth=y, values=y, noise=None)
        return found | _means(self.losses(name)) | {"seconds": seconds}

    def difference(self) -> dict[str, float]:
        """Return the scores of gGP minus those of its opponent, row by row: negative is better."""
        ours, theirs = self.losses("ggp"), self.losses(self.opponent)
        return _means({name: ours[name] - theirs[name] for name in ours})

    def reliability(self, name: str) -> Float[np.ndarray, "l"]:
        """Return the share of the held-out values inside central intervals, at each of `LEVELS`."""
        return metrics.reliability(**self.forecast(name), values=self.observed, levels=LEVELS)


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
    """Fit an unfitted gGP, tuned Gaussian processes and boosted trees, all that are installed, to some rows; predict the others.

    Several splits make a cross-validation; `on_progress` is called before each fit.
    """

    @cache
    def trial(split: int) -> regression.Trial:
        train, test = splits[split]
        return regression.Problem(X[train], y[train], X[test], y[test], y[test], None, np.arange(1)), 0

    def own(problem: regression.Problem, seed: int) -> regression.Prediction:
        fitted = clone(ggp).fit(problem.x, problem.y)
        mean, std = fitted.predict(problem.points, return_std=True)
        return regression.Prediction(mean, std, np.diag(std[:1] ** 2), tail=float(fitted.tail_[0]))

    processes = {f"gp-{kernel}": regression.tuned_gp(kernel, known=False) for kernel in KERNELS}
    fits: dict[str, regression.Fit] = {"ggp": own, **processes, "trees": regression.of_trees, **boosting.installed()}
    case = Case("table", trial, len(splits))
    plan = [(case, regression.as_method(name, fit)) for name, fit in fits.items()]
    outcomes = compare(_silent(on_progress), plan, regression.score_prediction, keep=("mean", "std", "tail"))
    observed = np.concatenate([y[test] for _, test in splits])
    return Evaluation(observed, {o.method: o for o in outcomes}, len(splits[0][0]))


def _means(each: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Return means with their standard errors."""
    rows = {name: Row.of("", "", name, values.tolist()) for name, values in each.items()}
    return {k: v for name, row in rows.items() for k, v in ((name, row.value), (f"{name}_stderr", row.stderr or 0.0))}


def _silent(on_progress: OnProgress | None) -> Run:
    """Return a run that keeps nothing and reports to `on_progress`."""
    return Run(on_progress=None if on_progress is None else lambda p: on_progress(int(p.done), int(p.total), p.part))
