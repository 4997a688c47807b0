"""Series of observations and of analyses in netCDF files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Float

from bieqno.assimilation import Observations, Run, Twin, load_dataset, to_dataset
from bieqno.lab.system_files.reading import SystemFile
from bieqno.lab.texts import did_you_mean


class Series(NamedTuple):
    """Observations as a filter takes them, as they are in their file, and the truth if the file has it too."""

    observations: Observations
    variable: xr.DataArray
    truth: np.ndarray | None


def read_observations(path: Path, file: SystemFile, variable: str | None = None) -> Series:
    """Read observations (by default ``observed``, or the only variable of two dimensions); check that they fit the system."""
    data = load_dataset(path)
    names = [str(key) for key in data.data_vars]
    if variable is not None and variable not in names:
        raise ValueError(f"{path} has no variable {variable!r}; {did_you_mean(variable, names)}")
    flat = ["observed"] if "observed" in names else [key for key in names if data[key].ndim == 2]
    if variable is None and len(flat) != 1:
        listed = ", ".join(names) or "none"
        raise ValueError(f"which variable of {path} was observed? Say --variable NAME; there are {listed}")
    found = data[variable or flat[0]]
    if found.ndim != 2 or found.dtype.kind not in "fiu":
        raise ValueError(f"{path}: {found.name!r} should hold numbers by time and observed value, got {found.dims}")
    if "time" in found.dims:
        found = found.transpose("time", ...)
    m = file.system.observed
    if found.shape[1] != m:
        raise ValueError(f"{path}: {found.name!r} has {found.shape[1]} values per window, {file.path} observes {m}")
    values = np.asarray(found.values, float)
    if not len(values):
        raise ValueError(f"{path}: {found.name!r} has no window")
    large = np.abs(values[np.isfinite(values)])
    if large.size and large.max() > np.finfo(np.float32).max:  # it would be infinite, and count as missing
        raise ValueError(f"{path}: {found.name!r} holds {large.max():g}, beyond single precision; use other units")
    _check_times(found, path, file)
    truth = data.get("truth")
    has_truth = truth is not None and truth.shape == (len(values), file.system.size) and truth.dtype.kind in "fiu"
    return Series(Observations.of(jnp.asarray(values, float)), found, data["truth"].values if has_truth else None)


def observations_dataset(twin: Twin, file: SystemFile, times: Any = None) -> xr.Dataset:
    """Return a simulated series as `read_observations` reads it, with its truth; at `times` where a model is driven."""
    observed = np.where(twin.observations.mask, twin.observations.value, np.nan)
    about = {"axis": "T"}
    if times is None:
        times = file.window * np.arange(1, len(observed) + 1)
        about |= {"units": "1", "long_name": "model time since the start"}
    return xr.Dataset(
        {
            "observed": (("time", "observation"), observed, {"long_name": "observed values, missing where NaN"}),
            "truth": (("time", "state"), np.asarray(twin.truth), {"long_name": "true state"}),
        },
        {"time": ("time", np.asarray(times), about)},
        {"Conventions": "CF-1.11", "source": "bieqno", "title": "Simulated observations"},
    )


def analysis_dataset(
    run: Run, series: Series, file: SystemFile, *, first_window: int, attributes: Mapping[str, Any]
) -> xr.Dataset:
    """Return an analysis with its observations, at the times of their file, and with the number of its last window."""
    found, axis = series.variable, series.variable.dims[0]
    data = to_dataset(run, window=file.window, attributes=attributes)
    counted = data["time"].copy(data=file.window * (1 + first_window + np.arange(data.sizes["time"])))
    times = found[axis] if axis in found.coords else counted
    data["observed"] = ("time", "observation"), np.asarray(found.values, float), found.attrs
    if series.truth is not None:
        data["truth"] = ("time", "state"), series.truth, {"long_name": "true state"}
    data.attrs["last_window"] = first_window + data.sizes["time"]
    return data.assign_coords(time=("time", times.values, times.attrs))


def last_analysis(path: Path, file: SystemFile) -> tuple[Float[Array, "N n"], int]:
    """Return the last ensemble in a file that an earlier assimilation wrote, and the number of windows up to it."""
    data = load_dataset(path)
    found = data.get("posterior")
    if found is None or found.dims != ("time", "member", "state") or not found.size or found.dtype.kind not in "fiu":
        raise ValueError(f"{path} holds no analysis: expected 'posterior' by time, member and state")
    last = found.values[-1]
    if last.shape[1] != file.system.size:
        raise ValueError(f"{path} has {last.shape[1]} state variables, {file.path} has {file.system.size}")
    if not np.isfinite(last).all():
        raise ValueError(f"the assimilation in {path} diverged; there is nothing to continue from")
    number = data.attrs.get("last_window", data.sizes["time"])
    if np.size(number) != 1 or np.asarray(number).dtype.kind not in "iu":
        raise ValueError(f"{path}: 'last_window' should be a whole number, got {number!r}")
    return jnp.asarray(last, float), int(np.asarray(number).item())


def _check_times(found: xr.DataArray, path: Path, file: SystemFile) -> None:
    """Refuse times with gaps or another step than the window: all later rows would be shifted."""
    axis = found.dims[0]
    if axis not in found.coords or len(found) < 3:
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
    # Dates, other units, and whole numbers, which may just count the rows, are not the model's time.
    in_model_time = times.dtype.kind == "f" and found[axis].attrs.get("units", "1") == "1"
    said = file.settings.model.window is not None or hasattr(file.system.model, "window")
    if in_model_time and said and abs(steps.mean() - file.window) > 1e-3 * file.window:
        raise ValueError(
            f"{path}: rows are {steps.mean():g} apart in time, a window of {file.path} lasts {file.window:g}; "
            "change the model's window, or give a row for every window"
        )
