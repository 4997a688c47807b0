"""Independent repetitions of a twin experiment, and a filter on all of them."""

import dataclasses
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from bieqno import distributed
from bieqno.arguments import checked
from bieqno.assimilation.conditions import warn_where_unlike
from bieqno.assimilation.division import divide
from bieqno.assimilation.protocols import Filter
from bieqno.assimilation.system import Climate, System
from bieqno.assimilation.twin import Record, Run, Twin, cycle, keep_moments, simulate, spin_up
from bieqno.compilation import quick_jit


class Trials(eqx.Module):
    """Truths with observations and first ensembles, all stacked along a first axis."""

    twins: Twin
    ensembles: Float[Array, "r N n"] | Float[Array, "N n"]
    numbers: Int[Array, "r"] | Int[Array, ""]
    inputs: PyTree[Any] = None  # what drives the model in each window, the same or another for each truth


@checked(finite=False)
@quick_jit
def make_trials(
    system: System,
    windows: int,
    *,
    truths: int,
    members: int,
    spread: float | Float[Array, "n"] | None = None,
    disturbance: float | Float[Array, "n"] | None = None,
    spin: int = 100,
    climate: Climate | None = None,
    inputs: PyTree[Any] = None,
    key: PRNGKeyArray,
) -> Trials:
    """Simulate independent truths from the climatology, and an ensemble of `members` about the beginning of each.

    Each truth spins up, for `spin` windows, from the system's state with noise of standard deviation `disturbance`. The mean
    of an ensemble is as far from the truth as its members are from the mean: its standard deviation is the `spread`. Both are
    the system's `first_spread` unless they are given. With a `climate` the members are states of
    it instead, drawn at random.

    The `inputs` that drive the model are those of all truths, one row per window; as there are none before the first window,
    nothing spins up: truths then begin at the disturbed state.

    Example:
        >>> from bieqno.assimilation import Lorenz96, Observation
        >>> system = System(Lorenz96(8), Observation(range(8), 1.0), jnp.ones(8))
        >>> trials = make_trials(system, 5, truths=3, members=4, key=jax.random.key(0))
        >>> trials.twins.truth.shape, trials.ensembles.shape
        ((3, 5, 8), (3, 4, 8))
    """
    for name, count, least in (("truths", truths, 1), ("members", members, 1), ("spin", spin, 0)):
        if count < least:
            raise ValueError(f"expected {name} of at least {least}, got {name}={count}")
    if climate is not None and len(climate.states) < members:
        raise ValueError(f"{members} members need as many states of the climate, got {len(climate.states)}")
    shape = system.state.shape
    if inputs is not None:
        spin = 0
        if system.spread is None and (spread is None or disturbance is None):
            raise ValueError("a driven model has no free run to find the first spread: give System(..., spread=...)")
    if spread is None or disturbance is None:
        first = system.first_spread(key=jax.random.fold_in(key, truths))
        spread, disturbance = (first if given is None else given for given in (spread, disturbance))

    def one(number: Int[Array, ""]) -> Trials:
        keys = jax.random.split(jax.random.fold_in(key, number), 5)
        near = system.state + disturbance * jax.random.normal(keys[0], shape)
        first = spin_up(system, spin, state=near, key=keys[1])[-1] if spin else near
        twin = simulate(system, windows, state=first, inputs=inputs, key=keys[2])
        if climate is not None:
            drawn = jax.random.choice(keys[4], len(climate.states), (members,), replace=False)
            return Trials(twin, climate.states[drawn], number, inputs)
        centre = first + spread * jax.random.normal(keys[3], shape)
        ensemble = centre + spread * jax.random.normal(keys[4], (members, *shape))
        return Trials(twin, ensemble, number, inputs)

    return jax.vmap(one)(jnp.arange(truths))


