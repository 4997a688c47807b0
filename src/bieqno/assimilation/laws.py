"""What an observation law is, and the Gaussian ones: how large errors of a vector of values are, and how they go together.

Kalman-type filters never touch a covariance R. They ask for values *whitened* by R^(-1/2), in which missing values are zero
and hence without influence, and for noise *coloured* by R^(1/2). A floor on the standard deviation keeps both finite
where R is singular. Other laws (`bieqno.assimilation.densities`) give them their first two moments.
"""

import abc
import dataclasses
import math
from collections.abc import Callable
from typing import TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

# Of one window: values that are or could be observed, rows of such, those that each member predicts, and which there are.
Values: TypeAlias = Float[Array, "m"]
Rows: TypeAlias = Float[Array, "k m"]
Predicted: TypeAlias = Float[Array, "N m"]
Mask: TypeAlias = Bool[Array, "m"]
Deviation: TypeAlias = float | np.ndarray | Float[Array, "..."] | Callable[[Values], Values]
"""A standard deviation, one per component, a covariance matrix, or a function of the values."""
HALF_LOG_2_PI = 0.5 * math.log(2 * math.pi)


class AbstractLaw(eqx.Module):
    """How the values of a window are distributed, given those that are predicted of them."""

    @abc.abstractmethod
    def std(self, reference: Values) -> Values:
        """Return the standard deviation of each component where this is predicted."""

    @abc.abstractmethod
    def moments(self, predicted: Predicted) -> tuple[Predicted, Predicted]:
        """Return mean and variance of the values at each prediction."""

    @abc.abstractmethod
    def draw(self, predicted: Predicted, *, key: PRNGKeyArray) -> Predicted:
        """Draw values at each prediction."""

    @abc.abstractmethod
    def log_likelihood(self, value: Values, predicted: Predicted, reference: Values, mask: Mask) -> Float[Array, "N"]:
        """Return the log density of all values in the mask at each prediction, up to a constant."""

    @abc.abstractmethod
    def log_constant(self, reference: Values, mask: Mask) -> Float[Array, ""]:
        """Return that constant."""

    @abc.abstractmethod
    def below(self, value: Values, predicted: Predicted, reference: Values) -> tuple[Predicted, Predicted]:
        """Return the probabilities of a smaller value, and of one that is not larger."""

    @abc.abstractmethod
    def whiten(self, rows: Rows, reference: Values, mask: Mask) -> Rows:
        """Multiply every row by R^(-1/2) of the components in the mask; the others become zero."""

    @abc.abstractmethod
    def colour(self, noise: Rows, reference: Values) -> Rows:
        """Multiply every row of white noise by R^(1/2)."""

    @abc.abstractmethod
    def floored(self, floor: float) -> "AbstractLaw":
        """Return the same law with a least standard deviation."""

    def impossible(self, value: Float[Array, "..."]) -> Bool[Array, "..."]:
        """Return which values cannot occur, whatever is predicted: none, unless a law says otherwise."""
        return jnp.zeros(value.shape, bool)


class AbstractError(AbstractLaw):
    """A Gaussian law. `reference` is the value that it may depend on, one number per component; `floor` the least deviation."""

    floor: float = eqx.field(static=True, kw_only=True)

    def moments(self, predicted: Predicted) -> tuple[Predicted, Predicted]:
        """Return the prediction itself, and the square of the standard deviation there."""
        return predicted, jax.vmap(self.std)(predicted) ** 2

    def draw(self, predicted: Predicted, *, key: PRNGKeyArray) -> Predicted:
        """Add errors to each prediction."""
        noise = jax.random.normal(key, predicted.shape, predicted.dtype)
        return predicted + jax.vmap(lambda e, clean: self.colour(e[None], clean)[0])(noise, predicted)

    def log_likelihood(self, value: Values, predicted: Predicted, reference: Values, mask: Mask) -> Float[Array, "N"]:
        """Return minus half the squared misfit in units of the error."""
        return -0.5 * jnp.sum(self.whiten(value - predicted, reference, mask) ** 2, axis=1)

    def below(self, value: Values, predicted: Predicted, reference: Values) -> tuple[Predicted, Predicted]:
        """Return the normal distribution function, of each component by itself."""
        probability = ndtr((value - predicted) / self.std(reference))
        return probability, probability

    def floored(self, floor: float) -> "AbstractError":
        """Return the same law with a floor of at least this."""
        return dataclasses.replace(self, floor=max(floor, self.floor))


