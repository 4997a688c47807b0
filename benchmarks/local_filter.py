"""Speed of the local filter beside the LETKF, in one run: an analysis of 4,000 variables, and a training from a cold start.

`analysis` takes the filters in turns, in processor time, with all variables observed and with every fourth. The first LETKF
has the neighbours of the local filter, the second those of the radius that the standard benchmark is tuned to. `training` trains
for N = 10 on the standard and on the sparse ring with a budget of three minutes from a cold start, without the compilation
cache. Only the ratios count.
"""

import argparse
import json
import os
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from bieqno.assimilation import LETKF, AgainstTruth, LocalEnNF, Lorenz96, Observation, Places, System, train_filter
from bieqno.lab.papers import sakov_lorenz96, sparse_ring
from bieqno.operators import Standardiser

VARIABLES, MEMBERS, RADIUS = 4000, 40, 14.56
SMALL = {"width": 8, "channels": 2}  # the small network


def in_turns(actions, repeats=5):
    """Least processor time of each action, taken in turns: on a busy machine all of them meet the same weather."""
    times = {name: [] for name in actions}
    for _ in range(repeats + 1):  # the first compiles
        for name, action in actions.items():
            begin = time.process_time()
            jax.block_until_ready(action())
            times[name].append(time.process_time() - begin)
    return {name: min(found[1:]) for name, found in times.items()}


def analysis(every):
    """Seconds of an analysis by each filter, with one of so many variables observed."""
    ring = Places.grid(VARIABLES, period=float(VARIABLES))
    state = 8 + jax.random.normal(jax.random.key(0), (VARIABLES,))
    system = System(Lorenz96(VARIABLES, window=0.05), Observation(range(0, VARIABLES, every), 1.0), state, ring)
    ensemble = state + jax.random.normal(jax.random.key(1), (MEMBERS, VARIABLES))
    observed = system.observation.window(state[::every])
    around, key = system.neighbourhoods(), jax.random.key(2)
    climate = (
        Standardiser(jnp.array([2.3]), jnp.array([3.6])),
        jnp.array([4.0]),
    )  # of Lorenz-96; times do not depend on it
    near = around.near.neighbours(around.radius, len(around.observations))
    filters = {
        "LETKF": LETKF(near, around.radius),
        f"LETKF, radius {RADIUS * every:g}": LETKF(system.neighbours(RADIUS * every), RADIUS * every),
        "LocalEnNF": LocalEnNF.new(around, *climate, key=key),
        "LocalEnNF, small": LocalEnNF.new(around, *climate, **SMALL, key=key),
    }
    run = jax.jit(lambda filter, ensemble: filter(ensemble, observed, key=key))
    times = in_turns({name: lambda f=filter: run(f, ensemble) for name, filter in filters.items()})
    for name, seconds in times.items():
        print(
            f"1 of {every} observed, {name}: {1e3 * seconds:.1f} ms, {seconds / times['LETKF']:.2f} of the first",
            flush=True,
        )
    return {name: {"seconds": seconds, "times_letkf": seconds / times["LETKF"]} for name, seconds in times.items()}


def training(system, name):
    """Errors of the trained filter and of the tuned LETKF after three minutes, and the seconds until the first step was done."""
    begin, clock, first = time.process_time(), time.perf_counter(), []

    def heard(progress):
        if progress.step and not first:
            first.append((time.process_time() - begin, progress.step))

    student = LocalEnNF.untrained(system, key=jax.random.key(0))
    objective = AgainstTruth(sizes=(10,))
    result = train_filter(student, system, objective, budget="3 min", on_progress=heard, key=jax.random.key(1))
    ours, base = result.errors[10]
    steps = int(np.size(result.losses))
    print(
        f"{name}, N = 10: {ours / base:.3f} of the tuned LETKF's error after {steps} steps and "
        f"{time.perf_counter() - clock:.0f} s; the first {first[0][1]} steps ended after {first[0][0]:.0f} s of processor time",
        flush=True,
    )
    return {"ours": ours, "letkf": base, "steps": steps, "first": first[0][0]}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks/local_filter.json"))
    parser.add_argument("--only", choices=("analysis", "training"))
    arguments = parser.parse_args()
    results = {}
    if arguments.only != "training":
        results["analysis"] = {f"1 of {every}": analysis(every) for every in (1, 4)}
    if arguments.only != "analysis":
        os.environ["BIEQNO_CACHE"] = "off"
        systems = {"standard ring": sakov_lorenz96(), "sparse ring": sparse_ring()}
        results["training"] = {name: training(system, name) for name, system in systems.items()}
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(results, indent=1) + "\n")
    print(f"written to {arguments.out}")


if __name__ == "__main__":
    main()
