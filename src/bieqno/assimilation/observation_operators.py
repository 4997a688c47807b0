"""Observation operators, each from one state to what is observed of it; which values a window has, and where they are."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from bieqno.assimilation.geometry import marked, renumbered
from bieqno.assimilation.laws import AbstractLaw
from bieqno.assimilation.linalg import magnitude
from bieqno.assimilation.places import Places, as_numbers

LARGEST = 40_000_000  # entries of a Jacobian that is still looked at
WIDE = 0.1  # standard deviation of what a value depends on and still has a place, as a share of the domain


class Components(eqx.Module):
    """Observes chosen components of a state directly; a range of them stays one, however long it is."""

    indices: tuple[int, ...] | range = eqx.field(static=True)

    def __call__(self, state: Float[Array, "n"]) -> Float[Array, "m"]:
        """Pick the components."""
        if not len(self.indices):
            return state[:0]
        # An index out of range would silently be clipped by JAX.
        low, high = min(self.indices), max(self.indices)
        if low < 0 or high >= state.shape[0]:
            span = f"{low} to {high} of a state of {state.shape[0]} variables"
            raise ValueError(f"cannot observe components {span}, which count from 0")
        if isinstance(self.indices, range) and self.indices.step > 0:  # a slice, for numbers would be compiled in
            return state[low : high + 1 : self.indices.step]
        return state[self.numbers]

    @property
    def numbers(self) -> Int[np.ndarray, "m"]:
        """The components, as an array."""
        return as_numbers(self.indices).astype(int)

    def inputs(self, observations: Int[np.ndarray, "k"]) -> Int[np.ndarray, "_"]:
        """Return the variables that some of the values depend on."""
        return self.numbers[observations]

    def outputs(self, variables: Int[np.ndarray, "k"], size: int) -> Int[np.ndarray, "_"]:
        """Return the values that depend on any of some variables, of which there are `size`."""
        return np.flatnonzero(marked(variables, size)[self.numbers])

    def part(self, variables: Int[np.ndarray, "k"], observations: Int[np.ndarray, "l"]) -> "Picked":
        """Return the same for a part of the state, and some of the values; those of other parts are meaningless."""
        return Picked(jnp.asarray(renumbered(self.inputs(observations), variables)[0]))


class Picked(eqx.Module):
    """Observes components whose numbers are data."""

    numbers: Int[Array, "m"]

    def __call__(self, state: Float[Array, "n"]) -> Float[Array, "m"]:
        """Pick the components."""
        return state[self.numbers]


class LinearOperator(eqx.Module):
    """Observes linear combinations of components."""

    matrix: Float[Array, "m n"]

    def __call__(self, state: Float[Array, "n"]) -> Float[Array, "m"]:
        """Multiply by the matrix H."""
        if state.shape != self.matrix.shape[1:]:
            shape = self.matrix.shape
            raise ValueError(f"the matrix {shape} expects a state of {shape[1]} variables, got {state.shape}")
        return self.matrix @ state

    def inputs(self, observations: Int[np.ndarray, "k"]) -> Int[np.ndarray, "_"]:
        """Return the variables that some of the values depend on."""
        return np.flatnonzero(np.any(np.asarray(self.matrix)[observations] != 0, axis=0))

    def outputs(self, variables: Int[np.ndarray, "k"], size: int) -> Int[np.ndarray, "_"]:
        """Return the values that depend on any of some variables."""
        return np.flatnonzero(np.any(np.asarray(self.matrix)[:, variables] != 0, axis=1))

    def part(self, variables: Int[np.ndarray, "k"], observations: Int[np.ndarray, "l"]) -> "LinearOperator":
        """Return the same for a part of the state, and some of the values."""
        # A variable that is there twice, as padding, counts once.
        first = np.zeros(len(variables), bool)
        first[np.unique(variables, return_index=True)[1]] = True
        return LinearOperator(self.matrix[np.ix_(observations, variables)] * first)


class MeanOperator(eqx.Module):
    """Predicts the mean of a law, where that is not the prediction itself."""

    operator: Callable[[Float[Array, "n"]], Float[Array, "m"]]
    law: AbstractLaw

    def __call__(self, state: Float[Array, "n"]) -> Float[Array, "m"]:
        """Return the mean of what is observed of a state."""
        return self.law.moments(self.operator(state)[None])[0][0]


class Shifted(eqx.Module):
    """Observes some of many values, evenly spaced in their order, at a new random offset in each window: tracks of a satellite.

    A network is any function from a key to a mask that says which values there are in one window; see `System`.

    Example:
        >>> [jnp.flatnonzero(Shifted(12, 3)(jax.random.key(seed))).tolist() for seed in (0, 3)]
        [[0, 4, 8], [1, 5, 9]]
    """

    size: int = eqx.field(static=True)
    count: int = eqx.field(static=True)

    def __check_init__(self) -> None:
        if not 0 < self.count <= self.size:
            raise ValueError(f"some of {self.size} values are observed, got count={self.count}")

    def __call__(self, key: PRNGKeyArray) -> Bool[Array, "m"]:
        """Draw an offset, less than the distance between two of them."""
        # In whole numbers: the offset is a share of the distance, of which there are as many as values.
        offset = jax.random.randint(key, (), 0, self.size)
        return jnp.zeros(self.size, bool).at[(jnp.arange(self.count) * self.size + offset) // self.count].set(True)


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
