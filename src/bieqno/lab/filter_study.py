"""Filters side by side on the paper's twin experiments: the loop that the filtering studies share.

Every method goes through the same trials with the same keys, so that the comparison is paired. Two protocols: ``paper``,
one truth and one record of observations, on whose first windows the learned filter was trained; and ``unseen``, truths that no
filter was trained or tuned on.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache, partial
from typing import TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Float, Int, PRNGKeyArray

from bieqno.assimilation import Filter, Observation, Observed, Trials, cycle, make_trials, sweep
from bieqno.assimilation.models import Lorenz63, Lorenz96
from bieqno.assimilation.models.integration import count_steps, rk4
from bieqno.lab.papers import Setup
from bieqno.lab.results import Row
from bieqno.lab.study import Run
from bieqno.scores import relative_rmse

DRAWN = 1000  # larger ensembles than this are in no figure, and their way between analyses is not kept


@dataclass(frozen=True)
class Method:
    """A filter to be compared.

    Attributes:
        name: as in rows and legends.
        build: makes the filter for an ensemble size, given what `tune` found by name.
        sizes: the ensemble sizes it is run with.
        tune: finds settings for an ensemble size; None if there is nothing to find.
    """

    name: str
    build: Callable[..., Filter]
    sizes: Sequence[int]
    tune: Callable[[int], Mapping[str, float]] | None = None


def no_assimilation(ensemble: Float[Array, "N n"], observed: Observed, *, key: PRNGKeyArray) -> Float[Array, "N n"]:
    """The baseline: the forecast, whatever was observed."""
    return ensemble


class KeepPath(eqx.Module):
    """Keeps the mean of each analysis, and the ensemble mean at every integration step of the window before it.

    Args:
        model: the dynamics.
    """

    model: Lorenz63 | Lorenz96

    def __call__(
        self, prior: Float[Array, "N n"], posterior: Float[Array, "N n"], observed: Observed, *, key: PRNGKeyArray
    ) -> dict[str, Array]:
        """What is kept of a window: the last step of its path shows the analysis."""
        mean = jnp.mean(posterior, axis=0)
        assert observed.start is not None, "`cycle` gives it"
        return {"mean": mean, "path": self.path(observed.start).at[-1].set(mean)}

    def path(self, ensemble: Float[Array, "N n"]) -> Float[Array, "s n"]:
        """The mean of an ensemble at every integration step of one window."""

        def step(z: Float[Array, "N n"], _: None) -> tuple[Array, Array]:
            z = jax.vmap(lambda state: rk4(self.model.tendency, state, step=self.model.step, steps=1))(z)
            return z, jnp.mean(z, axis=0)

        return jax.lax.scan(step, ensemble, None, length=count_steps(self.model.window, self.model.step))[1]


def _keep_mean(
    prior: Float[Array, "N n"], posterior: Float[Array, "N n"], observed: Observed, *, key: PRNGKeyArray
) -> dict[str, Array]:
    return {"mean": jnp.mean(posterior, axis=0)}


class Assimilation(eqx.Module):
    """One run of a filter, as a value: runs with filters of one kind share one compilation."""

    filter: Filter
    model: Lorenz63 | Lorenz96
    observation: Observation
    limit: float = eqx.field(static=True)
    key: PRNGKeyArray

    def __call__(self, trial: Trials) -> tuple[dict[str, Array], Int[Array, ""]]:
        """What was kept, and where the run diverged."""
        run = cycle(
            self.filter,
            self.model,
            self.observation,
            trial.ensembles,
            trial.twins.observations,
            record=KeepPath(self.model) if trial.ensembles.shape[0] <= DRAWN else _keep_mean,
            limit=self.limit,
            key=jax.random.fold_in(self.key, trial.numbers),
        )
        return run.kept, run.diverged


@dataclass(frozen=True)
class Outcome:
    """All runs of a method with one ensemble size under one protocol; means are NaN from a divergence on."""

    mean: Float[np.ndarray, "r T n"]
    path: Float[np.ndarray, "t n"]
    errors: Float[np.ndarray, "r"]
    diverged: Int[np.ndarray, "r"]


_KEPT = tuple(field.name for field in fields(Outcome))
_FOUND = "found."  # what the names of settings that tuning found begin with in a case

TrialMaker: TypeAlias = Callable[[int], Trials]


def trial_makers(
    setup: Setup,
    *,
    windows: int,
    runs: int,
    first_run: int,
    truths: int,
    record_key: PRNGKeyArray,
    truth_key: PRNGKeyArray,
) -> dict[str, TrialMaker]:
    """For each protocol what makes its trials for an ensemble size.

    Args:
        setup: the twin experiment.
        windows: length of a run.
        runs: number of runs on the paper's one record.
        first_run: number of the first of them; those below are the teacher's.
        truths: number of unseen truths.
        record_key: of the paper's record.
        truth_key: of the unseen truths.
    """

    def paper(members: int) -> Trials:
        trials = setup.trials(windows, runs=first_run + runs, members=members, one_record=True, key=record_key)
        return jax.tree.map(lambda x: x[first_run:], trials)

    def unseen(members: int) -> Trials:
        return make_trials(
            setup.model, setup.observation, windows, state=setup.state, truths=truths, members=members, key=truth_key
        )

    # Methods of one size share their trials, which are then compiled for and made once.
    return {"paper": cache(paper), "unseen": cache(unseen)}


def run_method(setup: Setup, filter: Filter, trials: Trials, *, key: PRNGKeyArray) -> Outcome:
    """Run a filter on all trials."""
    kept, diverged = sweep(Assimilation(filter, setup.model, setup.observation, setup.limit, key), trials)
    errors = jax.vmap(relative_rmse)(trials.twins.truth, kept["mean"])
    mean, diverged = np.array(kept["mean"]), np.asarray(diverged)
    steps = count_steps(setup.model.window, setup.model.step)
    path = np.array(kept["path"][0]) if "path" in kept else np.full((mean.shape[1], steps, mean.shape[2]), np.nan)
    for run in np.flatnonzero(diverged >= 0):
        mean[run, diverged[run] :] = np.nan
    if diverged[0] >= 0:
        path[diverged[0] :] = np.nan
    return Outcome(mean, path.reshape(-1, path.shape[-1]).astype(np.float32), np.asarray(errors), diverged)


def compare_filters(
    run: Run, setup: Setup, methods: Sequence[Method], makers: Mapping[str, TrialMaker], *, key: PRNGKeyArray
) -> tuple[list[Row], dict[str, xr.Dataset]]:
    """Run every wanted method with every ensemble size under every protocol.

    Args:
        run: keeps the runs of a method with a size, and tells before each of them.
        setup: the twin experiment.
        methods: what is compared.
        makers: for each protocol what makes its trials for an ensemble size.
        key: for what is random in the filters.

    Returns:
        Rows of relative errors and of settings that tuning found, and for each protocol the series that figures are drawn from.
    """
    methods = [method for method in methods if run.wants(method.name)]
    total = sum(len(method.sizes) for method in methods)
    rows: list[Row] = []
    outcomes: dict[str, dict[tuple[str, int], Outcome]] = {protocol: {} for protocol in makers}
    done = 0
    for method in methods:
        for size in method.sizes:
            run.tell(f"{method.name}, N = {size}", done, total)
            found = run.cases.take(
                f"{method.name}, N={size}", partial(_run_protocols, setup, method, size, makers, key)
            )
            for protocol in makers:
                outcome = Outcome(*(found[f"{protocol}.{name}"] for name in _KEPT))
                outcomes[protocol][method.name, size] = outcome
                sound = outcome.errors[outcome.diverged < 0]
                rows.append(
                    Row.of(
                        f"N={size}", method.name, "relative_rmse", sound.tolist(),
                        ensemble_size=size, protocol=protocol, diverged=int(np.sum(outcome.diverged >= 0)),
                    )
                )  # fmt: skip
            rows += [
                Row.of(f"N={size}", method.name, name.removeprefix(_FOUND), [float(value)], ensemble_size=size)
                for name, value in found.items() if name.startswith(_FOUND)
            ]  # fmt: skip
            done += 1
    return rows, {protocol: _dataset(setup, makers[protocol](2), found) for protocol, found in outcomes.items()}


def _run_protocols(
    setup: Setup, method: Method, size: int, makers: Mapping[str, TrialMaker], key: PRNGKeyArray
) -> dict[str, np.ndarray]:
    """The outcomes of a method with a size under every protocol and what it was tuned to, as arrays that can be kept."""
    found = {} if method.tune is None else method.tune(size)
    # As arrays, so that filters of other settings share the compilation.
    filter = method.build(size, **{name: jnp.asarray(value) for name, value in found.items()})
    outcomes = {protocol: run_method(setup, filter, maker(size), key=key) for protocol, maker in makers.items()}
    arrays = {f"{protocol}.{name}": getattr(run, name) for protocol, run in outcomes.items() for name in _KEPT}
    return arrays | {f"{_FOUND}{name}": np.array(value) for name, value in found.items()}


def _dataset(setup: Setup, trials: Trials, outcomes: Mapping[tuple[str, int], Outcome]) -> xr.Dataset:
    """Truth and means of all runs, and the path of the first run between analyses.

    An entry is a method with an ensemble size, for not every method is run with every size.
    """
    truth = np.asarray(trials.twins.truth)
    found = list(outcomes.values())
    # The first truth between its windows; where it began is not kept, so the first window has none.
    inside = np.asarray(jax.vmap(KeepPath(setup.model).path)(trials.twins.truth[0, :-1, None]))
    true_path = np.concatenate([np.full_like(inside[:1], np.nan), inside]).reshape(-1, truth.shape[-1])
    return xr.Dataset(
        {
            "truth": (("run", "window", "variable"), truth),
            "mean": (
                ("entry", "run", "window", "variable"),
                np.stack([outcome.mean for outcome in found]),
                {"long_name": "analysis mean, NaN from a divergence on"},
            ),
            "path": (
                ("entry", "step", "variable"),
                np.stack([outcome.path for outcome in found]),
                {"long_name": "ensemble mean of the first run at every integration step"},
            ),
            "true_path": (("step", "variable"), true_path),
            "error": (("entry", "run"), np.stack([outcome.errors for outcome in found])),
            "diverged": (
                ("entry", "run"),
                np.stack([outcome.diverged for outcome in found]),
                {"long_name": "window of the divergence, -1 if there was none"},
            ),
        },
        {
            "method": ("entry", [method for method, _ in outcomes]),
            "ensemble_size": ("entry", [size for _, size in outcomes]),
            "time": ("window", setup.model.window * np.arange(1, truth.shape[1] + 1)),
            "path_time": ("step", setup.model.step * np.arange(1, true_path.shape[0] + 1)),
        },
    )
