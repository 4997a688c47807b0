"""Independent repetitions of a twin experiment, to be mapped over."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from bieqno.assimilation.models.forecast import Model
from bieqno.assimilation.observation import Observation
from bieqno.assimilation.twin import Twin, simulate, spin_up


class Trials(eqx.Module):
    """Truths with observations and first ensembles, all stacked along a first axis: `jax.vmap` over it.

    Args:
        twins: the truths and their observations.
        ensembles: the members at the beginning of each, ``(r, N, n)``.
        numbers: the number of each, to make keys from.
    """

    twins: Twin
    ensembles: Float[Array, "r N n"] | Float[Array, "N n"]
    numbers: Int[Array, "r"] | Int[Array, ""]


@eqx.filter_jit
def make_trials(
    model: Model,
    observation: Observation,
    windows: int,
    *,
    state: Float[Array, "n"],
    truths: int,
    members: int,
    spread: float | Float[Array, "n"] = 1.0,
    disturbance: float | Float[Array, "n"] = 1.0,
    spin: int = 100,
    key: PRNGKeyArray,
) -> Trials:
    """Simulate independent truths from the climatology, and an ensemble round the beginning of each.

    The mean of an ensemble is as far from the truth as its members are from the mean.

    Args:
        model: the dynamics.
        observation: how states are observed.
        windows: how many windows.
        state: anywhere in the basin of the attractor; each truth spins up from near it.
        truths: how many truths.
        members: size of each ensemble.
        spread: standard deviation of the ensemble in each variable.
        disturbance: standard deviation of the noise that sets the truths' beginnings apart.
        spin: windows to run before the truth begins, from `state` with that noise.
        key: a different key makes different truths.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from bieqno.assimilation import Lorenz96, Observation
        >>> model, observation = Lorenz96(8), Observation(range(8), 1.0)
        >>> trials = make_trials(
        ...     model, observation, 5, state=jnp.ones(8), truths=3, members=4, key=jax.random.key(0)
        ... )
        >>> trials.twins.truth.shape, trials.ensembles.shape
        ((3, 5, 8), (3, 4, 8))
    """

    def one(number: Int[Array, ""]) -> Trials:
        keys = jax.random.split(jax.random.fold_in(key, number), 5)
        near = state + disturbance * jax.random.normal(keys[0], state.shape)
        first = spin_up(model, near, spin, key=keys[1])[-1]
        twin = simulate(model, observation, windows, state=first, key=keys[2])
        centre = first + spread * jax.random.normal(keys[3], state.shape)
        ensemble = centre + spread * jax.random.normal(keys[4], (members, *state.shape))
        return Trials(twin, ensemble, number)

    return jax.vmap(one)(jnp.arange(truths))


def sweep(run: Callable[[Trials], PyTree[Any]], trials: Trials) -> PyTree[Any]:
    """Run every trial, one to a core: compiled once, results stacked along a first axis.

    A small problem keeps one core busy and no more, and mapped by `jax.vmap` it was slower than one by one. So the
    trials are dealt out to as many threads as there are cores, which a compiled program does not block.

    Args:
        run: from one trial to a PyTree of arrays, such as a `cycle`.
        trials: the trials.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from bieqno.assimilation import ETKF, Lorenz63, Observation, cycle
        >>> model, observation = Lorenz63(), Observation([0, 2], 1.0)
        >>> trials = make_trials(
        ...     model, observation, 5, state=jnp.ones(3), truths=3, members=4, key=jax.random.key(0)
        ... )
        >>> def run(trial):
        ...     key = jax.random.fold_in(jax.random.key(1), trial.numbers)
        ...     return cycle(ETKF(), model, observation, trial.ensembles, trial.twins.observations, key=key)
        >>> sweep(run, trials).kept["mean"].shape
        (3, 5, 3)
    """
    compiled = eqx.filter_jit(run)

    def one(number: int) -> PyTree[Any]:
        return jax.block_until_ready(compiled(jax.tree.map(lambda leaf: leaf[number], trials)))

    first = one(0)  # compiles
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        rest = list(pool.map(one, range(1, trials.numbers.shape[0])))
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), first, *rest)


def first_windows(trials: Trials, windows: int) -> Trials:
    """The same trials, cut short."""
    return eqx.tree_at(lambda t: t.twins, trials, jax.tree.map(lambda series: series[:, :windows], trials.twins))
