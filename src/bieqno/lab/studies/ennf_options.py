"""Study ``ennf-options``: what each choice in the ensemble neural filter and its training is worth, on Lorenz-63.

The defaults of `EnNF` and `Imitation` were chosen by it. Every variant differs from the default in one choice and sees the same
lessons with the same budget of steps. The one with the error as an input is a bound and no candidate: the
paper's law is evaluated at the truth, which can be read off it.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeAlias

import jax
import numpy as np

from bieqno.assimilation import EnKF, Filter
from bieqno.lab.methods import filters
from bieqno.lab.methods.imitation import compare_on_paper, imitate, paper_cases, paper_lessons
from bieqno.lab.papers import paper_lorenz63
from bieqno.lab.studies.lorenz import LORENZ63
from bieqno.lab.study import Description, Experiment, Findings, Run

_TRAINING = {**LORENZ63.presets["quick"].training, "steps": 2500}
PRESETS = {
    "smoke": replace(LORENZ63.presets["smoke"], sizes=(2,)),
    "quick": replace(LORENZ63.presets["quick"], sizes=(2, 16), student={"width": 32}, training=_TRAINING),
    "paper": replace(LORENZ63.presets["paper"], sizes=(2, 4, 16)),
}
Change: TypeAlias = Callable[[filters.FilterSettings], filters.FilterSettings]


def variants() -> dict[str, Change]:
    """Return the default, and what differs from it in one choice, by the change of the settings."""

    def student(**options: bool) -> Change:
        return lambda s: replace(s, student={**s.student, **options})

    def training(**options: float) -> Change:
        return lambda s: replace(s, training={**s.training, **options})

    def whole_ensembles(s: filters.FilterSettings) -> filters.FilterSettings:
        members = max(s.teacher_members, 2 * s.training.get("members", 512) // s.teacher_members * s.teacher_members)
        return replace(s, training={**s.training, "sizes": (s.teacher_members,), "members": members})

    def stacked(s: filters.FilterSettings) -> filters.FilterSettings:
        return replace(s, fine_tuning={**s.training, "steps": s.training["steps"] // 4, "learning_rate": 5e-4})

    return {
        "EnNF": lambda s: s,
        "EnNF, full value": student(increment=False),
        "EnNF, no anomalies": student(anomalies=False),
        "EnNF, error input": student(error_input=True),
        "EnNF, whole ensembles": whole_ensembles,
        "EnNF, good priors only": training(shift=0.0, noise=0.0),
        "EnNF, stacked weights": stacked,
    }


DESCRIPTION = Description(
    title="What each choice in the neural filter is worth",
    question="The filter and its training hold choices that the paper leaves open: increments or values, which ensembles and "
    "which priors are shown, one network or one for each variable. What does the error become when one of them is changed?",
    claim="None; the paper does not vary them.",
    minutes={"smoke": 1.0, "quick": 5.0, "paper": 50.0},
    methods=("EnKF", *variants()),
)


def study(s: filters.FilterSettings, run: Run) -> Findings:
    """Train every variant on the same lessons, and compare them with their teacher."""
    paper = paper_lorenz63()
    record_key, truth_key, train_key, run_key = jax.random.split(jax.random.key(run.seed), 4)
    lessons = paper_lessons(s, paper, record_key, run_key)

    def learned(name: str, change: Change) -> Filter:
        def learn() -> dict[str, np.ndarray]:
            return {"filter": filters.as_array(imitate(change(s), Run(), paper.system, lessons, key=train_key))}

        return filters.as_filter(run.cases.take(f"training of {name}", learn)["filter"])

    methods = [filters.fixed("EnKF", lambda: EnKF(centred=False))]
    methods += [filters.fixed(name, partial(learned, name, change)) for name, change in variants().items()]
    keys = {"record_key": record_key, "truth_key": truth_key, "tune_key": train_key, "key": run_key}
    rows, _ = compare_on_paper(run, [(one, s.sizes) for one in methods], paper_cases(s, paper, **keys))
    return rows, {}


EXPERIMENT = Experiment("ennf-options", DESCRIPTION, PRESETS, study)
