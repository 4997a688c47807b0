"""Long runs: a filter cycled in parts that continue each other, whose memory does not grow, and the filters of the studies.

Of the latter, tuned as in the studies, the runs are counted that were lost: that diverged, or ended worse than the climatology.
"""

import resource
import sys
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from bieqno import assimilation as da
from bieqno.lab.methods.filters import classical_filters
from bieqno.lab.papers import paper_lorenz63, paper_lorenz96, sakov_lorenz96, sparse_ring
from tables import Tally, run

PART = 2000  # windows of one call
TRUTHS = 8


def campaign(count: int, seed: int, part: int = PART, names: Sequence[str] = ("ETKF", "EnKF")) -> Tally:
    """Cycle filters through `count` windows on each of some truths, in parts."""
    tally = Tally(len(names) * max(1, count // part))
    system = da.System(
        da.Lorenz63(window=0.1), da.Observation([0, 1, 2], 1.0), jnp.array([-8.5, -7.0, 27.0]), limit=1e3
    )
    filters = {"ETKF": da.Rotated(da.Inflated(da.ETKF(), 1.05)), "EnKF": da.Inflated(da.EnKF(), 1.1)}
    for name, filter in ((name, filters[name]) for name in names):
        trials = da.make_trials(system, 1, truths=TRUTHS, members=10, key=jax.random.key(seed))
        states, ensembles, begun = trials.twins.truth[:, -1], trials.ensembles, 0

        @jax.jit
        def cycled(states, ensembles, first, filter=filter):  # type: ignore[no-untyped-def]
            def one(state, ensemble, truth):  # type: ignore[no-untyped-def]
                key = jax.random.fold_in(jax.random.key(seed + 1), truth)
                twin = da.simulate(system, part, state=state, key=jax.random.fold_in(key, first))
                done = da.cycle(
                    filter, system, ensemble, twin.observations, record=da.keep_mean, first_window=first, key=key
                )
                error = jnp.sqrt(jnp.mean((done.kept - twin.truth) ** 2))
                return twin.truth[-1], done.ensemble, done.diverged, error

            return jax.vmap(one)(states, ensembles, jnp.arange(TRUTHS))

        for number in range(max(1, count // part)):
            states, ensembles, diverged, error = jax.block_until_ready(cycled(states, ensembles, number * part))
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            begun = memory if number == 2 else begun
            for lost, size in zip(diverged.tolist(), error.tolist(), strict=True):
                tally.add(
                    f"{name}, {part} windows",
                    "lost" if lost >= 0 or size > 3 else "kept",
                    f"diverged in {lost}, RMSE {size}",
                )
            tally.step()
        grown = (memory - begun) / 1e3 if begun else 0.0
        tally.add(f"{name}, memory", "lost" if grown > 50 else "did not grow", f"{grown} MB")
    return tally


SYSTEMS: dict[str, tuple[Callable[[], da.System], int]] = {
    "lorenz63": (lambda: paper_lorenz63().system, 16),
    "lorenz96": (lambda: paper_lorenz96().system, 16),
    "standard": (sakov_lorenz96, 20),
    "mnmef": (sparse_ring, 20),
}


def studies(
    count: int, seed: int, names: Sequence[str] = tuple(SYSTEMS), truths: int = 64, only: Sequence[str] = ()
) -> Tally:
    """Run every filter of the studies through `count` windows of each of 64 truths, and count the lost runs."""
    tuning_key, test_key, run_key = jax.random.split(jax.random.key(seed), 3)
    systems = {name: SYSTEMS[name][0]() for name in names}
    filters = {
        name: [one for one in classical_filters(system).values() if one.name in only or not only]
        for name, system in systems.items()
    }
    pretrained = [name for name, system in systems.items() if system.places is not None and not only]
    tally = Tally(sum(map(len, filters.values())) + len(pretrained))
    for name, system in systems.items():
        members = SYSTEMS[name][1]
        tuning = da.make_trials(system, min(count, 100), truths=4, members=members, key=tuning_key)
        trials = da.make_trials(system, count, truths=truths, members=members, key=test_key)
        for one in filters[name]:
            filter = one.at(one.tune(system, tuning, min(count, 100) // 5, run_key))
            lose(tally, f"{name}, {one.name}, N = {members}", filter, system, trials, run_key)
        if name in pretrained:
            filter = da.LocalEnNF.pretrained().at(system)
            lose(tally, f"{name}, LocalEnNF, pretrained, N = {members}", filter, system, trials, run_key)
    return tally


def lose(tally: Tally, what: str, filter: da.Filter, system: da.System, trials: da.Trials, key: jax.Array) -> None:
    """Run a filter on all trials, and count how each of them ended."""
    done = da.run_trials(filter, system, trials, record=da.keep_mean, key=key)
    truth, diverged = np.asarray(trials.twins.truth), np.asarray(done.diverged) >= 0
    second_half = slice(truth.shape[1] // 2, None)
    error = np.sqrt(np.mean((np.asarray(done.kept) - truth)[:, second_half] ** 2, axis=(1, 2)))
    for lost, size in zip(diverged.tolist(), error.tolist(), strict=True):
        end = "not better than climatology" if not size < truth.std() else "kept"
        tally.add(what, "diverged" if lost else end if np.isfinite(size) else "not finite")
    tally.step()


if __name__ == "__main__":
    chosen = {"cycled": (campaign, "soak", 1_000_000), "studies": (studies, "studies", 1500)}
    word = sys.argv[1] if len(sys.argv) > 1 else ""
    if word not in chosen:
        sys.exit(f"say which: {', '.join(chosen)}")
    function, name, count = chosen[word]
    run(name, function, count=count, arguments=sys.argv[2:])
