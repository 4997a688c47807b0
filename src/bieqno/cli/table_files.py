"""Tables in CSV, Parquet and Excel files: columns picked by name, missing values counted."""

import csv
import io
import sys
import warnings
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from bieqno.cli.output import warn
from bieqno.lab.texts import did_you_mean
from bieqno.persistence import replace_file

_PARQUET, _EXCEL = (".parquet", ".pq"), (".xlsx", ".xlsm")
_MOST_TEXTS = 50  # different texts of a column that is a category
_MOSTLY = 0.9  # share of numbers in a column of numbers, the rest of which is missing
STANDARD_OUTPUT = "-"
_HINTS = {  # why texts are no numbers, by their form
    r"[+-]?\d{1,3}([ ,.']\d{3})+([.,]\d+)?": "thousands separators: leave them out",
    r"[+-]?\d*,\d+([eE][+-]?\d+)?": "decimal commas: write points, or separate columns by semicolons",
    r"\d{1,4}[./-]\d{1,2}[./-]\d{1,4}.*": "dates: write them as 2024-12-31",
    r"[+-]?[\d.,]+ ?%": "percent signs: leave them out",
    r"[+-]?[\d.,]+ ?[A-Za-z°$€£].*": "units: leave them out",
}
_NEEDS_PYARROW = "Parquet files need pyarrow: pip install 'bieqno[parquet]', or give the table as CSV"
_NEEDS_OPENPYXL = "Excel files need openpyxl: pip install 'bieqno[excel]', or give the table as CSV"


def read_table(path: Path) -> pd.DataFrame:
    """Read a table of at least one row whose first line names the columns; the suffix of the file gives the format."""
    readers = dict.fromkeys(_PARQUET, _read_parquet) | dict.fromkeys(_EXCEL, _read_excel)
    try:
        frame = readers.get(path.suffix.lower(), _read_csv)(path)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not a text in UTF-8; save it as CSV UTF-8") from error
    except csv.Error as error:
        raise ValueError(f"cannot read {path} as a table: {error}") from error
    frame.columns = frame.columns.map(str)
    if not len(frame):
        raise ValueError(f"{path} has columns but no rows")
    return _without_marks(frame, path)


def write_table(path: Path, frame: pd.DataFrame) -> None:
    """Write a table, or leave the old file as it was; a path of - is standard output."""
    if str(path) == STANDARD_OUTPUT:
        if sys.stdout is None:  # closed by whoever started the command; pandas would write to nowhere
            raise OSError("standard output is closed")
        frame.to_csv(sys.stdout, index=False)
        sys.stdout.flush()  # a disk may be full
        return
    suffix, buffer = path.suffix.lower(), io.BytesIO()
    try:
        if suffix in _PARQUET:
            frame.to_parquet(buffer, index=False)
        elif suffix in _EXCEL:
            frame.to_excel(buffer, index=False, engine="openpyxl")
        else:
            buffer.write(frame.to_csv(index=False).encode())
    except ImportError as error:
        raise ImportError(_NEEDS_PYARROW if suffix in _PARQUET else _NEEDS_OPENPYXL) from error
    replace_file(path, buffer.getvalue())


def pick(asked: str, columns: Sequence[str], source: Path) -> list[str]:
    """Return the columns that a text such as ``a,b`` asks for; a name with a comma stands in double quotes."""
    names = [asked] if asked in columns else [name for name in _split(asked, ",") if name]
    for name in names:
        if name not in columns:
            raise ValueError(f"{source} has no column {name!r}; {did_you_mean(name, columns)}")
    if not names or len(set(names)) < len(names):
        raise ValueError(f"expected names of columns, each once, got {asked!r}")
    return names


def numbers(
    frame: pd.DataFrame, columns: Sequence[str], source: Path, categories: Collection[str] = ()
) -> pd.DataFrame:
    """Return columns as numbers, NaN where a value is missing or infinite; refuse the first value that is no number.

    `categories` are columns that may hold texts, which stay as they are, or dates in the ISO format.
    """
    for name in columns:
        if not _is_numeric(frame[name]) and name not in categories:
            parsed = pd.to_numeric(frame[name].astype(str), errors="coerce")
            wrong = np.flatnonzero(parsed.isna() & frame[name].notna())
            row = int(wrong[0]) if len(wrong) else 0
            raise ValueError(
                f"column {name!r} of {source} holds {frame[name].iloc[row]!r} in row {row + 1}, and numbers are needed; "
                f"{_hint(frame[name]) or 'correct the table, or name other columns with --inputs'}"
            )
    found = {name: _dates_or_texts(frame[name]) for name in columns if name in categories}
    for name in (name for name in columns if name not in found):
        values = frame[name].astype(float)
        found[name] = values.where(np.isfinite(values), np.nan)
    return pd.DataFrame({name: found[name] for name in columns})


