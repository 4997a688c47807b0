"""Parts of a module that are known before training: `frozen` marks them, and two modules are made of nothing else."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from bieqno.arguments import checked

FROZEN = "bieqno_frozen"
INFINITE = "bieqno_infinite"  # marks fields that may hold infinities; no file may hold them elsewhere, nor NaN


def frozen(*, when: str | None = None, **settings: Any) -> Any:
    """Declare a field that no optimizer trains: an array, or a submodule with all that is in it.

    `fit` never hands such leaves to the optimizer, so that neither gradients nor weight decay change them. The mark belongs
    to the class: it holds for stacked, nested and edited modules alike. With `when`, a boolean attribute of the module of that
    name decides; further settings are those of `equinox.field`.

    Example:
        >>> import jax.numpy as jnp
        >>> class Shifted(eqx.Module):
        ...     weight: Float[Array, "n"]
        ...     shift: Float[Array, "n"] = frozen()
        >>> from bieqno.training import trainable
        >>> trained, fixed = trainable(Shifted(jnp.ones(2), jnp.ones(2)))
        >>> trained.shift is None, fixed.weight is None
        (True, True)
    """
    return eqx.field(metadata={FROZEN: True if when is None else when}, **settings)


class Standardiser(eqx.Module):
    """Shift and scale values to mean zero and standard deviation one; `mean` and `scale` are one number or one per column.

    Example:
        >>> import jax.numpy as jnp
        >>> standardiser = Standardiser.of(jnp.array([[1.0, 5.0], [3.0, 5.0]]), axis=0)
        >>> standardiser(jnp.array([3.0, 6.0])).tolist()  # the second column is constant: only its mean is subtracted
        [1.0, 1.0]
    """

    mean: Float[Array, "..."] = frozen()
    scale: Float[Array, "..."] = frozen()

    def __check_init__(self) -> None:
        if jnp.shape(self.mean) != jnp.shape(self.scale):
            raise ValueError(f"mean and scale need one shape, got {jnp.shape(self.mean)} and {jnp.shape(self.scale)}")

    @classmethod
    def unit(cls, *shape: int) -> "Standardiser":
        """Return the identity."""
        return cls(jnp.zeros(shape), jnp.ones(shape))

    @classmethod
    def of(cls, values: Float[Array, "..."], *, axis: int | tuple[int, ...] | None = None) -> "Standardiser":
        """Return the one that standardises these values over the given axes, or over all."""
        scale = jnp.std(values, axis=axis)
        return cls(jnp.mean(values, axis=axis), jnp.where(scale > 0, scale, 1))

    @checked()
    def __call__(self, values: Float[Array, "*s"]) -> Float[Array, "*s"]:
        """Return standardised values."""
        return (values - self.mean) / self.scale

    @checked()
    def undo(self, values: Float[Array, "*s"]) -> Float[Array, "*s"]:
        """Return values as they were before standardisation."""
        return values * self.scale + self.mean


class FourierFeatures(eqx.Module):
    """A vector together with cosines and sines of fixed random projections of it, so that a network learns fine scales.

    The frequencies are normal with standard deviation `scale` (in cycles per unit) and stay fixed.

    Example:
        >>> import jax
        >>> features = FourierFeatures(2, 8, scale=1.0, key=jax.random.key(0))
        >>> features(jax.numpy.zeros(2)).shape
        (18,)
    """

    frequencies: Float[Array, "k p"] = frozen()

    @checked()
    def __init__(self, in_size: int, count: int, *, scale: float = 1.0, key: PRNGKeyArray) -> None:
        self.frequencies = scale * jax.random.normal(key, (count, in_size))

    @checked()
    def __call__(self, x: Float[Array, "p"]) -> Float[Array, "q"]:
        """Return ``x`` with its features appended."""
        phase = 2 * jnp.pi * (self.frequencies @ x)
        return jnp.concatenate([x, jnp.cos(phase), jnp.sin(phase)])
