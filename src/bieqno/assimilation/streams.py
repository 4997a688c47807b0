"""Runs on large fields: a few windows at a time, from one netCDF file to another; no series is ever whole in memory."""

import os
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from bieqno import distributed
from bieqno.arguments import checked
from bieqno.assimilation.dataset import KNOWN, netcdf
from bieqno.assimilation.division import divide
from bieqno.assimilation.protocols import Filter
from bieqno.assimilation.system import System
from bieqno.assimilation.twin import Observations, Record, Run, cycle, keep_moments
from bieqno.persistence.hdf5 import check_heaps

CHUNK = 2**18  # numbers of a field that a file keeps together


@checked("ensemble", finite=False)
def cycle_chunks(
    filter: Filter,
    system: System,
    ensemble: Float[Array, "N n"],
    chunks: Iterable[Observations],
    *,
    inputs: Iterable[PyTree[Any]] | None = None,
    record: Record = keep_moments,
    first_window: int = 0,
    state: PyTree[Any] = None,
    survivors: float = 1.0,
    mesh: Mesh | None = None,
    key: PRNGKeyArray,
) -> Iterator[Run]:
    """Run a filter through a series that comes in pieces of some windows; yield the run of each, and keep none.

    Together these are the run of `cycle`, to which the arguments belong; `inputs` come in the same pieces. A run that has
    diverged is the last one. Pieces of one length share a compilation.

    Example:
        >>> import jax.numpy as jnp
        >>> from bieqno.assimilation import ETKF, Observation
        >>> system = System(lambda z: 0.9 * z, Observation([0], 0.5), jnp.ones(2))
        >>> start, pieces = jax.random.normal(jax.random.key(0), (5, 2)), [Observations.of(jnp.ones((2, 1)))] * 3
        >>> [run.kept["mean"].shape for run in cycle_chunks(ETKF(), system, start, pieces, key=jax.random.key(1))]
        [(2, 2), (2, 2), (2, 2)]
    """
    if mesh is not None:
        filter = divide(filter, system.observation, system.size, mesh)
    about: Any = {"record": record, "survivors": survivors, "mesh": mesh, "key": key}
    pieces = ((seen, None) for seen in chunks) if inputs is None else zip(chunks, inputs, strict=True)
    return _runs(filter, system, ensemble, pieces, first_window, state, about)


def _runs(
    filter: Filter, system: System, ensemble: Array, pieces: Iterable[Any], window: int, state: PyTree[Any], about: Any
) -> Iterator[Run]:
    for seen, driven in pieces:
        run = cycle(filter, system, ensemble, seen, inputs=driven, first_window=window, state=state, **about)
        yield run
        if int(distributed.local(run.diverged)) >= 0:
            return
        ensemble, window, state = run.ensemble, window + len(seen.value), run.state


def read_chunks(
    path: str | os.PathLike[str], windows: int = 1, *, variable: str = "observed", mesh: Mesh | None = None
) -> Iterator[Observations]:
    """Yield observations from a netCDF file, by time and observation, so many windows at a time; NaN is missing.

    The last piece has what is left. All processes of a `mesh` open the same file, and each reads what its devices hold.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder) / "obs.nc"
        ...     with netcdf().File(path, "w") as file:
        ...         file.dimensions = {"time": 3, "observation": 2}
        ...         file.create_variable("observed", ("time", "observation"), float, data=np.ones((3, 2)))[0, 1] = np.nan
        ...     [piece.mask.tolist() for piece in read_chunks(path, 2)]
        [[[True, False], [True, True]], [[True, True]]]
    """
    if windows < 1:
        raise ValueError(f"a piece has at least one window, got windows={windows}")
    check_heaps(Path(path))
    with netcdf().File(path, "r") as file:
        if variable not in file.variables:
            raise ValueError(f"{path} has no variable {variable!r}; there are {', '.join(file.variables)}")
        series = file.variables[variable]
        if len(series.shape) != 2:
            raise ValueError(f"{path}: {variable!r} should be by time and observation, got {series.dimensions}")
        coded = sorted({"_FillValue", "missing_value", "scale_factor", "add_offset"} & set(series.attrs))
        if series.dimensions[1] == "time" or coded:  # read as they are, such numbers would be wrong ones
            what = f"has {', '.join(coded)}" if coded else "has its time last"
            raise ValueError(f"{path}: {variable!r} {what}; write plain numbers by time, NaN where one is missing")
        total, count = series.shape
        for first in range(0, total, windows):
            end = min(first + windows, total)
            if mesh is None:
                yield Observations.of(jnp.asarray(series[first:end], float))
            else:
                over = NamedSharding(distributed.free(mesh), PartitionSpec(None, distributed.dividing(count, mesh)))
                read = partial(_read, series, slice(first, end))
                yield Observations.of(jax.make_array_from_callback((end - first, count), over, read))


def _read(series: Any, times: slice, part: tuple[slice, slice]) -> np.ndarray:
    """Read the columns of a part."""
    return np.asarray(series[times, part[1]], jnp.zeros(()).dtype)


def write_chunks(path: str | os.PathLike[str], runs: Iterable[Run]) -> Run:
    """Write what runs in sequence kept, such as those of `cycle_chunks`, to one netCDF file; return the last of them.

    Each is on the disk before the next begins; a file that exists is an error. With several processes the first one writes. As in
    `to_dataset`, `sound` says up to where the run had not diverged, and `lost` counts members that were redrawn.
    """
    if jax.process_index() == 0 and Path(path).exists():
        raise FileExistsError(f"{path} exists; name another file, or remove it")
    last, written, file = None, 0, None
    try:
        for run in runs:
            last, kept = run, distributed.local({**run.kept, "lost": run.lost})
            steps, diverged = len(kept["lost"]), int(distributed.local(run.diverged))
            kept["sound"] = np.arange(steps) < (diverged if diverged >= 0 else steps)
            if jax.process_index() == 0:
                file = file or netcdf().File(path, "w")
                _append(file, written, {name: np.asarray(value) for name, value in kept.items()})
            written += steps
    finally:
        if file is not None:
            file.close()
    if last is None:
        raise ValueError("expected at least one run to write, got none")
    return last


def _append(file: Any, first: int, kept: dict[str, np.ndarray]) -> None:
    """Write some windows after those that are there; the first ones decide what the file looks like."""
    if not first:
        file.dimensions = {"time": None}
        for name, value in kept.items():
            own = ("time", *(f"{name}_{axis}" for axis in range(1, value.ndim)))
            axes, about = KNOWN.get(name, (own, name))
            for axis, size in zip(axes[1:], value.shape[1:], strict=True):
                if axis not in file.dimensions:
                    file.dimensions[axis] = size
            together = (1, *(min(size, CHUNK) for size in value.shape[1:]))
            kind = "i1" if value.dtype == bool else value.dtype
            file.create_variable(name, axes, kind, chunks=together).attrs["long_name"] = about
    end = first + len(kept["lost"])
    file.resize_dimension("time", end)
    for name, value in kept.items():
        file.variables[name][first:end] = value.astype("i1") if value.dtype == bool else value
    file.flush()
