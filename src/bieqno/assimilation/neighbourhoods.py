"""Where a local filter with learned weights looks: the observations near each variable, and the variables beside it.

Weights are functions of relative positions; places that see the same ones share them.
"""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from scipy.spatial import KDTree

from bieqno.assimilation.geometry import Neighbours, renumbered
from bieqno.assimilation.places import Places, box_of, ways, wrapped

DIGITS = 6  # at which relative positions are distinguished, in units of the radius
ENOUGH = 40  # observations near a variable: more hardly change its analysis
FEW = 32  # patterns up to which a product with ones and zeros is quicker than looking up


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
