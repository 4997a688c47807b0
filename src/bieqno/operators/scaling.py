"""Standardisation as a part of a module: known from data once, saved with it, never trained."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float


class Standardiser(eqx.Module):
    """Shifts and scales values to mean zero and standard deviation one.

    Args:
        mean: what is taken off; one number, or one a column.
        scale: what is divided by, positive, of the same shape.

    Example:
        >>> import jax.numpy as jnp
        >>> standardiser = Standardiser.of(jnp.array([[1.0, 5.0], [3.0, 5.0]]), axis=0)
        >>> standardiser(jnp.array([3.0, 6.0])).tolist()  # the second column never varied: only its mean goes
        [1.0, 1.0]
    """

    mean: Float[Array, "..."]
    scale: Float[Array, "..."]

    def __check_init__(self) -> None:
        if jnp.shape(self.mean) != jnp.shape(self.scale):
            raise ValueError(f"mean and scale need one shape, got {jnp.shape(self.mean)} and {jnp.shape(self.scale)}")

    @classmethod
    def unit(cls, *shape: int) -> "Standardiser":
        """The one that changes nothing."""
        return cls(jnp.zeros(shape), jnp.ones(shape))

    @classmethod
    def of(cls, values: Float[Array, "..."], *, axis: int | tuple[int, ...] | None = None) -> "Standardiser":
        """The one that standardises these values over the given axes, or over all."""
        scale = jnp.std(values, axis=axis)
        return cls(jnp.mean(values, axis=axis), jnp.where(scale > 0, scale, 1))

    def __call__(self, values: Float[Array, "*s"]) -> Float[Array, "*s"]:
        """Standardised values."""
        return (values - self.mean) / self.scale

    def undo(self, values: Float[Array, "*s"]) -> Float[Array, "*s"]:
        """Values as they were before standardisation."""
        return values * self.scale + self.mean
