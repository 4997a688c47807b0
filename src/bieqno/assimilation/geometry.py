"""What lies round every variable: for filters that act locally and know where things are."""

from collections.abc import Sequence

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from scipy.spatial import KDTree

from bieqno.assimilation.localization import Neighbours

DIGITS = 6  # to which relative positions are told apart, in units of the radius
FEW = 32  # patterns up to which a product with ones and zeros is quicker than looking up


class Places:
    """Where values are, and of which kind each is: the variables of a state, or observations.

    A value like a number or a text: equal places are equal, and none can be changed.

    Args:
        positions: one row per value.
        kinds: number of the field that each belongs to, counted from 0; None if there is one.
        period: circumference of space, one number or one per dimension, infinite where it is not periodic; None if it is
            nowhere.

    Example:
        >>> ring = Places(jnp.arange(40.0)[:, None], period=40.0)
        >>> ring.at([0, 4, 8]).positions[:, 0].tolist()
        [0.0, 4.0, 8.0]
        >>> Places.apart(3).kinds.tolist()
        [0, 1, 2]
    """

    def __init__(
        self,
        positions: Float[Array | np.ndarray, "n d"],
        kinds: Sequence[int] | Int[Array | np.ndarray, "n"] | None = None,
        *,
        period: float | tuple[float, ...] | None = None,
    ) -> None:
        self.positions = np.array(positions, float)
        if self.positions.ndim != 2:
            raise ValueError(f"positions have one row per value, got shape {self.positions.shape}")
        count, dimensions = self.positions.shape
        self.kinds = np.zeros(count, int) if kinds is None else np.array(kinds, int)
        if self.kinds.shape != (count,) or (count and self.kinds.min() < 0):
            raise ValueError(f"{count} positions need as many kinds, counted from 0; got {self.kinds}")
        self.period = None if period is None else tuple(np.broadcast_to(period, dimensions).tolist())
        self.positions.flags.writeable = self.kinds.flags.writeable = False

    @classmethod
    def grid(cls, *shape: int, fields: int = 1, period: float | tuple[float, ...] | None = None) -> "Places":
        """Return a regular grid with spacing one, field after field, the last dimension running fastest."""
        points = np.stack(np.meshgrid(*(np.arange(size, dtype=float) for size in shape), indexing="ij"), axis=-1)
        points = points.reshape(-1, len(shape))
        return cls(np.tile(points, (fields, 1)), np.repeat(np.arange(fields), len(points)), period=period)

    @classmethod
    def apart(cls, count: int) -> "Places":
        """Return values without positions, each of its own kind: everything is near everything."""
        return cls(np.zeros((count, 1)), np.arange(count))

    def at(self, numbers: Sequence[int] | Int[np.ndarray, "k"]) -> "Places":
        """Return some of them, such as those that are observed."""
        chosen = np.asarray(numbers, int)
        return Places(self.positions[chosen], self.kinds[chosen], period=self.period)

    def _identity(self) -> tuple[object, ...]:
        return self.positions.shape, self.positions.tobytes(), self.kinds.tobytes(), self.period

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Places) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())


