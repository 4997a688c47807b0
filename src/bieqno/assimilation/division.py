"""A local filter on a state whose variables are spread over the devices of a mesh: each device analyses its own.

A state is cut into parts of consecutive variables, one or more for each device. The analysis of a part looks at some more
variables, its halo, and at the observations near both: which these are follows from the filter's neighbours and the observation
operator, whatever the places are. Observations are spread as variables are, in their order. Devices exchange halos of both once
per analysis (`ppermute`), and then the same filter analyses one part after another. Memory for what happens between is that of
one part, so that large states are cut on one device, too.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from bieqno import distributed
from bieqno.assimilation.filters.wrappers import AbstractWrapper
from bieqno.assimilation.geometry import marked, where_in
from bieqno.assimilation.observation import Observation, Observed, Part
from bieqno.assimilation.protocols import Filter

LARGEST = 2**17  # variables of a part
ROUND = 64  # of which the number of variables of a large part is a multiple


@runtime_checkable
class LocalFilter(Protocol):
    """A filter whose analysis of some variables looks at some variables and observations, and not at all."""

    def noise(self, shape: tuple[int, int], dtype: DTypeLike, *, key: PRNGKeyArray) -> Float[Array, "N n"] | None:
        """Return what the analysis of a whole state draws at random, if anything."""

    def needs(self, variables: Int[np.ndarray, "k"]) -> tuple[Int[np.ndarray, "_"], Int[np.ndarray, "_"]]:
        """Return the variables and the observations that the analysis of some variables looks at."""

    def part(self, variables: Int[np.ndarray, "k"], observations: Int[np.ndarray, "l"]) -> Filter:
        """Return the same for a part of the state and some observations, numbered as in these lists."""


def divide(
    filter: Filter,
    observation: Observation,
    size: int,
    mesh: Mesh,
    *,
    axes: tuple[str, ...] | None = None,
    largest: int = LARGEST,
) -> Filter:
    """Return a filter that analyses states of some `size` part by part on a mesh, along some of its axes or all of them.

    A filter that is not local, an observation operator or an error law of one's own stay whole: the compiler decides what
    devices exchange, which may be everything.

    Example:
        >>> from bieqno.assimilation import LETKF, Neighbours
        >>> ring = jnp.arange(8.0)[:, None]
        >>> letkf = LETKF(Neighbours.within(2.0, ring, ring, period=8.0), 2.0)
        >>> parts = divide(letkf, Observation(range(8), 1.0), 8, distributed.mesh(devices=1), largest=4)
        >>> parts.take.shape  # two parts of four variables, each with a halo of two on either side
        (2, 8)
    """
    axes, mesh = axes or mesh.axis_names, distributed.free(mesh)
    devices = math.prod(mesh.shape[axis] for axis in axes)
    if size % devices:
        raise ValueError(f"{devices} devices hold as many variables each, which {size} cannot be divided into")
    inner = filter
    while isinstance(inner, AbstractWrapper):
        inner = inner.filter
    law = observation.error.part(np.arange(0)) if hasattr(observation.error, "part") else None
    if not isinstance(inner, LocalFilter) or law is None or not hasattr(observation.operator, "part"):
        return distributed.spread(filter, mesh)
    own = size // devices  # variables of a device
    parts = [_Part.of(filter, observation, size, own_numbers) for own_numbers in _cut(size, devices, largest)]
    observed = -(-max(observation.size(size), 1) // devices) * devices  # with those that make it a multiple
    variable_halo, take = _exchange([part.variables for part in parts], size, devices)
    observation_halo, find = _exchange([part.observations for part in parts], observed, devices)
    observations, present = _padded([part.observations for part in parts])
    variables, _ = _padded([part.variables for part in parts])
    both = zip(variables, observations, strict=True)
    shared, parted = _stacked(_restricted(filter, observation, *lists) for lists in both)
    lists: tuple[Any, ...] = (take, find, observations, present, parted, variable_halo, observation_halo)
    about: Any = (distributed.spread(shared, mesh), mesh, axes, observed, (len(parts[0].own), own))
    return Divided(*distributed.spread(lists, mesh, axes), *about)


class Halo(eqx.Module):
    """What devices send to each other of something that is spread over them."""

    # Columns that each device sends to the one that is a shift further on.
    sends: tuple[Int[Array, "d _"] | Int[np.ndarray, "d _"], ...]
    shifts: tuple[int, ...] = eqx.field(static=True)

    def received(self, own: Array, axes: tuple[str, ...], devices: int) -> Array:
        """Return a device's own columns and behind them those that it gets from others; inside a `shard_map`."""
        held = [own]
        for shift, numbers in zip(self.shifts, self.sends, strict=True):
            ways = [(device, (device + shift) % devices) for device in range(devices)]
            held.append(jax.lax.ppermute(own[..., numbers[0]], axes, ways))
        return jnp.concatenate(held, axis=-1)


