"""Experiment ``ennf-options``: what each choice in the ensemble neural filter and its training is worth, on Lorenz-63.

The defaults of `EnNF` and `imitate` were chosen by it. Every variant differs from the default in one choice and sees the same
lessons for the same number of steps. The one with the error as an input is a bound and no candidate: the
paper's law is evaluated at the truth, which can be read off it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import jax
import numpy as np

from bieqno.assimilation import EnKF, Filter, teach
from bieqno.lab.filter_experiment import Settings, as_array, as_filter, train
from bieqno.lab.filter_study import Method, compare_filters, trial_makers
from bieqno.lab.papers import paper_lorenz63
from bieqno.lab.studies import lorenz63
from bieqno.lab.study import Description, Experiment, Findings, Run

PRESETS = {
    "smoke": replace(lorenz63.PRESETS["smoke"], sizes=(2,)),
    "quick": replace(
        lorenz63.PRESETS["quick"], sizes=(2, 16), student={"width": 32},
        training={**lorenz63.PRESETS["quick"].training, "steps": 2500},
    ),
    "paper": replace(lorenz63.PRESETS["paper"], sizes=(2, 4, 16)),
}  # fmt: skip


@dataclass(frozen=True)
class Variant:
    """A name for a choice, and the settings that it changes."""

    name: str
    change: Callable[[Settings], Settings]


def variants() -> list[Variant]:
    """The default, and what differs from it in one choice."""

    def student(**options: bool) -> Callable[[Settings], Settings]:
        return lambda s: replace(s, student={**s.student, **options})

    def training(**options: float) -> Callable[[Settings], Settings]:
        return lambda s: replace(s, training={**s.training, **options})

    def whole_ensembles(s: Settings) -> Settings:
        members = max(s.teacher_members, 2 * s.training.get("members", 512) // s.teacher_members * s.teacher_members)
        return replace(s, training={**s.training, "sizes": (s.teacher_members,), "members": members})

    def stacked(s: Settings) -> Settings:
        return replace(s, fine_tuning={**s.training, "steps": s.training["steps"] // 4, "learning_rate": 5e-4})

    return [
        Variant("EnNF", lambda s: s),
        Variant("EnNF, full value", student(increment=False)),
        Variant("EnNF, no anomalies", student(anomalies=False)),
        Variant("EnNF, error input", student(error_input=True)),
        Variant("EnNF, whole ensembles", whole_ensembles),
        Variant("EnNF, good priors only", training(shift=0.0, noise=0.0)),
        Variant("EnNF, stacked weights", stacked),
    ]


DESCRIPTION = Description(
    title="What each choice in the neural filter is worth",
    question="The filter and its training hold choices that the paper leaves open: increments or values, which ensembles and "
    "which priors are shown, one network or one for each variable. What does the error become when one of them is changed?",
    claim="None; the paper does not vary them.",
    minutes={"smoke": 1.0, "quick": 5.0, "paper": 50.0},
    methods=("EnKF", *(variant.name for variant in variants())),
)


def study(s: Settings, run: Run) -> Findings:
    """Train every variant on the same lessons, and compare them with their teacher."""
    setup = paper_lorenz63()
    record_key, truth_key, train_key, run_key = jax.random.split(jax.random.key(run.seed), 4)
    trials = setup.trials(
        s.training_windows, runs=s.teacher_runs, members=s.teacher_members, one_record=True, key=record_key
    )
    teacher = EnKF(centred=False)
    lessons = teach(teacher, setup.model, setup.observation, trials, limit=setup.limit, key=run_key)

    def method(variant: Variant) -> Method:
        def learn() -> dict[str, np.ndarray]:
            return {"filter": as_array(train(variant.change(s), lessons, setup.model, key=train_key))}

        def build(size: int) -> Filter:
            return as_filter(run.cases.take(f"training of {variant.name}", learn)["filter"])

        return Method(variant.name, build, s.sizes)

    makers = trial_makers(
        setup, windows=s.windows, runs=s.runs, first_run=s.teacher_runs, truths=s.truths,
        record_key=record_key, truth_key=truth_key,
    )  # fmt: skip
    methods = [Method("EnKF", lambda size: teacher, s.sizes), *map(method, variants())]
    rows, _ = compare_filters(run, setup, methods, makers, key=run_key)
    return rows, {}


EXPERIMENT = Experiment("ennf-options", DESCRIPTION, PRESETS, study)
run = EXPERIMENT.run
