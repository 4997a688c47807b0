"""What is observed of a state and with which error; and what a filter is handed in one window."""

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from bieqno.assimilation.laws import AbstractError, as_error
from bieqno.assimilation.linalg import white_noise


class Components(eqx.Module):
    """Observes chosen components of a state directly."""

    indices: tuple[int, ...] = eqx.field(static=True)

    def __call__(self, state: Float[Array, "n"]) -> Float[Array, "m"]:
        """Pick the components."""
        # An index out of range would silently be clipped by JAX.
        if not all(0 <= index < state.shape[0] for index in self.indices):
            span = f"{min(self.indices)} to {max(self.indices)} of a state of {state.shape[0]} variables"
            raise ValueError(f"cannot observe components {span}, which count from 0")
        return state[np.array(self.indices, int)]


class LinearOperator(eqx.Module):
    """Observes linear combinations of components."""

    matrix: Float[Array, "m n"]

    def __call__(self, state: Float[Array, "n"]) -> Float[Array, "m"]:
        """Multiply by the matrix H."""
        if state.shape != self.matrix.shape[1:]:
            shape = self.matrix.shape
            raise ValueError(
                f"the observation matrix {shape} expects a state of {shape[1]} variables, got {state.shape}"
            )
        return self.matrix @ state


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


class Observed(eqx.Module):
    """What a filter is handed in one window."""

    value: Float[Array, "m"]  # observed values d; zero where the mask says that they are missing
    mask: Bool[Array, "m"]
    reference: Float[Array, "m"]  # the values at which the error law R is evaluated
    error: AbstractError
    operator: Callable[[Float[Array, "n"]], Float[Array, "m"]]  # the observation operator H, of one state
    start: Float[Array, "N n"] | None = (
        None  # ensemble at the window's start, for filters that run the model themselves
    )
    perturbed: Float[Array, "N m"] | None = None  # perturbed observations, row i for member i; None to draw them

    @property
    def std(self) -> Float[Array, "m"]:
        """Standard deviation of the error of each value."""
        return self.error.std(self.reference)

    def predict(self, ensemble: Float[Array, "N n"]) -> Float[Array, "N m"]:
        """Return predicted observations H(z), one row per member."""
        predicted = jax.vmap(self.operator)(ensemble)
        if predicted.shape[1:] != self.value.shape:
            raise ValueError(
                f"the operator predicts {predicted.shape[1:]} values from a state of "
                f"{ensemble.shape[1]} variables, but {self.value.shape} were observed"
            )
        return predicted

    def whiten(self, rows: Float[Array, "k m"]) -> Float[Array, "k m"]:
        """Return rows of observation space in units of the error, R^(-1/2) x; zero where values are missing."""
        return self.error.whiten(rows, self.reference, self.mask)

    def perturb(self, count: int, *, key: PRNGKeyArray) -> Float[Array, "count m"]:
        """Return perturbed observations d_i: those that are given, or new ones.

        New ones depend on the key a filter is called with, and on nothing else: whatever the filter, the same window and key
        see the same ones, and a record can keep them.
        """
        if self.perturbed is not None:
            if self.perturbed.shape != (count, *self.value.shape):
                raise ValueError(f"{count} members need as many perturbed observations, got {self.perturbed.shape}")
            return self.perturbed
        noise = white_noise((count, self.value.shape[0]), self.value.dtype, key=key)
        return self.value + self.error.colour(noise, self.reference)

    def check_known(self, ensemble: Float[Array, "N n"], variables: int, observations: int) -> None:
        """Refuse neighbours that are known for another state or observing network."""
        if (variables, observations) != (ensemble.shape[1], self.value.shape[0]):
            raise ValueError(
                f"neighbours are known for {variables} variables and {observations} observations, "
                f"the state has {ensemble.shape[1]} and {self.value.shape[0]} are observed"
            )

    def check_tapers(
        self, ensemble: Float[Array, "N n"], on_state: Float[Array, "..."], on_observations: Float[Array, "..."]
    ) -> None:
        """Refuse tapers of another state or observing network."""
        count, size = self.value.shape[0], ensemble.shape[1]
        if on_state.shape != (count, size) or on_observations.shape != (count, count):
            raise ValueError(
                f"{count} observations of {size} variables need tapers {(count, size)} and {(count, count)}, "
                f"got {on_state.shape} and {on_observations.shape}"
            )

    def or_prior(self, posterior: Float[Array, "N n"], prior: Float[Array, "N n"]) -> Float[Array, "N n"]:
        """Return the posterior, or the prior as it is where nothing was observed."""
        return jnp.where(jnp.any(self.mask), posterior, prior).astype(prior.dtype)


