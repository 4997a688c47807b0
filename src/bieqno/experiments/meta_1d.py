"""Experiment ``meta-1d``: the tasks that neural processes are compared on, by log-likelihood per value.

One process is trained on all families and tested on each; the published ones are trained for each of them by itself.
"""

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Float, Int, PRNGKeyArray

from bieqno import persistence
from bieqno.experiments.cases import Cases
from bieqno.experiments.description import Description, settings_of
from bieqno.experiments.meta_tasks import FAMILIES, KERNELS, LENGTH, MOST_OBSERVED, TARGETS, TaskSource, true_chain
from bieqno.experiments.results import Progress, Result, Row
from bieqno.regression.meta import Bank, ChainProcess
from bieqno.regression.meta.learning import Tasks, learn_bank, learn_process
from bieqno.training import Progress as TrainingProgress

NAME = "meta-1d"
DESCRIPTION = Description(
    title="Functions that many others were learned from",
    question="A process is trained on thousands of functions: smooth, rough, weakly periodic, sawtooths. Given up to 30 values "
    "of a new one, what density does it give to 50 or 100 further values, and how near is that to the best possible?",
    claim="None; the paper does not go there. Bruinsma et al. (2023) report neural processes, each trained for one family by "
    "itself (GNP pools by the mean, as the paper does).",
    minutes={"smoke": 0.5, "quick": 8.0, "paper": 50.0},
    methods=(
        "ggp-meta", "ggp-meta-single", "ggp-meta-bank", "gp-true", "GNP (published)", "ConvGNP (published)",
        "AR ConvCNP (published)",
    ),
)  # fmt: skip
METRIC = "log_likelihood"
MIXTURE = "mixture"
CASES = {**TARGETS, MIXTURE: 100}
"""Values to be predicted in each."""

# Log-likelihood per value, as printed by Bruinsma et al. (2023) and, of the mixture, with 100 values of every family.
_PUBLISHED = {
    "GNP (published)": {"sawtooth": -0.18, MIXTURE: -0.69},
    "ConvGNP (published)": {"sawtooth": 2.87, MIXTURE: 0.16},
    "AR ConvCNP (published)": {"sawtooth": 3.62},
}
_BATCH = 16
"""Tasks that are scored at once."""
_KNOWN = [Bank, ChainProcess]
_OBSERVED_IN_FIGURE, _SAMPLES = 12, 2
_DIMENSIONS = {
    "x": ("point",), "y": ("level",), "density": ("level", "point"), "sample": ("draw", "point"),
    "x_observed": ("observation",), "y_observed": ("observation",), "x_hidden": ("hidden",), "y_hidden": ("hidden",),
}  # fmt: skip


@dataclass(frozen=True)
class Settings:
    """What is run.

    Attributes:
        preset: name of the settings.
        tasks: of each family, and a quarter of it of each in the mixture.
        bank_steps: optimizer steps that the kernels are learned in.
        steps: optimizer steps of the process.
        each: tasks of each family in a step.
        width: of the process.
        points: where the figure shows the density and samples.
    """

    preset: str = "quick"
    tasks: int = 256
    bank_steps: int = 400
    steps: int = 600
    each: int = 4
    width: int = 64
    points: int = 160


PRESETS = {
    "smoke": Settings("smoke", tasks=4, bank_steps=3, steps=3, each=1, width=8, points=12),
    "quick": Settings(),
    "paper": Settings("paper", tasks=1024, bank_steps=800, steps=6000),
}


