"""The result of an experiment, and the form in which it is stored.

A folder for each experiment::

    config.json     settings, seed, versions, commit, platform, wall time
    metrics.json    {"experiment", "preset", "seed", "rows": [{"case", "method", "metric", "value", "stderr", "n"}]}
                    (rows of filters also have "ensemble_size", "protocol" and "diverged"; the settings that tuning
                    found, such as "inflation", are rows with an "ensemble_size" only)
    arrays.nc       arrays behind the figures, netCDF-4 with a group for each data set
    figures/        each as .png and .svg

Rows are long and flat, one number each, so that any tool can filter and pivot them. What one experiment takes over from
another has that one's name before its cases and data sets, as in ``lorenz63/N=2``: see `Result.parts`.
"""

import dataclasses
import json
import math
import os
import secrets
import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from matplotlib import rc_context

from bieqno.lab.texts import json_text, known_to_json
from bieqno.persistence.hdf5 import check_heaps

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METRICS_FILE, CONFIG_FILE, ARRAYS_FILE, FIGURES_FOLDER = "metrics.json", "config.json", "arrays.nc", "figures"
# What reading a damaged result may end with: nested too deeply it is a RuntimeError, a seed of 1e999 an OverflowError.
DAMAGED = (OSError, KeyError, TypeError, ValueError, AttributeError, RuntimeError, OverflowError)
_OF_FILTERS = ("ensemble_size", "protocol", "diverged")


@dataclass(frozen=True)
class Row:
    """One number of an experiment: the mean of a metric over n repetitions, and its standard error (None if n = 1).

    Rows of filters also name the truths of the test (``paper``, ``unseen``), and how many further repetitions diverged.
    """

    case: str
    method: str
    metric: str
    value: float
    stderr: float | None
    n: int
    ensemble_size: int | None = None
    protocol: str | None = None
    diverged: int | None = None

    @classmethod
    def of(cls, case: str, method: str, metric: str, values: Sequence[float], **more: Any) -> "Row":
        """Summarise the values of the repetitions; of none at all the mean is NaN."""
        n = len(values)
        stderr = float(np.std(values, ddof=1)) / math.sqrt(n) if n > 1 else None
        return cls(case, method, metric, float(np.mean(values)) if n else math.nan, stderr, n, **more)


@dataclass(frozen=True)
class Result:
    """What an experiment returns: its rows, the data behind its figures by name, and the content of ``config.json``."""

    experiment: str
    preset: str
    seed: int
    rows: tuple[Row, ...]
    arrays: Mapping[str, xr.Dataset] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)

    def parts(self) -> dict[str, "Result"]:
        """Return what was taken over from other experiments, by their names; a result of its own is its only part."""
        names = [name for name in (*self.arrays, *(row.case for row in self.rows)) if "/" in name]
        parts = {}
        for name in dict.fromkeys(name.split("/")[0] for name in names):
            own = f"{name}/"
            rows = [replace(row, case=row.case.removeprefix(own)) for row in self.rows if row.case.startswith(own)]
            arrays = {key.removeprefix(own): found for key, found in self.arrays.items() if key.startswith(own)}
            parts[name] = Result(name, self.preset, self.seed, tuple(rows), arrays, self.config)
        return parts or {self.experiment: self}

    def value(self, case: str, method: str, metric: str) -> float:
        """Return one number of the result; KeyError if it is not there."""
        for row in self.select(case=case, method=method, metric=metric):
            return row.value
        raise KeyError(f"no {metric} of {method} in {case}")

    def select(self, **wanted: str | int | None) -> tuple[Row, ...]:
        """Return the rows whose fields have the given values."""
        return tuple(row for row in self.rows if all(getattr(row, name) == value for name, value in wanted.items()))

    def metrics(self) -> dict[str, Any]:
        """Return the content of ``metrics.json``."""
        every = (known_to_json(dataclasses.asdict(row)) for row in self.rows)
        rows = [{key: x for key, x in row.items() if x is not None or key not in _OF_FILTERS} for row in every]
        return {"experiment": self.experiment, "preset": self.preset, "seed": self.seed, "rows": rows}


def write_result(result: Result, parent: str | os.PathLike[str], figures: Mapping[str, "Figure"] | None = None) -> Path:
    """Store a result in the folder ``parent/experiment``, replacing an older one as a whole, and return the folder.

    Everything is written to a folder beside it first: a run that dies on the way leaves the old result as it was. Figures are
    given by name; each becomes a PNG and an SVG.
    """
    folder = Path(parent) / result.experiment
    folder.parent.mkdir(parents=True, exist_ok=True)
    _tidy(folder)
    token = secrets.token_hex(4)
    fresh, old = (folder.with_name(f".{folder.name}.{token}.{end}") for end in ("partial", "old"))
    fresh.mkdir()
    try:
        for name, dataset in result.arrays.items():
            compressed = {key: {"zlib": True} for key in dataset.data_vars if dataset[key].dtype.kind == "f"}
            dataset.to_netcdf(fresh / ARRAYS_FILE, mode="a", group=name, engine="h5netcdf", encoding=compressed)
        (fresh / FIGURES_FOLDER).mkdir()
        for name, figure in (figures or {}).items():
            figure.savefig(fresh / FIGURES_FOLDER / f"{name}.png", dpi=150)
            # Without a date the same figure is the same file; text stays text, to be searched and read aloud.
            with rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
                figure.savefig(fresh / FIGURES_FOLDER / f"{name}.svg", metadata={"Date": None})
        for name, content in ((CONFIG_FILE, result.config), (METRICS_FILE, result.metrics())):
            (fresh / name).write_text(json_text(content))
        # Two renames, the second undone if it fails: never a mixture of old and new.
        if folder.exists():
            folder.rename(old)
        try:
            fresh.rename(folder)
        except OSError:
            if old.exists():
                old.rename(folder)
            raise
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return folder


def _tidy(folder: Path) -> None:
    """Remove what a run that was killed while it wrote has left, and put back the result that it was about to replace."""
    for left in folder.parent.glob(f".{folder.name}.*.old"):
        if not folder.exists():
            left.rename(folder)
    for end in ("partial", "old"):
        for left in folder.parent.glob(f".{folder.name}.*.{end}"):
            shutil.rmtree(left, ignore_errors=True)


def read_result(folder: str | os.PathLike[str]) -> Result:
    """Read what `write_result` stored, but for the figures; one of `DAMAGED` is raised by a result that is."""
    folder = Path(folder)
    stored = json.loads((folder / METRICS_FILE).read_text())
    values = [math.nan if row["value"] is None else float(row["value"]) for row in stored["rows"]]
    rows = tuple(Row(**{**row, "value": value}) for row, value in zip(stored["rows"], values, strict=True))
    config = json.loads((folder / CONFIG_FILE).read_text())
    if not isinstance(config, dict):
        raise ValueError(f"expected settings by name in {CONFIG_FILE}, got {type(config).__name__}")
    with ExitStack() as stack:
        path = folder / ARRAYS_FILE  # not every experiment has any
        check_heaps(path)
        groups = xr.open_groups(path, engine="h5netcdf").items() if path.exists() else ()
        opened = {name.removeprefix("/"): stack.enter_context(group) for name, group in groups}
        # A group that only holds others is empty.
        found = {name: group.load() for name, group in opened.items() if group.variables}
    # netCDF sorts groups by name; the experiment's own order is that of its rows.
    order = [*(row.case for row in rows), *found]
    arrays = {name: found[name] for name in sorted(found, key=order.index)}
    return Result(stored["experiment"], stored["preset"], int(stored["seed"]), rows, arrays, config)
