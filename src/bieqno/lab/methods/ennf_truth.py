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
from bieqno.lab.methods.filters import TwinTest, entry_labels
from bieqno.lab.results import Row
from bieqno.lab.study import Findings, Run

FINE_TUNED, PICTURE = "EnNF fine-tuned", "picture"
TIMES, POINTS = 9, 33  # at most so many times, and points a side: a page holds the numbers of all
_SHOWN = ("truth", "mean", "spread")
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
    others: Sequence[Method[TwinTest]] = (),
) -> Findings:
    """Train a local filter against the truth, tune the opponents for each network and size, and compare all on unseen truths.

    `networks` say by name which observations there are (None for all); the names are the protocols of the rows. `published`
    are rows of others, put beside. The filter is `trained_on` another system, if one is given, and moved to this one. With
    `climate` first ensembles are states of free runs. A system with a `side` is a square, which is kept for pictures.
    With `energy` whole states are scored, too. `others` are further methods, run at the sizes of the learned filter.
    """
    train_key, truth_key, tune_key, run_key, mask_key = jax.random.split(jax.random.key(run.seed), 5)
    training_system = trained_on or system
    free = cache(lambda: da.Climate.of(system, key=train_key))

    @cache
    def training(size: int | None) -> Arrays:
        if size is None:  # for all of them, from where one is fine-tuned
            return train_against_truth(s, run.between(0.0, 0.5), training_system, key=train_key)
        own = replace(s, training={**s.fine_tuning, "sizes": {size: max(2, 160 // size)}})
        name, key, part = f"fine-tuning, N={size}", jax.random.fold_in(train_key, size), run.between(0.5, 0.5)
        return train_against_truth(own, part, training_system, name=name, begin=weights(None), key=key)

    def trials(network: str, size: int, truths: int, windows: int, key: PRNGKeyArray, stream: int) -> da.Trials:
        about: Any = {"truths": truths, "members": size, "climate": free() if climate else None}
        made, mask = da.make_trials(system, windows, **about, key=key), networks[network]
        if mask is None:
            return made
        own_key = jax.random.fold_in(mask_key, stream)
        seen = jax.vmap(lambda number: mask(windows, jax.random.fold_in(own_key, number)))(made.numbers)
        return eqx.tree_at(lambda t: t.twins.observations.mask, made, made.twins.observations.mask & seen)

    @cache
    def test(network: str, size: int) -> TwinTest:
        tuning_trials = partial(trials, network, size, *s.tuning, tune_key, 1)
        chosen, label = trials(network, size, s.truths, s.windows, truth_key, 0), f"N={size}, {network}"
        about: Any = {"label": label, "rungs": s.rungs, "energy": energy}
        return TwinTest(system, chosen, lambda: (tuning_trials(), s.tuning[1] // 10), run_key, s.burn_in, **about)

    def weights(size: int | None) -> Any:
        return filters.as_filter(training(size)["filter"])

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
        training(None)
    outcomes = compare(run.between(0.5, 1.0), plan, filters.score_filter, keep=[PICTURE])
    metrics = (*filters.SCORES, filters.ENERGY) if energy else filters.SCORES
    rows = filters.filter_rows(outcomes, metrics)
    for label, trained in ((filters.LEARNED, (None,)), (FINE_TUNED, s.sizes if s.fine_tuning else ())):
        for size in trained if run.wants(label) else ():
            name = "training" if size is None else f"N={size}"
            facts = {fact: float(training(size)[fact]) for fact in ("seconds", "blown_up")}
            rows += [Row.of(name, label, fact, [value], ensemble_size=size) for fact, value in facts.items()]
    rows += [row for row in published if run.wants(row.method)]
    return rows, _arrays(outcomes, metrics, s.windows, side) if outcomes else {}


def truth_studies(run: Run, parts: Mapping[str, Callable[[Run], Findings]]) -> Findings:
    """Run a `truth_study` for each of several set-ups, and join them; what is said of a training names the set-up."""
    rows: list[Row] = []
    found: list[xr.Dataset] = []
    for place, (name, study) in enumerate(parts.items()):
        part = run.between(place / len(parts), (place + 1) / len(parts), f"{name}, ")
        own, arrays = study(replace(part, cases=run.cases.within(name)))
        rows += [replace(row, case=f"{row.case}, {name}") if row.case == "training" else row for row in own]
        found += arrays.values()
    return rows, {"scores": xr.concat(found, "entry")} if found else {}


def published_rows(
    scores: Mapping[str, Mapping[int, float]], protocol: str = "unseen", *, metric: str = "rmse", n: int = 1
) -> list[Row]:
    """Return scores of others, by method and ensemble size, as rows: means over `n` truths."""
    each = [(method, size, value) for method, values in scores.items() for size, value in values.items()]
    return [Row(f"N={N}", f"{method} (published)", metric, value, None, n, N, protocol) for method, N, value in each]


def _arrays(
    outcomes: Sequence[Outcome[TwinTest]], metrics: Sequence[str], windows: int, side: int
) -> dict[str, xr.Dataset]:
    """Return the scores of every truth, and pictures of a square."""
    scores = np.stack([[outcome.scores[name] for name in metrics] for outcome in outcomes])
    labels: dict[str, Any] = {**entry_labels(outcomes), "metric": list(metrics)}
    labels["network"] = ("entry", [outcome.case.about["protocol"] for outcome in outcomes])
    arrays = {"scores": xr.Dataset({"score": (("entry", "metric", "truth"), scores)}, labels)}
    return arrays | ({"fields": fields(outcomes, windows, side)} if side else {})


def train_against_truth(
    s: Any, run: Run, system: da.System, *, name: str = "training", begin: da.Filter | None = None, key: PRNGKeyArray
) -> dict[str, np.ndarray]:
    """Train or continue a local filter as a case of the run; return it as bytes, with seconds and the number of blow-ups."""

    def learn() -> dict[str, np.ndarray]:
        student_key, fit_key = jax.random.split(key)
        student = begin if begin is not None else da.LocalEnNF.untrained(system, **s.student, key=student_key)
        begun, about = time.perf_counter(), {**s.training, "validate": da.Validation(**s.validation), "key": fit_key}
        result = filters.train(run, name, student, system, da.AgainstTruth, **about)
        blown_up = sum(int(group.blown_up) for group in result.source_state)
        facts = {"seconds": np.array(time.perf_counter() - begun), "blown_up": np.array(blown_up)}
        return {"filter": filters.as_array(result.module), **facts}

    return run.cases.take(name, learn)


def pictured(method: Method[TwinTest], side: int) -> Method[TwinTest]:
    """Return a method that also keeps pictures of its first run, of windows and grid points that are evenly spaced."""

    def run(test: TwinTest) -> Arrays:
        found = dict(method.run(test))
        series = np.stack([np.asarray(test.trials.twins.truth)[0], *(found[name][0] for name in _SHOWN[1:])])
        windows, points = _spaced(series.shape[1], TIMES), _spaced(side, POINTS)
        squares = series[:, windows].reshape(len(_SHOWN), len(windows), side, side)
        return {**found, PICTURE: squares[:, :, points][..., points]}

    return Method(method.name, run)


def fields(outcomes: Sequence[Outcome[TwinTest]], windows: int, side: int) -> xr.Dataset:
    """Return the pictures of all methods, each with the number of its window and its places on the grid."""
    kept = np.stack([outcome.kept[0][PICTURE] for outcome in outcomes])
    places = _spaced(side, POINTS)
    labels = {**entry_labels(outcomes), "window": _spaced(windows, TIMES) + 1, "y": places, "x": places}
    axes = ("entry", "window", "y", "x")
    return xr.Dataset({name: (axes, kept[:, k]) for k, name in enumerate(_SHOWN)}, labels)


def _spaced(count: int, most: int) -> np.ndarray:
    """Return at most so many numbers, evenly spaced, with the last."""
    step = -(-count // most)
    return np.arange(count - 1, -1, -step)[::-1]
