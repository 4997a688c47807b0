"""Results as labelled arrays, tables of scores and netCDF files; needs xarray, which comes with the extra `netcdf`."""

import importlib
import sys
import traceback
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np

from bieqno import scores
from bieqno.arguments import checked
from bieqno.assimilation.tuning import Tuning
from bieqno.assimilation.twin import Run, Twin
from bieqno.persistence.hdf5 import check_heaps
from bieqno.persistence.tensorfile import replace_file

if TYPE_CHECKING:
    from xarray import Dataset
else:
    Dataset = Any

# Where the axes of what the records of this library keep belong, and what it is; those of other records get their own names.
_STATE, _MEMBERS, _SEEN = ("time", "state"), ("time", "member", "state"), ("time", "observation")
KNOWN = {
    "prior": (_MEMBERS, "forecast ensemble at the end of the window"),
    "posterior": (_MEMBERS, "analysis ensemble at the end of the window"),
    "predicted": (("time", "member", "observation"), "predicted observations of the forecast ensemble"),
    "perturbed": (("time", "member", "observation"), "perturbed observations"),
    "std": (_SEEN, "standard deviation of the observation errors"),
    "observed": (_SEEN, "observed values"),
    "mask": (_SEEN, "value was observed"),
    "mean": (_STATE, "mean of the analysis ensemble"),
    "spread": (_STATE, "standard deviation of the analysis ensemble"),
    "prior_mean": (_STATE, "mean of the forecast ensemble"),
    "prior_spread": (_STATE, "standard deviation of the forecast ensemble"),
    "log_score": (("time",), "log density of what was observed, one step ahead"),
    "crps": (_SEEN, "continuous ranked probability score of each value, one step ahead"),
    "pit": (_SEEN, "probability that the forecast gave to smaller values"),
    "predicted_mean": (_SEEN, "mean of the predictive distribution of each value"),
    "predicted_spread": (_SEEN, "standard deviation of the predictive distribution of each value"),
}
LEAST_WINDOWS = 4  # that an interval is made of


def _xarray() -> Any:
    """Return the xarray package, or say how to install it."""
    try:
        import xarray

        importlib.import_module("h5netcdf")
    except ImportError as error:
        raise ImportError('datasets need xarray and h5netcdf: pip install "bieqno[netcdf]"') from error
    return xarray


def netcdf() -> Any:
    """Return the package that reads and writes parts of netCDF files, or say how to install it."""
    _xarray()
    return importlib.import_module("h5netcdf")


@checked(finite=False)
def to_dataset(
    run: Run,
    twin: Twin | None = None,
    *,
    window: float = 1.0,
    attributes: Mapping[str, str | int | float] | None = None,
) -> Dataset:
    """Return a run, with the truth if there is one, as a dataset of time, member, state and observation.

    From the window in which the run diverged on, its values are missing and `sound` is 0. What a record of your own
    keeps under a name such as `extra` has the dimensions time, `extra_1`, `extra_2` and so on. The `window` is the time
    between two observations; `attributes` are kept with the data, such as the filter and its settings.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from bieqno.assimilation import EnKF, Lorenz63, Observation, System, cycle, keep_ensembles, simulate
        >>> system = System(Lorenz63(), Observation([0, 2], 1.0), jnp.array([-8.5, -7.0, 27.0]))
        >>> twin = simulate(system, 4, key=jax.random.key(0))
        >>> start = jax.random.normal(jax.random.key(1), (5, 3)) + twin.truth[0]
        >>> run = cycle(EnKF(), system, start, twin.observations, record=keep_ensembles, key=jax.random.key(2))
        >>> dict(to_dataset(run, twin, window=0.5).sizes)
        {'time': 4, 'member': 5, 'state': 3, 'observation': 2}
    """
    if not isinstance(run.kept, Mapping):
        raise ValueError(f"a dataset needs a record that keeps a dictionary, got {type(run.kept).__name__}")
    if np.ndim(run.diverged):
        raise ValueError("expected one run; select one of several first, as in jax.tree.map(lambda x: x[0], run)")
    diverged = int(run.diverged)
    steps = len(run.kept[next(iter(run.kept))]) if run.kept else 0
    sound = np.arange(steps) < (diverged if diverged >= 0 else steps)
    variables: dict[str, Any] = {}
    for name, kept in run.kept.items():
        value = np.asarray(kept)
        own = ("time", *(f"{name}_{axis}" for axis in range(1, value.ndim)))
        axes, about = KNOWN.get(name, (own, name))
        if np.issubdtype(value.dtype, np.floating):
            value = np.where(sound.reshape(-1, *[1] * (value.ndim - 1)), value, np.nan)
        variables[name] = (axes, value.astype("i1") if value.dtype == bool else value, {"long_name": about})
    if {"observed", "mask"} <= run.kept.keys():
        axes, value, about = variables["observed"]
        variables["observed"] = (axes, np.where(np.asarray(run.kept["mask"]), value, np.nan), about)
    flags = {"long_name": "run is sound", "flag_values": np.array([0, 1], "i1"), "flag_meanings": "diverged sound"}
    variables["sound"] = (("time",), sound.astype("i1"), flags)
    about_lost = {"long_name": "members whose forecast failed and that were redrawn from the others"}
    variables["lost"] = (("time",), np.asarray(run.lost, "i4"), about_lost)
    if twin is not None:
        seen = twin.observations
        observed = np.where(np.asarray(seen.mask), np.asarray(seen.value), np.nan)
        variables["truth"] = (_STATE, np.asarray(twin.truth), {"long_name": "true state"})
        variables["observed"] = (_SEEN, observed, {"long_name": "observed values"})
    data = _xarray().Dataset(variables)
    data = data.assign_coords({name: np.arange(size) for name, size in data.sizes.items() if name != "time"})
    axis = {"axis": "T", "standard_name": "time", "units": "1", "long_name": "model time since the first ensemble"}
    data = data.assign_coords(time=("time", window * np.arange(1, steps + 1), axis))
    order = [name for name in ("time", "member", "state", "observation") if name in data.sizes]
    data = data.transpose(*order, ...)
    return data.assign_attrs(Conventions="CF-1.11", source="bieqno", diverged=diverged, **(attributes or {}))


