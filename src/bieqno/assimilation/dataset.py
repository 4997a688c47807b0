"""Results as labelled arrays and netCDF files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from bieqno.assimilation.twin import Run, Twin
from bieqno.persistence.tensorfile import replace_file

# Where the axes of what the records of this library keep belong; those of other records get names of their own.
_DIMENSIONS = {
    "prior": ("time", "member", "state"),
    "posterior": ("time", "member", "state"),
    "predicted": ("time", "member", "observation"),
    "perturbed": ("time", "member", "observation"),
    "std": ("time", "observation"),
    "observed": ("time", "observation"),
    "mask": ("time", "observation"),
    "mean": ("time", "state"),
    "spread": ("time", "state"),
    "prior_mean": ("time", "state"),
    "prior_spread": ("time", "state"),
}
_NAMES = {
    "prior": "forecast ensemble at the end of the window",
    "posterior": "analysis ensemble at the end of the window",
    "predicted": "predicted observations of the forecast ensemble",
    "perturbed": "perturbed observations",
    "std": "standard deviation of the observation errors",
    "observed": "observed values",
    "mask": "value was observed",
    "mean": "mean of the analysis ensemble",
    "spread": "standard deviation of the analysis ensemble",
    "prior_mean": "mean of the forecast ensemble",
    "prior_spread": "standard deviation of the forecast ensemble",
}


def to_dataset(
    run: Run,
    twin: Twin | None = None,
    *,
    window: float = 1.0,
    attributes: Mapping[str, str | int | float] | None = None,
) -> xr.Dataset:
    """A run, with the truth if there is one, as a dataset of time, member, state and observation.

    From the window in which the run diverged on, its values are missing and `sound` is 0. What a record of your own
    keeps under a name such as `extra` has the dimensions time, `extra_1`, `extra_2` and so on.

    Args:
        run: from `cycle`, with a record that keeps a dictionary.
        twin: from `simulate`; None for real data.
        window: time between two observations, for the time axis.
        attributes: what else to say about the run, such as the filter and its settings.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from bieqno.assimilation import EnKF, Lorenz63, Observation, cycle, keep_ensembles, simulate
        >>> model, observation = Lorenz63(), Observation([0, 2], 1.0)
        >>> twin = simulate(model, observation, 4, state=jnp.array([-8.5, -7.0, 27.0]), key=jax.random.key(0))
        >>> start = jax.random.normal(jax.random.key(1), (5, 3)) + twin.truth[0]
        >>> run = cycle(
        ...     EnKF(), model, observation, start, twin.observations, record=keep_ensembles, key=jax.random.key(2)
        ... )
        >>> dict(to_dataset(run, twin, window=model.window).sizes)
        {'time': 4, 'member': 5, 'state': 3, 'observation': 2}
    """
    if not isinstance(run.kept, Mapping):
        raise ValueError(f"a dataset needs a record that keeps a dictionary, got {type(run.kept).__name__}")
    if np.ndim(run.diverged):
        raise ValueError("expected one run; select one of the sweep first, as in jax.tree.map(lambda x: x[0], run)")
    diverged = int(run.diverged)
    steps = len(run.kept[next(iter(run.kept))]) if run.kept else 0
    sound = np.arange(steps) < (diverged if diverged >= 0 else steps)
    variables: dict[str, Any] = {}
    for name, kept in run.kept.items():
        value = np.asarray(kept)
        axes = _DIMENSIONS.get(name) or ("time", *(f"{name}_{axis}" for axis in range(1, value.ndim)))
        if np.issubdtype(value.dtype, np.floating):
            value = np.where(sound.reshape(-1, *[1] * (value.ndim - 1)), value, np.nan)
        variables[name] = (
            axes,
            value.astype("i1") if value.dtype == bool else value,
            {"long_name": _NAMES.get(name, name)},
        )
    if {"observed", "mask"} <= run.kept.keys():
        axes, value, about = variables["observed"]
        variables["observed"] = (axes, np.where(np.asarray(run.kept["mask"]), value, np.nan), about)
    flags = {"long_name": "run is sound", "flag_values": np.array([0, 1], "i1"), "flag_meanings": "diverged sound"}
    variables["sound"] = (("time",), sound.astype("i1"), flags)
    if twin is not None:
        seen = twin.observations
        observed = np.where(np.asarray(seen.mask), np.asarray(seen.value), np.nan)
        variables["truth"] = (("time", "state"), np.asarray(twin.truth), {"long_name": "true state"})
        variables["observed"] = (("time", "observation"), observed, {"long_name": "observed values"})
    data = xr.Dataset(variables)
    data = data.assign_coords({name: np.arange(size) for name, size in data.sizes.items() if name != "time"})
    axis = {"axis": "T", "standard_name": "time", "units": "1", "long_name": "model time since the first ensemble"}
    data = data.assign_coords(time=("time", window * np.arange(1, steps + 1), axis))
    order = [name for name in ("time", "member", "state", "observation") if name in data.sizes]
    data = data.transpose(*order, ...)
    return data.assign_attrs(Conventions="CF-1.11", source="bieqno", diverged=diverged, **(attributes or {}))


def save_dataset(data: xr.Dataset, path: str | Path) -> Path:
    """Write a dataset to a netCDF file, compressed, replacing what was there in one step; makes the folder if need be.

    Raises:
        PersistenceError: if the file cannot be written; nothing is left half-written.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    packed = {name: {"zlib": True, "complevel": 4} for name in data.data_vars if data[name].ndim}
    replace_file(path, data.to_netcdf(engine="h5netcdf", encoding=packed))
    return path


def load_dataset(path: str | Path) -> xr.Dataset:
    """Read a dataset whole, and close the file."""
    return xr.load_dataset(path, engine="h5netcdf")