class IndependentError(AbstractError):
    """Independent errors by a law from the values to standard deviations, or to one for all; its absolute value counts."""

    law: Callable[[Float[Array, "m"]], Float[Array, "#m"] | Float[Array, ""] | float]

    def std(self, reference: Values) -> Values:
        """Return the standard deviation of each component."""
        deviation = jnp.maximum(jnp.abs(jnp.asarray(self.law(reference))), self.floor)
        return jnp.broadcast_to(deviation, reference.shape).astype(reference.dtype)

    def whiten(self, rows: Rows, reference: Values, mask: Mask) -> Rows:
        """Divide by the standard deviation."""
        return jnp.where(mask, rows / self.std(reference), 0)

    def colour(self, noise: Rows, reference: Values) -> Rows:
        """Multiply by the standard deviation."""
        return noise * self.std(reference)

    def log_constant(self, reference: Values, mask: Mask) -> Float[Array, ""]:
        """Return the log density where there is no misfit."""
        return -jnp.sum(jnp.where(mask, jnp.log(self.std(reference)) + HALF_LOG_2_PI, 0))

    def part(self, observations: Int[np.ndarray, "k"]) -> "IndependentError | None":
        """Return the law of some of the values; None where it may depend on others."""
        if not isinstance(self.law, (ConstantLaw, AffineLaw)):
            return None
        return dataclasses.replace(self, law=self.law.part(observations))


class CorrelatedError(AbstractError):
    """Correlated errors of constant covariance R, which is decomposed once, by `CorrelatedError.of`.

    The floor is the least standard deviation of any combination of components: eigenvalues count as at least its square.
    """

    covariance: Float[Array, "m m"]
    eigenvalues: Float[Array, "m"]
    eigenvectors: Float[Array, "m m"]

    @classmethod
    def of(cls, covariance: Float[Array, "m m"], floor: float) -> "CorrelatedError":
        """Decompose a covariance."""
        values, vectors = jnp.linalg.eigh(covariance)
        return cls(covariance, values, vectors, floor=floor)

    def std(self, reference: Values) -> Values:
        """Return the standard deviation of each component."""
        return jnp.sqrt(jnp.maximum(jnp.diagonal(self.covariance), self.floor**2))

    def _power(self, values: Float[Array, "m"], vectors: Float[Array, "m m"], power: float) -> Float[Array, "m m"]:
        return (vectors * jnp.maximum(values, self.floor**2) ** power) @ vectors.T

    def whiten(self, rows: Rows, reference: Values, mask: Mask) -> Rows:
        """Multiply by the symmetric root of the inverse of R: each result stays nearest its component."""
        values, vectors = _decompose_in_turn(mask, self.covariance, self.eigenvalues, self.eigenvectors)
        return jnp.where(mask, jnp.where(mask, rows, 0) @ self._power(values, vectors, -0.5), 0)

    def colour(self, noise: Rows, reference: Values) -> Rows:
        """Multiply by the symmetric root of R."""
        return noise @ self._power(self.eigenvalues, self.eigenvectors, 0.5)

    def log_constant(self, reference: Values, mask: Mask) -> Float[Array, ""]:
        """Return the log density where there is no misfit; missing values have an eigenvalue of 1."""
        values, _ = _decompose_in_turn(mask, self.covariance, self.eigenvalues, self.eigenvectors)
        missing = jnp.sum(~mask) * jnp.log(jnp.maximum(1, jnp.asarray(self.floor, values.dtype) ** 2))
        return 0.5 * (missing - jnp.sum(jnp.log(jnp.maximum(values, self.floor**2)))) - HALF_LOG_2_PI * jnp.sum(mask)


