"""The rows of filters as tables: one for each protocol and metric, a line for each method."""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from bieqno.lab.studies import Result, Row

PROTOCOL_NAMES = {"paper": "the paper's truth", "unseen": "unseen truths"}


class Metric(NamedTuple):
    """How a metric is called and written, and what of it is small when it is good."""

    name: str
    form: str
    badness: Callable[[float], float]


def _small(value: float) -> float:
    return value


_ERRORS = {"relative_rmse": Metric("relative RMSE", ".3f", _small), "rmse": Metric("RMSE", ".3f", _small)}
METRICS = _ERRORS | {
    "spread_error_ratio": Metric("spread over error", ".2f", lambda value: abs(math.log(max(value, 1e-9)))),
    "coverage_90": Metric("inside the 90 % interval", ".2f", lambda value: abs(value - 0.9)),
    "seconds": Metric("seconds for one analysis", ".3g", _small),
    "mebibytes": Metric("memory of one analysis, MiB", ",.0f", _small),
}


class Pivot(NamedTuple):
    """A table: for each method the row in each column.

    Attributes:
        protocol: what the columns have in common; None if they are the protocols themselves.
        metric: what is in the table.
        corner: what the columns are.
        columns: their headings.
        lines: for each method its rows by heading.
    """

    protocol: str | None
    metric: Metric
    corner: str
    columns: list[str]
    lines: Mapping[str, Mapping[str, Row]]

    @property
    def rows(self) -> list[Row]:
        """All rows in the table."""
        return [row for line in self.lines.values() for row in line.values()]

    def best(self, column: str) -> str | None:
        """The method that is best in a column; None if there is nobody to be better than."""
        found = {method: line[column] for method, line in self.lines.items() if column in line}
        sound = {method: row for method, row in found.items() if not math.isnan(row.value)}
        if len(found) < 2 or not sound:
            return None
        # Who loses fewer runs is better, whatever the error of the rest.
        return min(sound, key=lambda method: (sound[method].diverged or 0, self.metric.badness(sound[method].value)))


def of_growth(result: Result) -> bool:
    """Whether cases are numbers of variables."""
    return any(row.case.startswith("n=") for row in result.rows)


def error_metric(result: Result) -> str:
    """The error that all filters of a result were measured by."""
    rows = [row for row in result.rows if row.protocol]
    methods = {row.method for row in rows}
    for metric in _ERRORS:
        if {row.method for row in rows if row.metric == metric} == methods:
            return metric
    return next(iter(_ERRORS))


def pivots(result: Result) -> Iterator[Pivot]:
    """All tables: by ensemble size, or by protocol where there is one size only."""
    shown = [error_metric(result), *(metric for metric in METRICS if metric not in _ERRORS)]
    rows = [row for row in result.rows if row.protocol and row.ensemble_size]
    sizes = sorted({row.ensemble_size for row in rows if row.ensemble_size})
    protocols = list(dict.fromkeys(row.protocol for row in rows if row.protocol))
    across = of_growth(result)

    def heading(row: Row) -> str:
        return str(row.protocol) if across else f"{row.ensemble_size:,}"

    for protocol in [None] if across else protocols:
        for metric in shown:
            own = [row for row in rows if row.metric == metric and protocol in (None, row.protocol)]
            present = [p for p in protocols if any(row.protocol == p for row in own)]
            columns = present if across else [f"{n:,}" for n in sizes if any(row.ensemble_size == n for row in own)]
            lines: dict[str, dict[str, Row]] = {}
            for row in own:
                lines.setdefault(row.method, {})[heading(row)] = row
            if lines:
                yield Pivot(protocol, METRICS[metric], "" if across else "N", columns, lines)
