"""Which observations lie near every variable, and how an influence fades with distance."""

from numbers import Real

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from scipy.spatial import KDTree

from bieqno.arguments import checked
from bieqno.assimilation.places import Period, Positions, box_of, check_space, wrapped
from bieqno.operators.fixed import INFINITE


def marked(numbers: Int[np.ndarray, "*s"], size: int) -> Bool[np.ndarray, "n"]:
    """Return which of `size` things are among some, by their numbers."""
    found = np.zeros(size, bool)
    found[numbers] = True
    return found


def renumbered(
    numbers: Int[np.ndarray, "*s"], chosen: Int[np.ndarray, "k"]
) -> tuple[Int[np.ndarray, "*s"], Bool[np.ndarray, "*s"]]:
    """Return where each number is among the chosen ones, and whether it is there; 0 if it is not.

    Example:
        >>> [found.tolist() for found in renumbered(np.array([7, 5, 6]), np.array([5, 7]))]
        [[1, 0, 0], [True, True, False]]
    """
    at = where_in(chosen, int(max(numbers.max(initial=0), chosen.max(initial=0))) + 1)[numbers]
    return np.maximum(at, 0), at >= 0


def where_in(chosen: Int[np.ndarray, "k"], size: int) -> Int[np.ndarray, "n"]:
    """Return where each of `size` numbers is among the chosen ones, -1 if it is not."""
    table = np.full(size, -1, np.int32)
    table[chosen[::-1]] = np.arange(len(chosen))[::-1]  # the first, of what is there twice
    return table


@checked("distance", "radius")
def gaspari_cohn(distance: Float[Array, "*s"], radius: float | Float[Array, "..."]) -> Float[Array, "*s"]:
    """Return the compactly supported taper of Gaspari and Cohn (1999, eq. 4.10); either may be infinite.

    It reaches zero at the radius, which in units of the common 'Gaussian' length L is ``3.64 L``.

    Example:
        >>> gaspari_cohn(jnp.array([0.0, 1.0, 2.0, 5.0]), 2.0).round(3).tolist()
        [1.0, 0.20800000429153442, 0.0, 0.0]
    """
    if not isinstance(radius, jax.core.Tracer) and not np.all(np.asarray(radius) > 0):
        raise ValueError(f"a radius is positive, got {radius}")
    # Where the radius is infinite, all that is at a finite distance counts fully.
    near = jnp.isinf(jnp.asarray(radius)) & jnp.isfinite(distance)
    r = jnp.where(near, 0, jnp.minimum(2 * distance / radius, 2))
    r = jnp.where(jnp.isnan(r), 2, r)
    inner = 1 + r**2 * (-5 / 3 + r * (5 / 8 + r * (1 / 2 - r / 4)))
    safe = jnp.maximum(r, 1)
    outer = 4 + safe * (-5 + safe * (5 / 3 + safe * (5 / 8 + safe * (-1 / 2 + safe / 12)))) - 2 / (3 * safe)
    return jnp.where(r <= 1, inner, jnp.where(r < 2, jnp.maximum(outer, 0), 0))


class Neighbours(eqx.Module):
    """For every variable the observations that can reach it, nearest first: cost and memory linear in the variables.

    Built once by `Neighbours.within`, for the largest radius of interest; filters taper with any smaller one. The distance
    is infinite where a variable has fewer neighbours than others; `observations` is the number of all there are.
    """

    indices: Int[Array, "n k"]
    distance: Float[Array, "n k"] = eqx.field(metadata={INFINITE: True})
    observations: int = eqx.field(static=True)
    radius: float = eqx.field(static=True, default=np.inf)

    @classmethod
    def within(
        cls, radius: float, variables: Positions, observations: Positions, *, period: Period = None
    ) -> "Neighbours":
        """Find the observations within a radius (infinity for all) of every variable, by their positions.

        Example:
            >>> ring = jnp.arange(6.0)[:, None]
            >>> Neighbours.within(1.5, ring, ring, period=6.0).distance[0].tolist()
            [0.0, 1.0, 1.0]
        """
        here, there = np.asarray(variables, float), np.asarray(observations, float)
        check_space(here.shape, there.shape, period)
        if not isinstance(radius, Real) and np.shape(radius) != ():
            raise TypeError(f"radius is a number, got {type(radius).__name__} of shape {np.shape(radius)}")
        radius = float(radius)
        if not len(there):
            return cls(jnp.zeros((len(here), 0), int), jnp.zeros((len(here), 0)), 0, radius)
        box = box_of(period, here.shape[1])
        here = wrapped(here, box)
        tree = KDTree(wrapped(there, box), boxsize=box)
        most = len(there)
        if np.isfinite(radius):
            most = max(1, int(np.max(tree.query_ball_point(here, radius, return_length=True))))
        found, numbers = tree.query(here, k=np.arange(1, most + 1), distance_upper_bound=np.inf)
        found = np.where(found <= radius, found, np.inf)
        # Neighbours beyond the radius keep a valid number, and a weight of zero by their distance.
        return cls(jnp.asarray(numbers, int), jnp.asarray(found, float), len(there), radius)

    def now(self, mask: Bool[Array, "m"]) -> "Neighbours":
        """Return the neighbours among values that are present: these, for the others have no weight."""
        return self

    def reaching(self, variables: Int[np.ndarray, "k"]) -> Int[np.ndarray, "_"]:
        """Return the observations that can reach some variables, each at least once."""
        indices, distance = (np.asarray(x)[variables] for x in (self.indices, self.distance))
        return indices[np.isfinite(distance)]

    def part(self, variables: Int[np.ndarray, "k"], observations: Int[np.ndarray, "l"]) -> "Neighbours":
        """Return the neighbours of some variables among some observations, numbered as in these lists."""
        indices, there = renumbered(np.asarray(self.indices)[variables], observations)
        distance = np.where(there, np.asarray(self.distance)[variables], np.inf)
        # In one order, and not as they were found: parts of a regular grid then have the same lists.
        indices = np.where(np.isfinite(distance), indices, 0)
        order = np.lexsort((indices, distance), axis=1)
        indices, distance = (np.take_along_axis(x, order, axis=1) for x in (indices, distance))
        return Neighbours(
            jnp.asarray(indices), jnp.asarray(distance, self.distance.dtype), len(observations), self.radius
        )