class Divided(eqx.Module):
    """A local filter with all that its parts need; lists have one row per part, those of one device in sequence."""

    take: Int[Array, "p e"]  # variables of a part, its own first, by their place in what the device has with its halo
    find: Int[Array, "p k"]  # the same of its observations
    observations: Int[Array, "p k"]  # their numbers in the whole
    present: Bool[Array, "p k"]  # false for padding
    parted: PyTree[Any]  # filter, operator and error law of each part, as far as they differ
    variable_halo: Halo
    observation_halo: Halo
    shared: PyTree[Any]  # filter, operator and error law, as far as they are the same for all parts
    mesh: Mesh = eqx.field(static=True)
    axes: tuple[str, ...] = eqx.field(static=True)
    observed: int = eqx.field(static=True)  # values with padding, a multiple of the number of devices
    counts: tuple[int, int] = eqx.field(static=True)  # own variables of a part and of a device

    def __call__(self, ensemble: Float[Array, "N n"], observed: Observed, *, key: PRNGKeyArray) -> Float[Array, "N n"]:
        """Analyse one window."""
        white = self.shared[0].noise(ensemble.shape, ensemble.dtype, key=key)
        fields = ensemble[None] if white is None else jnp.stack([ensemble, white])
        seen: tuple[Array, ...] = (observed.value, observed.mask, observed.reference)
        missing = self.observed - observed.value.shape[0]
        if missing:  # what devices do not divide is whole on each of them
            seen = tuple(jnp.pad(x, (0, missing)) for x in distributed.spread(seen, self.mesh))
        shared, static = eqx.partition(self.shared, eqx.is_array)
        lists = (self.take, self.find, self.observations, self.present, self.parted)
        devices = math.prod(self.mesh.shape[axis] for axis in self.axes)

        def on_device(fields: Any, seen: Any, lists: Any, halos: Any, shared: Any, anything: Any, key: Any) -> Array:
            held = halos[0].received(fields, self.axes, devices)
            heard = tuple(halos[1].received(x, self.axes, devices) for x in seen)
            whole = eqx.combine(shared, static)
            # One part after another: the memory is that of one.
            analysed = partial(_analysed, whole, held, heard, anything, key)
            return self._joined(jax.lax.map(lambda part: analysed(part)[:, : self.counts[0]], lists))

        everywhere, first = PartitionSpec(), PartitionSpec(self.axes)
        specs = (PartitionSpec(None, None, self.axes), first, first, first, everywhere, everywhere, everywhere)
        about: Any = {"mesh": self.mesh, "out_specs": PartitionSpec(None, self.axes), "check_vma": False}
        spread = jax.shard_map(on_device, in_specs=specs, **about)
        halos = (self.variable_halo, self.observation_halo)
        return spread(fields, seen, lists, halos, shared, jnp.any(observed.mask), key)

    def _joined(self, found: Float[Array, "b N o"]) -> Float[Array, "N c"]:
        """Return the parts of a device beside each other; the last one may overlap with the one before it."""
        rest = self.counts[1] - (len(found) - 1) * self.counts[0]
        first = jnp.moveaxis(found[:-1], 0, 1).reshape(found.shape[1], -1)
        return jnp.concatenate([first, found[-1][:, self.counts[0] - rest :]], axis=1)


def _analysed(
    whole: PyTree[Any], held: Float[Array, "f N h"], heard: Any, anything: Any, key: PRNGKeyArray, lists: Any
) -> Array:
    """Return the analysis of one part with its halo, of which the halo means nothing."""
    take, find, observations, present, parted = lists
    filter, operator, error = eqx.combine(parted, whole)
    ensemble, *white = held[..., take]
    value, mask, reference = (values[find] for values in heard)
    part = Part(anything, observations, white[0] if white else None)
    observed = Observed(value, mask & present, reference, error, operator, part=part)
    posterior: Array = filter(ensemble, observed, key=key)
    return posterior


