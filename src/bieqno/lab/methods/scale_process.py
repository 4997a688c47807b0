"""One of the processes of the study ``scale``: seconds, bytes and errors of filters on a long ring, written as JSON.

``python -m bieqno.lab.methods.scale_process JSON`` with the fields of `Job`; each process of a job has its own number.
"""

import dataclasses
import json
import resource
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, Float, PRNGKeyArray

import bieqno.assimilation as da
from bieqno import distributed
from bieqno.lab.papers import sparse_ring

BASE = 400  # variables of the ring whose neighbours those of all longer ones repeat


@dataclass(frozen=True)
class Job:
    """What a process measures: methods by name, with the file of a LocalEnNF or radius and inflation of an LETKF."""

    size: int
    methods: dict[str, Any]
    members: int = 10
    windows: int = 0  # of which the second half is scored; with 0 there is the time of an analysis alone
    repeats: int = 3
    out: str = "measured.json"
    address: str = ""
    processes: int = 1
    process: int = 0


def main(job: Job) -> dict[str, dict[str, float]]:
    """Measure every method."""
    if job.processes > 1:
        distributed.start(job.address, job.processes, job.process)
    mesh, system = distributed.mesh(), sparse_ring(job.size)
    return {name: _measure(job, system, mesh, _filter(about, job.size)) for name, about in job.methods.items()}


def _filter(about: Any, size: int) -> da.Filter:
    """Return a filter on a ring of some size."""
    base = sparse_ring(min(BASE, size))
    times, m = size // base.size, base.observed
    if isinstance(about, str):
        filter: da.LocalEnNF = da.load_filter(about)
        around = base.neighbourhoods(filter.neighbourhoods.radius, filter.neighbourhoods.reach)
        near, beside = repeated(around.near, m, times), repeated(around.beside, base.size, times)
        kinds = jnp.zeros(size, int), jnp.zeros(m * times, int)
        return filter.at(da.Neighbourhoods(near, beside, *kinds, around.radius, around.reach))
    near = dataclasses.replace(repeated(base.neighbours(about["radius"]), m, times), observations=m * times)
    return da.Inflated(da.LETKF(near, about["radius"]), about["inflation"])


def repeated(near: Any, there: int, times: int) -> Any:
    """Return what is near each place of a ring, so many times as long, of the same places again and again.

    `there` is the number of what may be near, and the ring longer than twice the radius. For ten million places it takes seconds
    where looking for neighbours takes minutes and more memory than the analysis.

    Example:
        >>> short, long = (sparse_ring(size).neighbours(8.0) for size in (40, 120))
        >>> near = [jnp.where(jnp.isfinite(ring.distance), ring.indices, -1) for ring in (repeated(short, 10, 3), long)]
        >>> bool((jnp.sort(near[0]) == jnp.sort(near[1])).all())
        True
    """
    if times == 1:
        return near
    indices = np.asarray(near.indices)
    here = np.arange(len(indices))[:, None] / len(indices)
    unwound = (indices - there * np.round(indices / there - here)).astype(np.int32)
    starts = (there * np.arange(times, dtype=np.int32))[:, None, None]
    far = np.mod(unwound + starts, there * times).reshape(-1, indices.shape[1])
    name = "distance" if isinstance(near, da.Neighbours) else "pattern"
    own = np.asarray(getattr(near, name))
    again = np.tile(own, (times, *[1] * (own.ndim - 1)))
    return dataclasses.replace(near, **{"indices": jnp.asarray(far), name: jnp.asarray(again)})


def _measure(job: Job, system: da.System, mesh: Any, filter: da.Filter) -> dict[str, float]:
    """Return seconds of an analysis and of a forecast, bytes that a device sends and has in use, and the error."""
    parts: Any = da.divide(filter, system.observation, system.size, mesh)
    key = jax.random.key(0)
    ensemble, seen = _first(system, mesh, job.members, key)
    analyse = eqx.filter_jit(_analysis)
    seconds, busy = _best(lambda: analyse(parts, system, ensemble, seen, key), job.repeats)
    fields = 1 if parts.shared[0].noise((1, 1), float, key=key) is None else 2
    columns = [sum(lists.shape[1] for lists in halo.sends) for halo in (parts.variable_halo, parts.observation_halo)]
    # Of an observation its value, its mask and the value at which the error law is evaluated.
    sent = columns[0] * fields * job.members * ensemble.dtype.itemsize + columns[1] * (2 * seen.dtype.itemsize + 1)
    found = {"seconds": seconds, "processor_seconds": busy} | ({"halo_bytes": float(sent)} if sent else {})
    if job.windows:
        forecast = eqx.filter_jit(lambda z: da.forecast(system.model, z, key=key))
        found["forecast_seconds"] = _best(lambda: forecast(ensemble), job.repeats)[0]
        found["rmse"] = _error(job, system, mesh, parts)
    return {**found, "peak_mebibytes": _peak()}