def _decompose(
    mask: Bool[Array, "m"], covariance: Float[Array, "m m"], values: Float[Array, "m"], vectors: Float[Array, "m m"]
) -> tuple[Float[Array, "m"], Float[Array, "m m"]]:
    """Return the decomposition that is given, or where values are missing that of R with a unit matrix in their place."""

    def cut() -> tuple[Array, Array]:
        both = mask[:, None] & mask[None, :]
        values, vectors = jnp.linalg.eigh(jnp.where(both, covariance, jnp.eye(mask.shape[0], dtype=covariance.dtype)))
        return values, vectors

    return jax.lax.cond(jnp.all(mask), lambda: (values, vectors), cut)


# One mask after another: mapped as one, all would be decomposed where only some have gaps.
_decompose_in_turn: Callable[..., tuple[Array, Array]] = jax.custom_batching.sequential_vmap(_decompose)


class ConstantLaw(eqx.Module):
    """The same standard deviations whatever the values: one for all, or one per component."""

    deviation: Float[Array, ""] | Float[Array, "m"]

    def __call__(self, values: Float[Array, "k"]) -> Float[Array, ""] | Float[Array, "m"]:
        """Return the standard deviations."""
        return self.deviation

    def part(self, observations: Int[np.ndarray, "k"]) -> "ConstantLaw":
        """Return the law of some of the values."""
        return self if self.deviation.size == 1 else ConstantLaw(self.deviation[observations])


class AffineLaw(eqx.Module):
    """The paper's standard deviation, ``slope * value + offset``.

    Example:
        >>> as_error(AffineLaw(0.5, 1.0)).std(jnp.array([4.0, -4.0, -2.0])).tolist()
        [3.0, 1.0, 0.0010000000474974513]
    """

    slope: float
    offset: float

    def __check_init__(self) -> None:
        for name, number in (("slope", self.slope), ("offset", self.offset)):
            if not isinstance(number, jax.core.Tracer) and not np.all(np.isfinite(number)):
                raise ValueError(f"the {name} of a standard deviation is finite, got {name}={number}")

    def __call__(self, values: Float[Array, "m"]) -> Float[Array, "m"]:
        """Return standard deviations, with their sign."""
        return self.slope * values + self.offset

    def part(self, observations: Int[np.ndarray, "k"]) -> "AffineLaw":
        """Return the law of some of the values: the same."""
        return self


def as_error(error: Deviation, *, floor: float = 1e-3) -> AbstractError:
    """Return the law of a standard deviation, one per component, a covariance matrix, or a function of the values."""
    if callable(error):
        return IndependentError(error, floor=floor)
    array = jnp.asarray(error, float)
    if array.ndim > 2 or (array.ndim == 2 and array.shape[0] != array.shape[1]):
        raise ValueError(
            "an error is a standard deviation, one per component, a square covariance matrix or a function; "
            f"got shape {array.shape}"
        )
    # A traced array has no values yet to look at.
    if not isinstance(array, jax.core.Tracer):
        _check(np.asarray(array))
    return IndependentError(ConstantLaw(array), floor=floor) if array.ndim < 2 else CorrelatedError.of(array, floor)


def _check(error: np.ndarray) -> None:
    """Refuse what is no standard deviation or no covariance."""
    if not np.isfinite(error).all():
        raise ValueError("standard deviations and covariances are finite; leave values out by a mask or NaN instead")
    if error.ndim < 2 and (error < 0).any():
        raise ValueError(f"a standard deviation is not negative, got an error of {error.min():g}")
    if error.ndim == 2 and error.size:
        # Rounding of a matrix product in 32 bits.
        slack = 1e-5 * np.abs(error).max() * len(error)
        if np.abs(error - error.T).max() > slack:
            raise ValueError("a covariance matrix is symmetric, and this one is not")
        least = np.linalg.eigvalsh(error.astype(float)).min()
        if least < -slack:
            raise ValueError(f"a covariance matrix has no negative eigenvalue, and this one has {least:.3g}")
