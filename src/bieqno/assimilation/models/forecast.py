"""How an ensemble is carried to the next window by whatever model there is.

A deterministic model is a plain function of one state, and `forecast` maps it over the members. What needs to see
the whole ensemble or a random key is an `AbstractEnsembleModel`: model error, stochastic models, and code outside JAX.

A model that is driven from outside (rain, a control, the time itself, the length of a window) takes the `inputs` of the
window as a second argument: any PyTree of arrays. Models without inputs are called without.
"""

import abc
import math
from collections.abc import Callable
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray, PyTree

from bieqno.arguments import checked, finite_floats
from bieqno.assimilation.laws import AbstractError, as_error
from bieqno.assimilation.linalg import white_noise


class AbstractEnsembleModel(eqx.Module):
    """A model that carries a whole ensemble at once, or at random."""

    @abc.abstractmethod
    def forecast(self, ensemble: Float[Array, "N n"], *inputs: PyTree[Any], key: PRNGKeyArray) -> Float[Array, "N n"]:
        """Return the ensemble one window later; the inputs of the window are given where it has any."""


Model: TypeAlias = Callable[..., Float[Array, "n"]] | AbstractEnsembleModel


@checked(finite=False)
def forecast(
    model: Model, ensemble: Float[Array, "N n"], inputs: PyTree[Any] = None, *, key: PRNGKeyArray
) -> Float[Array, "N n"]:
    """Forecast every member one window, with the inputs of the window if it has any.

    Example:
        >>> forecast(lambda z: 2 * z, jnp.ones((2, 3)), key=jax.random.key(0)).tolist()
        [[2.0, 2.0, 2.0], [2.0, 2.0, 2.0]]
        >>> forecast(lambda z, rain: z + rain, jnp.ones((2, 1)), jnp.array(3.0), key=jax.random.key(0)).tolist()
        [[4.0], [4.0]]
    """
    given = () if inputs is None else (inputs,)
    if isinstance(model, AbstractEnsembleModel):
        carried = model.forecast(ensemble, *given, key=key)
    else:
        carried = jax.vmap(lambda member: model(member, *given))(ensemble)
    _check_shape(ensemble.shape, carried.shape)
    return carried.astype(ensemble.dtype)


def _check_shape(given: tuple[int, ...], returned: tuple[int, ...]) -> None:
    if given != returned:
        raise ValueError(f"a model keeps the shape of the ensemble; it was given {given} and returned {returned}")


class StochasticModel(AbstractEnsembleModel):
    """A model that draws at random: a function of one state, the inputs if there are any, and a `key` of the member's own.

    Example:
        >>> walk = StochasticModel(lambda z, *, key: z + jax.random.normal(key, z.shape))
        >>> len(set(forecast(walk, jnp.zeros((5, 1)), key=jax.random.key(0))[:, 0].tolist()))
        5
    """

    function: Callable[..., Float[Array, "n"]]

    def forecast(self, ensemble: Float[Array, "N n"], *inputs: PyTree[Any], key: PRNGKeyArray) -> Float[Array, "N n"]:
        """Return the ensemble one window later, every member by a key of its own."""
        keys = jax.random.split(key, ensemble.shape[0])
        return jax.vmap(lambda member, k: self.function(member, *inputs, key=k))(ensemble, keys)


class HostModel(AbstractEnsembleModel):
    """A model outside JAX: a NumPy function of a whole ensemble ``(N, n)``, called on the host once per window.

    Where windows have inputs these are its second argument, as arrays of NumPy.

    Example:
        >>> model = HostModel(lambda ensemble: np.sort(ensemble, axis=1))
        >>> forecast(model, jnp.array([[3.0, 1.0]]), key=jax.random.key(0)).tolist()
        [[1.0, 3.0]]
    """

    function: Callable[..., np.ndarray]

    def forecast(self, ensemble: Float[Array, "N n"], *inputs: PyTree[Any], key: PRNGKeyArray) -> Float[Array, "N n"]:
        """Return the ensemble one window later."""
        dtype, shape = ensemble.dtype, ensemble.shape

        def call(values: Any, *given: Any) -> np.ndarray:
            # A copy, since the caller may write into what it is given.
            result = np.asarray(self.function(np.array(values), *jax.tree.map(np.array, given)), dtype)
            _check_shape(shape, result.shape)
            return result

        returned = jax.ShapeDtypeStruct(shape, dtype)
        return jax.pure_callback(call, returned, ensemble, *inputs, vmap_method="sequential")


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

    def forecast(self, ensemble: Float[Array, "N n"], *inputs: PyTree[Any], key: PRNGKeyArray) -> Float[Array, "N n"]:
        """Return the ensemble one window later, with an error of its own for each member."""
        inner_key, noise_key = jax.random.split(key)
        carried = forecast(self.model, ensemble, *inputs, key=inner_key)
        noise = white_noise(carried.shape, carried.dtype, key=noise_key)
        return carried + self.error.colour(noise, jnp.zeros(carried.shape[1], carried.dtype))


class LinearModel(eqx.Module):
    """Multiplies a state by a matrix. Wrapped in a `NoisyModel` it is linear and Gaussian.

    Example:
        >>> LinearModel(jnp.array([[0.0, 1.0], [-1.0, 0.0]]))(jnp.array([1.0, 2.0])).tolist()
        [2.0, -1.0]
    """

    matrix: Float[Array, "n n"] = eqx.field(converter=finite_floats("matrix"))

    def __check_init__(self) -> None:
        shape = jnp.shape(self.matrix)
        if len(shape) != 2 or shape[0] != shape[1]:
            raise ValueError(f"the matrix of a linear model is square, got shape {shape}")

    def __call__(self, state: Float[Array, "n"]) -> Float[Array, "n"]:
        """Return the state one window later."""
        if state.shape != self.matrix.shape[:1]:
            raise ValueError(f"this model has {self.matrix.shape[0]} variables, got shape {state.shape}")
        return self.matrix @ state


def redrawn(ensemble: Float[Array, "N n"], lost: Bool[Array, "N"], *, key: PRNGKeyArray) -> Float[Array, "N n"]:
    """Replace members whose forecast failed by draws from a Gaussian with the mean and the covariance of the others.

    Example:
        >>> ensemble = jnp.array([[1.0], [2.0], [jnp.nan], [3.0]])
        >>> again = redrawn(ensemble, jnp.isnan(ensemble[:, 0]), key=jax.random.key(0))
        >>> bool(jnp.isfinite(again).all()), again[jnp.array([0, 1, 3])].tolist() == [[1.0], [2.0], [3.0]]
        (True, True)
    """
    N, gone = ensemble.shape[0], lost[:, None]
    count = jnp.sum(~lost).astype(ensemble.dtype)
    mean = jnp.sum(jnp.where(gone, 0, ensemble), axis=0) / jnp.maximum(count, 1)
    A = jnp.where(gone, 0, ensemble - mean) / jnp.sqrt(jnp.maximum(count - 1, 1))
    return jnp.where(gone, mean + white_noise((N, N), ensemble.dtype, key=key) @ A, ensemble)


def fewest_survivors(share: float, members: int) -> int:
    """Return how many members a share of survivors asks for, at least one.

    Example:
        >>> fewest_survivors(0.8, 20), fewest_survivors(0.8, 4), fewest_survivors(1.0, 3)
        (16, 4, 3)
    """
    return max(math.ceil(share * members - 1e-9), 1)
