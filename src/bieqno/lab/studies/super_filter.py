"""Study ``super-filter``: one ensemble neural filter that has learned several filters and acts as any of them.

Section 2.3 of the paper calls for a filter that can represent many. Four teachers analyse the same windows of Lorenz-63, the
student is told by a code which of them to follow, and is judged on windows of truths that it has not seen: its distance to
each teacher, against the distances between the teachers. The student gives a gain (`LearnedGain`): one that gives increments
(`EnNF`) did not tell the teachers apart, for increments are far larger than the differences between filters.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
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
from bieqno.lab.papers import paper_lorenz63
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
    """What is run: the teachers show `truths`, the student is judged on `unseen` ones; `training` is without early stopping."""

    preset: str
    members: int = 16
    truths: int = 100
    unseen: int = 5
    windows: int = 150
    student: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)


_BRIEF = {"steps": 20, "sizes": (8,), "members": 32, "shift": 0.0}
_TRAINING = {"sizes": (16,), "members": 1024, "shift": 0.0, "noise": 0.0}
PRESETS = {
    "smoke": Settings("smoke", 8, 2, 2, 15, {"width": 8, "depth": 2}, _BRIEF),
    "quick": Settings("quick", training={"steps": 15_000, **_TRAINING}),
    "paper": Settings("paper", training={"steps": 40_000, **_TRAINING}),
}


def teachers() -> dict[str, da.Filter]:
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
    system, taught = regular_system(), teachers()
    shown_key, unseen_key, student_key, train_key, run_key = jax.random.split(jax.random.key(run.seed), 5)

    def trials(truths: int, key: PRNGKeyArray) -> da.Trials:
        return da.make_trials(system, s.windows, truths=truths, members=s.members, key=key)

    def learn() -> dict[str, np.ndarray]:
        run.progress("teachers", 0.0)
        shown = [da.teach(filter, system, trials(s.truths, shown_key), key=run_key) for filter in taught.values()]
        student = da.LearnedGain(system.observed, teachers=len(taught), **s.student, key=student_key)
        objective, part = partial(da.Imitation, da.Lessons.together(*shown), rerun=False), run.between(0.1, 0.9)
        result = filters.train(part, "training", student, system, objective, **s.training, validate=None, key=train_key)
        return {"filter": filters.as_array(result.module)}

    learned: da.LearnedGain = filters.as_filter(run.cases.take("training", learn)["filter"])
    run.progress("unseen truths", 0.9)
    # The windows to judge on are those that a well-behaved filter comes to; all filters are then given the same priors.
    unseen = da.teach(taught["ETKF"], system, trials(s.unseen, unseen_key), key=run_key)
    roles = {f"EnNF as {name}": learned.acting_as(k) for k, name in enumerate(taught)}
    analyses, imitated = ([np.asarray(answers(f, unseen, run_key)) for f in some.values()] for some in (taught, roles))
    test = filters.TwinTest(system, trials(s.unseen, unseen_key), None, run_key)
    case = Case(f"N={s.members}", lambda _: test, about={"ensemble_size": s.members, "protocol": "unseen"})
    pairs = zip(taught.items(), roles.items(), strict=True)
    plan = [(case, Method(name, partial(filters.run_filter, f))) for pair in pairs for name, f in pair]
    outcomes = compare(run.between(0.9, 1.0), plan, filters.score_filter)
    table = np.array([[distance(a, b) for b in imitated] for a in analyses])
    between = [distance(a, b) for a, b in combinations(analyses, 2)]
    typical = float(np.median(between))
    found = [("teachers", "distance_between", between), ("teachers", "typical", [typical])]
    for role, gap in zip(roles, np.diag(table).tolist(), strict=True):
        found += [(role, "distance_to_teacher", [gap]), (role, "share_of_typical", [gap / typical])]
    rows = [*(Row.of("unseen", *row) for row in found), *filters.filter_rows(outcomes, ("relative_rmse",))]
    labels = {"teacher": list(taught), "student": list(roles)}
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