def _peak() -> float:
    """Return the most memory that this process has had, in MiB; Linux lets `getrusage` begin at that of its parent."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    kibibytes = [float(line.split()[1]) for line in lines if line.startswith("VmHWM:")]
    return (kibibytes or [resource.getrusage(resource.RUSAGE_SELF).ru_maxrss])[0] / 1024


def _analysis(filter: Any, system: da.System, ensemble: Array, seen: Array, key: PRNGKeyArray) -> Float[Array, "N n"]:
    found: Array = filter(ensemble, system.observation.window(seen), key=key)
    return found


def _best(call: Any, repeats: int) -> tuple[float, float]:
    """Return the least seconds of some calls, on the clock and of the processor; one before compiles."""
    taken = []
    for _ in range(1 + repeats):
        begun = time.perf_counter(), time.process_time()
        jax.block_until_ready(call())
        taken.append((time.perf_counter() - begun[0], time.process_time() - begun[1]))
    clock, busy = zip(*taken[1:], strict=True)
    return min(clock), min(busy)


def _shardings(system: da.System, mesh: Any) -> tuple[NamedSharding, NamedSharding]:
    """Return how rows of variables and rows of observations are spread over a mesh: in their order, the second if they can be."""
    along = distributed.dividing(system.observed, mesh)
    return NamedSharding(mesh, PartitionSpec(None, "space")), NamedSharding(mesh, PartitionSpec(along))


def _first(system: da.System, mesh: Any, members: int, key: PRNGKeyArray) -> tuple[Array, Array]:
    """Return an ensemble spread over the mesh, made where it is needed, and observations of its first member."""
    columns, values = _shardings(system, mesh)
    n = system.size

    def draw() -> tuple[Array, Array]:
        ensemble = 2.0 + 3.6 * jax.random.normal(key, (members, n))
        return ensemble, ensemble[0, ::4] + 1

    ensemble, seen = jax.jit(draw, out_shardings=(columns, values))()
    return ensemble, seen


def _error(job: Job, system: da.System, mesh: Any, parts: Any) -> float:
    """Return the root mean square error over the second half of the windows, the truth made beside the run."""
    truth_key, error_key, start_key, run_key = jax.random.split(jax.random.key(1), 4)
    columns = NamedSharding(mesh, PartitionSpec(None, "space"))
    n, spin = system.size, 40

    @jax.jit
    def begin() -> tuple[Array, Array]:
        truth = 2.0 + jax.random.normal(truth_key, (1, n))
        truth = jax.lax.fori_loop(0, spin, lambda _, z: da.forecast(system.model, z, key=truth_key), truth)
        centre_key, member_key = jax.random.split(start_key)
        ensemble = truth + jax.random.normal(centre_key, (1, n)) + jax.random.normal(member_key, (job.members, n))
        return truth, jax.lax.with_sharding_constraint(ensemble, columns)

    @jax.jit
    def advance(truth: Array, number: Array) -> tuple[Array, Array]:
        truth = jax.lax.with_sharding_constraint(da.forecast(system.model, truth, key=truth_key), columns)
        noise = jax.random.normal(jax.random.fold_in(error_key, number), (1, system.observed))
        return truth, truth[:, ::4] + noise

    square = jax.jit(lambda mean, truth: jnp.mean((mean - truth) ** 2))
    truth, ensemble = begin()
    squares = []
    for number in range(job.windows):
        truth, seen = advance(truth, jnp.asarray(number))
        observations = da.Observations(seen, jnp.isfinite(seen), seen)
        how: Any = {"record": da.keep_mean, "first_window": number, "mesh": mesh, "key": run_key}
        run = da.cycle(parts, system, ensemble, observations, **how)
        if int(distributed.local(run.diverged)) >= 0:
            return float("nan")
        ensemble = run.ensemble
        squares.append(float(distributed.local(square(run.kept, truth))))
    return float(np.sqrt(np.mean(squares[job.windows // 2 :])))


if __name__ == "__main__":
    given = Job(**json.loads(sys.argv[1]))
    measured = main(given)
    if given.process == 0:
        Path(given.out).write_text(json.dumps(measured))
