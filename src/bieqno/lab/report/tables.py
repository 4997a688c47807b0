"""Tables of results for a terminal."""

from rich.table import Table

from bieqno.lab.report.style import style_of
from bieqno.lab.studies import Result, Row

# What fits a terminal of 80 columns, with heading, format and whether with its error; the rest is in metrics.json.
_SHOWN = {
    "rmse": ("RMSE", ".3f", True),
    "rmse_near_jump": ("jumps", ".3f", False),
    "nlpd": ("NLPD", ".2f", True),
    "log_likelihood": ("log-likelihood", ".2f", True),
    "crps": ("CRPS", ".3f", False),
    "coverage_95": ("95 %", ".2f", False),
    "seconds": ("s", ".1f", False),
}


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
    title = f"{result.experiment}, {case} (preset {result.preset}, data sets: {repetitions})"
    table = Table(box=None, padding=(0, 1), pad_edge=False, title=title)
    table.add_column("method", no_wrap=True)
    for metric in metrics:
        table.add_column(_SHOWN[metric][0], justify="right", no_wrap=True)
    for method in dict.fromkeys(row.method for row in rows):
        star = " *" if method == best else ""
        table.add_row(style_of(method).label + star, *(_cell(found.get((method, metric))) for metric in metrics))
    return table


def _cell(row: Row | None) -> str:
    if row is None:
        return ""
    _, form, with_error = _SHOWN[row.metric]
    error = f" ±{row.stderr:{form}}" if with_error and row.stderr is not None else ""
    return f"{row.value:{form}}{error}"
