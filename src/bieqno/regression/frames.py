"""Data frames as people have them: numbers, booleans, categories, dates and missing values become columns of numbers.

Works on whatever has named columns, such as pandas and Polars frames, and imports neither. A category becomes a column of zeros
and ones for each of its most frequent levels; a date its day as a number, and sine and cosine of the time of the year and of the
day where the data cover enough of them. A missing number becomes the median, with a further column that says so if rows to learn
from lacked it; if none did, predictions are averaged over what it may be.
"""

from datetime import UTC
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Float

MOST_LEVELS = 12  # of a category; all others together have zeros
_QUANTILES = (0.1, 0.3, 0.5, 0.7, 0.9)  # of a column, for values that are missing in a prediction only


class Column(eqx.Module):
    """How a named column becomes numbers: ``number``, ``category`` or ``time``; ``empty`` is one without any value."""

    name: str = eqx.field(static=True)
    kind: str = eqx.field(static=True)
    levels: tuple[str, ...] = eqx.field(static=True)
    gaps: bool = eqx.field(static=True)  # whether some were missing
    quantiles: Float[np.ndarray, "q"]  # of the numbers that are there
    periods: tuple[float, ...] = eqx.field(static=True)  # in days, of a time

    @classmethod
    def of(cls, name: str, values: Any) -> "Column":
        """Find out what a column holds."""
        kind, found = _read(name, values)
        if all(_missing(value) for value in found):
            return cls(name, "empty", (), False, np.zeros(0), ())
        if kind == "category":
            there = [str(value) for value in found if value is not None]
            own, counts = np.unique(np.array(there), return_counts=True)
            levels = tuple(sorted(str(level) for level in own[np.argsort(-counts, kind="stable")][:MOST_LEVELS]))
            return cls(name, kind, levels, len(there) < len(found), np.zeros(0), ())
        there = found[~np.isnan(found)]
        periods: tuple[float, ...] = ()
        if kind == "time":
            days = np.ptp(there)
            periods = ((365.2425,) if days > 180 else ()) + (
                (1.0,) if days > 2 and np.any(there % 1 != there[0] % 1) else ()
            )
        return cls(name, kind, (), len(there) < len(found), np.quantile(there, _QUANTILES), periods)

    def encode(self, values: Any, fill: int | None = None) -> Float[np.ndarray, "n k"]:
        """Return the columns of numbers; what is missing is the median, or the quantile of number `fill` if none was before."""
        kind, found = self._found(values)
        if kind != self.kind and not (kind == "number" and self.kind == "category"):
            raise ValueError(f"column {self.name!r} was a {self.kind} in the fit, and is a {kind} here")
        if self.kind == "category":
            texts = np.array([self._text(value) for value in found], object)
            levels = self.levels[1:] if len(self.levels) == 2 and not self.gaps else self.levels
            return np.stack([texts == level for level in levels], axis=1).astype(float)
        missing = np.isnan(found)
        place = len(_QUANTILES) // 2 if fill is None or self.gaps else fill
        found = np.where(missing, self.quantiles[place], found)
        waves = [wave(2 * np.pi * found / period) for period in self.periods for wave in (np.sin, np.cos)]
        return np.stack([found, *waves, *([missing.astype(float)] if self.gaps else [])], axis=1)

    def _found(self, values: Any) -> tuple[str, np.ndarray]:
        """Return what a column holds; one without any value may be of any kind."""
        kind, found = _read(self.name, values)
        nothing = np.isnan(found).all() if found.dtype.kind == "f" else all(value is None for value in found)
        if not nothing:
            return kind, found
        return self.kind, np.full(len(found), None) if self.kind == "category" else np.full(len(found), np.nan)

    def _text(self, value: Any) -> str | None:
        """Return a category as it was written in the fit: a table in which all look like numbers is read as numbers."""
        if value is None or value != value:
            return None
        whole = isinstance(value, float) and value.is_integer() and str(value) not in self.levels
        return str(int(value)) if whole else str(value)

    def lacks(self, values: Any) -> bool:
        """Return whether numbers are missing of which none was missing in the fit."""
        return self.kind != "category" and not self.gaps and bool(np.isnan(self._found(values)[1]).any())


