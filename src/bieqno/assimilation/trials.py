"""Independent repetitions of a twin experiment, and a filter on all of them."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from bieqno.assimilation.conditions import warn_where_unlike
from bieqno.assimilation.observation import Filter
from bieqno.assimilation.system import Climate, System
from bieqno.assimilation.twin import Record, Run, Twin, cycle, keep_moments, simulate, spin_up


class Trials(eqx.Module):
    """Truths with observations and first ensembles, all stacked along a first axis."""

    twins: Twin
    ensembles: Float[Array, "r N n"] | Float[Array, "N n"]
    numbers: Int[Array, "r"] | Int[Array, ""]


@eqx.filter_jit
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
    key: PRNGKeyArray,
) -> Trials:
    """Simulate independent truths from the climatology, and an ensemble of `members` about the beginning of each.

    Each truth spins up, for `spin` windows, from the system's state with noise of standard deviation `disturbance`. The mean
    of an ensemble is as far from the truth as its members are from the mean: its standard deviation is the `spread`. Both are
    the system's `first_spread` unless they are given. With a `climate` the members are states of
    it instead, drawn at random.

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
    if spread is None or disturbance is None:
        first = system.first_spread(key=jax.random.fold_in(key, truths))
        spread, disturbance = (first if given is None else given for given in (spread, disturbance))

    def one(number: Int[Array, ""]) -> Trials:
        keys = jax.random.split(jax.random.fold_in(key, number), 5)
        near = system.state + disturbance * jax.random.normal(keys[0], shape)
        first = spin_up(system, spin, state=near, key=keys[1])[-1] if spin else near
        twin = simulate(system, windows, state=first, key=keys[2])
        if climate is not None:
            drawn = jax.random.choice(keys[4], len(climate.states), (members,), replace=False)
            return Trials(twin, climate.states[drawn], number)
        centre = first + spread * jax.random.normal(keys[3], shape)
        ensemble = centre + spread * jax.random.normal(keys[4], (members, *shape))
        return Trials(twin, ensemble, number)

    return jax.vmap(one)(jnp.arange(truths))


def run_trials(
    filter: Filter, system: System, trials: Trials, *, record: Record = keep_moments, key: PRNGKeyArray
) -> Run:
    """Run a filter on every trial; every array of the result is stacked along a first axis.

    Runs of filters of one kind and shape share one compilation, whatever their settings, if these are arrays. The key of
    a trial is `key` folded with its number.

    Example:
        >>> from bieqno.assimilation import ETKF, Lorenz63, Observation
        >>> system = System(Lorenz63(), Observation([0, 2], 1.0), jnp.ones(3))
        >>> trials = make_trials(system, 5, truths=3, members=4, key=jax.random.key(0))
        >>> run_trials(ETKF(), system, trials, key=jax.random.key(1)).kept["mean"].shape
        (3, 5, 3)
    """
    warn_where_unlike(filter, system)
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
        return cycle(self.filter, self.system, trial.ensembles, observations, record=self.record, key=key)


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
    return eqx.tree_at(lambda t: t.twins, trials, jax.tree.map(lambda series: series[:, :windows], trials.twins))