@checked(finite=False)
def run_trials(
    filter: Filter,
    system: System,
    trials: Trials,
    *,
    record: Record = keep_moments,
    mesh: Mesh | None = None,
    key: PRNGKeyArray,
) -> Run:
    """Run a filter on every trial; every array of the result is stacked along a first axis.

    Runs of filters of one kind and shape share one compilation, whatever their settings, if these are arrays. The key of
    a trial is `key` folded with its number. With a `mesh` variables are spread along its first axis, see `cycle`, and trials
    run one after another; along a second axis as many at a time as it has devices.

    Example:
        >>> from bieqno.assimilation import ETKF, Lorenz63, Observation
        >>> system = System(Lorenz63(), Observation([0, 2], 1.0), jnp.ones(3))
        >>> trials = make_trials(system, 5, truths=3, members=4, key=jax.random.key(0))
        >>> run_trials(ETKF(), system, trials, key=jax.random.key(1)).kept["mean"].shape
        (3, 5, 3)
    """
    system.check_present(trials.twins.observations.mask)
    warn_where_unlike(filter, system)
    if mesh is not None:
        mesh = distributed.free(mesh)
        filter = divide(filter, system.observation, system.size, mesh, axes=mesh.axis_names[:1])
        return _on_mesh(Assimilation(filter, *distributed.spread((system, record, key), mesh)), trials, mesh)
    found: Run = sweep(Assimilation(filter, system, record, key), trials)
    return found


class Assimilation(eqx.Module):
    """A `cycle` on one trial, as a value: what differs in arrays only is compiled once."""

    filter: Filter
    system: System
    record: Record
    key: PRNGKeyArray

    def __call__(self, trial: Trials) -> Run:
        """Run the trial."""
        key = jax.random.fold_in(self.key, trial.numbers)
        observations = trial.twins.observations
        driven: Any = {"inputs": trial.inputs, "record": self.record}
        return cycle(self.filter, self.system, trial.ensembles, observations, **driven, key=key)


def _large(trials: Trials) -> tuple[Any, Any, Any]:
    """Return what has a value for each variable or observation."""
    return trials.twins.truth, trials.ensembles, trials.twins.observations


def _on_mesh(run: Assimilation, trials: Trials, mesh: Mesh) -> Run:
    """Run trials on a mesh, as many at a time as its second axis has devices, and one without such an axis."""
    space, *second = mesh.axis_names
    if len(second) > 1:
        raise ValueError(f"a mesh has an axis for variables and one for truths, got {dict(mesh.shape)}")
    axis = second[0] if second else None
    count, truths = mesh.shape.get(axis, 1), len(trials.numbers)
    along = distributed.dividing(trials.twins.observations.value.shape[-1], mesh, (space,))

    def some(first: int) -> Run:
        # The last of too few run again: each device has one.
        numbers = np.minimum(np.arange(first, first + count), truths - 1)
        chosen = jax.tree.map(lambda leaf: leaf[numbers], trials)
        fields = distributed.spread((chosen.twins.truth, chosen.ensembles), mesh, axis, None, space)
        large = (*fields, distributed.spread(chosen.twins.observations, mesh, axis, None, along))
        small = distributed.spread(eqx.tree_at(_large, chosen, (None, None, None)), mesh, axis)
        found = _together(run, eqx.tree_at(_large, small, large, is_leaf=lambda leaf: leaf is None), axis)
        return jax.tree.map(lambda leaf: leaf[: truths - first], found)

    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *map(some, range(0, truths, count)))


@eqx.filter_jit
def _together(run: Assimilation, trials: Trials, axis: str | None) -> Run:
    found: Run = jax.vmap(run, spmd_axis_name=axis)(trials)
    return found


def sweep(run: Callable[[Trials], PyTree[Any]], trials: Trials) -> PyTree[Any]:
    """Run every trial, one per core: compiled once, results stacked along a first axis.

    A small problem keeps one core busy and no more, and mapped by `jax.vmap` it was slower than one by one. So the
    trials are shared out among as many threads as the process may use cores, which a compiled program does not block.
    """
    compiled = eqx.filter_jit(run)

    def one(number: int) -> PyTree[Any]:
        return jax.block_until_ready(compiled(jax.tree.map(lambda leaf: leaf[number], trials)))

    first = one(0)  # compiles
    with ThreadPoolExecutor(usable_cores()) as pool:
        rest = list(pool.map(one, range(1, trials.numbers.shape[0])))
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), first, *rest)


def usable_cores() -> int:
    """Return the number of cores that this process may use, which may be fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def first_windows(trials: Trials, windows: int) -> Trials:
    """Return the same trials, cut short."""
    short = jax.tree.map(lambda series: series[:, :windows], (trials.twins, trials.inputs))
    return dataclasses.replace(trials, twins=short[0], inputs=short[1])