def save_dataset(data: Dataset, path: str | Path) -> Path:
    """Write a dataset to a netCDF file, compressed, replacing what was there in one step; makes the folder if need be."""
    _xarray()
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    packed = {name: {"zlib": True, "complevel": 4} for name in data.data_vars if data[name].ndim}
    # Under a Dask client xarray asks the cluster for a lock on what it writes, which a file in memory cannot have.
    dask = sys.modules.get("dask")
    with nullcontext() if dask is None else dask.config.set(scheduler="synchronous"):
        content = data.to_netcdf(engine="h5netcdf", encoding=packed)
    replace_file(path, content)
    return path


def load_dataset(path: str | Path) -> Dataset:
    """Read a dataset whole, and close the file; a ValueError if it is damaged or no netCDF file."""
    with Path(path).open("rb"):  # its errors name the file; those of h5py are a line of library terms
        pass
    try:
        check_heaps(Path(path))
        return _xarray().load_dataset(path, engine="h5netcdf")
    except (ImportError, MemoryError):
        raise
    except Exception as error:  # a damaged file can make its readers raise anything
        # h5netcdf's half-open file ends here, and not later with a traceback of its own.
        hook, sys.unraisablehook = sys.unraisablehook, lambda unraisable: None
        try:
            traceback.clear_frames(error.__traceback__)
        finally:
            sys.unraisablehook = hook
        said = f"{path} is damaged or no netCDF file: {type(error).__name__}, {error}".split("\n")[0]
        raise ValueError(said) from error


