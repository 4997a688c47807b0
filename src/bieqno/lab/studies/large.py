"""Experiment ``large``: weights that were trained on 40 variables, on rings of up to a million."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from bieqno.assimilation import (
    Filter,
    LocalEnNF,
    Lorenz96,
    Observation,
    Places,
    Surroundings,
    cycle,
    keep_mean,
    make_trials,
    train_filter,
    tune,
)
from bieqno.lab.filter_experiment import as_array, as_filter
from bieqno.lab.results import Row
from bieqno.lab.studies import mnmef
from bieqno.lab.study import Description, Experiment, Findings, Run
from bieqno.scores import rmse

DESCRIPTION = Description(
    title="From 40 variables to a million",
    question="A filter is trained on a ring of 40 variables. Do the same weights serve on rings ten, a hundred, a thousand times "
    "as long, and what do time and memory become?",
    claim="None; the paper's filter does not grow.",
    minutes={"smoke": 1.5, "quick": 6.0, "paper": 30.0},
    methods=("EnNF", "LETKF tuned"),
)


@dataclass(frozen=True)
class Settings:
    """What is run.

    Attributes:
        preset: name of the settings.
        sizes: numbers of variables, each a multiple of 4.
        timed_only: numbers of variables of which one analysis is made and no more.
        members: ensemble size.
        windows: length of a run.
        burn_in: windows that do not count.
        total: truths times variables of a run, where one truth has no more, so that errors are over as many values.
        tuning: truths and windows that the LETKF is tuned on, with 40 variables.
        training: settings of `train_filter`.
    """

    preset: str
    sizes: tuple[int, ...]
    timed_only: tuple[int, ...] = ()
    members: int = 10
    windows: int = 160
    burn_in: int = 60
    total: int = 4000
    tuning: tuple[int, int] = (4, 200)
    training: dict[str, Any] = field(default_factory=dict)


# A net small enough for the time that an LETKF takes.
_NET = {"settings": {"width": 32, "small": 8, "channels": 4}}
PRESETS = {
    "smoke": Settings(
        "smoke", (40, 80), members=5, windows=12, burn_in=4, total=160, tuning=(2, 20),
        training=dict(mnmef.PRESETS["smoke"].training),
    ),
    "quick": Settings(
        "quick", (40, 400, 4_000, 40_000), (1_000_000,), training={**mnmef.PRESETS["quick"].training, **_NET}
    ),
    "paper": Settings(
        "paper", (40, 400, 4_000, 40_000, 400_000), (1_000_000,), windows=260, total=40_000, tuning=(8, 400),
        training={**mnmef.PRESETS["quick"].training, **_NET, "steps": 8000},
    ),
}  # fmt: skip


def study(s: Settings, run: Run) -> Findings:
    """Train and tune on 40 variables, then measure errors, time and memory on every ring."""
    train_key, truth_key, tune_key, run_key = jax.random.split(jax.random.key(run.seed), 4)

    def learn() -> dict[str, np.ndarray]:
        system = mnmef.system()
        result = train_filter(
            system.model, system.observation, state=system.state, variables=system.places, **s.training, key=train_key,
            checkpoint=run.cases.checkpoint("training"),
            on_progress=lambda p: run.tell("training", 0.5 * p.step / p.steps, training=p),
        )  # fmt: skip
        return {"filter": as_array(result.module)}

    def search() -> dict[str, np.ndarray]:
        system, (truths, windows) = mnmef.system(), s.tuning
        practice = make_trials(
            system.model,
            system.observation,
            windows,
            state=system.state,
            truths=truths,
            members=s.members,
            key=tune_key,
        )
        opponent = mnmef.letkf(40, mnmef.STATIONS)
        found = tune(
            opponent.build, opponent.grid, system.model, system.observation, practice, burn_in=windows // 10,
            limit=system.limit, key=run_key,
        )  # fmt: skip
        return {name: np.array(value) for name, value in found.best.items()}

    trained = cache(lambda: as_filter(run.cases.take("training", learn)["filter"]))
    settled = cache(lambda: run.cases.take("tuning", search))

    def learned(size: int) -> Filter:
        update = trained().update
        ring = Places.grid(size, period=float(size))
        stations = ring.at(np.arange(0, size, 4))
        return LocalEnNF(update, Surroundings.of(ring, stations, radius=update.radius, reach=update.reach))

    def tuned(size: int) -> Filter:
        # With the neighbours that this radius needs and no more, for it is timed.
        opponent = mnmef.letkf(size, np.arange(0, size, 4), float(settled()["radius"]))
        return opponent.build(**{name: jnp.asarray(value) for name, value in settled().items()})

    makers = {"EnNF": learned, "LETKF tuned": tuned}
    if run.wants("EnNF"):
        trained()
    rows: list[Row] = []
    sizes = (*s.sizes, *s.timed_only)
    for place, size in enumerate(sizes):
        for method, make in makers.items():
            if not run.wants(method):
                continue
            run.tell(f"{method}, {size:,} variables", 0.5 + 0.5 * place / len(sizes))
            runs = 0 if size in s.timed_only else max(1, s.total // size)
            found = run.cases.take(
                f"{method}, {size} variables", partial(_measure, make, size, runs, s, truth_key, run_key)
            )
            about = {"ensemble_size": s.members, "protocol": f"{size:,} variables"}
            for metric, values in found.items():
                sound = values[np.isfinite(values)]
                lost = {"diverged": int(values.size - sound.size)} if metric == "rmse" else {}
                rows.append(Row.of(f"n={size}", method, metric, sound.tolist(), **about, **lost))
    return rows, {}


EXPERIMENT = Experiment("large", DESCRIPTION, PRESETS, study)
run = EXPERIMENT.run


def _observation() -> Observation:
    """Every fourth variable, by a slice: a list of a quarter of a million numbers would be compiled in."""
    return Observation(lambda z: z[::4], 1.0)


def _measure(
    make: Callable[[int], Filter], size: int, runs: int, s: Settings, truth_key: PRNGKeyArray, run_key: PRNGKeyArray
) -> dict[str, np.ndarray]:
    """Errors on `runs` truths, and what one analysis takes: seconds, and memory with all that goes in and out."""
    filter = make(size)
    model, observation = Lorenz96(size, 8.0, window=0.15, step=0.05), _observation()
    found = {}
    if runs:
        errors = [_error(filter, model, observation, s, jax.random.fold_in(truth_key, k), run_key) for k in range(runs)]
        found["rmse"] = np.array(errors)
    prior = 3.6 * jax.random.normal(jax.random.key(0), (s.members, size))
    observed = observation.window(prior[0, ::4] + 1)
    arrays, static = eqx.partition((filter, observed), eqx.is_array)

    def analyse(arrays: Any, prior: Float[Array, "N n"]) -> Float[Array, "N n"]:
        filter, observed = eqx.combine(arrays, static)
        return filter(prior, observed, key=run_key)

    compiled = jax.jit(analyse).lower(arrays, prior).compile()
    memory: Any = compiled.memory_analysis()
    seconds = []
    for _ in range(6):
        begun = time.perf_counter()
        jax.block_until_ready(compiled(arrays, prior))
        seconds.append(time.perf_counter() - begun)
    taken = memory.temp_size_in_bytes + memory.argument_size_in_bytes + memory.output_size_in_bytes
    return found | {"seconds": np.array([min(seconds[1:])]), "mebibytes": np.array([taken / 2**20])}


def _error(
    filter: Filter, model: Lorenz96, observation: Observation, s: Settings, key: PRNGKeyArray, run_key: PRNGKeyArray
) -> float:
    """Root of the mean square error of the analysis mean over windows and variables of one run; NaN if it diverged.

    A mean of roots, window by window, would be lower on small rings, whose windows differ more from one another.
    """
    trials = make_trials(
        model, observation, s.windows, state=jnp.full(model.size, 8.0), truths=1, members=s.members, spin=60, key=key
    )
    trial = jax.tree.map(lambda x: x[0], trials)
    run = cycle(
        filter, model, observation, trial.ensembles, trial.twins.observations, record=keep_mean, limit=1e3,
        key=run_key,
    )  # fmt: skip
    error = jnp.sqrt(jnp.mean(rmse(trial.twins.truth, run.kept)[s.burn_in :] ** 2))
    return float(error) if run.diverged < 0 else math.nan
