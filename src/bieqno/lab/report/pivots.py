"""The rows of a study as tables: one line per method, the best of each column marked.

A study of filters has a table for each protocol and metric, with a column per ensemble size. A study of regression has a table
for each case, with a column per metric; where only one metric was measured, the cases are the columns.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from bieqno.lab.results import Result, Row


class Metric(NamedTuple):
    """How a metric is written, and which value is the best: the one of least `loss` (None: no value is)."""

    name: str
    form: str
    loss: Callable[[float], float] | None = float
    short: str = ""  # heading in a terminal of 80 columns
    error: bool = False  # whether the terminal has room for the standard error


ERRORS = {"relative_rmse": Metric("relative RMSE", ".3f"), "rmse": Metric("RMSE", ".3f")}
FILTER_METRICS = ERRORS | {
    "spread_error_ratio": Metric("spread / error", ".2f", lambda value: abs(math.log(max(value, 1e-9)))),
    "coverage_90": Metric("coverage of the 90 % interval", ".2f", lambda value: abs(value - 0.9)),
    "energy_score": Metric("energy score", ".2f"),
    "seconds": Metric("seconds for one analysis", ".3g"),
    "mebibytes": Metric("memory of one analysis, MiB", ",.0f"),
    "processor_seconds": Metric("processor seconds for one analysis, each process", ".3g"),
    "forecast_seconds": Metric("seconds for one forecast", ".3g", None),
    "peak_mebibytes": Metric("peak memory of a process, MiB", ",.0f"),
    "halo_bytes": Metric("bytes that a process sends in one analysis", ",.0f"),
}
REGRESSION_METRICS = {
    "rmse": Metric("RMSE", ".3f", short="RMSE", error=True),
    "rmse_near_jump": Metric("RMSE near jumps", ".3f", short="jumps"),
    "nlpd": Metric("NLPD", ".2f", short="NLPD", error=True),
    "log_likelihood": Metric("log-likelihood per value", ".2f", lambda value: -value, "log-likelihood", error=True),
    "log_score": Metric("log score", ".1f", lambda value: -value, "log score", error=True),
    "predictive_log_score": Metric("log score per window", ".2f", lambda value: -value, "log score", error=True),
    "nll": Metric("NLL one step ahead", ".3f", short="NLL", error=True),
    "nll_wet": Metric("NLL of days with rain", ".3f", short="NLL, wet"),
    "nll_dry": Metric("NLL of days without", ".3f", short="NLL, dry"),
    "efficiency": Metric("Nash-Sutcliffe efficiency", ".3f", lambda value: -value, "NSE", error=True),
    "share_of_chain": Metric("share of the chain's gain", ".2f", None, "share"),
    "crps": Metric("CRPS", ".3f", short="CRPS"),
    "coverage_95": Metric("coverage of the 95 % interval", ".2f", lambda value: abs(value - 0.95), "95 %"),
    "calibrated": Metric("PIT within its 95 % band", ".2f", lambda value: -value, "PIT"),
    "epochs": Metric("epochs", ".0f", None, "ep."),
    "seconds": Metric("seconds", ".1f", None, "s"),
}
PROTOCOL_NAMES = {"paper": "the paper's truth", "unseen": "unseen truths"}
_PROTOCOLS = {
    "paper": "The paper's test: one truth, on whose first windows the EnNF was trained",
    "unseen": "Unseen truths: no filter was trained or tuned on them",
}
# An oracle knows what no method can know, and the process chosen by its likelihood repeats the row of another.
NOT_COMPARED = ("gp-best", "gp-true", "limit")


class Pivot(NamedTuple):
    """A table, with a title for the terminal and a caption for the page."""

    title: str
    caption: str
    corner: str  # heading of the methods
    columns: list[str]
    metrics: Sequence[Metric]  # of each column
    lines: Mapping[str, Mapping[str, Row]]  # by method and column
    chosen: str | None = None  # the kernel with the highest marginal likelihood

    def best(self, column: str) -> str | None:
        """Return the best method of a column; None if there is none to compare it with."""
        rows = [line[column] for line in self.lines.values() if column in line]
        best = best_row(rows, self.metrics[self.columns.index(column)])
        return best.method if best else None

    def cells(self, line: Mapping[str, Row]) -> Iterator[tuple[Row | None, Metric, bool]]:
        """Return for each column the row, its metric and whether it is the best."""
        for column, metric in zip(self.columns, self.metrics, strict=True):
            row = line.get(column)
            yield row, metric, row is not None and row.method == self.best(column)


def best_row(rows: Iterable[Row], metric: Metric) -> Row | None:
    """Return the best of the rows of several methods; None if there is none to compare it with."""
    found, loss = [row for row in rows if row.method not in NOT_COMPARED], metric.loss
    finite = [row for row in found if not math.isnan(row.value)]
    if loss is None or len(found) < 2 or not finite:
        return None
    return min(finite, key=lambda row: rank(row, loss))


def rank(row: Row, loss: Callable[[float], float] = float) -> tuple[int, float]:
    """Return a sort key: fewer diverged runs are better, whatever the error of the others; then the lower loss."""
    return row.diverged or 0, loss(row.value)


def of_growth(result: Result) -> bool:
    """Return whether the cases are numbers of variables."""
    return any(row.case.startswith("n=") for row in result.rows)


def protocols(result: Result) -> list[str]:
    """Return the protocols of a study of filters, in the order of their appearance."""
    return list(dict.fromkeys(row.protocol for row in result.rows if row.protocol))


def error_metric(result: Result) -> str:
    """Return the error that all filters of a result were measured by."""
    methods = {row.method for row in result.rows if row.protocol}
    common = (metric for metric in ERRORS if {row.method for row in result.select(metric=metric)} >= methods)
    return next(common, next(iter(ERRORS)))


def by_method(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return the rows of each method, in the order of their appearance."""
    return {name: [row for row in rows if row.method == name] for name in dict.fromkeys(row.method for row in rows)}