class FrameEncoder(eqx.Module):
    """Turns the named columns of a frame into an array of numbers."""

    columns: tuple[Column, ...]

    @classmethod
    def of(cls, X: Any) -> "FrameEncoder | None":
        """Return the encoder of a frame, or None for an array, and for a frame of numbers without gaps.

        Example:
            >>> FrameEncoder.of(np.ones((3, 2))) is None
            True
        """
        names = _names(X)
        if names is None or not all(isinstance(name, str) for name in names):
            return None
        found = cls.of_all(X)
        if all(column.kind == "empty" for column in found.columns):
            raise ValueError(f"the frame holds no value in {', '.join(found.names)}")
        return None if all(column.kind == "number" and not column.gaps for column in found.columns) else found

    @classmethod
    def of_all(cls, X: Any) -> "FrameEncoder":
        """Return the encoder of a frame also where all its columns are numbers: it knows what a value that is missing may be."""
        return cls(tuple(Column.of(name, X[name]) for name in X.columns))

    @property
    def read(self) -> list[Column]:
        """Columns that hold values."""
        return [column for column in self.columns if column.kind != "empty"]

    @property
    def names(self) -> list[str]:
        """Names of the columns."""
        return [column.name for column in self.columns]

    @property
    def size(self) -> int:
        """Number of columns of numbers."""
        waves = [2 * len(column.periods) + 1 + column.gaps for column in self.read if column.kind != "category"]
        binary = [len(column.levels) == 2 and not column.gaps for column in self.read if column.kind == "category"]
        levels = [len(column.levels) for column in self.read if column.kind == "category"]
        return sum(waves) + sum(1 if two else count for two, count in zip(binary, levels, strict=True))

    def encode(self, X: Any, fill: int | None = None) -> Float[np.ndarray, "n k"]:
        """Return the array of a frame that has these columns, in whatever order."""
        names = _names(X)
        if names is None:
            raise ValueError(
                f"the fit was to a frame with the columns {', '.join(self.names)}, got an array without names"
            )
        lacking = [column.name for column in self.read if column.name not in names]
        if lacking:
            raise ValueError(f"the frame lacks columns of the fit: {', '.join(lacking)}")
        return np.concatenate([column.encode(X[column.name], fill) for column in self.read], axis=1)

    def possible(self, X: Any) -> list[Float[np.ndarray, "n k"]]:
        """Return the array, or several of what it may be, where numbers are missing that never were in the fit."""
        first = self.encode(X)
        if not any(column.lacks(X[column.name]) for column in self.read):
            return [first]
        return [self.encode(X, fill) for fill in range(len(_QUANTILES))]


def _names(X: Any) -> list[Any] | None:
    return list(X.columns) if hasattr(X, "columns") and hasattr(X, "__getitem__") else None


def _read(name: str, values: Any) -> tuple[str, np.ndarray]:
    """Return what a column holds, and its values: numbers, days since 1970, or objects, None where one is missing."""
    array = np.asarray(values)
    if array.ndim != 1:
        raise ValueError(f"there is more than one column {name!r}")
    if array.dtype.kind in "biuf":
        return "number", _finite(name, array.astype(np.float64))
    if array.dtype.kind == "M":
        return "time", _days(array)
    objects = np.array([None if _missing(value) else value for value in array], object)
    there = [value for value in objects if value is not None]
    if there and all(isinstance(value, (bool, int, float, np.number, np.bool_)) for value in there):
        return "number", _finite(name, np.array([np.nan if value is None else float(value) for value in objects]))
    if there and all(hasattr(value, "isoformat") and hasattr(value, "year") for value in there):
        return "time", _days(
            np.array([np.datetime64("NaT") if value is None else np.datetime64(_in_utc(value)) for value in objects])
        )
    return "category", objects


def _in_utc(time: Any) -> Any:
    """Return a date or time without a time zone, which NumPy has none of."""
    return time if getattr(time, "tzinfo", None) is None else time.astimezone(UTC).replace(tzinfo=None)


def _missing(value: Any) -> bool:
    """Return whether a value is None, NaN, or what pandas has in their place, which is equal to nothing."""
    return value is None or type(value).__name__ in ("NAType", "NaTType") or bool(value != value)


def _finite(name: str, numbers: Float[np.ndarray, "n"]) -> Float[np.ndarray, "n"]:
    if np.isinf(numbers).any():
        raise ValueError(f"column {name!r} holds an infinity")
    return numbers


def _days(times: np.ndarray) -> Float[np.ndarray, "n"]:
    seconds = times.astype("datetime64[ms]").astype(np.int64) / 86_400_000
    return np.where(np.isnat(times), np.nan, seconds)
