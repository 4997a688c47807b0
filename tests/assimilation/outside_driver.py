"""A run of the tests in a process of its own, to be killed, or by MPI: ``python outside_driver.py FOLDER MODEL [mpi]``."""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import outside_model

MEMBERS, SIZE, WINDOWS = 4, 8, 4


def assimilate(run_one, executor, folder, windows=WINDOWS, members=MEMBERS, **options):
    """Assimilate a simple record by an ensemble transform filter."""
    import jax
    import jax.numpy as jnp

    from bieqno.assimilation import ETKF, Inflated, Members, Observation, Observations, System, cycle_outside

    named = {name: options.pop(name) for name in ("retries", "timeout", "survivors") if name in options}
    model = Members(run_one, executor, **named)
    system = System(model, Observation(range(0, SIZE, 2), 1.0), jnp.full(SIZE, 8.0))
    start = system.state + jax.random.normal(jax.random.key(1), (members, SIZE))
    seen = Observations.of(4 + jax.random.normal(jax.random.key(2), (windows, SIZE // 2)))
    filter = Inflated(ETKF(), 1.05)
    return cycle_outside(filter, system, start, seen, folder=folder, key=jax.random.key(3), **options)


if __name__ == "__main__":
    folder, model, *mpi = sys.argv[1:]
    if mpi:
        from mpi4py.futures import MPICommExecutor

        with MPICommExecutor() as executor:
            if executor is not None:  # the other ranks wait for members
                assimilate(getattr(outside_model, model), executor, Path(folder))
    else:
        assimilate(getattr(outside_model, model), lambda: ThreadPoolExecutor(2), Path(folder))
