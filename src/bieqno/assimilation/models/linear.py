"""The linear model, for which the Kalman filter is the exact answer."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float


class LinearModel(eqx.Module):
    """Multiplies a state by a matrix. Wrapped in a `NoisyModel` it is linear and Gaussian.

    Args:
        matrix: the propagator over one window.

    Example:
        >>> import jax.numpy as jnp
        >>> LinearModel(jnp.array([[0.0, 1.0], [-1.0, 0.0]]))(jnp.array([1.0, 2.0])).tolist()
        [2.0, -1.0]
    """

    matrix: Float[Array, "n n"]

    def __check_init__(self) -> None:
        shape = jnp.shape(self.matrix)
        if len(shape) != 2 or shape[0] != shape[1]:
            raise ValueError(f"the matrix of a linear model is square, got shape {shape}")

    def __call__(self, state: Float[Array, "n"]) -> Float[Array, "n"]:
        """The state one window later."""
        if state.shape != self.matrix.shape[:1]:
            raise ValueError(f"this model has {self.matrix.shape[0]} variables, got shape {state.shape}")
        return self.matrix @ state
