"""How an ensemble is carried to the next window by whatever model there is.

A deterministic model is a plain function of one state, and `forecast` maps it over the members. What needs to see
the whole ensemble or a random key is an `AbstractEnsembleModel`: model error, and code outside JAX.
"""

import abc
from collections.abc import Callable
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from bieqno.assimilation.laws import AbstractError, as_error
from bieqno.assimilation.linalg import white_noise


class AbstractEnsembleModel(eqx.Module):
    """A model that carries a whole ensemble at once, or at random."""

    @abc.abstractmethod
    def forecast(self, ensemble: Float[Array, "N n"], *, key: PRNGKeyArray) -> Float[Array, "N n"]:
        """Return the ensemble one window later."""


Model: TypeAlias = Callable[[Float[Array, "n"]], Float[Array, "n"]] | AbstractEnsembleModel


def forecast(model: Model, ensemble: Float[Array, "N n"], *, key: PRNGKeyArray) -> Float[Array, "N n"]:
    """Forecast every member one window.

    Example:
        >>> forecast(lambda z: 2 * z, jnp.ones((2, 3)), key=jax.random.key(0)).tolist()
        [[2.0, 2.0, 2.0], [2.0, 2.0, 2.0]]
    """
    carried = (
        model.forecast(ensemble, key=key) if isinstance(model, AbstractEnsembleModel) else jax.vmap(model)(ensemble)
    )
    _check_shape(ensemble.shape, carried.shape)
    return carried.astype(ensemble.dtype)


def _check_shape(given: tuple[int, ...], returned: tuple[int, ...]) -> None:
    if given != returned:
        raise ValueError(f"a model keeps the shape of the ensemble; it was given {given} and returned {returned}")


class HostModel(AbstractEnsembleModel):
    """A model outside JAX: a NumPy function of a whole ensemble ``(N, n)``, called on the host once per window.

    Example:
        >>> model = HostModel(lambda ensemble: np.sort(ensemble, axis=1))
        >>> forecast(model, jnp.array([[3.0, 1.0]]), key=jax.random.key(0)).tolist()
        [[1.0, 3.0]]
    """

    function: Callable[[np.ndarray], np.ndarray]

    def forecast(self, ensemble: Float[Array, "N n"], *, key: PRNGKeyArray) -> Float[Array, "N n"]:
        """Return the ensemble one window later."""
        dtype, shape = ensemble.dtype, ensemble.shape

        def call(values: Any) -> np.ndarray:
            # A copy, since the caller may write into what it is given.
            result = np.asarray(self.function(np.array(values)), dtype)
            _check_shape(shape, result.shape)
            return result

        return jax.pure_callback(call, jax.ShapeDtypeStruct(shape, dtype), ensemble, vmap_method="sequential")


class NoisyModel(AbstractEnsembleModel):
    """Adds Gaussian model error w to another model: ``z(k) = M(z(k-1)) + w(k)``.

    The error is the standard deviation of w, one number or one per variable, or its covariance matrix.

    Example:
        >>> walk = NoisyModel(lambda z: z, 0.1)
        >>> round(float(walk.forecast(jnp.zeros((1000, 1)), key=jax.random.key(0)).std()), 2)
        0.1
    """

    model: Model
    error: AbstractError

    def __init__(self, model: Model, error: float | np.ndarray | Float[Array, "..."] | AbstractError) -> None:
        self.model = model
        self.error = error if isinstance(error, AbstractError) else as_error(error, floor=0.0)

    def forecast(self, ensemble: Float[Array, "N n"], *, key: PRNGKeyArray) -> Float[Array, "N n"]:
        """Return the ensemble one window later, with an error of its own for each member."""
        inner_key, noise_key = jax.random.split(key)
        carried = forecast(self.model, ensemble, key=inner_key)
        noise = white_noise(carried.shape, carried.dtype, key=noise_key)
        return carried + self.error.colour(noise, jnp.zeros(carried.shape[1], carried.dtype))


class LinearModel(eqx.Module):
    """Multiplies a state by a matrix. Wrapped in a `NoisyModel` it is linear and Gaussian.

    Example:
        >>> LinearModel(jnp.array([[0.0, 1.0], [-1.0, 0.0]]))(jnp.array([1.0, 2.0])).tolist()
        [2.0, -1.0]
    """

    matrix: Float[Array, "n n"]

    def __check_init__(self) -> None:
        shape = jnp.shape(self.matrix)
        if len(shape) != 2 or shape[0] != shape[1]:
            raise ValueError(f"the matrix of a linear model is square, got shape {shape}")

    def __call__(self, state: Float[Array, "n"]) -> Float[Array, "n"]:
        """Return the state one window later."""
        if state.shape != self.matrix.shape[:1]:
            raise ValueError(f"this model has {self.matrix.shape[0]} variables, got shape {state.shape}")
        return self.matrix @ state
