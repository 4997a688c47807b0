"""What lies near every variable, and how an influence fades with distance."""

import dataclasses
from numbers import Real

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from scipy.spatial import KDTree

from bieqno.arguments import checked
from bieqno.assimilation.places import Period, Places, Positions, box_of, check_space, ways, wrapped
from bieqno.operators.fixed import INFINITE

DIGITS = 6  # to which relative positions are told apart, in units of the radius
ENOUGH = 40  # observations near a variable: more hardly change its analysis
FEW = 32  # patterns up to which a product with ones and zeros is quicker than looking up


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


class Stencil(eqx.Module):
    """For each of some places the others near it, nearest first, padded to the same number.

    On a regular grid most places see the same: what depends on where things are, and on their kinds, is kept once for
    each distinct `pattern`: the `offset` from here to there in units of the radius, what is `present` (1) and what is
    padding (0), and the kinds `here` and `there`.

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
        if not (radius > 0 and np.isfinite(radius)):
            raise ValueError(f"a radius is positive and finite, got {radius}")
        near = Neighbours.within(radius, here.positions, there.positions, period=here.period)
        indices = np.asarray(near.indices)
        offset = here.offsets(there, indices)
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

    def among(self, mask: Bool[Array, "m"]) -> "Stencil":
        """Return what is near among values that are present: this, for the others have no weight."""
        return self

    def reaching(self, places: Int[np.ndarray, "k"]) -> Int[np.ndarray, "_"]:
        """Return all that is near some of the places, each at least once."""
        present = (np.asarray(self.present) > 0)[np.asarray(self.pattern)[places]]
        return np.asarray(self.indices)[places][present]

    def part(self, here: Int[np.ndarray, "k"], there: Int[np.ndarray, "l"]) -> "Stencil":
        """Return the same of some places among some others, numbered as in these lists; what is not there is the first."""
        indices, _ = renumbered(np.asarray(self.indices)[here], there)
        about = {"indices": jnp.asarray(indices), "pattern": jnp.asarray(np.asarray(self.pattern)[here])}
        return dataclasses.replace(self, **about)

    @property
    def dimensions(self) -> int:
        """Numbers of an offset."""
        return self.offset.shape[-1]

    def neighbours(self, radius: float, observations: int) -> Neighbours:
        """Return the same for the `LETKF`, with distances alone; `radius` is the unit of the offsets."""
        offset, present = (jnp.moveaxis(self.spread(x), -1, 0) for x in (self.offset, self.present))
        distance = jnp.where(present > 0, radius * jnp.sqrt(jnp.sum(offset**2, axis=-1)), jnp.inf)
        return Neighbours(self.indices, jnp.broadcast_to(distance, self.indices.shape), observations)

    def spread(self, table: Float[Array, "P *s"], pattern: Int[Array, "b"] | None = None) -> Float[Array, "*s _"]:
        """Return what was made for each pattern, for some places (all by default), which come last; one pattern stays one."""
        last, pattern = jnp.moveaxis(table, 0, -1), self.pattern if pattern is None else pattern
        if len(table) == 1:
            return last
        if len(table) <= FEW:
            return jnp.tensordot(last, (pattern == jnp.arange(len(table))[:, None]).astype(table.dtype), 1)
        return last[..., pattern]


class Candidates(eqx.Module):
    """Places that may be observed, of which a few are at any one time: what is near is looked for in each window.

    In place of a `Stencil` of all candidates, which would be long and nearly empty. At most the first `most` values that are
    present are used, and of these the `nearest` of each variable.

    Example:
        >>> ring = Places.grid(40, period=40.0)
        >>> anywhere = Candidates.of(ring, ring, radius=4.0, most=2)
        >>> anywhere.among(jnp.arange(40) == 3).offset[1, :, 0].tolist()  # from place 1 to 3
        [0.5, 0.0]
    """

    here: Float[Array, "n d"]
    there: Float[Array, "m d"]
    kinds: tuple[Int[Array, "n"], Int[Array, "m"]]
    box: tuple[float, ...] = eqx.field(static=True)
    on_sphere: bool = eqx.field(static=True)
    within: float = eqx.field(static=True)
    radius: float = eqx.field(static=True)  # largest one of a taper
    most: int = eqx.field(static=True)
    nearest: int = eqx.field(static=True)

    @classmethod
    def of(cls, here: Places, there: Places, *, radius: float, most: int, nearest: int = 2 * ENOUGH) -> "Candidates":
        """Take variables and candidates."""
        if not (radius > 0 and np.isfinite(radius)) or most < 1 or nearest < 1:
            raise ValueError(f"expected a finite radius and numbers of at least 1, got {radius}, {most} and {nearest}")
        here.offsets(there, np.zeros((len(here.positions), 0), int))  # refuses places of two spaces
        box = tuple(box_of(here.period, here.positions.shape[1]).tolist())
        kinds = jnp.asarray(here.kinds), jnp.asarray(there.kinds)
        places = jnp.asarray(here.positions, float), jnp.asarray(there.positions, float)
        most = min(most, len(there.positions))
        return cls(*places, kinds, box, here.on_sphere, float(radius), float(radius), most, min(nearest, most))

    @property
    def dimensions(self) -> int:
        """Numbers of an offset."""
        return 2 if self.on_sphere else self.here.shape[1]

    def among(self, mask: Bool[Array, "m"]) -> Stencil:
        """Return what is near each variable of the observations that are present."""
        if not isinstance(mask, jax.core.Tracer) and int(jnp.sum(mask)) > self.most:  # a traced one has no value yet
            raise ValueError(f"at most {self.most} values are expected at once, got {int(jnp.sum(mask))}")
        chosen = jnp.nonzero(mask, size=self.most, fill_value=0)[0]
        real = jnp.arange(self.most) < jnp.sum(mask)
        box = np.array(self.box, self.here.dtype)
        everything = jnp.broadcast_to(self.there[chosen], (len(self.here), self.most, self.there.shape[1]))
        square = jnp.sum(ways(self.here, everything, box, on_sphere=False) ** 2, axis=-1)
        found, order = jax.lax.top_k(-jnp.where(real, square, jnp.inf), self.nearest)
        indices, present = chosen[order], -found <= self.within**2
        offset = ways(self.here, self.there[indices], box, on_sphere=self.on_sphere) / self.within
        variables, observations = self.kinds
        kinds = jnp.where(present, observations[indices], 0)
        offset = jnp.where(present[..., None], offset, 0)
        return Stencil(indices, jnp.arange(len(indices)), offset, present.astype(offset.dtype), variables, kinds)

    def reaching(self, variables: Int[np.ndarray, "k"]) -> Int[np.ndarray, "_"]:
        """Return the candidates that can reach some variables: all, for the first that are present are taken."""
        return np.arange(len(self.there))

    def part(self, variables: Int[np.ndarray, "k"], observations: Int[np.ndarray, "l"]) -> "Candidates":
        """Return the same of some variables and observations, in the order in which they are given."""
        kinds = self.kinds[0][variables], self.kinds[1][observations]
        return dataclasses.replace(self, here=self.here[variables], there=self.there[observations], kinds=kinds)

    def now(self, mask: Bool[Array, "m"]) -> Neighbours:
        """Return the neighbours of each variable among the observations that are present."""
        return self.among(mask).neighbours(self.within, len(self.there))

    def neighbours(self, radius: float, observations: int) -> "Candidates":
        """Return the same for the `LETKF`, with tapers of any radius."""
        return dataclasses.replace(self, radius=np.inf)


class Neighbourhoods(eqx.Module):
    """What can act on each variable: the observations near it and the variables beside it.

    Built once by `Neighbourhoods.of`. The same learned weights serve in any neighbourhoods of the same kinds and units.

    Example:
        >>> ring = Places.grid(8, period=8.0)
        >>> around = Neighbourhoods.of(ring, ring.at([0, 4]), radius=2.0, reach=1.0)
        >>> around.near.spread(around.near.present).sum(axis=0).tolist(), around.beside.indices.shape
        ([1.0, 1.0, 2.0, 1.0, 1.0, 1.0, 2.0, 1.0], (8, 3))
    """

    near: Stencil | Candidates  # for each variable the observations within the radius
    beside: Stencil  # for each variable the variables within reach, itself among them
    variables: Int[Array, "n"]  # kind of each
    observations: Int[Array, "m"]  # likewise
    radius: float = eqx.field(static=True)
    reach: float = eqx.field(static=True)

    def part(self, variables: Int[np.ndarray, "k"], observations: Int[np.ndarray, "l"]) -> "Neighbourhoods":
        """Return what can act on some variables, of some observations and of these variables."""
        near, beside = self.near.part(variables, observations), self.beside.part(variables, variables)
        kinds = self.variables[variables], self.observations[observations]
        return Neighbourhoods(near, beside, *kinds, self.radius, self.reach)

    @classmethod
    def of(
        cls, variables: Places, observations: Places, *, radius: float, reach: float, at_once: int | None = None
    ) -> "Neighbourhoods":
        """Find what is near; of candidates of which at most `at_once` are observed, in each window."""
        return cls(
            Stencil.within(radius, variables, observations)
            if at_once is None
            else Candidates.of(variables, observations, radius=radius, most=at_once),
            Stencil.within(reach, variables, variables),
            jnp.asarray(variables.kinds),
            jnp.asarray(observations.kinds),
            float(radius),
            float(reach),
        )


def near_radius(here: Places, there: Places, at_once: int | None = None) -> float:
    """Return the radius within which a variable has about `ENOUGH` observations, or all of them where they are fewer.

    Of candidates of which at most `at_once` are observed it has so many more.

    Example:
        >>> ring = Places.grid(400, period=400.0)
        >>> near_radius(ring, ring), near_radius(ring, ring.at(range(0, 400, 40)))
        (20.0, 200.0)
    """
    box = box_of(here.period, here.positions.shape[1])
    points = wrapped(here.positions, box)
    if not len(there.positions):
        return 1.0
    sample = points[:: max(1, len(points) // 1000)]
    tree = KDTree(wrapped(there.positions, box), boxsize=box)
    share = 1.0 if at_once is None else min(1.0, at_once / len(there.positions))
    found = tree.query(sample, k=[min(round(ENOUGH / share), len(there.positions))])[0]
    return float(np.max(found)) or 1.0


def spacing(places: Places) -> float:
    """Return the typical distance from a place to the next: the median; 1 where all are in one place.

    Example:
        >>> spacing(Places.grid(40, fields=2, period=40.0).at(range(0, 80, 4)))
        4.0
    """
    box = box_of(places.period, places.positions.shape[1])
    points = np.unique(wrapped(places.positions, box), axis=0)
    if len(points) < 2:
        return 1.0
    return float(np.median(KDTree(points, boxsize=box).query(points, k=2)[0][:, 1]))
