"""A local filter that is trained against the truth, and its comparison with classical filters on unseen truths."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from types import MappingProxyType
from typing import Any, TypeAlias

import equinox as eqx
import jax
import numpy as np
import xarray as xr
from jaxtyping import Array, Bool, PRNGKeyArray

import bieqno.assimilation as da
from bieqno.lab.compare import Arrays, Method, Outcome, compare
from bieqno.lab.methods import filters
from bieqno.lab.methods.pictures import PICTURE, fields, pictured
from bieqno.lab.results import Row
from bieqno.lab.study import Findings, Run

FINE_TUNED = "EnNF fine-tuned"
Mask: TypeAlias = Callable[[int, PRNGKeyArray], Bool[Array, "T m"]]
"""Which observations there are in each of so many windows."""


def truth_study(
    s: filters.FilterSettings,
    run: Run,
    system: da.System,
    opponents: Sequence[filters.Tuned],
    *,
    networks: Mapping[str, Mask | None] = MappingProxyType({"unseen": None}),
    published: Sequence[Row] = (),
    trained_on: da.System | None = None,
    climate: bool = False,
    side: int = 0,
    energy: bool = False,
    others: Sequence[Method[filters.TwinTest]] = (),
) -> Findings:
    """Train a local filter against the truth, tune the opponents for each network and size, and compare all on unseen truths.

    `networks` say by name which observations there are (None for all); the names are the protocols of the rows. `published`
    are rows of others, put beside. The filter is `trained_on` another system, if one is given, and moved to this one. With
    `climate` first ensembles are states of free runs. A system with a `side` is a square, which is kept for pictures.
    With `energy` whole states are scored, too. `others` are further methods, run at the sizes of the learned filter.
    """
    train_key, truth_key, tune_key, run_key, mask_key = jax.random.split(jax.random.key(run.seed), 5)
    school = trained_on or system
    free = cache(lambda: da.Climate.of(system, key=train_key))

    @cache
    def lesson(size: int | None) -> Arrays:
        if size is None:  # for all of them, from where one is fine-tuned
            return train_against_truth(s, run.between(0.0, 0.5), school, key=train_key)
        own = replace(s, training={**s.fine_tuning, "sizes": {size: max(2, 160 // size)}})
        name, key, part = f"fine-tuning, N={size}", jax.random.fold_in(train_key, size), run.between(0.5, 0.5)
        return train_against_truth(own, part, school, name=name, begin=weights(None), key=key)

    def trials(network: str, size: int, truths: int, windows: int, key: PRNGKeyArray, practice: int) -> da.Trials:
        about: Any = {"truths": truths, "members": size, "climate": free() if climate else None}
        made, mask = da.make_trials(system, windows, **about, key=key), networks[network]
        if mask is None:
            return made
        own_key = jax.random.fold_in(mask_key, practice)
        seen = jax.vmap(lambda number: mask(windows, jax.random.fold_in(own_key, number)))(made.numbers)
        return eqx.tree_at(lambda t: t.twins.observations.mask, made, made.twins.observations.mask & seen)

    @cache
    def test(network: str, size: int) -> filters.TwinTest:
        practice = partial(trials, network, size, *s.tuning, tune_key, 1)
        chosen, label = trials(network, size, s.truths, s.windows, truth_key, 0), f"N={size}, {network}"
        about: Any = {"label": label, "rungs": s.rungs, "energy": energy}
        return filters.TwinTest(system, chosen, lambda: (practice(), s.tuning[1] // 10), run_key, s.burn_in, **about)

    def weights(size: int | None) -> Any:
        return filters.as_filter(lesson(size)["filter"])

    def learned(size: int | None) -> Any:
        return weights(size) if trained_on is None else weights(size).on(system, free())

    ennf = filters.fixed(filters.LEARNED, partial(learned, None))
    classical = [filters.tuned(one, run) for one in opponents]
    own = {size: filters.fixed(FINE_TUNED, partial(learned, size)) for size in s.sizes}
    plan = []
    for network in networks:
        case = partial(filters.twin_case, test, network)
        plan += [(case(size), ennf) for size in s.sizes]
        plan += [(case(size), own[size]) for size in s.sizes if s.fine_tuning]
        plan += [(case(size), method) for method in classical for size in s.tuned_sizes]
        plan += [(case(size), method) for method in others for size in s.sizes]
    plan = [(case, pictured(method, side)) for case, method in plan] if side else plan
    if run.wants(filters.LEARNED) or (s.fine_tuning and run.wants(FINE_TUNED)):
        lesson(None)
    outcomes = compare(run.between(0.5, 1.0), plan, filters.score_filter, keep=[PICTURE])
    metrics = (*filters.SCORES, filters.ENERGY) if energy else filters.SCORES
    rows = filters.filter_rows(outcomes, metrics)
    for label, trained in ((filters.LEARNED, (None,)), (FINE_TUNED, s.sizes if s.fine_tuning else ())):
        for size in trained if run.wants(label) else ():
            name = "training" if size is None else f"N={size}"
            facts = {fact: float(lesson(size)[fact]) for fact in ("seconds", "blown_up")}
            rows += [Row.of(name, label, fact, [value], ensemble_size=size) for fact, value in facts.items()]
    rows += [row for row in published if run.wants(row.method)]
    return rows, _arrays(outcomes, metrics, s.windows, side) if outcomes else {}


def _arrays(
    outcomes: Sequence[Outcome[filters.TwinTest]], metrics: Sequence[str], windows: int, side: int
) -> dict[str, xr.Dataset]:
    """Return the scores of every truth, and pictures of a square."""
    scores = np.stack([[outcome.scores[name] for name in metrics] for outcome in outcomes])
    labels: dict[str, Any] = {**filters.entry_labels(outcomes), "metric": list(metrics)}
    labels["network"] = ("entry", [outcome.case.about["protocol"] for outcome in outcomes])
    arrays = {"scores": xr.Dataset({"score": (("entry", "metric", "truth"), scores)}, labels)}
    return arrays | ({"fields": fields(outcomes, windows, side)} if side else {})


def train_against_truth(
    s: Any, run: Run, system: da.System, *, name: str = "training", begin: da.Filter | None = None, key: PRNGKeyArray
) -> dict[str, np.ndarray]:
    """Train a local filter, or continue from one; return it as bytes with the seconds and the ensembles that blew up.

    `s` has `student`, `training` and `validation`. The run keeps it as a case of that name.
    """

    def learn() -> dict[str, np.ndarray]:
        student_key, fit_key = jax.random.split(key)
        student = begin if begin is not None else da.LocalEnNF.untrained(system, **s.student, key=student_key)
        begun, about = time.perf_counter(), {**s.training, "validate": da.Validation(**s.validation), "key": fit_key}
        result = filters.train(run, name, student, system, da.AgainstTruth, **about)
        blown_up = sum(int(group.blown_up) for group in result.source_state)
        facts = {"seconds": np.array(time.perf_counter() - begun), "blown_up": np.array(blown_up)}
        return {"filter": filters.as_array(result.module), **facts}

    return run.cases.take(name, learn)