@runtime_checkable
class Filter(Protocol):
    """An analysis: takes a prior ensemble and what was observed to a posterior ensemble.

    Any function with this signature is a filter. With nothing observed it returns the prior. It passes `key` as it is to
    `Observed.perturb`, and folds a number of its own into it for other randomness, so that comparisons are paired.
    """

    def __call__(self, ensemble: Float[Array, "N n"], observed: Observed, *, key: PRNGKeyArray) -> Float[Array, "N n"]:
        """Return the posterior ensemble, of the same shape."""


@runtime_checkable
class PaddedFilter(Protocol):
    """A filter that can be told which members are present and which are padding: one compiled program for many sizes."""

    def analyse(
        self, ensemble: Float[Array, "N n"], observed: Observed, present: Bool[Array, "N"], *, key: PRNGKeyArray
    ) -> Float[Array, "N n"]:
        """Return the posterior ensemble; what its padding holds is finite and means nothing."""


class Observation(eqx.Module):
    """What is observed, and with which error.

    Args:
        what: numbers of the observed components, a matrix ``(m, n)``, or any function of one state.
        error: standard deviation of the errors, one per component, their covariance matrix ``(m, m)``, or a function from
            observed values to standard deviations (the absolute value counts).
        floor: least standard deviation, which keeps R regular.

    Example:
        >>> observation = Observation([0, 2], lambda d: 0.1 * d + 0.05)
        >>> observed = observation.window(jnp.array([9.5, jnp.nan]))
        >>> observed.mask.tolist(), observed.value.tolist()
        ([True, False], [9.5, 0.0])
        >>> observed.whiten(jnp.ones((1, 2))).tolist()
        [[1.0, 0.0]]
    """

    operator: Callable[[Float[Array, "n"]], Float[Array, "m"]]
    error: AbstractError

    def __init__(
        self,
        what: Sequence[int] | np.ndarray | Array | Callable[[Float[Array, "n"]], Float[Array, "m"]],
        error: float | np.ndarray | Float[Array, "..."] | Callable[[Float[Array, "m"]], Float[Array, "m"]],
        *,
        floor: float = 1e-3,
    ) -> None:
        if callable(what):
            self.operator = what
        else:
            # Numbers of components are static, so they stay with NumPy even where all else is traced.
            array = what if isinstance(what, jax.Array) else np.asarray(what)
            if array.ndim == 2:
                self.operator = LinearOperator(jnp.asarray(array, float))
            elif array.ndim == 1 and (array.size == 0 or np.issubdtype(array.dtype, np.integer)):
                self.operator = Components(tuple(int(index) for index in np.asarray(array)))
            else:
                raise ValueError(
                    "what is observed is a list of component numbers, a matrix (m, n) or a function; "
                    f"got an array of shape {array.shape} and type {array.dtype}"
                )
        self.error = as_error(error, floor=floor)

    def size(self, state_size: int) -> int:
        """Return the number m of values observed of a state of n variables; a ValueError if operator or error disagree."""
        state = jax.ShapeDtypeStruct((state_size,), jnp.zeros(()).dtype)
        value = jax.eval_shape(self.operator, state)
        if value.ndim != 1:
            raise ValueError(
                f"an operator returns a vector of observed values, got shape {value.shape} for a state of "
                f"{state_size} variables; one value is z[:1], not z[0]"
            )
        try:
            jax.eval_shape(lambda v: self.error.colour(v[None], v), value)
        except (TypeError, ValueError) as mismatch:
            message = f"{value.shape} values are observed, which the error law does not fit: {mismatch}"
            raise ValueError(message) from mismatch
        return value.shape[0]

    def window(
        self,
        value: Float[Array, "m"],
        *,
        mask: Bool[Array, "_"] | None = None,
        reference: Float[Array, "_"] | None = None,
        start: Float[Array, "N n"] | None = None,
        perturbed: Float[Array, "N m"] | None = None,
    ) -> Observed:
        """Return the observations of one window, as a filter takes them; NaN where there is none.

        The mask says which of those that are finite to use, and the reference at which values to evaluate the error law, such
        as the truth's instead of the observed ones. `start` and `perturbed` are as in `Observed`.
        """
        for name, other in (("mask", mask), ("reference", reference)):
            if other is not None and other.shape != value.shape:
                raise ValueError(f"the {name} has shape {other.shape}, the observed values {value.shape}")
        present = jnp.isfinite(value)
        mask = present if mask is None else mask & present
        value = jnp.where(mask, value, 0)
        reference = value if reference is None else jnp.where(mask, reference, 0)
        return Observed(value, mask, reference, self.error, self.operator, start, perturbed)
