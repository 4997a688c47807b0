"""Study ``large``: weights that were trained on 40 variables, on rings of up to a million."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

import bieqno.assimilation as da
from bieqno.lab.compare import Arrays, Case, Method, compare
from bieqno.lab.methods.ennf_truth import train_against_truth
from bieqno.lab.methods.filters import TwinTest, as_filter, run_filter
from bieqno.lab.papers import sparse_ring
from bieqno.lab.results import Row
from bieqno.lab.studies import mnmef
from bieqno.lab.study import Description, Experiment, Findings, Run

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
    """What is run on rings of some `sizes`, each a multiple of 4; of those `timed_only` just one analysis is measured.

    `total` is truths times variables of a run, where one truth has no more, so that errors are over as many values; `tuning` is
    number and length of the truths of 40 variables that the LETKF is tuned on. The `student` is as fast as an LETKF.
    """

    preset: str
    sizes: tuple[int, ...]
    timed_only: tuple[int, ...] = ()
    members: int = 10
    windows: int = 160
    burn_in: int = 60
    total: int = 4000
    tuning: tuple[int, int] = (4, 200)
    student: Mapping[str, Any] = field(default_factory=lambda: {"width": 16, "channels": 4})
    training: Mapping[str, Any] = field(default_factory=lambda: mnmef.PRESETS["quick"].training)
    validation: Mapping[str, Any] = field(default_factory=dict)


_SMALL = {name: getattr(mnmef.SMOKE, name) for name in ("student", "training", "validation")}
_SIZES = (40, 400, 4_000, 40_000)
_LONG = {**mnmef.PRESETS["quick"].training, "steps": 8000}
PRESETS = {
    "smoke": Settings("smoke", (40, 80), (), 5, 12, 4, 160, (2, 20), **_SMALL),
    "quick": Settings("quick", _SIZES, (1_000_000,)),
    "paper": Settings("paper", (*_SIZES, 400_000), (1_000_000,), 10, 260, 60, 40_000, (8, 400), training=_LONG),
}


def study(s: Settings, run: Run) -> Findings:
    """Train and tune on 40 variables, then measure errors, time and memory on every ring."""
    train_key, truth_key, tune_key, run_key = jax.random.split(jax.random.key(run.seed), 4)

    def search() -> Arrays:
        return mnmef.tuned_settings(s.members, s.tuning, tune_key, run_key)

    trained = cache(lambda: train_against_truth(s, run.between(0.0, 0.5), sparse_ring(), key=train_key))
    settled = cache(lambda: run.cases.take("tuning", search))

    def learned(size: int) -> da.Filter:
        filter = as_filter(trained()["filter"])
        around = filter.neighbourhoods
        return filter.at(sparse_ring(size).neighbourhoods(around.radius, around.reach))

    def tuned(size: int) -> da.Filter:
        # With the neighbours that this radius needs and no more, for it is timed.
        return mnmef.letkf(sparse_ring(size), float(settled()["radius"])).at(settled())

    @lru_cache(1)  # both methods see the same truths
    def test(size: int) -> TwinTest:
        system, truths = sparse_ring(size), max(1, s.total // size)
        trials = da.make_trials(system, s.windows, truths=truths, members=s.members, spin=60, key=truth_key)
        return TwinTest(system, trials, None, run_key, s.burn_in, da.keep_mean)

    def method(name: str, build: Callable[[int], da.Filter]) -> Method[int]:
        def measure(size: int) -> dict[str, np.ndarray]:
            filter = build(size)
            errors = {} if size in s.timed_only else {"rmse": _errors(filter, test(size))}
            return errors | _cost(filter, sparse_ring(size), s.members, run_key)

        return Method(name, measure)

    def case(size: int) -> Case[int]:
        return Case(f"n={size}", lambda _: size)

    if run.wants("EnNF"):
        trained()
    methods = [method("EnNF", learned), method("LETKF tuned", tuned)]
    plan = [(case(size), one) for size in (*s.sizes, *s.timed_only) for one in methods]
    measured = ("rmse", "seconds", "mebibytes")
    outcomes = compare(run.between(0.5, 1.0), plan, lambda _, found: {k: found[k] for k in measured if k in found})
    rows = []
    for outcome in outcomes:
        about = {"ensemble_size": s.members, "protocol": f"{outcome.case.draw(0):,} variables"}
        for metric, values in outcome.scores.items():
            sound = values[np.isfinite(values)]
            lost = {"diverged": int(values.size - sound.size)} if metric == "rmse" else {}
            rows.append(Row.of(outcome.case.name, outcome.method, metric, sound.tolist(), **about, **lost))
    return rows, {}


EXPERIMENT = Experiment("large", DESCRIPTION, PRESETS, study)


def _errors(filter: da.Filter, test: TwinTest) -> Float[np.ndarray, "r"]:
    """Return the root of the mean square error over windows and variables of each run; NaN if it diverged.

    A mean of roots, window by window, would be lower on small rings, whose windows differ more from one another.
    """
    found, truth = run_filter(filter, test), np.asarray(test.trials.twins.truth)
    errors = np.sqrt(np.mean((found["mean"] - truth)[:, test.burn_in :] ** 2, axis=(1, 2)))
    return np.where(found["diverged"] >= 0, np.nan, errors)


def _cost(filter: da.Filter, system: da.System, members: int, key: PRNGKeyArray) -> dict[str, np.ndarray]:
    """Return the seconds of one analysis, and its memory with all that goes in and out."""
    prior = 3.6 * jax.random.normal(jax.random.key(0), (members, system.size))
    observed = system.observation.window(prior[0, ::4] + 1)
    arrays, static = eqx.partition((filter, observed), eqx.is_array)

    def analyse(arrays: Any, prior: Float[Array, "N n"]) -> Float[Array, "N n"]:
        filter, observed = eqx.combine(arrays, static)
        return filter(prior, observed, key=key)

    compiled = jax.jit(analyse).lower(arrays, prior).compile()
    memory: Any = compiled.memory_analysis()
    seconds = []
    for _ in range(6):
        begun = time.perf_counter()
        jax.block_until_ready(compiled(arrays, prior))
        seconds.append(time.perf_counter() - begun)
    taken = memory.temp_size_in_bytes + memory.argument_size_in_bytes + memory.output_size_in_bytes
    return {"seconds": np.array(min(seconds[1:])), "mebibytes": np.array(taken / 2**20)}
