"""A local filter that is trained against the truth, and its comparison with classical filters on unseen truths."""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from types import MappingProxyType
from typing import Any, TypeAlias

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Bool, PRNGKeyArray

from bieqno.assimilation import AgainstTruth, LocalEnNF, System, Trials, Validation, make_trials, train_filter
from bieqno.lab.compare import Arrays, Case, compare
from bieqno.lab.methods.filters import (
    LEARNED,
    FilterSettings,
    Tuned,
    TwinTest,
    as_array,
    as_filter,
    filter_rows,
    fixed,
    score_filter,
    scores_dataset,
    tuned,
    twin_case,
)
from bieqno.lab.results import Row
from bieqno.lab.study import Findings, Run

FINE_TUNED = "EnNF fine-tuned"
Mask: TypeAlias = Callable[[int, PRNGKeyArray], Bool[Array, "T m"]]
"""Which observations there are in each of so many windows."""


def truth_study(
    s: FilterSettings,
    run: Run,
    system: System,
    opponents: Sequence[Tuned],
    *,
    networks: Mapping[str, Mask | None] = MappingProxyType({"unseen": None}),
    published: Sequence[Row] = (),
) -> Findings:
    """Train a local filter against the truth, tune the opponents, and compare all on unseen truths.

    Args:
        s: the settings.
        run: keeps trainings and finished trials, and hears of the progress.
        system: the twin experiment.
        opponents: filters to be tuned, for each network and size.
        networks: by name, which observations there are; None for all. The names are the protocols of the rows.
        published: rows of others, put beside.
    """
    train_key, truth_key, tune_key, run_key, mask_key = jax.random.split(jax.random.key(run.seed), 5)

    @cache
    def lesson(size: int | None = None) -> Arrays:
        """Train for all sizes, or from there on for one."""
        if size is None:
            return train_against_truth(s, run.between(0.0, 0.5), system, key=train_key)
        own = {**s.fine_tuning, "sizes": {size: max(4, 320 // size)}}
        begin, key = as_filter(lesson()["filter"]), jax.random.fold_in(train_key, size)
        return train_against_truth(
            s, run.between(0.5, 0.5), system, name=f"fine-tuning, N={size}", begin=begin, training=own, key=key
        )

    def trials(network: str, size: int, truths: int, windows: int, key: PRNGKeyArray, practice: int) -> Trials:
        made, mask = make_trials(system, windows, truths=truths, members=size, key=key), networks[network]
        return made if mask is None else _masked(made, mask, windows, jax.random.fold_in(mask_key, practice))

    def test(network: str, size: int) -> TwinTest:
        def practice() -> tuple[Trials, int]:
            return trials(network, size, *s.tuning, tune_key, 1), s.tuning[1] // 10

        chosen, label = trials(network, size, s.truths, s.windows, truth_key, 0), f"N={size}, {network}"
        return TwinTest(system, chosen, practice, run_key, s.burn_in, label=label)

    @cache
    def case(network: str, size: int) -> Case[TwinTest]:
        return twin_case(network, size, partial(test, network, size))

    ennf, classical = fixed(LEARNED, lambda: as_filter(lesson()["filter"])), [tuned(one, run) for one in opponents]
    own = {size: fixed(FINE_TUNED, lambda size=size: as_filter(lesson(size)["filter"])) for size in s.sizes}
    plan = []
    for network in networks:
        plan += [(case(network, size), ennf) for size in s.sizes]
        plan += [(case(network, size), own[size]) for size in s.sizes if s.fine_tuning]
        plan += [(case(network, size), method) for method in classical for size in s.tuned_sizes]
    if run.wants(LEARNED) or (s.fine_tuning and run.wants(FINE_TUNED)):
        lesson()
    outcomes = compare(run.between(0.5, 1.0), plan, score_filter)
    rows = filter_rows(outcomes)
    for label, trained in ((LEARNED, (None,)), (FINE_TUNED, s.sizes if s.fine_tuning else ())):
        for size in trained if run.wants(label) else ():
            name = "training" if size is None else f"N={size}"
            facts = {fact: float(lesson(size)[fact]) for fact in ("seconds", "blown_up")}
            rows += [Row.of(name, label, fact, [value], ensemble_size=size) for fact, value in facts.items()]
    arrays = {"scores": scores_dataset(outcomes)} if outcomes else {}
    return [*rows, *(row for row in published if run.wants(row.method))], arrays


def train_against_truth(
    s: Any,
    run: Run,
    system: System,
    *,
    name: str = "training",
    begin: LocalEnNF | None = None,
    training: Mapping[str, Any] | None = None,
    key: PRNGKeyArray,
) -> dict[str, np.ndarray]:
    """Train a local filter, or continue from one; return it as bytes with the seconds and the ensembles that blew up.

    `s` has `student`, `training` and `validation`; `training` may be given in place of its own, and `begin` in place of an
    untrained filter. The run keeps it as a case of that name.
    """

    def learn() -> dict[str, np.ndarray]:
        student_key, fit_key = jax.random.split(key)
        chosen = dict(s.training if training is None else training)
        steps = chosen.pop("steps")
        student = begin if begin is not None else LocalEnNF.untrained(system, **s.student, key=student_key)
        begun = time.perf_counter()
        about = {"checkpoint": run.cases.checkpoint(name), "on_progress": run.training(name), "key": fit_key}
        validate = Validation(**s.validation)
        result = train_filter(student, system, AgainstTruth(**chosen), steps=steps, validate=validate, **about)
        blown_up = sum(int(group.blown_up) for group in result.source_state)
        seconds = time.perf_counter() - begun
        return {"filter": as_array(result.module), "seconds": np.array(seconds), "blown_up": np.array(blown_up)}

    return run.cases.take(name, learn)


def _masked(trials: Trials, mask: Mask, windows: int, key: PRNGKeyArray) -> Trials:
    """Return the same trials with some of their observations."""
    seen = jax.vmap(lambda number: mask(windows, jax.random.fold_in(key, number)))(trials.numbers)
    return eqx.tree_at(lambda t: t.twins.observations.mask, trials, trials.twins.observations.mask & seen)
