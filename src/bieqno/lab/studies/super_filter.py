"""Experiment ``super-filter``: one ensemble neural filter that has learned several filters and acts as any of them.

Section 2.3 of the paper calls for a filter that can represent many. Four teachers analyse the same windows of Lorenz-63, the
student is told by a code which of them to follow, and is judged on windows of truths that it has not seen: its distance to
each teacher, against the distances between the teachers. The student gives a gain (`LearnedGain`): one that gives increments
(`EnNF`) did not tell the teachers apart, for increments are far larger than the differences between filters.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import equinox as eqx
import jax
import numpy as np
import xarray as xr
from jaxtyping import Array, Float, PRNGKeyArray

from bieqno.assimilation import (
    ETKF,
    LETKF,
    AffineLaw,
    EnKF,
    Filter,
    Inflated,
    LearnedGain,
    Lessons,
    Neighbours,
    Observation,
    SerialEnSRF,
    Trials,
    imitate,
    make_trials,
    teach,
)
from bieqno.lab.filter_experiment import as_array, as_filter
from bieqno.lab.filter_study import run_method
from bieqno.lab.papers import Setup, paper_lorenz63
from bieqno.lab.results import Row
from bieqno.lab.study import Description, Experiment, Findings, Run

DESCRIPTION = Description(
    title="One filter in four roles",
    question="One neural filter learns from four classical filters at once and is told by a code which of them to follow. On "
    "truths it has not seen, is it closer to the filter it was told to follow than these filters are to each other?",
    claim="The EnNF has the potential to be a super filter that represents a series of ensemble filters (abstract, section 2.3).",
    minutes={"smoke": 0.5, "quick": 8.0, "paper": 45.0},
)
INFLATION = 1.2


@dataclass(frozen=True)
class Settings:
    """What is run.

    Attributes:
        preset: name of the settings.
        members: ensemble size of teachers and student.
        truths: truths that the teachers show.
        unseen: truths that the student is judged on.
        windows: windows of each.
        student: settings of the `LearnedGain`.
        training: settings of `imitate`.
    """

    preset: str
    members: int = 16
    truths: int = 100
    unseen: int = 5
    windows: int = 150
    student: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)


PRESETS = {
    "smoke": Settings(
        "smoke", 8, 2, 2, 15, {"width": 8, "depth": 2}, {"steps": 20, "sizes": (8,), "members": 32, "shift": 0.0}
    ),
    "quick": Settings("quick", training={"steps": 15_000, "sizes": (16,), "members": 1024, "shift": 0.0, "noise": 0.0}),
    "paper": Settings("paper", training={"steps": 40_000, "sizes": (16,), "members": 1024, "shift": 0.0, "noise": 0.0}),
}


def teachers() -> dict[str, Filter]:
    """The four filters; the local one sees each observation with 0.68 of its weight at a distance of one variable, 0.21 at two.

    All are inflated alike. Without it they lose the truth now and then, with innovations of a hundred standard deviations, and
    the few such windows would decide every distance.
    """
    place = np.arange(3.0)[:, None]
    near = Neighbours.within(4.0, place, place[[0, 2]])
    plain: dict[str, Filter] = {
        "EnKF": EnKF(centred=False),
        "ETKF": ETKF(),
        "serial EnSRF": SerialEnSRF(),
        "LETKF": LETKF(near, 4.0),
    }
    return {name: Inflated(filter, INFLATION) for name, filter in plain.items()}


def regular_setup() -> Setup:
    """The paper's Lorenz-63 with errors of at least 0.05, the offset of its law.

    The law passes through zero at d = -0.5. There R is singular, and what float32 makes of an analysis is a matter of rounding
    and not of the filter: nothing to be learned.
    """
    observation = Observation([0, 2], AffineLaw(0.1, 0.05), floor=0.05)
    return eqx.tree_at(lambda s: s.observation, paper_lorenz63(), observation)


def study(s: Settings, run: Run) -> Findings:
    """Teach the four roles at once, and compare each with its teacher."""
    setup, taught = regular_setup(), teachers()
    shown_key, unseen_key, student_key, train_key, run_key = jax.random.split(jax.random.key(run.seed), 5)

    def trials(truths: int, key: jax.Array) -> Trials:
        return make_trials(
            setup.model, setup.observation, s.windows, state=setup.state, truths=truths, members=s.members, key=key
        )

    def learn() -> dict[str, np.ndarray]:
        run.tell("teachers", 0.0)
        shown = [
            teach(filter, setup.model, setup.observation, trials(s.truths, shown_key), limit=setup.limit, key=run_key)
            for filter in taught.values()
        ]
        student = LearnedGain(2, teachers=len(taught), **s.student, key=student_key)
        result = imitate(
            student, Lessons.together(*shown), **s.training, key=train_key,
            on_progress=lambda p: run.tell("training", 0.1 + 0.8 * p.step / p.steps, training=p),
        )  # fmt: skip
        return {"filter": as_array(result.module)}

    learned: LearnedGain = as_filter(run.cases.take("training", learn)["filter"])
    run.tell("unseen truths", 0.9)
    # The windows to judge on are those that a well-behaved filter comes to; all filters are then given the same priors.
    unseen = teach(
        taught["ETKF"], setup.model, setup.observation, trials(s.unseen, unseen_key), limit=setup.limit, key=run_key
    )
    analyses = {name: answers(filter, unseen, key=run_key) for name, filter in taught.items()}
    imitated = {name: answers(learned.acting_as(k), unseen, key=run_key) for k, name in enumerate(taught)}
    rows = _distances(analyses, imitated)
    for k, (name, filter) in enumerate(taught.items()):
        for method, one in ((name, filter), (f"EnNF as {name}", learned.acting_as(k))):
            rows.append(_cycled(setup, method, one, trials(s.unseen, unseen_key), s.members, run_key))
    arrays = xr.Dataset(
        {"distance": (("teacher", "student"), _table(analyses, imitated))},
        {"teacher": list(taught), "student": [f"EnNF as {name}" for name in taught]},
    )
    return rows, {"distances": arrays}


EXPERIMENT = Experiment("super-filter", DESCRIPTION, PRESETS, study)
run = EXPERIMENT.run


def answers(filter: Filter, lessons: Lessons, *, key: PRNGKeyArray) -> Float[np.ndarray, "L N n"]:
    """What a filter makes of the priors of the lessons; with the same key all filters see the same perturbed observations."""
    return np.asarray(_analyses(filter, lessons, key))


@eqx.filter_jit
def _analyses(filter: Filter, lessons: Lessons, key: PRNGKeyArray) -> Float[Array, "L N n"]:
    def one(prior: Array, value: Array, mask: Array, reference: Array, key: PRNGKeyArray) -> Array:
        return filter(prior, lessons.observation.window(value, mask=mask, reference=reference), key=key)

    keys = jax.random.split(key, lessons.prior.shape[0])
    return jax.vmap(one)(lessons.prior, lessons.value, lessons.mask, lessons.reference, keys)


def distance(first: Float[np.ndarray, "L N n"], second: Float[np.ndarray, "L N n"]) -> float:
    """Root-mean-square distance between the members of two analyses."""
    return float(np.sqrt(np.mean((first - second) ** 2)))


def _distances(analyses: Mapping[str, np.ndarray], imitated: Mapping[str, np.ndarray]) -> list[Row]:
    between = [distance(analyses[a], analyses[b]) for a, b in combinations(analyses, 2)]
    typical = float(np.median(between))
    rows = [
        Row.of("unseen", "teachers", "distance_between", between),
        Row.of("unseen", "teachers", "typical", [typical]),
    ]
    for name in analyses:
        gap = distance(analyses[name], imitated[name])
        rows.append(Row.of("unseen", f"EnNF as {name}", "distance_to_teacher", [gap]))
        rows.append(Row.of("unseen", f"EnNF as {name}", "share_of_typical", [gap / typical]))
    return rows


def _table(analyses: Mapping[str, np.ndarray], imitated: Mapping[str, np.ndarray]) -> Float[np.ndarray, "a b"]:
    return np.array([[distance(a, b) for b in imitated.values()] for a in analyses.values()])


def _cycled(setup: Setup, method: str, filter: Filter, trials: Trials, members: int, key: jax.Array) -> Row:
    """The error of a filter that runs by itself."""
    outcome = run_method(setup, filter, trials, key=key)
    sound = outcome.errors[outcome.diverged < 0].tolist()
    diverged = int(np.sum(outcome.diverged >= 0))
    return Row.of(
        f"N={members}", method, "relative_rmse", sound, ensemble_size=members, protocol="unseen", diverged=diverged
    )
