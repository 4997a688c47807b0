"""A filter cycled for very long, in parts that continue each other: memory does not grow, and no run is lost."""

import resource
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from bieqno import assimilation as da
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


if __name__ == "__main__":
    run("soak", campaign, count=1_000_000)
