"""Distances between variables and observations, and how an influence fades with them."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from scipy.spatial import KDTree


def gaspari_cohn(distance: Float[Array, "*s"], radius: float | Float[Array, ""]) -> Float[Array, "*s"]:
    """Return the compactly supported taper of Gaspari and Cohn (1999, eq. 4.10).

    Args:
        distance: not negative; infinity is far away.
        radius: where the taper reaches zero; an infinite one gives 1 everywhere. In units of the common
            'Gaussian' length L it is ``3.64 L``.

    Example:
        >>> import jax.numpy as jnp
        >>> gaspari_cohn(jnp.array([0.0, 1.0, 2.0, 5.0]), 2.0).round(3).tolist()
        [1.0, 0.20800000429153442, 0.0, 0.0]
    """
    # Both may be infinite: where the radius is, all that is at a finite distance counts fully.
    distance = jnp.asarray(distance)
    near = jnp.isinf(jnp.asarray(radius)) & jnp.isfinite(distance)
    r = jnp.where(near, 0, jnp.minimum(2 * distance / radius, 2))
    r = jnp.where(jnp.isnan(r), 2, r)
    inner = 1 + r**2 * (-5 / 3 + r * (5 / 8 + r * (1 / 2 - r / 4)))
    safe = jnp.maximum(r, 1)
    outer = 4 + safe * (-5 + safe * (5 / 3 + safe * (5 / 8 + safe * (-1 / 2 + safe / 12))))
    outer = outer - 2 / (3 * safe)
    return jnp.where(r <= 1, inner, jnp.where(r < 2, jnp.maximum(outer, 0), 0))


def distances(
    first: Float[Array | np.ndarray, "k d"],
    second: Float[Array | np.ndarray, "l _"],
    *,
    period: float | tuple[float, ...] | None = None,
) -> Float[Array, "k l"]:
    """Return Euclidean distances between all pairs, round the shorter way where space is periodic.

    Example:
        >>> import jax.numpy as jnp
        >>> here, there = jnp.array([[359.0, 0.0]]), jnp.array([[2.0, 4.0]])  # longitude and latitude
        >>> distances(here, there, period=(360.0, float("inf"))).item()
        5.0
    """
    _check(np.shape(first), np.shape(second), period)
    gap = jnp.abs(jnp.asarray(first)[:, None] - jnp.asarray(second)[None])
    if period is not None:
        length = jnp.asarray(period, gap.dtype)
        gap = jnp.minimum(gap % length, length - gap % length)
    return jnp.sqrt(jnp.sum(gap**2, axis=-1))


class Neighbours(eqx.Module):
    """For every variable the observations that can reach it: cost and memory linear in the variables.

    Built once by `Neighbours.within`, for the largest radius of interest; filters taper with any smaller one.

    Args:
        indices: numbers of the neighbouring observations, nearest first.
        distance: how far they are; infinite where a variable has fewer than others.
        observations: how many observations there are in all.
        radius: how far was looked.
    """

    indices: Int[Array, "n k"]
    distance: Float[Array, "n k"]
    observations: int = eqx.field(static=True)
    radius: float = eqx.field(static=True, default=np.inf)

    @classmethod
    def within(
        cls,
        radius: float,
        variables: Float[Array | np.ndarray, "n _"],
        observations: Float[Array | np.ndarray, "m _"],
        *,
        period: float | tuple[float, ...] | None = None,
    ) -> "Neighbours":
        """Find the observations within a radius of every variable.

        Args:
            radius: how far to look; infinity for all.
            variables: where the variables of the state are.
            observations: where the observations are.
            period: circumference of space, one number or one per dimension, infinite where it is not periodic;
                None if it is nowhere.

        Example:
            >>> import jax.numpy as jnp
            >>> ring = jnp.arange(6.0)[:, None]
            >>> Neighbours.within(1.5, ring, ring, period=6.0).distance[0].tolist()
            [0.0, 1.0, 1.0]
        """
        here, there = np.asarray(variables, float), np.asarray(observations, float)
        _check(here.shape, there.shape, period)
        if not len(there):
            return cls(jnp.zeros((len(here), 0), int), jnp.zeros((len(here), 0)), 0, float(radius))
        length = np.broadcast_to(np.inf if period is None else np.asarray(period, float), here.shape[1:])
        box = np.where(np.isfinite(length), length, 0)  # the tree's way to say that a dimension does not close
        whole = np.where(box > 0, box, 1)
        # Twice, since the remainder of a tiny negative number is rounded to the period itself.
        here, there = (np.where(box > 0, x % whole % whole, x) for x in (here, there))
        tree = KDTree(there, boxsize=box)
        most = len(there)
        if np.isfinite(radius):
            most = max(1, int(np.max(tree.query_ball_point(here, radius, return_length=True))))
        found, numbers = tree.query(here, k=np.arange(1, most + 1), distance_upper_bound=np.inf)
        found = np.where(found <= radius, found, np.inf)
        # Neighbours beyond the radius keep a valid number, and a weight of zero by their distance.
        return cls(jnp.asarray(numbers, int), jnp.asarray(found, float), len(there), float(radius))


def _check(first: tuple[int, ...], second: tuple[int, ...], period: float | tuple[float, ...] | None) -> None:
    """Refuse positions and periods that do not go together."""
    if len(first) != 2 or len(second) != 2 or first[1] != second[1]:
        raise ValueError(f"positions are rows of the same length, one per point; got shapes {first} and {second}")
    lengths = np.atleast_1d(np.inf if period is None else np.asarray(period, float))
    if lengths.shape not in {(1,), first[1:]} or not (lengths > 0).all():
        raise ValueError(f"a period is positive, one number or one for each of {first[1]} dimensions; got {period}")
