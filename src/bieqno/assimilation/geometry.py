"""What lies round every variable: for filters that act locally and know where things are."""

from collections.abc import Sequence

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from scipy.spatial import KDTree

from bieqno.assimilation.localization import Neighbours
from bieqno.assimilation.observation import Components, Observation

DIGITS = 6  # to which relative positions are told apart, in units of the radius
FEW = 32  # patterns up to which a product with ones and zeros is quicker than looking up


class Places(eqx.Module):
    """Where values are, and of which kind each is: the variables of a state, or observations.

    Args:
        positions: one row a value.
        kinds: number of the field that each belongs to, counted from 0; None if there is one.
        period: circumference of space, one number or one a dimension, infinite where it does not close; None if
            it closes nowhere.

    Example:
        >>> ring = Places(jnp.arange(40.0)[:, None], period=40.0)
        >>> ring.at([0, 4, 8]).positions[:, 0].tolist()
        [0.0, 4.0, 8.0]
        >>> Places.apart(3).kinds.tolist()
        [0, 1, 2]
    """

    positions: Float[np.ndarray, "n d"]
    kinds: Int[np.ndarray, "n"]
    period: tuple[float, ...] | None = eqx.field(static=True)

    def __init__(
        self,
        positions: Float[Array | np.ndarray, "n d"],
        kinds: Sequence[int] | Int[Array | np.ndarray, "n"] | None = None,
        *,
        period: float | tuple[float, ...] | None = None,
    ) -> None:
        self.positions = np.asarray(positions, float)
        if self.positions.ndim != 2:
            raise ValueError(f"positions have one row a value, got shape {self.positions.shape}")
        count, dimensions = self.positions.shape
        self.kinds = np.zeros(count, int) if kinds is None else np.asarray(kinds, int)
        if self.kinds.shape != (count,) or (count and self.kinds.min() < 0):
            raise ValueError(f"{count} positions need as many kinds, counted from 0; got {self.kinds}")
        self.period = None if period is None else tuple(np.broadcast_to(period, dimensions).tolist())

    @classmethod
    def grid(cls, *shape: int, fields: int = 1, period: float | tuple[float, ...] | None = None) -> "Places":
        """A regular grid with spacing one, field after field, the last dimension running fastest."""
        points = np.stack(np.meshgrid(*(np.arange(size, dtype=float) for size in shape), indexing="ij"), axis=-1)
        points = points.reshape(-1, len(shape))
        return cls(np.tile(points, (fields, 1)), np.repeat(np.arange(fields), len(points)), period=period)

    @classmethod
    def apart(cls, count: int) -> "Places":
        """Values without positions, each of its own kind: everything is near everything."""
        return cls(np.zeros((count, 1)), np.arange(count))

    @property
    def kind_count(self) -> int:
        """Number of kinds."""
        return int(self.kinds.max(initial=0)) + 1

    def at(self, numbers: Sequence[int] | Int[np.ndarray, "k"]) -> "Places":
        """Some of them, such as those that are observed."""
        chosen = np.asarray(numbers, int)
        return Places(self.positions[chosen], self.kinds[chosen], period=self.period)


class Links(eqx.Module):
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
        >>> links = Links.within(2.0, ring, ring.at(range(0, 40, 2)))
        >>> links.indices.shape, links.offset[..., 0].tolist()
        ((40, 3), [[-0.5, 0.5, 0.0], [0.0, -1.0, 1.0]])
    """

    indices: Int[Array, "n k"]
    pattern: Int[Array, "n"]
    offset: Float[Array, "P k d"]
    present: Float[Array, "P k"]
    here: Int[Array, "P"]
    there: Int[Array, "P k"]

    @classmethod
    def within(cls, radius: float, here: Places, there: Places) -> "Links":
        """All of `there` within a radius of each of `here`."""
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
        """What was made for each pattern, for some places (all by default), which come last; one pattern stays one."""
        last, pattern = jnp.moveaxis(table, 0, -1), self.pattern if pattern is None else pattern
        if len(table) == 1:
            return last
        if len(table) <= FEW:
            return jnp.tensordot(last, (pattern == jnp.arange(len(table))[:, None]).astype(table.dtype), 1)
        return last[..., pattern]


class Surroundings(eqx.Module):
    """What can act on each variable: the observations near it and the variables beside it.

    Built once by `Surroundings.of`. The same learned weights serve in any surroundings of the same kinds and units.

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
        >>> around = Surroundings.of(ring, ring.at([0, 4]), radius=2.0, reach=1.0)
        >>> around.near.spread(around.near.present).sum(axis=0).tolist(), around.beside.indices.shape
        ([1.0, 1.0, 2.0, 1.0, 1.0, 1.0, 2.0, 1.0], (8, 3))
    """

    near: Links
    beside: Links
    between: Links
    variables: Int[Array, "n"]
    observations: Int[Array, "m"]
    radius: float = eqx.field(static=True)
    reach: float = eqx.field(static=True)

    @classmethod
    def of(cls, variables: Places, observations: Places, *, radius: float, reach: float) -> "Surroundings":
        """Find what is near.

        Args:
            variables: where the variables of the state are.
            observations: where the observations are.
            radius: how far an observation can act.
            reach: how far away other variables are looked at.
        """
        # Round a ring a taper that reaches beyond half of it is no covariance.
        half = min(variables.period or (np.inf,)) / 2
        if radius > half:
            raise ValueError(f"a radius is at most half the period, here {half:g}; got {radius:g}")
        return cls(
            Links.within(radius, variables, observations),
            Links.within(reach, variables, variables),
            Links.within(radius, observations, observations),
            jnp.asarray(variables.kinds),
            jnp.asarray(observations.kinds),
            float(radius),
            float(reach),
        )


def spacing(places: Places) -> float:
    """Typical distance from a place to the next: the median; 1 where all are in one place.

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


def find_surroundings(
    observation: Observation,
    size: int,
    *,
    variables: Places | None = None,
    observations: Places | None = None,
    radius: float | None = None,
    reach: float | None = None,
) -> Surroundings:
    """The surroundings that `train_filter` works with when told so much.

    Args:
        observation: what is observed.
        size: number of state variables.
        variables: see `train_filter`, as for the others.
        observations: where the observations are.
        radius: how far an observation can act.
        reach: how far each variable looks at others.
    """
    places = Places.apart(size) if variables is None else variables
    if len(places.positions) != size:
        raise ValueError(f"places are known of {len(places.positions)} variables, the state has {size}")
    if observations is None:
        if not isinstance(observation.operator, Components):
            raise ValueError(
                "where the observations are follows only from observed components; "
                "give `observations=Places(...)` for any other operator"
            )
        observations = places.at(observation.operator.indices)
    values = observation.size(size)
    if len(observations.positions) != values:
        raise ValueError(f"places are known of {len(observations.positions)} observations, {values} are observed")
    # One observation has no distance to others; that of the variables has the same unit.
    apart = spacing(observations if len(np.unique(observations.positions, axis=0)) > 1 else places)
    return Surroundings.of(
        places,
        observations,
        radius=2.5 * apart if radius is None else radius,
        reach=3.0 * spacing(places) if reach is None else reach,
    )
