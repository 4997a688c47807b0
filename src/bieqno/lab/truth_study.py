"""Studies of the filter that is trained against the truth: train once, tune the opponents, run all on truths nobody has seen.

Every method goes through the same truths, observations and first ensembles with the same keys. A *network* is which of the
observations there are: all of them, or those that a mask leaves. Scores are per truth; a run that diverged has none.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from types import MappingProxyType
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Bool, PRNGKeyArray

from bieqno.assimilation import Filter, LocalEnNF, Trials, make_trials, train_filter, tune
from bieqno.lab.filter_experiment import Tuned, as_array, as_filter
from bieqno.lab.results import Row
from bieqno.lab.study import Findings, Run
from bieqno.lab.truth_scores import SCORES, System, scores_of

LEARNED, FINE_TUNED = "EnNF", "EnNF fine-tuned"
TRAINING_SHARE = 0.5  # of the time of a study, for the progress to tell

Mask: TypeAlias = Callable[[int, PRNGKeyArray], Bool[Array, "T m"]]
"""Which observations there are in each of so many windows."""


@dataclass(frozen=True)
class Settings:
    """What is run.

    Attributes:
        preset: name of the settings.
        sizes: ensemble sizes of the learned filter.
        tuned_sizes: ensemble sizes of the opponents, each tuned for itself.
        truths: unseen truths.
        windows: length of a run.
        burn_in: windows at the beginning that do not count.
        tuning: truths and windows that the opponents are tuned on.
        training: settings of `train_filter`.
        fine_tuning: those of a further training for each size; empty for none.
    """

    preset: str
    sizes: tuple[int, ...]
    tuned_sizes: tuple[int, ...]
    truths: int = 64
    windows: int = 200
    burn_in: int = 0
    tuning: tuple[int, int] = (4, 200)
    training: Mapping[str, Any] = field(default_factory=dict)
    fine_tuning: Mapping[str, Any] = field(default_factory=dict)


def run_study(
    s: Settings,
    run: Run,
    system: System,
    opponents: Sequence[Tuned],
    *,
    networks: Mapping[str, Mask | None] = MappingProxyType({"unseen": None}),
    published: Sequence[Row] = (),
) -> Findings:
    """Train, tune and compare.

    Args:
        s: what is run.
        run: keeps trainings and finished runs, and tells before each part.
        system: what is filtered.
        opponents: filters to be tuned, for each network and size.
        networks: by name, which observations there are; None for all. The names are the protocols of the rows.
        published: rows of others, put beside.
    """
    train_key, truth_key, tune_key, run_key, mask_key = jax.random.split(jax.random.key(run.seed), 5)

    def learn(size: int | None) -> dict[str, np.ndarray]:
        """Train for all sizes, or from there on for one."""
        name, more, key = "training", dict(s.training), train_key
        if size is not None:
            update = learned()[0].update
            name, key = f"fine-tuning, N={size}", jax.random.fold_in(train_key, size)
            more = {
                **s.fine_tuning, "sizes": {size: max(4, 320 // size)}, "begin": update, "radius": update.radius,
                "reach": update.reach,
            }  # fmt: skip
        begun = time.perf_counter()
        result = train_filter(
            system.model, system.observation, state=system.state, variables=system.places, **more, key=key,
            checkpoint=run.cases.checkpoint(name),
            on_progress=lambda p: run.tell(name, TRAINING_SHARE * (p.step / p.steps if size is None else 1.0), training=p),
        )  # fmt: skip
        return {
            "filter": as_array(result.module),
            "seconds": np.array(time.perf_counter() - begun),
            "blown_up": np.array(sum(int(runs.blown_up) for runs in result.source_state)),
        }

    @cache
    def lesson(size: int | None) -> dict[str, np.ndarray]:
        return run.cases.take("training" if size is None else f"fine-tuning, N={size}", partial(learn, size))

    def learned(size: int | None = None) -> tuple[LocalEnNF, dict[str, float]]:
        return as_filter(lesson(size)["filter"]), {}

    @cache
    def trials(network: str, members: int, practice: bool = False) -> Trials:
        truths, windows = s.tuning if practice else (s.truths, s.windows)
        made = make_trials(
            system.model, system.observation, windows, state=system.state, truths=truths, members=members,
            key=tune_key if practice else truth_key,
        )  # fmt: skip
        return _masked(made, networks[network], windows, jax.random.fold_in(mask_key, int(practice)))

    def tuned(opponent: Tuned, network: str, size: int) -> tuple[Filter, dict[str, float]]:
        found = tune(
            opponent.build, opponent.grid, system.model, system.observation, trials(network, size, True),
            burn_in=s.tuning[1] // 10, limit=system.limit, key=run_key,
        ).best  # fmt: skip
        return opponent.build(**{key: jnp.asarray(value) for key, value in found.items()}), found

    jobs: list[tuple[str, str, int, Callable[[], tuple[Filter, dict[str, float]]]]] = []
    for network in networks:
        jobs += [(LEARNED, network, size, learned) for size in s.sizes]
        if s.fine_tuning:
            jobs += [(FINE_TUNED, network, size, partial(learned, size)) for size in s.sizes]
        jobs += [
            (o.name, network, size, partial(tuned, o, network, size))
            for o in opponents for size in s.tuned_sizes
        ]  # fmt: skip
    jobs = [job for job in jobs if run.wants(job[0])]
    if any(job[0] in (LEARNED, FINE_TUNED) for job in jobs):
        lesson(None)
    rows: list[Row] = []
    found_scores = []
    for done, (method, network, size, make) in enumerate(jobs):
        share = TRAINING_SHARE + (1 - TRAINING_SHARE) * done / len(jobs)

        def score(make: Any = make, network: str = network, size: int = size) -> dict[str, np.ndarray]:
            filter, settings = make()
            scores = scores_of(system, filter, trials(network, size), s.burn_in, run_key)
            return scores | {f"found.{key}": np.array(value) for key, value in settings.items()}

        where = f"{method}, N = {size}" + (f", {network}" if len(networks) > 1 else "")
        run.tell(where, share)
        found = run.cases.take(where.replace(" = ", "="), score)
        rows += _rows(method, network, size, found)
        found_scores.append((method, network, size, np.stack([found[metric] for metric in SCORES])))
    for label, trained in ((LEARNED, (None,)), (FINE_TUNED, s.sizes if s.fine_tuning else ())):
        for own in trained if run.wants(label) else ():
            facts, case = lesson(own), "training" if own is None else f"N={own}"
            rows += [
                Row.of(case, label, fact, [float(facts[fact])], ensemble_size=own) for fact in ("seconds", "blown_up")
            ]
    arrays = {"scores": _dataset(found_scores)} if found_scores else {}
    return [*rows, *(row for row in published if run.wants(row.method))], arrays


def _masked(trials: Trials, mask: Mask | None, windows: int, key: PRNGKeyArray) -> Trials:
    """The same trials with some of their observations."""
    if mask is None:
        return trials
    seen = jax.vmap(lambda number: mask(windows, jax.random.fold_in(key, number)))(trials.numbers)
    return eqx.tree_at(lambda t: t.twins.observations.mask, trials, trials.twins.observations.mask & seen)


def _rows(method: str, network: str, size: int, found: Mapping[str, np.ndarray]) -> list[Row]:
    sound = found["diverged"] < 0
    common = {"ensemble_size": size, "protocol": network, "diverged": int(np.sum(~sound))}
    case = f"N={size}"
    rows = [Row.of(case, method, metric, found[metric][sound].tolist(), **common) for metric in SCORES[:-1]]
    settings = [(key.removeprefix("found."), value) for key, value in found.items() if key.startswith("found.")]
    named = case if network == "unseen" else f"{case}, {network}"
    return rows + [Row.of(named, method, setting, [float(value)], ensemble_size=size) for setting, value in settings]


def _dataset(found: Sequence[tuple[str, str, int, np.ndarray]]) -> xr.Dataset:
    """The scores of every truth."""
    methods, networks, sizes, scores = zip(*found, strict=True)
    return xr.Dataset(
        {"score": (("entry", "metric", "truth"), np.stack(scores))},
        {
            "method": ("entry", list(methods)),
            "network": ("entry", list(networks)),
            "ensemble_size": ("entry", list(sizes)),
            "metric": list(SCORES),
        },
    )
