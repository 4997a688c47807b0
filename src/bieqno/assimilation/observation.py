"""What is observed of a state and with which error; and what a filter is handed in one window."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from bieqno.arguments import as_floats, checked
from bieqno.assimilation.laws import AbstractError, AbstractLaw, ConstantLaw, Deviation, IndependentError, as_error
from bieqno.assimilation.linalg import white_noise
from bieqno.assimilation.observation_operators import Components, LinearOperator, MeanOperator
from bieqno.assimilation.places import as_numbers


class Part(eqx.Module):
    """What a filter has to know of the whole where it is handed a part of a state."""

    anything: Bool[Array, ""]  # whether anything was observed anywhere
    observations: Int[Array, "m"]  # numbers of the values that it is handed
    white: Float[Array, "N n"] | None  # what the filter draws at random, if it does: its `noise` of the whole state


class Observed(eqx.Module):
    """What a filter is handed in one window."""

    value: Float[Array, "m"]  # observed values d; zero where the mask says that they are missing
    mask: Bool[Array, "m"]
    reference: Float[Array, "m"]  # the values at which the error law R is evaluated
    error: AbstractLaw
    operator: Callable[[Float[Array, "n"]], Float[Array, "m"]]  # the observation operator H, of one state
    start: Float[Array, "N n"] | None = None  # ensemble at the window's start, for filters that run the model
    perturbed: Float[Array, "N m"] | None = None  # perturbed observations, row i for member i; None to draw them
    inputs: PyTree[Any] = None  # what drives the model in this window; None if nothing does
    part: Part | None = None  # where this is a part of what was observed

    @property
    def numbers(self) -> Int[Array, "m"]:
        """Number of each value among all that are observed."""
        return jnp.arange(self.value.shape[0]) if self.part is None else self.part.observations

    @property
    def std(self) -> Float[Array, "m"]:
        """Standard deviation of the error of each value."""
        return self.error.std(self.reference)

    def predict(self, ensemble: Float[Array, "N n"]) -> Float[Array, "N m"]:
        """Return predicted observations H(z), one row per member."""
        if not ensemble.shape[0]:
            raise ValueError("an ensemble has at least one member, got none")
        predicted = jax.vmap(self.operator)(ensemble)
        if predicted.shape[1:] != self.value.shape:
            raise ValueError(
                f"the operator predicts {predicted.shape[1:]} values from a state of "
                f"{ensemble.shape[1]} variables, but {self.value.shape} were observed"
            )
        return predicted

    def log_weights(self, ensemble: Float[Array, "N n"]) -> Float[Array, "N"]:
        """Return the log-likelihood of each member, up to a constant that all of them share."""
        return self.error.log_likelihood(self.value, self.predict(ensemble), self.reference, self.mask)

    def log_prob(self, ensemble: Float[Array, "N n"]) -> Float[Array, "N"]:
        """Return the log density of what was observed, given each member; 0 where nothing was."""
        return self.log_weights(ensemble) + self.error.log_constant(self.reference, self.mask)

    def gaussian(self, ensemble: Float[Array, "N n"], present: Bool[Array, "N"] | None = None) -> "Observed":
        """Return the same with Gaussian errors, as Kalman-type filters assume them; as it is if they are Gaussian.

        Another law is approximated by its first two moments: predictions become its means, and the variance of an error is
        the average of the law's at the predictions of the members, all or those `present`.
        """
        if isinstance(self.error, AbstractError):
            return self
        counted = None if present is None else present[:, None]
        variance = jnp.mean(self.error.moments(self.predict(ensemble))[1], axis=0, where=counted)
        error = IndependentError(ConstantLaw(jnp.sqrt(variance)), floor=1e-30)
        return dataclasses.replace(self, operator=MeanOperator(self.operator, self.error), error=error)

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
        anything = jnp.any(self.mask) if self.part is None else self.part.anything
        return jnp.where(anything, posterior, prior).astype(prior.dtype)


class Observation(eqx.Module):
    """What is observed, and with which error.

    Args:
        what: numbers of the observed components, a matrix ``(m, n)``, or any function of one state.
        error: standard deviation of the errors, one per component, their covariance matrix ``(m, m)``, a function from
            observed values to standard deviations (the absolute value counts), or a law that is not Gaussian, such as
            `Poisson`.
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
    error: AbstractLaw

    def __init__(
        self,
        what: Sequence[int] | np.ndarray | Array | Callable[[Float[Array, "n"]], Float[Array, "m"]],
        error: Deviation | AbstractLaw,
        *,
        floor: float = 1e-3,
    ) -> None:
        if callable(what):
            self.operator = what
        else:
            # Numbers of components are static, so they stay with NumPy even where all else is traced.
            array = what if isinstance(what, jax.Array) else as_numbers(what)
            if array.ndim == 2:
                matrix = as_floats("the observation matrix", array, finite=True)
                self.operator = LinearOperator(jnp.asarray(matrix, float))
            elif array.ndim == 1 and (array.size == 0 or np.issubdtype(array.dtype, np.integer)):
                numbers = what if isinstance(what, range) else tuple(int(index) for index in np.asarray(array))
                self.operator = Components(numbers)
            else:
                raise ValueError(
                    "what is observed is a list of component numbers, a matrix (m, n) or a function; "
                    f"got an array of shape {array.shape} and type {array.dtype}"
                )
        self.error = error if isinstance(error, AbstractLaw) else as_error(error, floor=floor)

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
            fits = jax.eval_shape(lambda v: self.error.draw(v[None], key=jax.random.key(0)), value)
        except (TypeError, ValueError) as mismatch:
            message = f"{value.shape} values are observed, which the error law does not fit: {mismatch}"
            raise ValueError(message) from mismatch
        if fits.shape != (1, *value.shape):
            raise ValueError(f"{value.shape} values are observed, the error law has {fits.shape[1:]}")
        return value.shape[0]

    @checked("value", "reference", "start")
    def window(
        self,
        value: Float[Array, "m"],
        *,
        mask: Bool[Array, "_"] | None = None,
        reference: Float[Array, "_"] | None = None,
        start: Float[Array, "N n"] | None = None,
        perturbed: Float[Array, "N m"] | None = None,
        inputs: PyTree[Any] = None,
    ) -> Observed:
        """Return the observations of one window, as a filter takes them; NaN where there is none.

        The mask says which of those that are finite to use, and the reference at which values to evaluate the error law, such
        as the truth's instead of the observed ones. `start`, `perturbed` and `inputs` are as in `Observed`.
        """
        for name, other in (("mask", mask), ("reference", reference)):
            if other is not None and other.shape != value.shape:
                raise ValueError(f"the {name} has shape {other.shape}, the observed values {value.shape}")
        present = jnp.isfinite(value)
        mask = present if mask is None else mask & present
        value = jnp.where(mask, value, 0)
        reference = value if reference is None else jnp.where(mask, reference, 0)
        return Observed(value, mask, reference, self.error, self.operator, start, perturbed, inputs)
