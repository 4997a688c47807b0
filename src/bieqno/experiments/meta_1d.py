"""Experiment ``meta-1d``: the tasks that neural processes are compared on, by log-likelihood per value.

One process is trained on all families and tested on each; the published ones are trained for each of them by itself.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import equinox as eqx
import jax
import numpy as np
import xarray as xr
from jaxtyping import Int

from bieqno import persistence
from bieqno.experiments.experiment import Description, Experiment, Findings, Run
from bieqno.experiments.meta_scores import (
    DIMENSIONS,
    draw,
    given_before,
    given_observed,
    per_value,
    picture,
    under_truth,
)
from bieqno.experiments.meta_tasks import FAMILIES, KERNELS, LENGTH, TARGETS, TaskSource
from bieqno.experiments.results import Row
from bieqno.regression.meta import Bank, ChainProcess
from bieqno.regression.meta.learning import Tasks, learn_bank, learn_process
from bieqno.training import Progress as TrainingProgress

DESCRIPTION = Description(
    title="Learning from many functions",
    question="A process is trained on thousands of functions: smooth, rough, weakly periodic, sawtooths. Given up to 30 values "
    "of a new one, what density does it give to 50 or 100 further values, and how near is that to the best possible?",
    claim="None; the paper does not go there. Bruinsma et al. (2023) report neural processes, each trained for one family by "
    "itself (GNP pools by the mean, as the paper does).",
    minutes={"smoke": 0.5, "quick": 8.0, "paper": 50.0},
    methods=(
        "ggp-meta", "ggp-meta-single", "ggp-meta-no-pieces", "ggp-meta-bank", "gp-true", "GNP (published)", "ConvGNP (published)",
        "AR ConvCNP (published)",
    ),
)  # fmt: skip
METRIC = "log_likelihood"
MIXTURE = "mixture"
CASES = {**TARGETS, MIXTURE: 100}
"""Values to be predicted in each."""

# Log-likelihood per value as published for these tasks; taken over, not run again here.
_PUBLISHED = {
    "GNP (published)": {"sawtooth": -0.18, MIXTURE: -0.69},
    "ConvGNP (published)": {"sawtooth": 2.87, MIXTURE: 0.16},
    "AR ConvCNP (published)": {"sawtooth": 3.62},
}
_KNOWN = [Bank, ChainProcess]


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


def study(s: Settings, run: Run) -> Findings:
    """Train the process once, and score every method on the tasks of every family and on their mixture."""
    bank_key, train_key, task_key, mixture_key, figure_key = jax.random.split(jax.random.key(run.seed), 5)

    def telling(part: str, begin: float, end: float) -> Callable[[TrainingProgress], None]:
        return lambda p: run.tell(part, begin + (end - begin) * p.step / p.steps, training=p)

    @cache
    def bank() -> Bank:
        def learn() -> dict[str, np.ndarray]:
            run.tell("kernels", 0.0)
            result = learn_bank(
                TaskSource(s.each, LENGTH // 2), steps=s.bank_steps, key=bank_key, checkpoint=run.cases.checkpoint("kernels"),
                on_progress=telling("kernels", 0.0, 0.1),
            )  # fmt: skip
            return _stored(result.module)

        return _restored(run.cases.take("kernels", learn))

    @cache
    def process(pieces: bool) -> ChainProcess:
        part, begin = ("training", 0.1) if pieces else ("training without pieces", 0.5)
        processes = bank()

        def learn() -> dict[str, np.ndarray]:
            run.tell(part, begin)
            result = learn_process(
                processes, TaskSource(s.each), steps=s.steps, key=train_key, pieces=pieces, width=s.width,
                checkpoint=run.cases.checkpoint(part), on_progress=telling(part, begin, begin + 0.4),
            )  # fmt: skip
            return _stored(result.module)

        return _restored(run.cases.take(part, learn))

    def scored(method: str, tasks: Tasks, seen: Int[np.ndarray, "b"]) -> dict[str, np.ndarray]:
        if method == "ggp-meta-single":
            return {"each": given_observed(process(True), tasks, seen)}
        asked = bank() if method == "ggp-meta-bank" else process(method == "ggp-meta")
        return {"each": given_before(asked, tasks)}

    wanted = [method for method in DESCRIPTION.methods if run.wants(method)]
    # Trained before anything is scored, so that progress is told in order.
    if {"ggp-meta", "ggp-meta-single"} & set(wanted):
        process(True)
    if "ggp-meta-no-pieces" in wanted:
        process(False)
    rows: list[Row] = []
    arrays: dict[str, xr.Dataset] = {}
    for place, (case, targets) in enumerate(CASES.items()):
        families = (case,) if case in FAMILIES else FAMILIES
        key, count = (task_key, s.tasks) if case in FAMILIES else (mixture_key, s.tasks // len(FAMILIES))
        tasks, seen = draw(key, count, families)
        for method in wanted:
            run.tell(f"{case}, {method}", 0.9 + 0.1 * place / len(CASES))
            if method in _PUBLISHED:
                rows += [
                    Row(case, method, METRIC, value, None, 1) for on, value in _PUBLISHED[method].items() if on == case
                ]
            elif method != "gp-true":
                each = run.cases.take(f"{case}/{method}", partial(scored, method, tasks, seen))["each"]
                rows.append(Row.of(case, method, METRIC, per_value(each, seen, targets)))
            elif case in KERNELS:
                rows.append(Row.of(case, method, METRIC, per_value(under_truth(case, tasks), seen, targets)))
        if case in FAMILIES and "ggp-meta" in wanted:
            shown = run.cases.take(f"{case}/figure", partial(picture, process(True), tasks, s.points, figure_key))
            arrays[case] = xr.Dataset({name: (DIMENSIONS[name], values) for name, values in shown.items()})
    return rows, arrays


EXPERIMENT = Experiment("meta-1d", DESCRIPTION, PRESETS, study)
run = EXPERIMENT.run


def _stored(module: eqx.Module) -> dict[str, np.ndarray]:
    return {"module": np.frombuffer(persistence.to_bytes(module, known=_KNOWN), np.uint8)}


def _restored(arrays: dict[str, np.ndarray]) -> Any:
    return persistence.from_bytes(arrays["module"].tobytes(), known=_KNOWN)
