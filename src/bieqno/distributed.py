"""Processes and meshes: how a program runs on all devices of one host or of many, by JAX's own runtime.

Every process runs the same program. An array that is spread over a mesh is one array, of which each process holds a part.
"""

import math
import os
from typing import Any, TypeVar

import equinox as eqx
import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

T = TypeVar("T")
LAUNCHED = ("SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE")  # the number of processes, by those who start them


def start(
    address: str | None = None, processes: int | None = None, process: int | None = None, *, method: str | None = None
) -> int:
    """Join the processes of a job; return their number. The same call again, or in a program that runs alone, does nothing.

    Before anything else of JAX is used. Jobs of Slurm, Open MPI, Kubernetes and cloud TPUs are found by JAX itself; `method`
    names one that it does not try by itself, such as ``"mpi4py"``. Anywhere else each process is given the `address` of the
    first one, ``"host:port"``, the number of `processes` and its own, counted from 0.

    Example:
        >>> start()
        1
    """
    given = {"address": address, "processes": processes, "process": process}
    known = [name for name, value in given.items() if value is not None]
    if known and len(known) < len(given):
        raise ValueError(f"a job has an address, processes and the number of this one; got {', '.join(known)} alone")
    if not jax.distributed.is_initialized() and processes != 1:
        try:
            jax.distributed.initialize(address, processes, process, cluster_detection_method=method)
        except (ValueError, RuntimeError) as error:
            # What JAX says where it finds no job; or, in a program that has used it before, without having looked for one.
            alone = isinstance(error, RuntimeError) or "coordinator_address should be defined" in str(error)
            if known or method or not alone or any(int(os.environ.get(count, 1)) > 1 for count in LAUNCHED):
                raise
    return jax.process_count()


def mesh(axis: str = "space", devices: int | None = None) -> Mesh:
    """Return a mesh of all devices of all processes, or of the first so many, along one axis.

    Example:
        >>> mesh(devices=1).shape["space"]
        1
    """
    found = jax.devices()
    if devices is not None and not 1 <= devices <= len(found):
        raise ValueError(f"there are {len(found)} devices, got devices={devices}")
    return Mesh(np.array(found[:devices]), (axis,))


def free(given: Mesh) -> Mesh:
    """Return the same mesh with axes that the compiler may use as it sees fit; `jax.make_mesh` makes others."""
    return Mesh(given.devices, given.axis_names)


def dividing(size: int, over: Mesh, axes: tuple[str, ...] | None = None) -> tuple[str, ...] | None:
    """Return some axes of a mesh, by default all, if their devices can hold equal parts of a size; None if they cannot.

    Example:
        >>> dividing(4, mesh(devices=1))
        ('space',)
    """
    axes = axes or over.axis_names
    return None if size % math.prod(over.shape[axis] for axis in axes) else axes


def spread(tree: T, over: Mesh, *axes: str | tuple[str, ...] | None) -> T:
    """Return a tree whose arrays are on a mesh: their axes along those named, by default a copy for each device.

    All processes give the same values, or arrays that are on several processes already.

    Example:
        >>> tuple(spread(np.arange(4.0), mesh(devices=1), "space").sharding.spec)
        ('space',)
    """
    sharding = NamedSharding(over, PartitionSpec(*axes))
    arrays, rest = eqx.partition(tree, eqx.is_array)
    return eqx.combine(jax.tree.map(lambda leaf: _put(leaf, sharding), arrays), rest)


def _put(leaf: Any, sharding: NamedSharding) -> jax.Array:
    if isinstance(leaf, jax.core.Tracer):
        return jax.lax.with_sharding_constraint(leaf, sharding)
    if isinstance(leaf, jax.Array) and (jax.process_count() == 1 or not leaf.is_fully_addressable):
        return jax.device_put(leaf, sharding)
    if isinstance(leaf, jax.Array) and jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(_put(jax.random.key_data(leaf), sharding), impl=jax.random.key_impl(leaf))
    # Each process puts its own part, and nothing crosses; `device_put` would compare all of it.
    values = np.asarray(leaf)
    return jax.make_array_from_callback(values.shape, sharding, lambda part: values[part])


def local(tree: T) -> T:
    """Return a tree whose arrays are this process's own; those that are spread over several come from all of them.

    Example:
        >>> local(spread(np.arange(4.0), mesh(devices=1), "space")).tolist()
        [0.0, 1.0, 2.0, 3.0]
    """

    def fetch(leaf: Any) -> Any:
        if not isinstance(leaf, jax.Array) or leaf.is_fully_addressable:
            return leaf
        if jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(fetch(jax.random.key_data(leaf)), impl=jax.random.key_impl(leaf))
        if not leaf.is_fully_replicated:
            over: Any = leaf.sharding
            leaf = jax.jit(lambda x: x, out_shardings=NamedSharding(over.mesh, PartitionSpec()))(leaf)
        return jax.numpy.asarray(np.asarray(leaf.addressable_data(0)))

    return jax.tree.map(fetch, tree)


def agree(value: int | float) -> int | float:
    """Return the first process's number on all of them, so that what depends on a clock is decided once.

    Example:
        >>> agree(3.0)
        3.0
    """
    if jax.process_count() == 1:
        return value
    words = np.array([value], np.float64).view(np.uint32)  # 64 bits, which JAX would round to 32
    return float(np.asarray(multihost_utils.broadcast_one_to_all(words)).view(np.float64)[0])