@checked(finite=False)
def summarise(data: Dataset, *, burn_in: int, level: float = 0.95) -> Dataset:
    """Score a run against its truth, with intervals that respect the autocorrelation of its errors.

    A run without a truth is scored by what it predicted one step ahead, which the record `keep_scores` keeps: log score, CRPS and
    coverage of the observations, of the forecast alone. Beside those of a truth their names begin with `predictive_`, of a run
    with ``record=KeepScores(filter, keep_ensembles)`` that has observations in at least 4 windows.

    The data come from `to_dataset`, with ensembles and a truth; windows of the burn-in and after a divergence do not count.
    The result has `mean`, `stderr`, `low` and `high` by `stage` (forecast, analysis) and `score`. Scores of whole series,
    such as the spread-error ratio, come without an interval. For runs on independent truths take one number each, and
    `bieqno.scores.independent_interval` of them.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from bieqno.assimilation import ETKF, Lorenz63, Observation, System, cycle, keep_ensembles, simulate
        >>> system = System(Lorenz63(window=0.1), Observation([0, 2], 1.0), jnp.array([-8.5, -7.0, 27.0]))
        >>> twin = simulate(system, 40, key=jax.random.key(0))
        >>> start = jax.random.normal(jax.random.key(1), (10, 3)) + twin.truth[0]
        >>> run = cycle(ETKF(), system, start, twin.observations, record=keep_ensembles, key=jax.random.key(2))
        >>> table = summarise(to_dataset(run, twin), burn_in=10)
        >>> spread = table["mean"].sel(score="spread")  # an observation reduces spread, whatever its value
        >>> bool(spread.sel(stage="analysis") < spread.sel(stage="forecast"))
        True
    """
    if not hasattr(data, "data_vars"):
        raise TypeError(f"data is a dataset, as to_dataset makes it, got {type(data).__name__}")
    missing = {"prior", "posterior", "truth"} - set(data.data_vars)
    predicted = {"log_score", "crps", "pit"} <= set(data.data_vars)
    if missing and not predicted:
        raise ValueError(
            f"expected ensembles and truth in the dataset, missing {sorted(missing)}; without a truth record=keep_scores"
        )
    keep = (np.arange(data.sizes["time"]) >= burn_in) & (data["sound"].values == 1)
    if keep.sum() < LEAST_WINDOWS:
        raise ValueError(
            f"an interval needs {LEAST_WINDOWS} sound windows, {keep.sum()} are left after a burn-in of {burn_in}"
        )
    about = {"title": "Scores of a run", "level": level, "burn_in": burn_in}
    if missing:
        return _predictive_table(data.isel(time=keep), about)
    truth = jnp.asarray(data["truth"].values[keep])
    rows = []
    for name in ("prior", "posterior"):
        members = jnp.asarray(data[name].values[keep])
        mean = jnp.mean(members, axis=1)
        series = {
            "rmse": scores.rmse(truth, mean),
            "spread": scores.spread(members),
            "crps": scores.crps(truth, members),
            "energy_score": scores.energy_score(truth, members),
        }
        whole = {
            "relative_rmse": scores.relative_rmse(truth, mean),
            "spread_error_ratio": scores.spread_error_ratio(truth, members),
            "coverage_90": scores.coverage(truth, members, 0.9),
        }
        intervals = [tuple(scores.autocorrelated_interval(values, level)) for values in series.values()]
        rows.append(intervals + [(float(value), np.nan, np.nan, np.nan) for value in whole.values()])
    table = np.array(rows)
    columns = {name: (("stage", "score"), table[..., k]) for k, name in enumerate(scores.Interval._fields)}
    coordinates = {"stage": ["forecast", "analysis"], "score": [*series, *whole]}
    found = _xarray().Dataset(columns, coordinates, about)
    if not predicted or np.isfinite(data["pit"].values[keep]).any(axis=1).sum() < LEAST_WINDOWS:
        return found
    scored = _predictive_table(data.isel(time=keep), about).reindex(stage=found["stage"])
    names = [f"predictive_{name}" for name in scored["score"].values]
    return _xarray().concat([found, scored.assign_coords(score=names)], "score")


def _predictive_table(data: Dataset, about: dict[str, Any]) -> Dataset:
    """Return the scores of what was predicted, windows without observations left out."""
    pit, crps = data["pit"].values, data["crps"].values
    seen = np.isfinite(pit).any(axis=1)
    if seen.sum() < LEAST_WINDOWS:
        raise ValueError(f"an interval needs {LEAST_WINDOWS} windows with observations, got {seen.sum()}")
    series = {"log_score": data["log_score"].values[seen], "crps": np.nanmean(crps[seen], axis=1)}
    rows = [tuple(scores.autocorrelated_interval(jnp.asarray(values), about["level"])) for values in series.values()]
    inside = (pit > 0.05) & (pit < 0.95)
    rows.append((float(inside[np.isfinite(pit)].mean()), np.nan, np.nan, np.nan))
    table = np.array(rows)[None]
    columns = {name: (("stage", "score"), table[..., k]) for k, name in enumerate(scores.Interval._fields)}
    return _xarray().Dataset(columns, {"stage": ["forecast"], "score": [*series, "coverage_90"]}, about)


def tuning_dataset(tuning: Tuning) -> Dataset:
    """Return the scores of all settings that `tune` tried as a dataset; the best are among its attributes."""
    surface = _xarray().Dataset(
        {
            "score": (tuning.names, tuning.scores, {"long_name": "loss, diverged runs left out"}),
            "diverged": (tuning.names, tuning.diverged, {"long_name": "share of runs that diverged"}),
            "windows": (tuning.names, tuning.windows, {"long_name": "windows that the setting was run for"}),
        },
        coords=dict(zip(tuning.names, tuning.values, strict=True)),
    )
    best = {f"best_{name}": value for name, value in tuning.best.items()}
    return surface.assign_attrs(best, best_score=tuning.score, title="Settings tried, and their scores")
