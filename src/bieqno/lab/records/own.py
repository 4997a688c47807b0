"""A record of the user's own, from tables with dates: gaps, unequal steps, what drives the model, and what to compare with."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
import pandas as pd
from jaxtyping import Array, Float

from bieqno.assimilation import AbstractDensity, LogNormal, NegativeBinomial, StudentT
from bieqno.lab.records.baselines import Prediction, fit, scores, seasons

LENGTH = "length"  # the input that says how long a window is
LEAST = 3  # values of a record, for predictions without a model
EVEN = 1e-3  # steps that differ by less, relative to their mean, are equal
BASELINES = ("autoregression", "persistence", "climatology")
YEARS = 1.5  # of dates, from which on a season can be fitted


@dataclass(frozen=True)
class OwnRecord:
    """Values of each window, NaN where nothing was observed, the times at which windows end, and what drives the model."""

    times: pd.Index
    names: tuple[str, ...]
    values: Float[np.ndarray, "T m"]
    inputs: Mapping[str, Float[np.ndarray, "T"]] | None

    @property
    def first_inputs(self) -> dict[str, Float[Array, ""]] | None:
        """The inputs of the first window."""
        return None if self.inputs is None else {name: jnp.asarray(x[0], float) for name, x in self.inputs.items()}


def own_record(
    observations: pd.DataFrame, inputs: pd.DataFrame | None = None, columns: Sequence[str] | None = None
) -> OwnRecord:
    """Return a record from a table of observations and one of inputs; the first column of each holds dates or times.

    With inputs there is one window for each of their rows, and a value is missing where no observation has that time.
    Otherwise the rows of the observations are the windows. Where windows are of unequal length or driven, the model is given its
    inputs as a dictionary by the names of their columns; `length` is that of the window, in days or in units of the times.

    Example:
        >>> seen = pd.DataFrame({"date": ["2024-01-01", "2024-01-04"], "flow": [3.0, 2.0]})
        >>> rain = pd.DataFrame({"date": pd.date_range("2024-01-01", periods=4).astype(str), "rain": [0.0, 5.0, 1.0, 0.0]})
        >>> found = own_record(seen, rain)
        >>> found.values[:, 0].tolist(), found.inputs["length"].tolist()
        ([3.0, nan, nan, 2.0], [1.0, 1.0, 1.0, 1.0])
        >>> own_record(seen.assign(date=[0.0, 2.5])).inputs is None  # two rows have one step
        True
    """
    seen = _by_time(observations, "observations")
    names = list(seen.columns) if columns is None else list(columns)
    lacking = [name for name in names if name not in seen]
    if lacking:
        raise ValueError(f"the observations have no column {lacking[0]!r}; there are {', '.join(seen.columns)}")
    driven = None if inputs is None else _by_time(inputs, "inputs")
    times = seen.index if driven is None else driven.index
    if driven is not None:
        outside = seen.index.difference(times)
        if len(outside):
            raise ValueError(f"there are no inputs at {outside[0]}, where something was observed: {len(outside)} rows")
        _check_no_gaps(driven)
    values = seen[names].reindex(times).to_numpy(float)
    if not np.isfinite(values).any():
        raise ValueError("nothing was observed: all values are missing")
    lengths = _lengths(times)
    if driven is None and np.ptp(lengths) <= EVEN * lengths.mean():
        return OwnRecord(times, tuple(names), values, None)
    return OwnRecord(times, tuple(names), values, _with_lengths(times, driven))


def own_inputs(table: pd.DataFrame) -> tuple[pd.Index, dict[str, Float[np.ndarray, "T"]]]:
    """Return times and what drives the model from a table whose first column holds dates or times, one row per window."""
    driven = _by_time(table, "inputs")
    _check_no_gaps(driven)
    return driven.index, _with_lengths(driven.index, driven)


def _with_lengths(times: pd.Index, driven: pd.DataFrame | None) -> dict[str, Float[np.ndarray, "T"]]:
    own = {} if driven is None else {str(name): driven[name].to_numpy(float) for name in driven}
    return own | {LENGTH: _lengths(times)}


def _check_no_gaps(driven: pd.DataFrame) -> None:
    gaps = driven.isna().any(axis=1).to_numpy()
    if gaps.any():
        raise ValueError(f"the inputs of {driven.index[gaps][0]} have a gap; fill it: a model needs all of them")


def _by_time(table: pd.DataFrame, what: str) -> pd.DataFrame:
    """Return a table of numbers whose index are its times, which rise."""
    if table.shape[1] < 2:
        raise ValueError(f"the {what} have a first column of dates or times and at least one of numbers")
    first = table.iloc[:, 0]
    numeric = pd.api.types.is_numeric_dtype(first)
    times = pd.Index(first.astype(float)) if numeric else _dates(first)
    if times.hasnans or not (times.is_monotonic_increasing and times.is_unique):
        raise ValueError(f"the times of the {what} rise from row to row, in the first column, {table.columns[0]!r}")
    for name in table.columns[1:]:
        wrong = table[name].notna() & pd.to_numeric(table[name], errors="coerce").isna()
        if wrong.any():
            found = table[name][wrong].iloc[0]
            raise ValueError(f"column {name!r} of the {what} holds {found!r}; leave missing ones empty")
    if LENGTH in table.columns[1:]:
        raise ValueError(f"the {what} have a column {LENGTH!r}, the name of the length of a window; give it another")
    numbers = {name: pd.to_numeric(table[name]) for name in table.columns[1:]}
    return pd.DataFrame({name: column.to_numpy(float) for name, column in numbers.items()}, index=times)


def _dates(column: pd.Series) -> pd.DatetimeIndex:
    """Return dates in the ISO format, those with a time zone as universal time."""
    read = pd.to_datetime(column, format="ISO8601", errors="coerce")
    if read.isna().any():
        wrong = column[read.isna()].iloc[0]
        raise ValueError(f"column {column.name!r} holds {wrong!r}; dates are written as 2024-12-31 or 2024-12-31T18:00")
    dates = pd.DatetimeIndex(read)
    return dates if dates.tz is None else dates.tz_convert("UTC").tz_localize(None)


def _lengths(times: pd.Index) -> Float[np.ndarray, "T"]:
    """Return how long each window is; the first is as long as the second."""
    if isinstance(times, pd.DatetimeIndex):
        steps = np.diff(times.to_numpy()) / np.timedelta64(1, "D")
    else:
        steps = np.diff(times.to_numpy(float))
    return np.concatenate([steps[:1] if len(steps) else [1.0], steps])


def own_baselines(record: OwnRecord, law: Any, column: int = 0) -> dict[str, dict[str, np.ndarray]]:
    """Return scores of predictions without a model, fitted to the very values of a column: what a model has to beat.

    Counts have negative-binomial laws, positive values log-normal ones, others Student's. The autoregression knows the last two
    values, the inputs and the season.
    """
    values = np.array(record.values[:, column], float)
    first = np.flatnonzero(np.isfinite(values))[:1]
    values[first] = np.nan  # nothing came before: it is neither fitted nor scored, and what others begin with
    known = np.isfinite(values)
    if known.sum() < LEAST:
        raise ValueError(f"{record.names[column]!r} has {known.sum()} values; a comparison needs at least {LEAST}")
    to, link, make = _kind(law)
    filled = pd.Series(np.where(np.isnan(values), record.values[:, column], values)).ffill().bfill().to_numpy()
    z = to(filled)
    last, earlier = (np.concatenate([np.full(k, z[0]), z[:-k]]) for k in (1, 2))
    one = np.ones((len(z), 1))
    driven = [np.zeros((len(z), 0))] if record.inputs is None else [x[:, None] for x in record.inputs.values()]
    more = np.concatenate([_standard(np.concatenate(driven, axis=1)), _season(record.times)], axis=1)
    features = {
        "autoregression": (np.concatenate([one, (last - earlier)[:, None], (last - z.mean())[:, None], more], 1), last),
        "persistence": (one, last),
        "climatology": (np.concatenate([one, _season(record.times)], axis=1), np.full(len(z), z.mean())),
    }
    spread = max(float(np.std(np.diff(z[known]))), 1e-3) if known.sum() > 2 else 1.0
    found = {}
    for name, (matrix, offset) in features.items():
        drift, begin = jnp.asarray(matrix, float), jnp.asarray(offset, float)

        def predict(p: Float[Array, "p"], drift: Array = drift, begin: Array = begin) -> Prediction:
            return Prediction(link(begin + drift @ p[1:]), make(jnp.exp(p[0])))

        start = np.concatenate([[np.log(spread)], np.zeros(matrix.shape[1])])
        fitted = fit(predict, filled, start, known)
        found[name] = scores(fitted, values)
    return found


def _kind(law: Any) -> tuple[Any, Any, Any]:
    """Return to which numbers values are taken, the way back, and what makes a law of a spread of these numbers."""
    if getattr(law, "counts", False):
        return np.log1p, lambda z: jnp.exp(jnp.clip(z, -7, 20)), lambda s: NegativeBinomial(1 / (s**2 + 1e-6))
    if isinstance(law, LogNormal):
        return lambda x: np.log(np.maximum(x, 1e-12)), lambda z: jnp.exp(jnp.clip(z, -30, 30)), LogNormal
    return (lambda x: x), (lambda z: z), _student


def _student(scale: Float[Array, ""]) -> AbstractDensity:
    return StudentT(scale, 8.0)


def _season(times: pd.Index) -> Float[np.ndarray, "T k"]:
    long = isinstance(times, pd.DatetimeIndex) and (times[-1] - times[0]).days > YEARS * 365
    return seasons(times) if long else np.zeros((len(times), 0))


def _standard(columns: Float[np.ndarray, "T k"]) -> Float[np.ndarray, "T _"]:
    """Return the columns that vary, with mean zero and deviation one."""
    deviation = columns.std(axis=0)
    return (columns - columns.mean(axis=0))[:, deviation > 0] / deviation[deviation > 0]