class Stencil(eqx.Module):
    """For each of some places the others near it, padded to the same number.

    On a regular grid most places see the same: what depends on where things are, and on their kinds, is kept once for
    each distinct pattern.

    Args:
        indices: numbers of the others, nearest first.
        pattern: which pattern each place has.
        offset: from here to there, in units of the radius, for each pattern.
        present: 1 for those of the others that are there, 0 for padding.
        here: kind of the place itself.
        there: kinds of the others.

    Example:
        >>> ring = Places.grid(40, period=40.0)
        >>> stencil = Stencil.within(2.0, ring, ring.at(range(0, 40, 2)))
        >>> stencil.indices.shape, stencil.offset[..., 0].tolist()
        ((40, 3), [[-0.5, 0.5, 0.0], [0.0, -1.0, 1.0]])
    """

    indices: Int[Array, "n k"]
    pattern: Int[Array, "n"]
    offset: Float[Array, "P k d"]
    present: Float[Array, "P k"]
    here: Int[Array, "P"]
    there: Int[Array, "P k"]

    @classmethod
    def within(cls, radius: float, here: Places, there: Places) -> "Stencil":
        """Return all of `there` within a radius of each of `here`."""
        if here.period != there.period:
            raise ValueError(f"both places are of one space, got periods {here.period} and {there.period}")
        if not (radius > 0 and np.isfinite(radius)):
            raise ValueError(f"a radius is positive and finite, got {radius}")
        near = Neighbours.within(radius, here.positions, there.positions, period=here.period)
        indices = np.asarray(near.indices)
        offset = there.positions[indices] - here.positions[:, None]
        if here.period is not None:
            length = np.asarray(here.period)
            whole = np.where(np.isfinite(length), length, 1.0)
            offset = np.where(np.isfinite(length), (offset + whole / 2) % whole - whole / 2, offset)
        present = np.isfinite(np.asarray(near.distance))
        # Rounded, so that rounding makes no pattern; and never minus zero, which is another pattern than zero.
        offset = np.where(present[..., None], np.round(offset / radius, DIGITS), 0) + 0.0
        kinds = np.where(present, there.kinds[indices], 0)
        distance = np.round(np.linalg.norm(offset, axis=-1), DIGITS)
        order = np.lexsort((kinds, *np.moveaxis(offset, -1, 0), distance, ~present), axis=1)
        indices, present, kinds = (np.take_along_axis(x, order, axis=1) for x in (indices, present, kinds))
        offset = np.take_along_axis(offset, order[..., None], axis=1)
        flat = offset.reshape(len(offset), offset.shape[1] * offset.shape[2])
        seen = np.concatenate([here.kinds[:, None], present, kinds, flat], axis=1)
        _, first, pattern = np.unique(seen, axis=0, return_index=True, return_inverse=True)
        return cls(
            jnp.asarray(indices),
            jnp.asarray(pattern.reshape(-1)),
            jnp.asarray(offset[first], jnp.result_type(float)),
            jnp.asarray(present[first], jnp.result_type(float)),
            jnp.asarray(here.kinds[first]),
            jnp.asarray(kinds[first]),
        )

    def spread(self, table: Float[Array, "P *s"], pattern: Int[Array, "b"] | None = None) -> Float[Array, "*s _"]:
        """Return what was made for each pattern, for some places (all by default), which come last; one pattern stays one."""
        last, pattern = jnp.moveaxis(table, 0, -1), self.pattern if pattern is None else pattern
        if len(table) == 1:
            return last
        if len(table) <= FEW:
            return jnp.tensordot(last, (pattern == jnp.arange(len(table))[:, None]).astype(table.dtype), 1)
        return last[..., pattern]


class Neighbourhoods(eqx.Module):
    """What can act on each variable: the observations near it and the variables beside it.

    Built once by `Neighbourhoods.of`. The same learned weights serve in any neighbourhoods of the same kinds and units.

    Args:
        near: for each variable the observations within the radius.
        beside: for each variable the variables within reach, itself among them.
        between: for each observation the observations within the radius.
        variables: kind of each variable.
        observations: kind of each observation.
        radius: how far an observation can act.
        reach: how far away other variables are looked at.

    Example:
        >>> ring = Places.grid(8, period=8.0)
        >>> around = Neighbourhoods.of(ring, ring.at([0, 4]), radius=2.0, reach=1.0)
        >>> around.near.spread(around.near.present).sum(axis=0).tolist(), around.beside.indices.shape
        ([1.0, 1.0, 2.0, 1.0, 1.0, 1.0, 2.0, 1.0], (8, 3))
    """

    near: Stencil
    beside: Stencil
    between: Stencil
    variables: Int[Array, "n"]
    observations: Int[Array, "m"]
    radius: float = eqx.field(static=True)
    reach: float = eqx.field(static=True)

    @classmethod
    def of(cls, variables: Places, observations: Places, *, radius: float, reach: float) -> "Neighbourhoods":
        """Find what is near."""
        # Round a ring a taper that reaches beyond half of it is no covariance.
        half = min(variables.period or (np.inf,)) / 2
        if radius > half:
            raise ValueError(f"a radius is at most half the period, here {half:g}; got {radius:g}")
        return cls(
            Stencil.within(radius, variables, observations),
            Stencil.within(reach, variables, variables),
            Stencil.within(radius, observations, observations),
            jnp.asarray(variables.kinds),
            jnp.asarray(observations.kinds),
            float(radius),
            float(reach),
        )


def spacing(places: Places) -> float:
    """Return the typical distance from a place to the next: the median; 1 where all are in one place.

    Example:
        >>> spacing(Places.grid(40, fields=2, period=40.0).at(range(0, 80, 4)))
        4.0
    """
    box = np.zeros(places.positions.shape[1]) if places.period is None else np.asarray(places.period)
    box = np.where(np.isfinite(box), box, 0)
    whole = np.where(box > 0, box, 1)
    # Twice, since the remainder of a tiny negative number is rounded to the period itself.
    points = np.unique(np.where(box > 0, places.positions % whole % whole, places.positions), axis=0)
    if len(points) < 2:
        return 1.0
    return float(np.median(KDTree(points, boxsize=box).query(points, k=2)[0][:, 1]))
