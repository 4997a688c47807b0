"""A twin experiment of a set-up: the neural filter and tuned classical filters on the same unseen truths, same keys."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Float, Int, PRNGKeyArray

from bieqno.assimilation.filters import ETKF, LETKF, EnKF, Filter, Inflated, Rotated
from bieqno.assimilation.localization import Neighbours
from bieqno.assimilation.models.forecast import Model
from bieqno.assimilation.observation import Observation, Observed
from bieqno.assimilation.twin import keep_moments
from bieqno.assimilation.trials import Trials, sweep
from bieqno.assimilation.tuning import tune
from bieqno.assimilation.twin import Run, cycle
from bieqno.lab.system_files.reading import OwnSetup
from bieqno.scores import rmse

Tell = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Entry:
    """A filter with one ensemble size on all truths.

    Attributes:
        method: its name.
        members: its ensemble size.
        settings: what tuning chose; empty where there was nothing to tune.
        errors: error of the analysis mean on each truth after the burn-in; NaN where the run diverged.
        spreads: spread of the analysis ensemble likewise.
        diverged: first window in which the run diverged, -1 if it never did.
        mean: analysis means, NaN from a divergence on.
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
        """Mean and standard error over the runs that did not diverge; NaN if there are too few."""
        sound = values[self.diverged < 0]
        error = float(np.std(sound, ddof=1)) / math.sqrt(len(sound)) if len(sound) > 1 else math.nan
        return (float(np.mean(sound)) if len(sound) else math.nan), error

    def numbers(self) -> dict[str, Any]:
        """What a file of numbers says about it."""
        rmse, rmse_error = self.average(self.errors)
        return {
            "method": self.method, "members": self.members, "settings": self.settings, "truths": len(self.errors),
            "diverged": self.lost, "rmse": rmse, "rmse_stderr": rmse_error, "spread": self.average(self.spreads)[0],
        }  # fmt: skip


def contest(
    setup: OwnSetup, ennf: Filter, *, key: PRNGKeyArray, tell: Tell | None = None
) -> tuple[list[Entry], Float[np.ndarray, "r T n"]]:
    """Tune the classical filters for every ensemble size, then run all filters on truths that none of them has seen.

    Args:
        setup: the set-up.
        ennf: its trained filter.
        key: for truths, observations, ensembles and analyses.
        tell: called before each part with how many are done, how many there are, and what comes.

    Returns:
        The entries, and the truths.
    """
    wanted, limit = setup.tables.compare, setup.tables.model.limit
    test_key, tuning_key, run_key = jax.random.split(key, 3)
    opponents = classical_filters(setup)
    plan = [(name, size) for size in wanted.sizes for name in ("baseline", "EnNF", *opponents)]
    entries = []
    truth = np.zeros(0)
    for done, (name, size) in enumerate(plan):
        if tell is not None:
            tell(done, len(plan), f"{name}, N = {size}")
        filter: Filter = no_assimilation if name == "baseline" else ennf
        settings: dict[str, float] = {}
        if name in opponents:
            build, grid = opponents[name]
            practice = setup.trials(wanted.tuning_windows, truths=wanted.tuning_truths, members=size, key=tuning_key)
            settings = tune(
                build, grid, setup.model, setup.observation, practice,
                burn_in=min(wanted.burn_in, wanted.tuning_windows // 2), limit=limit, key=run_key,
            ).best  # fmt: skip
            # As arrays, so that sizes share as much compilation as they can.
            filter = build(**{key: jnp.asarray(value) for key, value in settings.items()})
        trials = setup.trials(wanted.windows, truths=wanted.truths, members=size, key=test_key)
        truth = np.asarray(trials.twins.truth)
        runs = sweep(_Assimilation(filter, setup.model, setup.observation, limit, run_key), trials)
        entries.append(_entry(name, size, settings, runs, trials.twins.truth, wanted.burn_in))
    return entries, truth


def contest_dataset(setup: OwnSetup, entries: list[Entry], truth: Float[np.ndarray, "r T n"]) -> xr.Dataset:
    """Truths and analysis means of all filters, for figures and for those who want to look closer."""
    return xr.Dataset(
        {
            "truth": (("run", "time", "state"), truth, {"long_name": "true state"}),
            "mean": (
                ("entry", "run", "time", "state"),
                np.stack([entry.mean for entry in entries]),
                {"long_name": "mean of the analysis ensemble, missing from a divergence on"},
            ),
            "error": (("entry", "run"), np.stack([entry.errors for entry in entries]), {"long_name": "RMSE"}),
            "diverged": (("entry", "run"), np.stack([entry.diverged for entry in entries])),
        },
        {
            "method": ("entry", [entry.method for entry in entries]),
            "members": ("entry", [entry.members for entry in entries]),
            "time": ("time", setup.window * np.arange(1, truth.shape[1] + 1)),
        },
        {"source": "bieqno", "title": "Filters compared in a twin experiment"},
    )


def no_assimilation(ensemble: Float[Array, "N n"], observed: Observed, *, key: PRNGKeyArray) -> Float[Array, "N n"]:
    """The baseline: the forecast, whatever was observed."""
    return ensemble


class _Assimilation(eqx.Module):
    """One run of a filter, as a value: runs with filters of one kind share one compilation."""

    filter: Filter
    model: Model
    observation: Observation
    limit: float = eqx.field(static=True)
    key: PRNGKeyArray

    def __call__(self, trial: Trials) -> Run:
        return cycle(
            self.filter,
            self.model,
            self.observation,
            trial.ensembles,
            trial.twins.observations,
            record=keep_moments,
            limit=self.limit,
            key=jax.random.fold_in(self.key, trial.numbers),
        )


def classical_filters(setup: OwnSetup) -> dict[str, tuple[Callable[..., Filter], dict[str, list[float]]]]:
    """The classical filters, with what is to be tuned of each."""
    wanted, period = setup.tables.compare, setup.tables.model.period
    inflation = {"inflation": wanted.inflation}
    opponents: dict[str, tuple[Callable[..., Filter], dict[str, list[float]]]] = {
        "EnKF tuned": (lambda inflation: Inflated(EnKF(), inflation), inflation),
        "ETKF tuned": (lambda inflation: Rotated(Inflated(ETKF(), inflation)), inflation),
    }
    if setup.positions is not None:
        near = Neighbours.within(
            max(wanted.radius), *setup.positions, period=tuple(period) if isinstance(period, list) else period
        )
        opponents["LETKF tuned"] = (
            lambda inflation, radius: Rotated(Inflated(LETKF(near, radius), inflation)),
            {**inflation, "radius": wanted.radius},
        )
    return opponents


def _entry(
    name: str, size: int, settings: dict[str, float], runs: Run, truth: Float[Array, "r T n"], burn_in: int
) -> Entry:
    diverged, mean = np.asarray(runs.diverged), np.array(runs.kept["mean"])
    errors = np.array(jax.vmap(rmse)(truth, runs.kept["mean"])[:, burn_in:].mean(axis=1))
    spreads = np.array(jnp.sqrt(jnp.mean(runs.kept["spread"] ** 2, axis=2))[:, burn_in:].mean(axis=1))
    for run in np.flatnonzero(diverged >= 0):
        mean[run, diverged[run] :] = np.nan
        errors[run] = spreads[run] = np.nan
    return Entry(name, size, settings, errors, spreads, diverged, mean)