def by_processes(rows: Sequence[Row]) -> dict[tuple[str, str], list[Row]]:
    """Return the rows of each method and number of processes, which a protocol may end with; without, an empty text.

    Example:
        >>> rows = [Row.of("n=8", "LETKF", "seconds", [1.0], protocol=f"8 variables on {count}") for count in (1, 2)]
        >>> list(by_processes(rows))
        [('LETKF', '1'), ('LETKF', '2')]
    """
    found: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        _, on, count = (row.protocol or "").rpartition(" on ")
        found.setdefault((row.method, count if on else ""), []).append(row)
    return found


def case_title(case: str) -> str:
    """Return a case in words.

    Example:
        >>> case_title("random-30"), case_title("grid-16"), case_title("sawtooth, inside")
        ('30 observations, random', '16 x 16 observations', 'sawtooth, inside')
    """
    layout, _, count = case.partition("-")
    if not count.isdigit():
        return case
    if layout == "grid":
        return f"{count} x {count} observations"
    return f"{count} observations, {'evenly spaced' if layout == 'even' else layout}"


def pivots(result: Result) -> list[Pivot]:
    """Return all tables of a study."""
    return list(_filter_pivots(result) if protocols(result) else _regression_pivots(result))


def _filter_pivots(result: Result) -> Iterator[Pivot]:
    """Yield tables by ensemble size, or by protocol where the number of variables grows at one size."""
    shown = [error_metric(result), *(metric for metric in FILTER_METRICS if metric not in ERRORS)]
    rows = [row for row in result.rows if row.protocol and row.ensemble_size]
    across = of_growth(result)

    def heading(row: Row) -> str:
        return str(row.protocol) if across else f"{row.ensemble_size:,}"

    for protocol, key in itertools.product([None] if across else protocols(result), shown):
        own = [row for row in rows if row.metric == key and protocol in (None, row.protocol)]
        if not own:
            continue
        columns = list(dict.fromkeys(map(heading, sorted(own, key=lambda row: row.ensemble_size or 0))))
        metric, about = FILTER_METRICS[key], f", {protocol}" if protocol else ""
        title = f"{result.experiment}{about}: {metric.name} (preset {result.preset})"
        counts = sorted({row.n + (row.diverged or 0) for row in own})
        runs = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
        sizes = " by ensemble size N" if protocol else f", N = {own[0].ensemble_size}"
        caption = metric.name[0].upper() + metric.name[1:] + sizes + f", mean of {runs} runs" * (counts[-1] > 1)
        if protocol:
            caption = f"{_PROTOCOLS.get(protocol, f'Network: {protocol}')}. {caption}"
        corner = "N" if protocol else ""
        yield Pivot(title, caption, corner, columns, [metric] * len(columns), _lines(own, heading))


def _regression_pivots(result: Result) -> Iterator[Pivot]:
    present = {row.metric for row in result.rows}
    shown = [metric for key, metric in REGRESSION_METRICS.items() if key in present]
    single = len(shown) == 1
    groups: dict[str, list[Row]] = {}
    for row in map(_with_size, result.rows):  # of one metric, the cases "family, range" share the table of their family
        groups.setdefault(row.case.rpartition(", ")[0] if single else row.case, []).append(row)
    for case, rows in groups.items():
        n = max(row.n for row in rows)
        chosen = {row.method: row.value for row in rows if row.metric == "chosen"}
        own = [row for row in rows if row.metric in REGRESSION_METRICS]
        if single:
            lines = _lines(own, lambda row: case_title(row.case.rpartition(", ")[2]))
            columns = list(dict.fromkeys(column for line in lines.values() for column in line))
            metrics, about = shown * len(columns), f"{case}: {shown[0].name}" if case else shown[0].name
        else:
            lines = _lines(own, lambda row: REGRESSION_METRICS[row.metric].name)
            metrics = [metric for metric in shown if any(metric.name in line for line in lines.values())]
            columns, about = [metric.name for metric in metrics], case
        yield Pivot(
            f"{result.experiment}, {about} (preset {result.preset}, data sets: {n})",
            f"{case_title(about)}; {'mean of ' if n > 1 else ''}{n} data set{'s' if n > 1 else ''}",
            "method", columns, metrics, lines, max(chosen, key=lambda method: chosen[method], default=None),
        )  # fmt: skip


def _with_size(row: Row) -> Row:
    """Return a row whose method names its ensemble size, if it has one: those of filters on real records."""
    return row if row.ensemble_size is None else replace(row, method=f"{row.method}, N = {row.ensemble_size:,}")


def _lines(rows: Sequence[Row], heading: Callable[[Row], str]) -> dict[str, dict[str, Row]]:
    return {method: {heading(row): row for row in own} for method, own in by_method(rows).items()}