@dataclass(frozen=True)
class _Part:
    """Numbers of the variables of a part, its own and with its halo, and of the observations that it needs."""

    own: Int[np.ndarray, "o"]
    variables: Int[np.ndarray, "e"]
    observations: Int[np.ndarray, "k"]

    @classmethod
    def of(cls, filter: Any, observation: Observation, size: int, own: Int[np.ndarray, "o"]) -> "_Part":
        """Find what the analysis of a part's own variables looks at."""
        operator: Any = observation.operator
        variables, observations = filter.needs(own)
        # A filter may ask for the gradient of predictions: for all that depend on a variable.
        count = observation.size(size)
        seen = marked(observations, count)
        seen[operator.outputs(variables, size)] = True
        observations = _from(seen, int(own[0]) * count // size)
        halo = marked(variables, size)
        halo[operator.inputs(observations)] = True
        halo[own] = False
        return cls(own, np.concatenate([own, _from(halo, int(own[0]))]), observations)


def _from(chosen: Bool[np.ndarray, "n"], begin: int) -> Int[np.ndarray, "_"]:
    """Return the numbers of what is chosen, round from `begin`: on a ring they are in the same order wherever that is."""
    found = np.flatnonzero(chosen)
    return np.roll(found, -int(np.searchsorted(found, begin)))


def _cut(size: int, devices: int, largest: int) -> list[Int[np.ndarray, "o"]]:
    """Return the variables of each part: of each device as many, all of one length; the last of a device may overlap."""
    own = size // devices
    length = -(-own // -(-own // largest))
    if ROUND < length < own:  # parts of a regular grid are then alike
        length = min(-(-length // ROUND) * ROUND, own)
    count = -(-own // length)
    begins = [device * own + min(k * length, own - length) for device in range(devices) for k in range(count)]
    return [np.arange(begin, begin + length) for begin in begins]


def _exchange(needed: list[Int[np.ndarray, "_"]], size: int, devices: int) -> tuple[Halo, Int[np.ndarray, "p e"]]:
    """Return what devices send to each other, and where each part then finds what it needs."""
    own, per_device = size // devices, len(needed) // devices
    lists = [needed[d * per_device : (d + 1) * per_device] for d in range(devices)]
    wanted = [np.flatnonzero(marked(np.concatenate(parts), size)) for parts in lists]
    sends, shifts = [], []
    held = [np.arange(d * own, (d + 1) * own) for d in range(devices)]
    for shift in range(1, devices):
        # What the device `shift` further on wants of this one.
        asked = [wanted[(d + shift) % devices] for d in range(devices)]
        own_numbers = [numbers[numbers // own == d] - d * own for d, numbers in enumerate(asked)]
        if not any(map(len, own_numbers)):
            continue
        sent, _ = _padded(own_numbers)
        sends.append(sent)
        shifts.append(shift)
        held = [np.append(held[d], sent[(d - shift) % devices] + (d - shift) % devices * own) for d in range(devices)]
    tables = (where_in(numbers, size) for numbers in held)
    take = [table[variables] for table, parts in zip(tables, lists, strict=True) for variables in parts]
    return Halo(tuple(sends), tuple(shifts)), _padded(take)[0]


def _padded(lists: list[Int[np.ndarray, "_"]]) -> tuple[Int[np.ndarray, "p k"], Bool[np.ndarray, "p k"]]:
    """Return lists of one length, padded with their first number or 0, and what is not padding."""
    length = max(map(len, lists))
    rows = [np.append(x, np.full(length - len(x), x[0] if len(x) else 0)) for x in lists]
    present = np.arange(length) < np.array([len(x) for x in lists])[:, None]
    return np.stack(rows).astype(np.int32), present


def _restricted(
    filter: Any, observation: Observation, variables: Int[np.ndarray, "e"], observations: Int[np.ndarray, "k"]
) -> tuple[Filter, Any, Any]:
    """Return filter, operator and error law of a part."""
    operator: Any = observation.operator
    error: Any = observation.error
    return filter.part(variables, observations), operator.part(variables, observations), error.part(observations)


def _stacked(trees: Iterable[PyTree[Any]]) -> tuple[PyTree[Any], PyTree[Any]]:
    """Return what all trees have in common, and the arrays in which they differ, one row for each tree."""
    rows: list[list[np.ndarray]] = []
    for tree in trees:
        arrays, static = eqx.partition(tree, eqx.is_array)
        found, structure = jax.tree.flatten(arrays)
        first = rows[0] if rows else found
        # What is equal is kept once: parts of a regular grid are many, and all alike.
        rows.append([a if a is b or np.array_equal(a, b) else np.asarray(b) for a, b in zip(first, found, strict=True)])
    columns = list(zip(*rows, strict=True))
    alike = [all(row is column[0] for row in column) for column in columns]
    shared = [np.asarray(column[0]) if same else None for column, same in zip(columns, alike, strict=True)]
    parted = [None if same else np.stack(column) for column, same in zip(columns, alike, strict=True)]
    return eqx.combine(jax.tree.unflatten(structure, shared), static), jax.tree.unflatten(structure, parted)
