"""Where observations are, found from what they depend on: linear and pointwise operators need not say it."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bieqno.assimilation.linalg import magnitude
from bieqno.assimilation.places import Places

LARGEST = 40_000_000  # entries of a Jacobian that is still looked at
WIDE = 0.1  # standard deviation of what a value depends on and still has a place, as a share of the domain


def observation_places(
    operator: Callable[[Float[Array, "n"]], Float[Array, "m"]], places: Places, state: Float[Array, "n"]
) -> Places | None:
    """Return where the values of an operator are: at the centre of the variables that they depend on.

    None where that says nothing: for values that depend on all of the domain or on nothing, and operators that JAX cannot
    differentiate. The kind of a value is that of the variable that it depends on most.

    Example:
        >>> ring = Places.grid(8, period=8.0)
        >>> found = observation_places(lambda z: jnp.stack([z[2] ** 2, (z[7] + z[0]) / 2]), ring, jnp.ones(8))
        >>> found.positions.round(6)[:, 0].tolist()
        [2.0, 7.5]
        >>> observation_places(lambda z: jnp.mean(z)[None], ring, jnp.ones(8)) is None
        True
    """
    try:
        count = jax.eval_shape(operator, state).shape[0]
        if not count or count * state.shape[0] > LARGEST:
            return None
        with jax.ensure_compile_time_eval():  # a system may be made inside `jit`
            weights = np.asarray(_dependence(operator, state))
    except (TypeError, ValueError, NotImplementedError, jax.errors.JAXTypeError):
        return None
    total = weights.sum(axis=1, keepdims=True)
    if not np.all(np.isfinite(total) & (total > 0)):
        return None
    weights = weights / total
    centres = [_centre(weights, *dimension) for dimension in zip(places.positions.T, _periods(places), strict=True)]
    if any(centre is None for centre in centres):
        return None
    kinds = places.kinds[np.argmax(weights, axis=1)]
    found = np.stack([c for c in centres if c is not None], axis=1)
    if places.on_sphere:  # the centre of a region lies below it
        found *= np.linalg.norm(places.positions[0]) / np.linalg.norm(found, axis=1, keepdims=True)
    return Places(found, kinds, period=places.period, on_sphere=places.on_sphere)


def _dependence(operator: Callable[[Array], Array], state: Float[Array, "n"]) -> Float[Array, "m n"]:
    """Return how much each value depends on each variable, about the state: at one point a derivative may vanish."""
    noise = jax.random.normal(jax.random.key(0), (2, *state.shape), state.dtype)
    near = state + 0.1 * magnitude(state) * noise
    return jnp.sum(jnp.abs(jax.vmap(jax.jacrev(operator))(near)), axis=0)


def _periods(places: Places) -> tuple[float, ...]:
    return (np.inf,) * places.positions.shape[1] if places.period is None else places.period


def _centre(
    weights: Float[np.ndarray, "m n"], position: Float[np.ndarray, "n"], period: float
) -> Float[np.ndarray, "m"] | None:
    """Return weighted means of positions along one dimension; None if one of them is of values that are too far apart."""
    if np.isfinite(period):
        mean = weights @ np.exp(2j * np.pi * position / period)
        centre = np.angle(mean) * period / (2 * np.pi) % period
        apart = (position - centre[:, None] + period / 2) % period - period / 2
        domain = period
    else:
        centre = weights @ position
        apart = position - centre[:, None]
        domain = float(np.ptp(position))
    spread = np.sqrt(np.sum(weights * apart**2, axis=1))
    # An average over a third of the domain has one, two variables a quarter of it apart have none.
    rounding = 1e-6 * (1 + float(np.max(np.abs(position))))
    return None if np.any(spread > WIDE * domain + rounding) else centre
