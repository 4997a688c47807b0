"""Where things are: the places of variables and of observations, in any number of dimensions or on a sphere."""

import functools
from collections.abc import Sequence
from typing import Any, TypeAlias

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from bieqno.arguments import checked

Positions: TypeAlias = Float[Array | np.ndarray, "_ _"]  # one row per point
Period: TypeAlias = float | tuple[float, ...] | None

EARTH = 6371.0  # mean radius of the Earth in kilometres


class Places:
    """Where values are, and of which kind each is: the variables of a state, or observations.

    A value like a number or a text: equal places are equal, and none can be changed. `kinds` are the numbers of the fields
    that they belong to, from 0, and `period` the circumference of space, infinite for dimensions that are not periodic.
    Positions `on_sphere`, as `Places.sphere` makes them, are Cartesian, from its centre.

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
        period: Period = None,
        on_sphere: bool = False,
    ) -> None:
        self.positions = np.array(positions, float)
        if self.positions.ndim != 2:
            raise ValueError(f"positions have one row per value, got shape {self.positions.shape}")
        if not np.isfinite(self.positions).all():
            raise ValueError("positions are finite numbers, got some that are not")
        count, dimensions = self.positions.shape
        self.kinds = np.zeros(count, int) if kinds is None else np.array(kinds, int)
        if self.kinds.shape != (count,) or (count and self.kinds.min() < 0):
            raise ValueError(f"{count} positions need as many kinds, counted from 0; got {self.kinds}")
        self.on_sphere = on_sphere
        if on_sphere and (dimensions != 3 or period is not None):
            raise ValueError(f"positions on a sphere have 3 coordinates and no period, got {dimensions} and {period}")
        self.period = None if period is None else tuple(np.broadcast_to(period, dimensions).tolist())
        self.positions.flags.writeable = self.kinds.flags.writeable = False

    @classmethod
    def grid(cls, *shape: int, fields: int = 1, period: Period = None) -> "Places":
        """Return a regular grid with spacing one, field after field, the last dimension running fastest."""
        points = np.stack(np.meshgrid(*(np.arange(size, dtype=float) for size in shape), indexing="ij"), axis=-1)
        points = points.reshape(-1, len(shape))
        return cls(np.tile(points, (fields, 1)), np.repeat(np.arange(fields), len(points)), period=period)

    @classmethod
    def sphere(
        cls,
        longitude: Sequence[float] | Float[Array | np.ndarray, "n"],
        latitude: Sequence[float] | Float[Array | np.ndarray, "n"],
        kinds: Sequence[int] | Int[Array | np.ndarray, "n"] | None = None,
        *,
        radius: float = EARTH,
    ) -> "Places":
        """Return points on a sphere by degrees east and north, with distances in the unit of its radius, by default km.

        Distances are those through the sphere, 0.1 % shorter than along it at 1,000 km: in these the taper of Gaspari and
        Cohn is a correlation function on the sphere, too. Networks see directions as east and north.

        Example:
            >>> fiji, samoa = Places.sphere([179.0], [-17.0]), Places.sphere([-172.0], [-14.0])
            >>> round(distances(fiji.positions, samoa.positions).item())  # across the date line
            1019
        """
        east, north = np.asarray(longitude, float), np.asarray(latitude, float)
        known = np.isfinite(east).all() and np.all(np.abs(north) <= 90) and 0 < radius < np.inf
        if east.ndim != 1 or east.shape != north.shape or not known:
            raise ValueError(
                f"longitude and latitude, within 90 degrees, have one finite number per point, and a sphere a positive radius; "
                f"got shapes {east.shape} and {north.shape}, radius {radius}"
            )
        east, north = np.radians(east), np.radians(north)
        up = np.stack([np.cos(north) * np.cos(east), np.cos(north) * np.sin(east), np.sin(north)], axis=1)
        return cls(radius * up, kinds, on_sphere=True)

    @classmethod
    def apart(cls, count: int) -> "Places":
        """Return values without positions, each of its own kind: everything is near everything."""
        return cls(np.zeros((count, 1)), np.arange(count))

    def at(self, numbers: Sequence[int] | range | Int[np.ndarray, "k"]) -> "Places":
        """Return some of them, such as those that are observed."""
        chosen = as_numbers(numbers).astype(int)
        return Places(self.positions[chosen], self.kinds[chosen], period=self.period, on_sphere=self.on_sphere)

    def offsets(self, there: "Places", indices: Int[np.ndarray, "n k"]) -> Float[np.ndarray, "n k d"]:
        """Return the way from each of these places to some others, round the shorter way; on a sphere to the east and north.

        Example:
            >>> here = Places.sphere([180.0], [0.0], radius=1.0)
            >>> there = Places.sphere([-179.0, 180.0], [0.0, 1.0], radius=1.0)
            >>> (here.offsets(there, np.array([[0, 1]]))[0].round(4) + 0.0).tolist()
            [[0.0175, 0.0], [0.0, 0.0175]]
        """
        if (self.period, self.on_sphere) != (there.period, there.on_sphere):
            raise ValueError(f"both places are of one space, got periods {self.period} and {there.period}")
        box = box_of(self.period, self.positions.shape[1])
        return ways(self.positions, there.positions[indices], box, on_sphere=self.on_sphere)

    def _identity(self) -> tuple[object, ...]:
        return self.positions.shape, self.positions.tobytes(), self.kinds.tobytes(), self.period, self.on_sphere

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Places) and self._identity() == other._identity())

    @functools.cached_property
    def _hash(self) -> int:
        return hash(self._identity())

    def __getstate__(self) -> dict[str, object]:
        # Hashes of bytes differ from process to process.
        return {name: value for name, value in self.__dict__.items() if name != "_hash"}

    def __hash__(self) -> int:
        return self._hash  # asked for in every call of a compiled program, and there may be millions of places


def as_numbers(given: Any) -> np.ndarray:
    """Return an array of NumPy; of a range in a thousandth of the time that `numpy.asarray` takes."""
    return np.arange(given.start, given.stop, given.step) if isinstance(given, range) else np.asarray(given)


def ways(here: Any, there: Any, box: Float[np.ndarray, "d"], *, on_sphere: bool) -> Any:
    """Return the way from each place to some others ``(n, k, d)``, as arrays of NumPy or of JAX; see `Places.offsets`."""
    xp, offset = there.__array_namespace__(), there - here[:, None]
    if not on_sphere:
        whole = np.where(box > 0, box, 1)
        return xp.where(box > 0, (offset + box / 2) % whole - box / 2, offset)
    x, y, z = here.T
    # At a pole the rounding of x and y still holds the longitude that it was given with.
    along = xp.hypot(x, y) + np.finfo(np.float32).tiny
    east = xp.stack([-y / along, x / along, xp.zeros_like(z)], axis=1)
    up = here / xp.sqrt(xp.sum(here**2, axis=1, keepdims=True))
    flat = xp.einsum("nkd,end->nke", offset, xp.stack([east, xp.cross(up, east)]))
    # As long as the distance: the tangent plane alone would bring the far side of the sphere near.
    length, seen = (xp.sqrt(xp.sum(way**2, axis=-1, keepdims=True)) for way in (offset, flat))
    return flat * xp.where(seen > 0, length / xp.where(seen > 0, seen, 1), 1)


@checked()
def distances(first: Positions, second: Positions, *, period: Period = None) -> Float[Array, "k l"]:
    """Return Euclidean distances between all pairs, round the shorter way where space is periodic.

    Example:
        >>> here, there = jnp.array([[359.0, 0.0]]), jnp.array([[2.0, 4.0]])  # longitude and latitude
        >>> distances(here, there, period=(360.0, float("inf"))).item()
        5.0
    """
    check_space(np.shape(first), np.shape(second), period)
    gap = jnp.abs(jnp.asarray(first)[:, None] - jnp.asarray(second)[None])
    if period is not None:
        length = jnp.asarray(period, gap.dtype)
        gap = jnp.minimum(gap % length, length - gap % length)
    return jnp.sqrt(jnp.sum(gap**2, axis=-1))


def check_space(first: tuple[int, ...], second: tuple[int, ...], period: Period) -> None:
    """Refuse positions and periods that do not go together."""
    if len(first) != 2 or len(second) != 2 or first[1] != second[1]:
        raise ValueError(f"positions are rows of the same length, one per point; got shapes {first} and {second}")
    if not first[1]:
        raise ValueError(f"positions have at least one coordinate; got shapes {first} and {second}")
    lengths = np.atleast_1d(np.inf if period is None else np.asarray(period, float))
    if lengths.shape not in {(1,), first[1:]} or not (lengths > 0).all():
        raise ValueError(f"a period is positive, one number or one for each of {first[1]} dimensions; got {period}")


def box_of(period: Period, dimensions: int) -> Float[np.ndarray, "d"]:
    """Return the period of each dimension; 0, the tree's way to say so, where space is not periodic."""
    length = np.broadcast_to(np.inf if period is None else np.asarray(period, float), dimensions)
    return np.where(np.isfinite(length), length, 0)


def wrapped(points: Float[np.ndarray, "*s d"], box: Float[np.ndarray, "d"]) -> Float[np.ndarray, "*s d"]:
    """Return the same points within one period."""
    whole = np.where(box > 0, box, 1)
    # Twice, since the remainder of a tiny negative number is rounded to the period itself.
    return np.where(box > 0, points % whole % whole, points)
