"""Filters on a real record, tuned on simulations of its model, beside predictions without a model.

There is no truth: a filter is scored by how well its forecasts and the observation law predicted each value one step ahead.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Float

import bieqno.assimilation as da
from bieqno.lab.compare import SETTING, Arrays, Method, Outcome
from bieqno.lab.records.baselines import Prediction, scores
from bieqno.lab.results import Row

KEPT = ("log_score", "pit", "predicted_mean")  # of each window
MOMENTS = (0.0, 1.0)  # whether a filter is scored by its moments
BINS = 10  # of the histogram of the PIT
STILL = 1e-3  # disturbance of the first state of simulated records, in its own units: none


@dataclass(frozen=True)
class RecordTest:
    """A record with its model: `values` are scored from the window `first` on; `tuning` has truths and windows."""

    system: da.System
    values: Float[np.ndarray, "T"]
    inputs: Mapping[str, Any]
    start: Float[Array, "N n"]
    seeds: int
    tuning: tuple[int, int]
    seed: int = 0
    first: int = 0


def on_record(filter: da.Filter, test: RecordTest) -> dict[str, np.ndarray]:
    """Run a filter on a record several times; return the scores of all windows, one row per run."""
    observations = da.Observations.of(jnp.asarray(test.values, float)[:, None])
    runs: list[da.Run] = []
    for number in range(test.seeds):
        key = jax.random.fold_in(jax.random.key(test.seed), number)
        more: Any = {"inputs": test.inputs, "record": da.KeepScores(filter), "key": key}
        runs.append(da.cycle(filter, test.system, test.start, observations, **more))
    names = ("log_score", "crps", "pit", "predicted_mean")
    found = {name: np.stack([np.asarray(run.kept[name]).reshape(len(test.values)) for run in runs]) for name in names}
    return found | {"diverged": np.array([int(run.diverged) for run in runs])}


def fixed(name: str, filter: da.Filter) -> Method[RecordTest]:
    """Return a filter without settings as a method."""
    return Method(name, partial(on_record, filter))


def tuned(
    name: str, build: Callable[..., da.Filter], settings: Mapping[str, Sequence[float]], seen: str
) -> Method[RecordTest]:
    """Return the filter of the best log score on simulated records; its settings include the law by which it is scored."""

    def dressed(moments: float | Float[Array, ""], **others: Any) -> da.Filter:
        return da.Dressed(build(**others), seen, moments)

    def run(test: RecordTest) -> Arrays:
        truths, windows = test.tuning
        make_key, tune_key = jax.random.split(jax.random.key(test.seed + 1000))
        inputs = jax.tree.map(lambda leaf: leaf[:windows], test.inputs)
        about: Any = {"truths": truths, "spread": STILL, "disturbance": STILL, "inputs": inputs, "key": make_key}
        trials = da.make_trials(test.system, windows, members=len(test.start), **about)
        measure: Any = {
            "record": da.KeepScores,
            "loss": da.negative_log_score,
            "burn_in": windows // 10,
            "key": tune_key,
        }
        best = da.tune(dressed, {**settings, "moments": MOMENTS}, test.system, trials, **measure).best
        filter = dressed(**{setting: jnp.asarray(value, float) for setting, value in best.items()})
        return on_record(filter, test) | {SETTING + setting: np.array(value) for setting, value in best.items()}

    return Method(name, run)


def predicting(name: str, predict: Callable[[RecordTest], Prediction]) -> Method[RecordTest]:
    """Return a prediction without a model as a method."""

    def run(test: RecordTest) -> Arrays:
        found = scores(predict(test), test.values, seed=test.seed)
        return {name: kept[None] for name, kept in found.items()} | {"diverged": np.array([-1])}

    return Method(name, run)


def score(test: RecordTest, found: Arrays) -> dict[str, np.ndarray]:
    """Score each run: the sum of its log scores, CRPS, coverage, and whether the histogram of the PIT is within its band."""
    late = slice(test.first, None)
    log_score, pit, crps = (np.asarray(found[name], float)[:, late] for name in ("log_score", "pit", "crps"))
    counted = np.isfinite(pit)
    low, high = da.calibration_band(int(counted[0].sum()), BINS)
    shares = np.stack([np.histogram(p[c], BINS, (0, 1))[0] / c.sum() for p, c in zip(pit, counted, strict=True)])
    inside = np.where(counted, (pit > 0.025) & (pit < 0.975), np.nan)
    return {
        "log_score": log_score.sum(axis=1),
        "crps": np.nanmean(crps, axis=1),
        "coverage_95": np.nanmean(inside, axis=1),
        "calibrated": np.all((shares >= low) & (shares <= high), axis=1).astype(float),
        "diverged": found["diverged"],
    }


def rows_of(outcomes: Sequence[Outcome[RecordTest]]) -> list[Row]:
    """Return the rows of all outcomes, with those of settings that tuning found."""
    rows = [row for outcome in outcomes for row in outcome.rows()]
    for outcome in outcomes:
        about = {"ensemble_size": outcome.case.about.get("ensemble_size")}
        settings = outcome.settings.items()
        rows += [Row.of(outcome.case.name, outcome.method, name, [value], **about) for name, value in settings]
    return rows


def series_of(outcomes: Sequence[Outcome[RecordTest]], time: Any, **values: Float[np.ndarray, "T"]) -> xr.Dataset:
    """Return what was kept of the first run of each method, at some times, beside the record's own `values`."""
    kept = {name: np.stack([np.asarray(o.kept[0][name])[0] for o in outcomes]) for name in KEPT}
    variables = {name: (("entry", "time"), series) for name, series in kept.items()}
    sizes = [outcome.case.about.get("ensemble_size", 0) for outcome in outcomes]
    entries = {"method": ("entry", [outcome.method for outcome in outcomes]), "ensemble_size": ("entry", sizes)}
    return xr.Dataset(variables | {name: ("time", own) for name, own in values.items()}, {**entries, "time": time})


def totals(rows: Sequence[Row], case: str, metrics: Sequence[str] = ("log_score", "calibrated")) -> list[Row]:
    """Return the sums over all cases, of methods that were run in every one of them.

    Example:
        >>> rows = [Row.of(town, "EnKF", "log_score", [value]) for town, value in (("a", -2.0), ("b", -3.0))]
        >>> [(row.case, row.value) for row in totals(rows, "both")]
        [('both', -5.0)]
    """
    cases = {row.case for row in rows}
    found = []
    for method, size, metric in dict.fromkeys((row.method, row.ensemble_size, row.metric) for row in rows):
        own = [row for row in rows if (row.method, row.ensemble_size, row.metric) == (method, size, metric)]
        if metric in metrics and {row.case for row in own} == cases:
            spread = float(np.sqrt(sum((row.stderr or 0.0) ** 2 for row in own)))
            total = sum(row.value for row in own)
            found.append(Row(case, method, metric, total, spread or None, own[0].n, ensemble_size=size))
    return found
