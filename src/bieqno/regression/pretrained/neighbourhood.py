"""What a test point sees of the data: observations round it, in units in which every data set looks alike.

They are those nearest to its *station*, the observation next to the point, so that all points of a station share them.
Positions are relative and in units of the typical spacing of the observations, values are standardised. So whatever is
computed from a neighbourhood does not change when inputs are shifted, turned or stretched alike, and follows the targets
when those are shifted or stretched.
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from scipy.spatial import KDTree

from bieqno.regression.trained.splits import Data

NEIGHBOURS = 32
"""Observations that a test point sees."""

SITES = 32
"""Observations whose neighbourhoods tell about the whole data set."""

_GOLDEN = (math.sqrt(5) - 1) / 2
_SPACING_RANK = 8
"""The spacing is read off the distance of an observation to its eighth neighbour: one pair may lie close by chance."""


class Neighbourhood(eqx.Module):
    """The observations round a centre, farthest first; rows that are not there come before all others."""

    offsets: Float[Array, "k d"]
    values: Float[Array, "k"]
    mask: Bool[Array, "k"]

    @property
    def distances(self) -> Float[Array, "k"]:
        """From the centre to each observation."""
        return length(self.offsets)

    def seen_from(self, point: Float[Array, "d"]) -> "Neighbourhood":
        """The same observations round another centre, given relative to this one."""
        offsets = self.offsets - point
        square = jnp.where(self.mask, jnp.sum(offsets**2, axis=1), jnp.inf)
        order = jnp.argsort(-square)
        return Neighbourhood(offsets[order], self.values[order], self.mask[order])


class Units(eqx.Module):
    """The units of a data set: typical spacing of the inputs; mean and standard deviation of the targets."""

    spacing: Float[Array, ""]
    shift: Float[Array, ""]
    scale: Float[Array, ""]

    @classmethod
    def of(
        cls, data: Data, sites: Int[Array, "s"], rows: Int[Array, "s k"], dimension: int | Int[Array, ""]
    ) -> "Units":
        """Measure the units of a data set.

        Args:
            data: the observations.
            sites: some of them, at which the spacing is measured; -1 for none.
            rows: the nearest observations of each site, the first being itself; -1 for none.
            dimension: of the space that they fill; columns of zeros beyond it change nothing.
        """
        count = jnp.sum(data.mask)
        weight = data.mask / jnp.maximum(count, 1)
        shift = jnp.sum(weight * data.targets)
        variance = jnp.sum(weight * (data.targets - shift) ** 2)
        rank = jnp.clip(count - 1, 0, _SPACING_RANK)
        far = rows[:, rank]
        square = jnp.sum((data.inputs[far] - data.inputs[sites]) ** 2, axis=1)
        radius = jnp.sqrt(jnp.nanmedian(jnp.where((sites >= 0) & (far >= 0) & (square > 0), square, jnp.nan)))
        # In a ball of this radius there are `rank` cells of the volume spacing ** dimension.
        spacing = radius * (ball_volume(dimension) / jnp.maximum(rank, 1)) ** (1 / dimension)
        return cls(
            jnp.where(jnp.isfinite(spacing), spacing, 1),  # without two different inputs there is none
            shift,
            # Equal values have a variance of rounding alone.
            jnp.where(variance > 1e-10 * (1 + shift**2), jnp.sqrt(jnp.maximum(variance, 1e-30)), 1),
        )


def length(vectors: Float[Array, "*n d"]) -> Float[Array, "*n"]:
    """The root has no gradient at zero, which is where a point that was observed sees itself."""
    square = jnp.sum(vectors**2, axis=-1)
    return jnp.where(square > 0, jnp.sqrt(jnp.where(square > 0, square, 1)), 0)


def ball_volume(dimension: int | Int[Array, ""]) -> Float[Array, ""]:
    """Volume of the unit ball.

    Example:
        >>> [round(float(ball_volume(d)), 3) for d in (1, 2, 3)]
        [2.0, 3.142, 4.189]
    """
    half = jnp.asarray(dimension) / 2
    return jnp.exp(half * math.log(math.pi) - jax.scipy.special.gammaln(half + 1))


def around(centre: Float[Array, "d"], data: Data, units: Units, rows: Int[Array, "k"]) -> Neighbourhood:
    """The neighbourhood of a place, given the rows of its nearest observations, nearest first; -1 for none."""
    rows = rows[::-1]
    there = (rows >= 0) & data.mask[rows]
    offsets = jnp.where(there[:, None], (data.inputs[rows] - centre) / units.spacing, 0)
    return Neighbourhood(offsets, jnp.where(there, (data.targets[rows] - units.shift) / units.scale, 0), there)


def spread_rows(data: Data) -> Int[Array, "s"]:
    """Some observations that stand for all, whatever the order they come in; -1 for those that are not there.

    Multiples of the golden ratio visit the observations evenly and in step with no grid. They are sorted by their targets,
    which do not depend on the frame of the inputs.
    """
    count = jnp.sum(data.mask)
    columns = [data.inputs[:, i] for i in reversed(range(data.inputs.shape[1]))]
    order = jnp.lexsort([*columns, data.targets, ~data.mask])
    i = jnp.arange(SITES)
    evenly = jnp.floor((((i + 0.5) * _GOLDEN) % 1.0) * count).astype(int)
    chosen = jnp.where(count <= SITES, i, evenly)
    return jnp.where(i < count, order[jnp.clip(chosen, 0, len(order) - 1)], -1)


def nearest_row(point: Float[Array, "d"], data: Data) -> Int[Array, ""]:
    """Row of the nearest observation: the station of a point."""
    return jnp.argmin(jnp.where(data.mask, jnp.sum((data.inputs - point) ** 2, axis=1), jnp.inf))


def nearest_rows(point: Float[Array, "d"], data: Data) -> Int[Array, "k"]:
    """Rows of the nearest observations by comparing with all of them, for data sets of some hundreds."""
    distance = jnp.where(data.mask, jnp.sum((data.inputs - point) ** 2, axis=1), jnp.inf)
    count = min(NEIGHBOURS, len(data.mask))
    negative, rows = jax.lax.top_k(-distance, count)
    return jnp.pad(jnp.where(jnp.isfinite(negative), rows, -1), (0, NEIGHBOURS - count), constant_values=-1)


def search_rows(tree: KDTree, points: Float[np.ndarray, "n d"], most: int = NEIGHBOURS) -> Int[np.ndarray, "n k"]:
    """The same for many points and observations, by a tree: the cost hardly grows with their number.

    Example:
        >>> search_rows(KDTree([[0.0], [1.0], [3.0]]), np.array([[0.9]]))[0, :4]
        array([ 1,  0,  2, -1], dtype=int32)
    """
    rows = np.full((len(points), most), -1, np.int32)
    count = min(most, tree.n)
    rows[:, :count] = tree.query(points, k=np.arange(1, count + 1))[1]
    return rows
