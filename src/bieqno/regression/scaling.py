"""Inputs and targets in units in which a network learns, and back.

Scaling is done in double precision: single precision would lose data that lie far from zero, as dates and pressures do.
"""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

FAR = 1e3
"""Inputs further out than this many standard deviations are taken to lie there: no network extrapolates that far."""


class Scaling(eqx.Module):
    """Shift and scale of inputs and targets, as NumPy numbers of double precision."""

    input_shift: np.ndarray
    input_scale: np.ndarray
    target_shift: np.ndarray
    target_scale: np.ndarray

    def __check_init__(self) -> None:
        if self.input_shift.shape != self.input_scale.shape or self.input_shift.ndim != 1:
            raise ValueError(f"inputs are shifted by {self.input_shift.shape} and scaled by {self.input_scale.shape}")
        if self.target_shift.shape != () or self.target_scale.shape != ():
            raise ValueError(f"targets are shifted by {self.target_shift.shape}, scaled by {self.target_scale.shape}")

    @classmethod
    def of(cls, X: np.ndarray, y: np.ndarray) -> "Scaling":
        """To mean zero and standard deviation one; a constant keeps a scale of its own size.

        Example:
            >>> scaling = Scaling.of(np.array([[0.0, 7.0], [2.0, 7.0]]), np.array([5.0, 5.0]))
            >>> print(scaling.inputs(np.array([[3.0, 7.0]])), scaling.target_scale)
            [[2. 0.]] 0.005
        """
        # Predictions of a constant target shall stay within a thousandth of it.
        return cls(X.mean(axis=0), _spread(X, 1.0), np.asarray(y.mean()), _spread(y, 1e-3))

    def inputs(self, X: np.ndarray) -> Float[Array, "n d"]:
        """Inputs in scaled units."""
        return jnp.asarray(np.clip((X - self.input_shift) / self.input_scale, -FAR, FAR), jnp.zeros(()).dtype)

    def targets(self, y: np.ndarray) -> Float[Array, "n"]:
        """Targets in scaled units."""
        scaled = (y - self.target_shift) / self.target_scale
        if np.abs(scaled).max(initial=0) > 1e6:
            raise ValueError(
                f"a target of {y[np.argmax(np.abs(scaled))]:.3g} is a million times as far from the mean "
                f"{self.target_shift:.3g} as those of the fit, whose standard deviation was {self.target_scale:.3g}"
            )
        return jnp.asarray(scaled, jnp.zeros(()).dtype)

    def values(self, scaled: Array | np.ndarray) -> np.ndarray:
        """Targets in the units of the data, in double precision."""
        return np.asarray(scaled, np.float64) * self.target_scale + self.target_shift


def _spread(x: np.ndarray, of_constant: float) -> np.ndarray:
    size = np.abs(x).max(axis=0)
    scale = x.std(axis=0)
    return np.where(scale > 1e-10 * size, scale, of_constant * np.where(size > 0, size, 1.0))
