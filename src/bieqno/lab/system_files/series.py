"""Observations of the user's own, read from netCDF and written to it."""

from pathlib import Path
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import xarray as xr

from bieqno.assimilation.dataset import load_dataset
from bieqno.assimilation.twin import Observations, Twin
from bieqno.lab.nearest import did_you_mean
from bieqno.lab.system_files.reading import OwnSetup


class Series(NamedTuple):
    """Observations as a filter takes them, as they are in their file, and the truth if the file has it too."""

    observations: Observations
    variable: xr.DataArray
    truth: np.ndarray | None


def read_observations(path: Path, setup: OwnSetup, variable: str | None = None) -> Series:
    """A series of observations, one row a window, missing values where nothing was observed.

    Args:
        path: a netCDF file.
        setup: what the observations should fit.
        variable: which variable; None for ``observed``, or the only one with two dimensions.

    Raises:
        ValueError: if there is no such variable, its size is another, or its times have gaps or another step.
    """
    data = _opened(path)
    found = _variable(data, path, variable)
    if found.ndim != 2 or found.dtype.kind not in "fiu":
        raise ValueError(
            f"{path}: {found.name!r} should hold numbers by time and observed value, got {found.dims} of {found.dtype}"
        )
    if "time" in found.dims:
        found = found.transpose("time", ...)
    if found.shape[1] != setup.observed:
        raise ValueError(
            f"{path}: {found.name!r} has {found.shape[1]} values a window, the set-up {setup.path} observes {setup.observed}"
        )
    values = np.asarray(found.values, float)
    if not np.isfinite(values).any():
        raise ValueError(f"{path}: every value of {found.name!r} is missing")
    _check_times(found, path, setup)
    truth = data["truth"].values if "truth" in data else None
    if truth is not None and truth.shape != (len(values), len(setup.state)):
        truth = None
    return Series(Observations.of(jnp.asarray(values, float)), found, truth)


def observations_dataset(twin: Twin, setup: OwnSetup) -> xr.Dataset:
    """A simulated series as `read_observations` wants it, with its truth beside it."""
    seen = twin.observations
    observed = np.where(np.asarray(seen.mask), np.asarray(seen.value), np.nan)
    times = setup.window * np.arange(1, len(observed) + 1)
    return xr.Dataset(
        {
            "observed": (("time", "observation"), observed, {"long_name": "observed values, missing where NaN"}),
            "truth": (("time", "state"), np.asarray(twin.truth), {"long_name": "true state"}),
        },
        {"time": ("time", times, {"axis": "T", "units": "1", "long_name": "model time since the beginning"})},
        {"Conventions": "CF-1.11", "source": "bieqno", "title": "Simulated observations"},
    )


def with_observations(data: xr.Dataset, found: xr.DataArray) -> xr.Dataset:
    """An analysis with what was observed beside it, at the times that the file of the observations gives."""
    data = data.assign(observed=(("time", "observation"), np.asarray(found.values, float), found.attrs))
    axis = found.dims[0]
    return data.assign_coords(time=("time", found[axis].values, found[axis].attrs)) if axis in found.coords else data


def last_ensemble(path: Path, setup: OwnSetup) -> np.ndarray:
    """The last analysis in a file that an earlier assimilation wrote, to go on from.

    Raises:
        ValueError: if there is none, or it does not fit the model.
    """
    data = _opened(path)
    if "posterior" not in data or data["posterior"].dims != ("time", "member", "state"):
        raise ValueError(f"{path} holds no analysis: expected 'posterior' by time, member and state")
    last = data["posterior"].values[-1]
    if last.shape[1] != len(setup.state):
        raise ValueError(f"{path} has {last.shape[1]} state variables, the set-up {setup.path} has {len(setup.state)}")
    if not np.isfinite(last).all():
        raise ValueError(f"the assimilation in {path} diverged; there is nothing to go on from")
    return np.asarray(last)


def _opened(path: Path) -> xr.Dataset:
    try:
        return load_dataset(path)
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise ValueError(f"cannot read {path} as netCDF-4: {error}") from error


def _variable(data: xr.Dataset, path: Path, name: str | None) -> xr.DataArray:
    names = [str(key) for key in data.data_vars]
    if name is not None:
        if name not in names:
            raise ValueError(f"{path} has no variable {name!r}; {did_you_mean(name, names)}")
        return data[name]
    if "observed" in names:
        return data["observed"]
    flat = [key for key in names if data[key].ndim == 2]
    if len(flat) != 1:
        raise ValueError(f"which variable of {path} was observed? Say --variable NAME; there are {', '.join(names)}")
    return data[flat[0]]


def _check_times(found: xr.DataArray, path: Path, setup: OwnSetup) -> None:
    """A window that is left out would shift all that follow, and so would a row that is not one window after the last."""
    axis = found.dims[0]
    if axis not in found.coords or found.shape[0] < 3:
        return
    times = found[axis].values
    if times.dtype.kind not in "fiuM":
        raise ValueError(f"{path}: times should be numbers or dates, got {times.dtype} such as {times[0]!r}")
    steps = np.diff(times).astype(float)
    if not (steps > 0).all() or np.ptp(steps) > 1e-3 * steps.mean():
        raise ValueError(
            f"{path}: times are not evenly spaced, steps go from {steps.min():g} to {steps.max():g}; "
            "every window needs a row, of missing values where nothing was observed"
        )
    # Dates, other units, and whole numbers, which may just count the rows, do not tell what is a unit of the model's time.
    in_model_time = times.dtype.kind == "f" and found[axis].attrs.get("units", "1") == "1"
    said = setup.tables.model.window is not None or hasattr(setup.model, "window")
    if in_model_time and said and abs(steps.mean() - setup.window) > 1e-3 * setup.window:
        raise ValueError(
            f"{path}: rows are {steps.mean():g} apart in time, a window of the set-up {setup.path} lasts {setup.window:g}; "
            "change the model's window, or give a row for every window"
        )
