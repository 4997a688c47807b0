"""Study ``super-filter``: one ensemble neural filter that has learned several filters and acts as any of them.

Section 2.3 of the paper calls for a filter that can represent many. Four teachers analyse the same windows of Lorenz-63, the
student gets a code of the one to follow, and is scored on windows of unseen truths: its distance to
each teacher, against the distances between the teachers. The student gives a gain (`LearnedGain`): one that gives increments
(`EnNF`) did not separate the teachers, for increments are far larger than the differences between filters. The paper's form
is equation 13 as it stands, which gives values; the code is one more input of its fitting net.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import combinations
from typing import Any

import equinox as eqx
import jax
import numpy as np
import xarray as xr
from jaxtyping import Array, Float, PRNGKeyArray

import bieqno.assimilation as da
from bieqno.lab.compare import Case, Method, compare
from bieqno.lab.methods import filters
from bieqno.lab.methods.ennf_paper import PAPER_FORM, train_paper_form
from bieqno.lab.methods.filters import LEARNED
from bieqno.lab.papers import paper_lorenz63
from bieqno.lab.results import Row
from bieqno.lab.study import Description, Experiment, Findings, Run

DESCRIPTION = Description(
    title="One filter in four roles",
    question="One neural filter learns from four classical filters at once and gets a code of the one to follow. On "
    "truths it has not seen, is it closer to the filter that it follows than these filters are to each other?",
    claim="The EnNF has the potential to be a super filter that represents a series of ensemble filters (abstract, section 2.3).",
    minutes={"smoke": 0.5, "quick": 11.0, "paper": 70.0},
    methods=(LEARNED, PAPER_FORM),
)
INFLATION = 1.2


@dataclass(frozen=True)
class Settings:
    """What is run: the teachers show `truths`, the student is scored on `unseen` ones; `training` is without early stopping.

    The paper's form goes through all lessons for a number of `epochs`.
    """

    preset: str
    members: int = 16
    truths: int = 100
    unseen: int = 5
    windows: int = 150
    student: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)
    epochs: int = 20


_BRIEF = {"steps": 20, "sizes": (8,), "members": 32, "shift": 0.0}
_TRAINING = {"sizes": (16,), "members": 1024, "shift": 0.0, "noise": 0.0}
PRESETS = {
    "smoke": Settings("smoke", 8, 2, 2, 15, {"width": 8, "depth": 2}, _BRIEF, 1),
    "quick": Settings("quick", training={"steps": 15_000, **_TRAINING}, epochs=3),
    "paper": Settings("paper", training={"steps": 40_000, **_TRAINING}),
}


def four_teachers() -> dict[str, da.Filter]:
    """Return the four filters; the local one gives an observation 0.68 of its weight at a distance of one, 0.21 at two.

    All are inflated alike. Without it they lose the truth now and then, with innovations of a hundred standard deviations, and
    the few such windows would decide every distance.
    """
    place = np.arange(3.0)[:, None]
    near = da.Neighbours.within(4.0, place, place[[0, 2]])
    plain: dict[str, da.Filter] = {"EnKF": da.EnKF(centred=False), "ETKF": da.ETKF()}
    plain |= {"serial EnSRF": da.SerialEnSRF(), "LETKF": da.LETKF(near, 4.0)}
    return {name: da.Inflated(filter, INFLATION) for name, filter in plain.items()}


def regular_system() -> da.System:
    """Return the paper's Lorenz-63 with errors of at least 0.05, the offset of its law.

    The law passes through zero at d = -0.5. There R is singular, and an analysis in float32 is a matter of rounding
    and not of the filter: nothing to be learned.
    """
    return eqx.tree_at(lambda s: s.observation.error, paper_lorenz63().system, replace_fn=lambda law: law.floored(0.05))


def study(s: Settings, run: Run) -> Findings:
    """Teach the four roles at once, and compare each with its teacher."""
    system, teachers = regular_system(), four_teachers()
    shown_key, unseen_key, student_key, train_key, run_key = jax.random.split(jax.random.key(run.seed), 5)

    def trials(truths: int, key: PRNGKeyArray) -> da.Trials:
        return da.make_trials(system, s.windows, truths=truths, members=s.members, key=key)

    @cache
    def lessons() -> da.Lessons:
        run.progress("teachers", 0.0)
        return da.Lessons.together(
            *(da.teach(filter, system, trials(s.truths, shown_key), key=run_key) for filter in teachers.values())
        )

    def learn() -> dict[str, np.ndarray]:
        student = da.LearnedGain(system.observed, teachers=len(teachers), **s.student, key=student_key)
        objective, part = partial(da.Imitation, lessons(), rerun=False), run.between(0.1, 0.6)
        result = filters.train(part, "training", student, system, objective, **s.training, validate=None, key=train_key)
        return {"filter": filters.as_array(result.module)}

    def learn_as_the_paper() -> dict[str, np.ndarray]:
        about, part = {**s.student, "teachers": len(teachers)}, run.between(0.6, 0.9)
        made, facts = train_paper_form(part, system, lessons(), epochs=s.epochs, student=about, key=train_key)
        numbers = {name: np.array(facts[name]) for name in ("epochs", "seconds", "distance_to_teacher")}
        return {"filter": filters.as_array(made), **numbers}

    forms = {LEARNED: ("training", learn), PAPER_FORM: ("training, the paper's form", learn_as_the_paper)}
    learned = {form: run.cases.take(*how) for form, how in forms.items() if run.wants(form)}
    run.progress("unseen truths", 0.9)
    # The windows to score on are those that a well-behaved filter comes to; all filters are then given the same priors.
    unseen = da.teach(teachers["ETKF"], system, trials(s.unseen, unseen_key), key=run_key)
    roles = {
        f"{form} as {name}": (name, filters.as_filter(found["filter"]).acting_as(k))
        for form, found in learned.items()
        for k, name in enumerate(teachers)
    }
    everyone = {**teachers, **{role: filter for role, (_, filter) in roles.items()}}
    analyses = {name: np.asarray(answers(filter, unseen, run_key)) for name, filter in everyone.items()}
    test = filters.TwinTest(system, trials(s.unseen, unseen_key), None, run_key)
    case = Case(f"N={s.members}", lambda _: test, about={"ensemble_size": s.members, "protocol": "unseen"})
    plan = [(case, Method(name, partial(filters.run_filter, f))) for name, f in everyone.items()]
    outcomes = compare(run.between(0.9, 1.0), plan, filters.score_filter)
    table = np.array([[distance(analyses[name], analyses[role]) for role in roles] for name in teachers])
    between = [distance(analyses[a], analyses[b]) for a, b in combinations(teachers, 2)]
    typical = float(np.median(between))
    rows = [
        Row.of("unseen", "teachers", "distance_between", between),
        Row.of("unseen", "teachers", "typical", [typical]),
    ]
    for role, (name, _) in roles.items():
        gap = distance(analyses[name], analyses[role])
        rows += [
            Row.of("unseen", role, metric, [value])
            for metric, value in (("distance_to_teacher", gap), ("share_of_typical", gap / typical))
        ]
    facts = learned.get(PAPER_FORM, {}).items()
    rows += [Row.of("training", PAPER_FORM, name, [float(value)]) for name, value in facts if name != "filter"]
    rows += filters.filter_rows(outcomes, ("relative_rmse",))
    labels = {"teacher": list(teachers), "student": list(roles)}
    return rows, {"distances": xr.Dataset({"distance": (("teacher", "student"), table)}, labels)}


EXPERIMENT = Experiment("super-filter", DESCRIPTION, PRESETS, study)


@eqx.filter_jit
def answers(filter: da.Filter, lessons: da.Lessons, key: PRNGKeyArray) -> Float[Array, "L N n"]:
    """Return the analyses of the priors of the lessons; with the same key all filters see the same perturbed observations."""

    def one(prior: Array, value: Array, mask: Array, reference: Array, key: PRNGKeyArray) -> Array:
        return filter(prior, lessons.observation.window(value, mask=mask, reference=reference), key=key)

    keys = jax.random.split(key, lessons.prior.shape[0])
    return jax.vmap(one)(lessons.prior, lessons.value, lessons.mask, lessons.reference, keys)


def distance(first: Float[np.ndarray, "L N n"], second: Float[np.ndarray, "L N n"]) -> float:
    """Return the root-mean-square distance between the members of two analyses."""
    return float(np.sqrt(np.mean((first - second) ** 2)))
