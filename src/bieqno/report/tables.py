"""Tables of results for a terminal."""

from rich.table import Table

from bieqno.experiments import Result, Row
from bieqno.report.style import style_of

# What fits a terminal; all the rest stands in metrics.json.
_SHOWN = {
    "rmse": "RMSE",
    "rmse_near_jump": "at jumps",
    "nlpd": "NLPD",
    "crps": "CRPS",
    "coverage_95": "in 95 %",
    "seconds": "s",
}
_WITH_ERROR = ("rmse", "nlpd")


def tables(result: Result) -> list[Table]:
    """A table for each case: a row for each method, a column for each of the chief metrics, with standard errors.

    A star marks the kernel that the marginal likelihood preferred in most of the data sets.
    """
    return [_table(result, case) for case in dict.fromkeys(row.case for row in result.rows)]


def _table(result: Result, case: str) -> Table:
    rows = result.select(case=case)
    found = {(row.method, row.metric): row for row in rows}
    metrics = [metric for metric in _SHOWN if any(row.metric == metric for row in rows)]
    chosen = {row.method: row.value for row in rows if row.metric == "chosen"}
    best = max(chosen, key=lambda method: chosen[method], default=None)
    repetitions = max(row.n for row in rows)
    table = Table(title=f"{result.experiment}, {case} (preset {result.preset}, data sets: {repetitions})")
    table.add_column("method", no_wrap=True)
    for metric in metrics:
        table.add_column(_SHOWN[metric], justify="right", no_wrap=True)
    for method in dict.fromkeys(row.method for row in rows):
        star = " *" if method == best else ""
        table.add_row(style_of(method).label + star, *(_cell(found.get((method, metric))) for metric in metrics))
    return table


def _cell(row: Row | None) -> str:
    if row is None:
        return ""
    error = "" if row.stderr is None or row.metric not in _WITH_ERROR else f" ±{row.stderr:.2g}"
    return f"{row.value:.3g}{error}"