def training_columns(
    frame: pd.DataFrame, target: str, inputs: str | None, source: Path, *, texts: bool = False
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return inputs, with their gaps, and targets, without the rows that lack one; columns of `texts` only if asked for."""
    columns = list(frame.columns)
    targets = pick(target, columns, source)
    categories = _categories(frame, targets) if texts else []
    chosen = pick(inputs, columns, source) if inputs is not None else _usable_inputs(frame, targets, source, categories)
    for name in set(chosen) & set(targets):
        raise ValueError(f"{name!r} is to be predicted, so it cannot be among the inputs")
    values = numbers(frame, [*chosen, *targets], source, categories)
    values = values[complete_rows(values[targets], source)]
    empty = [name for name in chosen if not values[name].notna().any()]
    if empty and (inputs is not None or len(empty) == len(chosen)):
        raise ValueError(f"column {empty[0]!r} of {source} is empty; name other columns with --inputs")
    for name in empty:
        warn(f"column {name!r} of {source} is empty and is left out")
    chosen, values = [name for name in chosen if name not in empty], values.drop(columns=empty)
    gaps = values[chosen].isna().sum()
    if gaps.any():
        each = ", ".join(f"{name}: {count}" for name, count in gaps.items() if count)
        count = int(values[chosen].isna().any(axis=1).sum())
        warn(
            f"{count} of {len(values)} rows of {source} lack an input; a missing value counts as a value of its own ({each})"
        )
    for name in (name for name in values if values[name].nunique() == 1 and values[name].notna().all()):
        if name in targets:
            raise ValueError(f"column {name!r} of {source} has the same value everywhere: there is nothing to predict")
        warn(f"column {name!r} of {source} has the same value everywhere and carries no information")
    return values[chosen], values[targets]


def known_inputs(fitted: Any, frame: pd.DataFrame, model: Path, table: Path) -> list[str]:
    """Return the columns that a regressor was fitted with, in its order; refuse a table that lacks some."""
    names = [str(name) for name in getattr(fitted, "feature_names_in_", frame.columns)]
    if len(names) != fitted.n_features_in_:  # fitted in Python on plain arrays
        takes = f"knows no names of columns and takes {fitted.n_features_in_}"
        raise ValueError(f"{model} {takes}; {table} has {len(names)}")
    unused = [name for name in frame.columns if name not in names]
    hints = [f"{name!r} ({did_you_mean(name, unused)})" for name in names if name not in frame.columns]
    if hints:
        raise ValueError(f"{table} lacks {len(hints)} of the {len(names)} columns of {model}: {', '.join(hints)}")
    return names


def complete_rows(values: pd.DataFrame, source: Path, *, what: str = "left out") -> np.ndarray:
    """Return which rows, of which there must be one, have no missing value; count the others in a warning."""
    there = values.notna().to_numpy()
    keep = there.all(axis=1)
    gaps = {name: count for name, count in zip(values.columns, (~there).sum(axis=0), strict=True) if count}
    if not keep.any():
        raise ValueError(f"every row of {source} has a missing value in {', '.join(gaps)}")
    if gaps:
        each = ", ".join(f"{name}: {count}" for name, count in gaps.items())
        warn(f"{(~keep).sum()} of {len(keep)} rows of {source} have a missing value and are {what} ({each})")
    return keep


def _categories(frame: pd.DataFrame, targets: Iterable[str]) -> list[str]:
    """Return columns of texts that a regressor can use: dates, or a few texts that come again."""
    texts = [name for name in frame.columns if name not in set(targets) and not _is_numeric(frame[name])]
    dates = [name for name in texts if pd.api.types.is_datetime64_any_dtype(_dates_or_texts(frame[name]))]
    return [name for name in texts if name in dates or 1 < frame[name].nunique() <= min(_MOST_TEXTS, len(frame) / 4)]


def _dates_or_texts(column: pd.Series) -> pd.Series:
    """Return a column of dates if all its texts are dates in the ISO format, else the texts."""
    dates = pd.to_datetime(column, format="ISO8601", errors="coerce")
    return dates if len(column.dropna()) and dates.notna().sum() == column.notna().sum() else column.astype(object)


def _usable_inputs(
    frame: pd.DataFrame, targets: Iterable[str], source: Path, categories: Collection[str] = ()
) -> list[str]:
    """Return all columns of numbers and categories but the targets; warn about the others and about row numbers."""
    others = [name for name in frame.columns if name not in set(targets)]
    texts = [name for name in others if not _is_numeric(frame[name]) and name not in categories]
    unnamed = [name for name in others if name not in texts and name.startswith("Unnamed:")]
    hinted = ", ".join(f"{name} ({_hint(frame[name]) or f'{frame[name].nunique()} different texts'})" for name in texts)
    whys = {f"numbers left out: {hinted}": texts, "a name left out (row numbers?)": unnamed}
    for why, columns in whys.items():
        if columns:
            warn(f"{len(columns)} column{'s' * (len(columns) > 1)} of {source} without {why}")
    inputs = [name for name in others if name not in {*texts, *unnamed}]
    if not inputs:
        raise ValueError(f"{source} has no column of numbers left to predict from")
    return inputs


def _without_marks(frame: pd.DataFrame, source: Path) -> pd.DataFrame:
    """Return the table with what is no number in a column of numbers, such as a question mark, as missing; say so."""
    frame = frame.copy()
    for name in (
        name for name in frame.columns if frame[name].dtype == object or pd.api.types.is_string_dtype(frame[name])
    ):
        there = frame[name].dropna()
        parsed = pd.to_numeric(there.astype(str), errors="coerce")
        if len(there) and _MOSTLY * len(there) <= parsed.notna().sum():
            marks = there[parsed.isna()]
            if len(marks):  # there are none in a column of whole numbers beyond 64 bits
                shown = ", ".join(repr(text[:30]) for text in marks.astype(str).unique()[:3])
                warn(
                    f"{len(marks)} values of column {name!r} of {source} are no numbers ({shown}) and count as missing"
                )
            frame[name] = pd.to_numeric(frame[name].astype(str), errors="coerce").astype(float)
    return frame


def _hint(column: pd.Series) -> str:
    """Return what makes the texts of a column look like numbers or dates without being any; nothing if they do not.

    Example:
        >>> _hint(pd.Series(["1,234", "12,345"]))
        "'1,234' has thousands separators: leave them out"
    """
    texts = column.dropna().astype(str).str.strip()
    for form, why in _HINTS.items():
        fitting = texts[texts.str.fullmatch(form)]
        if len(texts) and len(fitting) >= _MOSTLY * len(texts):
            return f"{fitting.iloc[0]!r} has {why}"
    return ""


def _read_parquet(path: Path) -> pd.DataFrame:
    try:
        return pd.read_parquet(path)
    except ImportError as error:
        raise ImportError(_NEEDS_PYARROW) from error
    except (FileNotFoundError, PermissionError, IsADirectoryError):
        raise
    except Exception as error:  # its metadata are names and types as text, in which anything may be wrong
        raise ValueError(f"cannot read {path} as Parquet: {error}") from error


def _read_excel(path: Path) -> pd.DataFrame:
    """Read the first sheet; cells keep their types."""
    try:
        cells = pd.read_excel(path, header=None, engine="openpyxl")
    except ImportError as error:
        raise ImportError(_NEEDS_OPENPYXL) from error
    except (FileNotFoundError, PermissionError, IsADirectoryError):
        raise
    except Exception as error:  # a zip archive of XML, in which anything may be wrong
        raise ValueError(f"cannot read {path} as an Excel table: {error}") from error
    if cells.empty:
        raise ValueError(f"{path} is empty; its first line should name the columns")
    names = [f"Unnamed: {i}" if pd.isna(name) else str(name).strip() for i, name in enumerate(cells.iloc[0])]
    _refuse_twice(names, path)
    return cells.iloc[1:].set_axis(names, axis=1).reset_index(drop=True).infer_objects()


def _refuse_twice(names: Sequence[str], path: Path) -> None:
    """Refuse names that come twice, which pandas would rename silently."""
    twice = sorted({name for name in names if name and names.count(name) > 1})
    if twice:
        raise ValueError(f"{path} has more than one column called {', '.join(map(repr, twice))}; rename them")


def _read_csv(path: Path) -> pd.DataFrame:
    with path.open(encoding="utf-8-sig", newline="") as file:
        first = file.readline()
        if not first.strip():
            raise ValueError(f"{path} is empty; its first line should name the columns")
        separator = max(",;\t", key=lambda mark: len(_split(first, mark)))  # not what stands within quotes
        names = _split(first, separator)
        _refuse_twice(names, path)
        file.seek(0)
        try:
            with warnings.catch_warnings():
                # Rows longer than the first line would lose values, or have one taken for a row's label.
                warnings.simplefilter("error", pd.errors.ParserWarning)
                frame = pd.read_csv(file, sep=separator, index_col=False, skipinitialspace=True)
                if separator != "," and _has_decimal_commas(frame):
                    file.seek(0)
                    frame = pd.read_csv(file, sep=separator, index_col=False, skipinitialspace=True, decimal=",")
        except (pd.errors.ParserError, pd.errors.ParserWarning) as error:
            raise ValueError(f"cannot read {path} as a table, do all rows have {len(names)} values? {error}") from error
    frame.columns = frame.columns.map(str.strip)  # as in "a, b"
    return frame


def _has_decimal_commas(frame: pd.DataFrame) -> bool:
    """Return whether some column of texts holds nothing but numbers with a comma, such as 3,14."""
    texts = (frame[name].dropna().astype(str) for name in frame if not _is_numeric(frame[name]))
    number = r"[+-]?\d*(,\d+)?([eE][+-]?\d+)?"
    return any(len(own) and own.str.fullmatch(number).all() and own.str.contains(",").any() for own in texts)


def _split(line: str, separator: str) -> list[str]:
    """Return the values of a line of CSV, without the space around them."""
    rows = csv.reader([line.strip("\r\n")], delimiter=separator, skipinitialspace=True)
    return [value.strip() for value in next(rows)]


def _is_numeric(column: pd.Series) -> bool:
    return bool(pd.api.types.is_numeric_dtype(column)) and not pd.api.types.is_complex_dtype(column)
