"""Neighbours of a test point: the nearest observations, in units in which every data set looks alike.

They are the ones nearest to its *centre*, the observation next to the point, so that all points of a centre share them.
Positions are relative and in units of the typical spacing, values are standardised: what is computed from a neighbourhood
does not depend on the frame of the inputs, and follows shifts and scales of the targets. Differences of inputs are taken in
double precision before anything is rounded, so that observations may be crowded at places far apart.
"""

import math
from typing import Any, NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from scipy.spatial import KDTree

NEIGHBOURS = 32  # observations that a test point sees
PROBES = 32  # observations whose neighbourhoods stand for the whole data set
GROUP_SIZES = (1, 4, 12)
"""Test points that share a centre: each size is a program of its own, and a group is padded to its size."""
FEW_POINTS = 1024  # so many points are predicted one by one as quickly as another program is compiled

Scalar: TypeAlias = Float[Array, ""]
Count: TypeAlias = Int[Array, ""]
Both: TypeAlias = Array | np.ndarray
Inputs: TypeAlias = Float[Both, "m d"]
Targets: TypeAlias = Float[Both, "m"]
_GOLDEN = (math.sqrt(5) - 1) / 2
_SPACING_RANK = 8
"""The spacing is read off the distance of an observation to its eighth neighbour: one pair may be close by chance."""


class Neighbourhood(eqx.Module):
    """The observations round a point in relative units, farthest first; padding comes before all others."""

    offsets: Float[Array, "k d"]
    values: Float[Array, "k"]
    mask: Bool[Array, "k"]

    def recentred(self, point: Float[Array, "d"]) -> "Neighbourhood":
        """Return the same observations round another point, given relative to this one."""
        offsets = self.offsets - point[None]
        order = jnp.argsort(-jnp.where(self.mask, jnp.sum(offsets**2, axis=1), jnp.inf))
        return Neighbourhood(offsets[order], self.values[order], self.mask[order])


class Centres(NamedTuple):
    """Centres with their neighbours, farthest first, and points to be predicted; positions relative to the centre."""

    offsets: Any  # [centre, neighbour, input]
    values: Any  # [centre, neighbour]
    mask: Any  # [centre, neighbour]; False for padding
    points: Any  # [centre, point, input]


def gather(
    inputs: Inputs, targets: Targets, centres: Int[Both, "s"], rows: Int[Both, "s k"], points: Float[Both, "s q d"]
) -> Centres:
    """Gather the neighbours of centres, given their rows, nearest first and padded by -1, for NumPy or JAX.

    Example:
        >>> inputs, rows = np.array([[1e9], [1e9 + 1e-3]]), np.array([[0, 1, -1]])
        >>> found = gather(inputs, np.ones(2), np.array([0]), rows, np.zeros((1, 0, 1)))
        >>> found.offsets[0, :, 0].round(6).tolist()
        [0.0, 0.001, 0.0]
    """
    rows, origin = rows[:, ::-1], inputs[centres][:, None]
    mask = rows >= 0
    where = np.where if isinstance(inputs, np.ndarray) else jnp.where
    offsets, values = where(mask[..., None], inputs[rows] - origin, 0), where(mask, targets[rows], 0)
    return Centres(offsets, values, mask, points - origin)


class Units(eqx.Module):
    """The units of a data set: typical spacing of the inputs; mean and standard deviation of the targets."""

    spacing: Scalar
    shift: Scalar
    scale: Scalar

    @classmethod
    def of(
        cls, probes: Centres, there: Bool[Array, "s"], count: Count, mean: Scalar, variance: Scalar, dimension: Count
    ) -> "Units":
        """Measure the spacing at the `probes` that are `there`; `count`, `mean` and `variance` are those of all targets."""
        rank = jnp.clip(count - 1, 0, _SPACING_RANK)
        square = jnp.sum(probes.offsets[:, -1 - rank] ** 2, axis=1)
        known = there & probes.mask[:, -1 - rank] & (square > 0)
        radius = jnp.sqrt(jnp.nanmedian(jnp.where(known, square, jnp.nan)))
        # A ball of this radius holds `rank` cells of the volume spacing ** dimension.
        log_cells = jnp.log(jnp.maximum(rank, 1).astype(radius.dtype))
        spacing = radius * jnp.exp((log_ball_volume(dimension) - log_cells) / dimension)
        return cls(
            jnp.where(jnp.isfinite(spacing), spacing, 1),  # without two different inputs there is none
            mean,
            # Equal values have a variance of rounding alone.
            jnp.where(variance > 1e-10 * (1 + mean**2), jnp.sqrt(jnp.maximum(variance, 1e-30)), 1),
        )


