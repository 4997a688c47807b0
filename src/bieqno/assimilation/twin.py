"""Twin experiments: `simulate` a truth and its observations, `cycle` a filter through them."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from bieqno.assimilation.filters.filter import Filter
from bieqno.assimilation.models.forecast import Model, forecast
from bieqno.assimilation.observation import Observation
from bieqno.assimilation.records import Record, keep_moments


class Observations(eqx.Module):
    """A series of observations.

    Args:
        value: observed values, one row a window; anything where missing.
        mask: which of them there are.
        reference: the values at which the filter evaluates the error law.
    """

    value: Float[Array, "T m"]
    mask: Bool[Array, "T m"]
    reference: Float[Array, "T m"]

    def __check_init__(self) -> None:
        shapes = self.value.shape, self.mask.shape, self.reference.shape
        if len(set(shapes)) > 1:
            raise ValueError(f"values, mask and reference have one shape, got {shapes[0]}, {shapes[1]} and {shapes[2]}")

    @classmethod
    def of(cls, value: Float[Array, "T m"]) -> "Observations":
        """Measured values, NaN where one is missing; the error law is evaluated at what was measured."""
        mask = jnp.isfinite(value)
        value = jnp.where(mask, value, 0)
        return cls(value, mask, value)

    def rebuilt(self) -> "Observations":
        """The same, seen by a filter that rebuilds R from the observed value instead of knowing the truth's."""
        return Observations(self.value, self.mask, jnp.where(self.mask, self.value, 0))


class Twin(eqx.Module):
    """A simulated truth and its observations.

    Args:
        truth: true states at the end of each window.
        observations: what was observed of them.
    """

    truth: Float[Array, "T n"]
    observations: Observations


class Run(eqx.Module):
    """A filter's way through a series of observations.

    Args:
        kept: what the record kept of each window, stacked along a first axis.
        ensemble: the last ensemble, to go on from.
        diverged: the first window in which the filter diverged, counted from 0; -1 if it never did. What
            is kept from there on repeats the last sound ensemble, and is no result.
    """

    kept: PyTree[Any]
    ensemble: Float[Array, "N n"]
    diverged: Int[Array, ""]


@eqx.filter_jit
def simulate(
    model: Model,
    observation: Observation,
    windows: int,
    *,
    state: Float[Array, "n"],
    mask: Bool[Array, "T m"] | None = None,
    key: PRNGKeyArray,
) -> Twin:
    """Run a truth and observe it at the end of every window.

    Args:
        model: the dynamics.
        observation: what is observed.
        windows: how many windows.
        state: the true state at the beginning; see `spin_up` for one on the attractor.
        mask: which values are there, if the network changes with time or has gaps; None for all.
        key: for model error and observation errors.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> twin = simulate(lambda z: 2 * z, Observation([0], 0.1), 3, state=jnp.ones(2), key=jax.random.key(0))
        >>> twin.truth[:, 0].tolist()
        [2.0, 4.0, 8.0]
    """
    state = jnp.asarray(state, jnp.result_type(state, float))  # whole numbers would stop at the first step
    if windows < 0 or state.ndim != 1:
        raise ValueError(f"expected a state (n,) and windows to run, got shape {state.shape} and {windows} windows")
    observation.size(state.shape[0])
    model_key, error_key = jax.random.split(key)

    def advance(z: Float[Array, "n"], k: PRNGKeyArray) -> tuple[Array, Array]:
        z = forecast(model, z[None], key=k)[0]
        return z, z

    truth = jax.lax.scan(advance, state, jax.random.split(model_key, windows))[1]
    clean = jax.vmap(observation.operator)(truth)
    noise = jax.random.normal(error_key, clean.shape, clean.dtype)
    error = jax.vmap(lambda e, c: observation.error.colour(e[None], c)[0])(noise, clean)
    present = jnp.ones(clean.shape, bool) if mask is None else mask
    if present.shape != clean.shape:
        raise ValueError(f"the mask has shape {present.shape}, the observations {clean.shape}")
    value = jnp.where(present, clean + error, 0)
    return Twin(truth, Observations(value, present, jnp.where(present, clean, 0)))