def run(
    settings: Settings | str = "quick",
    *,
    seed: int = 0,
    only: Collection[str] = (),
    cases: Cases | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> Result:
    """Run the experiment.

    Args:
        settings: what to run, or the name of a preset: smoke, quick or paper.
        seed: what everything random grows from.
        only: the methods to run, all if empty.
        cases: where trainings and scores are kept.
        on_progress: called before each part, and while it trains.
    """
    s, kept, started = settings_of(settings, PRESETS), Cases() if cases is None else cases, time.perf_counter()
    bank_key, train_key, task_key, mixture_key, figure_key = jax.random.split(jax.random.key(seed), 5)

    def tell(part: str, done: float, *training: Any) -> None:
        if on_progress is not None:
            on_progress(Progress(part, done, 1.0, time.perf_counter() - started, *training))

    def telling(part: str, begin: float, end: float) -> Callable[[TrainingProgress], None]:
        return lambda p: tell(part, begin + (end - begin) * p.step / p.steps, p.step, p.steps, p.loss)

    @cache
    def bank() -> Bank:
        def learn() -> dict[str, np.ndarray]:
            tell("kernels", 0.0)
            result = learn_bank(
                TaskSource(s.each, LENGTH // 2), steps=s.bank_steps, key=bank_key, checkpoint=kept.checkpoint("kernels"),
                on_progress=telling("kernels", 0.0, 0.1),
            )  # fmt: skip
            return _stored(result.module)

        return _restored(kept.take("kernels", learn))

    @cache
    def process() -> ChainProcess:
        def learn() -> dict[str, np.ndarray]:
            tell("training", 0.1)
            result = learn_process(
                bank(), TaskSource(s.each), steps=s.steps, key=train_key, width=s.width,
                checkpoint=kept.checkpoint("training"), on_progress=telling("training", 0.1, 0.9),
            )  # fmt: skip
            return _stored(result.module)

        return _restored(kept.take("training", learn))

    def scored(method: str, tasks: Tasks, seen: Int[np.ndarray, "b"]) -> dict[str, np.ndarray]:
        if method == "ggp-meta-single":
            return {"each": _in_batches(_given_observed, process(), tasks, seen)}
        return {"each": _in_batches(_given_before, process() if method == "ggp-meta" else bank(), tasks, seen)}

    if not only or {"ggp-meta", "ggp-meta-single"} & set(only):
        process()  # before all scores, so that its progress is told in order
    rows: list[Row] = []
    arrays: dict[str, xr.Dataset] = {}
    for place, (case, targets) in enumerate(CASES.items()):
        done = 0.9 + 0.1 * place / len(CASES)
        families = (case,) if case in FAMILIES else FAMILIES
        key, count = (task_key, s.tasks) if case in FAMILIES else (mixture_key, s.tasks // len(FAMILIES))
        tasks, seen = _draw(key, count, families)
        for method in ("ggp-meta", "ggp-meta-single", "ggp-meta-bank"):
            if not only or method in only:
                tell(f"{case}, {method}", done)
                each = kept.take(f"{case}/{method}", partial(scored, method, tasks, seen))["each"]
                rows.append(Row.of(case, method, METRIC, _per_value(each, seen, targets)))
        if case in KERNELS and (not only or "gp-true" in only):
            pairs = zip(np.asarray(tasks.x, np.float64), np.asarray(tasks.y, np.float64), strict=True)
            each = np.stack([true_chain(case, x, y) for x, y in pairs])
            rows.append(Row.of(case, "gp-true", METRIC, _per_value(each, seen, targets)))
        for method, values in _PUBLISHED.items():
            if case in values and (not only or method in only):
                rows.append(Row(case, method, METRIC, values[case], None, 1))
        if case in FAMILIES and (not only or "ggp-meta" in only):
            tell(f"{case}, figure", done)
            found = kept.take(f"{case}/figure", partial(_picture, process, tasks, s.points, figure_key))
            arrays[case] = xr.Dataset({name: (_DIMENSIONS[name], values) for name, values in found.items()})
    return Result(NAME, s.preset, seed, tuple(rows), arrays)


def _draw(key: PRNGKeyArray, count: int, families: tuple[str, ...]) -> tuple[Tasks, Int[np.ndarray, "b"]]:
    """Tasks of some families, so many of each, and how many values of each task are observed."""
    task_key, seen_key = jax.random.split(key)
    tasks = eqx.filter_jit(TaskSource(count))(task_key)
    rows = np.concatenate([np.arange(count) + count * FAMILIES.index(family) for family in families])
    seen = np.asarray(jax.random.randint(seen_key, (len(tasks.x),), 0, MOST_OBSERVED + 1))
    return Tasks(tasks.x[rows], tasks.y[rows]), seen[rows]


def _in_batches(
    densities: Callable[..., Float[Array, "b n"]],
    process: Bank | ChainProcess,
    tasks: Tasks,
    seen: Int[np.ndarray, "b"],
) -> Float[np.ndarray, "b n"]:
    parts = [slice(start, start + _BATCH) for start in range(0, len(seen), _BATCH)]
    return np.concatenate([densities(process, tasks.x[part], tasks.y[part], seen[part]) for part in parts])


@eqx.filter_jit
def _given_before(
    process: Bank | ChainProcess, x: Float[Array, "b n"], y: Float[Array, "b n"], seen: Int[Array, "b"]
) -> Float[Array, "b n"]:
    """Log-density of each value given all those before it."""
    return jax.vmap(lambda x, y: process.along(x, y).log_prob(y))(x, y)


@eqx.filter_jit
def _given_observed(
    process: Bank | ChainProcess, x: Float[Array, "b n"], y: Float[Array, "b n"], seen: Int[Array, "b"]
) -> Float[Array, "b n"]:
    """Log-density of each value by itself, given the observed ones."""
    place = jnp.arange(x.shape[1])
    return jax.vmap(lambda x, y, seen: process.at(x, x, y, place < seen).log_prob(y))(x, y, seen)


def _per_value(each: Float[np.ndarray, "b n"], seen: Int[np.ndarray, "b"], targets: int) -> list[float]:
    """Mean over the values to be predicted, for each task."""
    return [float(np.mean(own[start : start + targets])) for own, start in zip(each, seen, strict=True)]


def _picture(
    process: Callable[[], ChainProcess], tasks: Tasks, points: int, key: PRNGKeyArray
) -> dict[str, np.ndarray]:
    """What the figure shows of the first task: its values, the density of new ones and some samples."""
    x, y = tasks.x[0, :_OBSERVED_IN_FIGURE], tasks.y[0, :_OBSERVED_IN_FIGURE]
    low, high = jnp.min(tasks.y[0]), jnp.max(tasks.y[0])
    grid, levels = jnp.linspace(-2, 2, points), jnp.linspace(low - 0.5, high + 0.5, 150)
    # Samples in random order, as the tasks' own values are: neighbours at once would be told apart by noise alone.
    order = jax.random.permutation(key, points)

    @eqx.filter_jit
    def look(process: ChainProcess) -> tuple[Array, Array]:
        mixture = process.at(grid, x, y)
        density = jax.vmap(lambda level: jnp.exp(mixture.log_prob(jnp.full_like(grid, level))))(levels)
        drawn = jax.lax.map(lambda own: process.sample(grid[order], x, y, key=own), jax.random.split(key, _SAMPLES))
        return density, drawn[:, jnp.argsort(order)]

    density, samples = look(process())
    shown = {
        "x": grid, "y": levels, "density": density, "sample": samples, "x_observed": x, "y_observed": y,
        "x_hidden": tasks.x[0, _OBSERVED_IN_FIGURE:], "y_hidden": tasks.y[0, _OBSERVED_IN_FIGURE:],
    }  # fmt: skip
    return {name: np.asarray(array, np.float32) for name, array in shown.items()}


def _stored(module: eqx.Module) -> dict[str, np.ndarray]:
    return {"module": np.frombuffer(persistence.to_bytes(module, known=_KNOWN), np.uint8)}


def _restored(arrays: dict[str, np.ndarray]) -> Any:
    return persistence.from_bytes(arrays["module"].tobytes(), known=_KNOWN)