def length(vectors: Float[Array, "*n d"]) -> Float[Array, "*n"]:
    """Return Euclidean lengths, with a gradient of zero at zero, where a point that was observed sees itself."""
    square = jnp.sum(vectors**2, axis=-1)
    return jnp.where(square > 0, jnp.sqrt(jnp.where(square > 0, square, 1)), 0)


def log_ball_volume(dimension: int | Int[Array, ""]) -> Float[Array, ""]:
    """Return the logarithm of the volume of the unit ball, which itself is no single-precision number in 100 dimensions.

    Example:
        >>> [round(float(jnp.exp(log_ball_volume(d))), 3) for d in (1, 2, 3)]
        [2.0, 3.142, 4.189]
    """
    half = jnp.asarray(dimension) / 2
    return half * math.log(math.pi) - jax.scipy.special.gammaln(half + 1)


def spread_rows(inputs: Inputs, targets: Targets, mask: Bool[Both, "m"]) -> Any:
    """Choose the probes, some observations that stand for all whatever their order; -1 where there are no more.

    Multiples of the golden ratio visit the observations evenly and in step with no grid, in the order of their targets,
    which do not depend on the frame of the inputs.
    """
    xp = np if isinstance(inputs, np.ndarray) else jnp
    order = xp.lexsort([*(inputs[:, i] for i in reversed(range(inputs.shape[1]))), targets, ~mask])
    count, i = xp.sum(mask), np.arange(PROBES)
    turns = (i.astype(np.float32) + np.float32(0.5)) * np.float32(_GOLDEN) % np.float32(1)
    chosen = xp.where(count <= PROBES, i, xp.floor(turns * count.astype(turns.dtype)).astype(int))
    return xp.where(i < count, order[xp.clip(chosen, 0, len(order) - 1)], -1)


def search_rows(tree: KDTree, points: Float[np.ndarray, "n d"], most: int = NEIGHBOURS) -> Int[np.ndarray, "n k"]:
    """Find the rows of the nearest observations, nearest first and padded by -1.

    Example:
        >>> search_rows(KDTree([[0.0], [1.0], [3.0]]), np.array([[0.9]]))[0, :4]
        array([ 1,  0,  2, -1], dtype=int32)
    """
    rows = np.full((len(points), most), -1, np.int32)
    count = min(most, tree.n)
    rows[:, :count] = tree.query(points, k=np.arange(1, count + 1))[1]
    return rows


def group(centres: Int[np.ndarray, "n"], few: int = FEW_POINTS) -> tuple[Int[np.ndarray, "g"], Int[np.ndarray, "g q"]]:
    """Return groups of points that share a centre: the centre of each, and its points, padded by -1; up to `few` stay alone.

    Example:
        >>> own, points = group(np.array([7, 3, 3, 7, 3, 3, 3, 3, 7]), few=0)
        >>> own.tolist(), points.tolist()
        ([3, 3, 7], [[1, 2, 4, 5], [6, 7, -1, -1], [0, 3, 8, -1]])
    """
    order = np.argsort(centres, kind="stable")
    own, first, count = np.unique(centres[order], return_index=True, return_counts=True)
    typical = len(centres) / max(len(own), 1) if len(centres) > few else 1
    size = max(size for size in GROUP_SIZES if size == 1 or size <= typical)
    groups = -(-count // size)
    begin = np.cumsum(groups) - groups
    which = np.repeat(np.arange(len(own)), count)
    place = np.arange(len(centres)) - first[which]
    points = np.full((groups.sum(), size), -1)
    points[begin[which] + place // size, place % size] = order
    return np.repeat(own, groups), points