def spin_up(model: Model, state: Float[Array, "n"], windows: int, *, key: PRNGKeyArray) -> Float[Array, "T n"]:
    """States of a free run, one a window: with the first of them dropped, a sample of the climatology.

    Args:
        model: the dynamics.
        state: where to begin.
        windows: how many windows to run.
        key: for model error.
    """
    nothing = Observation([], 1.0)
    return simulate(model, nothing, windows, state=state, key=key).truth


@eqx.filter_jit
def cycle(
    filter: Filter,
    model: Model,
    observation: Observation,
    ensemble: Float[Array, "N n"],
    observations: Observations,
    *,
    record: Record = keep_moments,
    limit: float | Float[Array, "n"] = 1e6,
    key: PRNGKeyArray,
) -> Run:
    """Take an ensemble through a series of observations: forecast, analyse, record, and again.

    The only filtering loop, compiled as one program; sweeps are a `jax.vmap` of it.

    Args:
        filter: the analysis, any function ``(ensemble, observed, *, key) -> ensemble``.
        model: the dynamics that the filter believes in.
        observation: how states are observed.
        ensemble: the members at the beginning of the first window.
        observations: the observed values.
        record: what to keep of each window.
        limit: a member beyond this absolute value, in any variable, has left the climatology: the run
            has diverged, as it has when a value is not finite.
        key: for model error and analysis; window k uses the same key whatever the filter does.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from bieqno.assimilation import EnKF, Lorenz63
        >>> model, observation = Lorenz63(), Observation([0, 2], 1.0)
        >>> twin_key, start_key, run_key = jax.random.split(jax.random.key(0), 3)
        >>> twin = simulate(model, observation, 20, state=jnp.array([-8.5, -7.0, 27.0]), key=twin_key)
        >>> start = jnp.array([-8.0, -9.0, 28.0]) + jax.random.normal(start_key, (50, 3))
        >>> run = cycle(EnKF(), model, observation, start, twin.observations, key=run_key)
        >>> run.kept["mean"].shape, run.diverged.item()
        ((20, 3), -1)
    """
    ensemble = jnp.asarray(ensemble, jnp.result_type(ensemble, float))
    if ensemble.ndim != 2 or not ensemble.shape[0]:
        raise ValueError(f"an ensemble has one row a member and at least one of them, got shape {ensemble.shape}")
    size = observation.size(ensemble.shape[1])
    if observations.value.shape[1] != size:
        raise ValueError(
            f"the observation gives {size} values of a state of {ensemble.shape[1]} variables, "
            f"but the series has {observations.value.shape[1]}"
        )

    def sound(members: Float[Array, "N n"]) -> Bool[Array, ""]:
        # A comparison with NaN is false, so this one test is also the one for finiteness.
        return jnp.all(jnp.abs(members) <= limit)

    def step(
        carry: tuple[Array, Array], window: tuple[Array, tuple[PRNGKeyArray, PRNGKeyArray], Observations]
    ) -> tuple[tuple[Array, Array], PyTree[Any]]:
        start, diverged = carry
        index, (model_key, analysis_key), seen = window
        prior = forecast(model, start, key=model_key)
        going = (diverged < 0) & sound(prior)
        # A lost ensemble stands still, so that nothing downstream ever computes with what is not finite.
        prior = jnp.where(going, prior, start)
        observed = observation.window(seen.value, mask=seen.mask, reference=seen.reference, start=start)
        posterior = filter(prior, observed, key=analysis_key)
        if posterior.shape != prior.shape:
            raise ValueError(f"a filter keeps the shape {prior.shape}, got {posterior.shape}")
        going = going & sound(posterior)
        posterior = jnp.where(going, posterior, start)
        prior = jnp.where(going, prior, start)
        diverged = jnp.where((diverged < 0) & ~going, index, diverged)
        return (posterior, diverged), record(prior, posterior, observed, key=analysis_key)

    index = jnp.arange(observations.value.shape[0])
    # Folding the number in, rather than splitting, keeps a window's keys whatever the length of the series.
    keys = jax.vmap(lambda k: tuple(jax.random.split(jax.random.fold_in(key, k))))(index)
    (last, diverged), kept = jax.lax.scan(step, (ensemble, jnp.array(-1)), (index, keys, observations))
    return Run(kept, last, diverged)
