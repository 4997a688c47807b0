"""Filters as methods of a comparison: what they are run on, how they are scored, and the classical ones with their grids.

A trial of a comparison is a `TwinTest`: truths of a system with observations and first ensembles, and further truths that
classical filters are tuned on. Every filter sees the same trials with the same keys.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

import bieqno.assimilation as da
from bieqno.assimilation.trials import Assimilation
from bieqno.lab.compare import DIVERGED, SETTING, Arrays, Case, Method, Outcome
from bieqno.lab.results import Row
from bieqno.lab.study import Run
from bieqno.scores import energy_score, relative_rmse, rmse

INFLATIONS = (1.0, 1.02, 1.05, 1.1, 1.2, 1.35)
RADII = (3.0, 5.0, 8.0, 12.0)
JITTERS = (0.1, 0.25, 0.5, 1.0, 1.5)
LEARNED = "EnNF"
SCORES = ("rmse", "relative_rmse", "spread_error_ratio", "coverage_90", DIVERGED)
ENERGY = "energy_score"
PREDICTIVE = ("predictive_log_score", "crps", "coverage_95")  # of the observations, one step ahead
KEPT_SCORES = ("log_score", "crps", "pit")  # by which they are scored
_NORMAL_90 = 1.645  # half the width of the central 90 % of a normal law


@dataclass(frozen=True)
class TwinTest:
    """What a filter of one ensemble size is run on.

    `tuning_trials`, if there is something to tune, makes other trials and says how many first windows do not count; tests
    of one label are tuned once, in so many `rungs` of `tune`. `record` keeps `mean` of each window, and `spread` if it is to be
    scored.
    """

    system: da.System
    trials: da.Trials
    tuning_trials: Callable[[], tuple[da.Trials, int]] | None
    key: PRNGKeyArray
    burn_in: int = 0
    record: da.Record = da.keep_moments
    label: str = ""
    rungs: int = 1
    energy: bool = False  # whether to score whole states by the energy score, too
    predictive: bool = False  # whether to score what was predicted of the observations, too


@dataclass(frozen=True)
class FilterSettings:
    """Settings of a study of a learned filter with ensembles of some `sizes` beside tuned ones of `tuned_sizes`.

    `tuning` is number and length of the truths that classical filters are tuned on, in so many `rungs`; `truths` are unseen ones.
    `training` has settings of the objective, and `steps`: the budget of a training with early stopping; `fine_tuning`, unless
    empty, those of a second one, for each variable or size. The teacher's runs have `training_windows`, the `runs` of the test on
    the paper's record continue beyond. `particles` is the size of a particle filter that shows what is possible. `paper`, unless
    empty, says for how many `epochs`, and epochs of `fine_tuning`, the filter in the paper's form is trained.
    """

    preset: str
    sizes: tuple[int, ...]
    tuned_sizes: tuple[int, ...]
    truths: int = 64
    windows: int = 200
    burn_in: int = 0
    tuning: tuple[int, int] = (4, 200)
    student: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)
    fine_tuning: Mapping[str, Any] = field(default_factory=dict)
    validation: Mapping[str, Any] = field(default_factory=dict)
    teacher_runs: int = 0
    teacher_members: int = 0
    training_windows: int = 150
    runs: int = 5
    particles: int = 0
    paper: Mapping[str, int] = field(default_factory=dict)
    rungs: int = 1


SMOKE_VALIDATION = {"truths": 2, "windows": 6, "burn_in": 1}
SMOKE = FilterSettings("smoke", (2, 4), (4,), 2, 15, 0, (2, 15), validation=SMOKE_VALIDATION)


def twin_case(test: Callable[[str, int], TwinTest], protocol: str, size: int) -> Case[TwinTest]:
    """Return the case of a protocol and an ensemble size, whose test is made when it is needed."""
    about = {"ensemble_size": size, "protocol": protocol}
    return Case(f"N={size}", lambda _: test(protocol, size), about=about, label=f"N={size}, {protocol}")


@dataclass(frozen=True)
class Tuned:
    """A classical filter with settings to be found: what builds it, and the values to try."""

    name: str
    build: Callable[..., da.Filter]
    grid: Mapping[str, Sequence[float]]

    def tune(self, system: da.System, trials: da.Trials, burn_in: int, key: PRNGKeyArray, *, rungs: int = 1) -> Arrays:
        """Return the best of the settings to try."""
        found = da.tune(self.build, self.grid, system, trials, burn_in=burn_in, rungs=rungs, key=key)
        return {name: np.array(value) for name, value in found.best.items()}

    def at(self, settings: Arrays) -> da.Filter:
        """Return the filter with settings, as arrays, so that filters of other settings share the compilation."""
        return self.build(**{name: jnp.asarray(value, float) for name, value in settings.items()})


def no_assimilation(ensemble: Float[Array, "N n"], observed: da.Observed, *, key: PRNGKeyArray) -> Float[Array, "N n"]:
    """Return the forecast, whatever was observed: the baseline."""
    return ensemble


def classical_filters(
    system: da.System,
    *,
    inflation: Sequence[float] = INFLATIONS,
    radius: Sequence[float] = RADII,
    jitter: Sequence[float] = JITTERS,
    floor: float = 0.0,
) -> dict[str, Tuned]:
    """Return the classical filters of a system by name, each with the values of its settings that are to be tried.

    Local filters are among them where the system says where its variables are. `floor` is the least standard deviation of an
    observation error that the filters assume, where the law passes through zero.
    """

    def floored(filter: da.Filter) -> da.Filter:
        return da.Floored(filter, floor) if floor else filter

    def root(filter: da.Filter, inflation: float | Array) -> da.Filter:
        return da.Rotated(da.Inflated(floored(filter), inflation))

    grid = {"inflation": inflation}
    local = {**grid, "radius": radius}
    found = [
        Tuned("EnKF tuned", lambda inflation: da.Inflated(floored(da.EnKF()), inflation), grid),
        Tuned("ETKF tuned", lambda inflation: root(da.ETKF(), inflation), grid),
        Tuned("iterative EnKF tuned", lambda inflation: root(da.IterativeEnKF(system.model), inflation), grid),
        Tuned("particle filter tuned", lambda jitter: floored(da.ParticleFilter(jitter)), {"jitter": jitter}),
    ]
    if system.places is None or system.observation_places is None:
        found.append(Tuned("serial EnSRF tuned", lambda inflation: root(da.SerialEnSRF(), inflation), grid))
    else:
        near, period = system.neighbours(max(radius)), system.places.period
        here, there = system.places.positions, system.observation_places.positions

        def letkf(inflation: float | Array, radius: float | Array) -> da.Filter:
            return root(da.LETKF(near, radius), inflation)

        def tapers(radius: float | Array) -> list[Array]:
            return [da.gaspari_cohn(da.distances(there, other, period=period), radius) for other in (here, there)]

        def serial(inflation: float | Array, radius: float | Array) -> da.Filter:
            return root(da.SerialEnSRF(*tapers(radius)), inflation)

        def enkf(inflation: float | Array, radius: float | Array) -> da.Filter:
            return da.Inflated(floored(da.LocalEnKF(*tapers(radius))), inflation)

        found += [Tuned("LETKF tuned", letkf, local), Tuned("serial EnSRF tuned", serial, local)]
        found.append(Tuned("local EnKF tuned", enkf, local))
    return {one.name: one for one in found}


def fixed(name: str, build: Callable[[], da.Filter]) -> Method[TwinTest]:
    """Return the method of a filter that needs no tuning; it is built when it is first run."""
    built = cache(build)
    return Method(name, lambda test: run_filter(built(), test))


def tuned(opponent: Tuned, run: Run) -> Method[TwinTest]:
    """Return the method of a filter that is tuned once for tests of one label, on truths of their own."""
    known: dict[str, Arrays] = {}

    def search(test: TwinTest) -> Arrays:
        assert test.tuning_trials is not None, "nothing to tune on"
        return opponent.tune(test.system, *test.tuning_trials(), test.key, rungs=test.rungs)

    def tuned_run(test: TwinTest) -> Arrays:
        if test.label not in known:
            known[test.label] = run.cases.take(f"tuning of {opponent.name}, {test.label}", lambda: search(test))
        settings = known[test.label]
        return run_filter(opponent.at(settings), test) | {SETTING + name: value for name, value in settings.items()}

    return Method(opponent.name, tuned_run)


def train(run: Run, name: str, student: Any, system: da.System, objective: Any, **settings: Any) -> Any:
    """Train a part of a run and return the `FitResult`; `settings` are `steps`, `validate`, `key`, and of the objective."""
    own = {word: settings.pop(word) for word in ("steps", "validate", "key")}
    own |= {"checkpoint": run.cases.checkpoint(name), "on_progress": run.training(name)}
    return da.train_filter(student, system, objective(**settings), **own)


def as_array(filter: da.Filter) -> np.ndarray:
    """Return a filter as an array of bytes that a case can keep."""
    return np.frombuffer(da.filter_to_bytes(filter), np.uint8)


def as_filter(content: np.ndarray) -> Any:
    """Return the filter that `as_array` was given."""
    return da.filter_from_bytes(content.tobytes())


def run_filter(filter: da.Filter, test: TwinTest) -> dict[str, np.ndarray]:
    """Run a filter on all trials; return what was kept, NaN from a divergence on, and the window of the divergence."""
    if test.energy:
        done = da.sweep(EnergyScored(Assimilation(filter, test.system, _with_members, test.key)), test.trials)
    else:
        record = da.KeepScores(filter, test.record) if test.predictive else test.record
        done = da.run_trials(filter, test.system, test.trials, record=record, key=test.key)
    kept = done.kept if isinstance(done.kept, dict) else {"mean": done.kept}
    arrays, diverged = {name: np.array(series) for name, series in kept.items()}, np.asarray(done.diverged)
    for trial, series in product(np.flatnonzero(diverged >= 0), arrays.values()):
        series[trial, diverged[trial] :] = np.nan
    return {**arrays, DIVERGED: diverged}


def _with_members(prior: Array, posterior: Array, observed: da.Observed, *, key: PRNGKeyArray) -> dict[str, Array]:
    return {**da.keep_moments(prior, posterior, observed, key=key), "members": posterior}


class EnergyScored(eqx.Module):
    """A run of which moments and the energy score of each window are kept: all members of all runs would not fit."""

    run: Assimilation

    def __call__(self, trial: da.Trials) -> da.Run:
        """Run the trial."""
        done = self.run(trial)
        kept = dict(done.kept)
        kept[ENERGY] = energy_score(trial.twins.truth, kept.pop("members"))
        return eqx.tree_at(lambda d: d.kept, done, kept)


def score_filter(test: TwinTest, found: Arrays) -> dict[str, np.ndarray]:
    """Score each truth: RMSE, relative RMSE (eq. 20), spread over error, and how often a normal 90 % interval holds the truth.

    Where the test says so, what was predicted of the observations is scored as well, which a real record allows, too.
    The interval is that of the normal law with the ensemble's mean and spread. Few random draws of a perfect law would fall short
    of it, but the members that a filter returns are no random draws.
    """
    size = test.trials.ensembles.shape[1]
    mean, spread = jnp.asarray(found["mean"]), jnp.asarray(found["spread"])
    scores: dict[str, Any] = _scores(test.trials.twins.truth, mean, spread, size, test.burn_in)
    if test.energy:
        scores[ENERGY] = found[ENERGY][:, test.burn_in :].mean(axis=1)
    if test.predictive:
        scores |= _predictive_scores(*(found[name][:, test.burn_in :] for name in KEPT_SCORES))
    return {**{name: np.asarray(value) for name, value in scores.items()}, DIVERGED: found[DIVERGED]}


def _predictive_scores(
    log_score: Float[np.ndarray, "r T"], crps: Float[np.ndarray, "r T m"], pit: Float[np.ndarray, "r T m"]
) -> dict[str, np.ndarray]:
    """Return of each run the log score per window, and CRPS and coverage per value, of what was observed."""
    seen, inside = np.isfinite(pit), (pit > 0.025) & (pit < 0.975)
    windows, every = seen.any(axis=2), (1, 2)
    with np.errstate(invalid="ignore"):  # a run in which nothing was observed has no score
        total = np.where(windows, log_score, 0).sum(axis=1) / windows.sum(axis=1)
        means = (np.where(seen, each, 0).sum(axis=every) / seen.sum(axis=every) for each in (crps, inside))
        return dict(zip(PREDICTIVE, (total, *means), strict=True))


@eqx.filter_jit
def _scores(truth: Array, mean: Array, spread: Array, size: int, burn_in: int) -> dict[str, Array]:
    def one(truth: Array, mean: Array, spread: Array) -> dict[str, Array]:
        truth, mean, spread = truth[burn_in:], mean[burn_in:], spread[burn_in:]
        # The spread that exchangeable members need to have on average for the error of their mean.
        wide, error = spread * math.sqrt((size + 1) / size), jnp.abs(truth - mean)
        return {
            "rmse": jnp.mean(rmse(truth, mean)),
            "relative_rmse": relative_rmse(truth, mean),
            "spread_error_ratio": jnp.sqrt(jnp.mean(wide**2) / jnp.mean(error**2)),
            "coverage_90": jnp.mean(error <= _NORMAL_90 * wide),
            "spread": jnp.mean(jnp.sqrt(jnp.mean(spread**2, axis=1))),
        }

    return jax.vmap(one)(truth, mean, spread)


def filter_rows(outcomes: Sequence[Outcome[TwinTest]], metrics: Collection[str] = SCORES) -> list[Row]:
    """Return rows of scores, and of each setting that tuning found."""
    rows: dict[Row, None] = {}  # a setting that serves two protocols is one row
    for outcome in outcomes:
        rows |= dict.fromkeys(outcome.rows(metrics))
        size, protocol = (outcome.case.about[name] for name in ("ensemble_size", "protocol"))
        name = f"N={size}" if protocol in ("paper", "unseen") else f"N={size}, {protocol}"
        found = outcome.settings.items()
        rows |= {Row.of(name, outcome.method, key, [value], ensemble_size=size): None for key, value in found}
    return list(rows)


def entry_labels(outcomes: Sequence[Outcome[TwinTest]]) -> dict[str, tuple[str, list[Any]]]:
    """Return coordinates of a dataset with one entry per method and ensemble size."""
    sizes = [outcome.case.about["ensemble_size"] for outcome in outcomes]
    return {"method": ("entry", [outcome.method for outcome in outcomes]), "ensemble_size": ("entry", sizes)}
