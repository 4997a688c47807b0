"""Tables of the filtering studies for a terminal."""

import math

from rich.table import Table

from bieqno.experiments import Result, Row
from bieqno.report.style import style_of


def filter_tables(result: Result) -> list[Table]:
    """For each protocol the relative errors, a row for each method and a column for each ensemble size; then the rest."""
    tables = []
    for protocol in dict.fromkeys(row.protocol for row in result.rows if row.protocol):
        rows = result.select(protocol=protocol, metric="relative_rmse")
        sizes = sorted({row.ensemble_size for row in rows if row.ensemble_size})
        table = Table(box=None, padding=(0, 1), pad_edge=False)
        table.title = f"{result.experiment}, {protocol}: relative RMSE (preset {result.preset})"
        table.add_column("N", no_wrap=True)
        for size in sizes:
            table.add_column(f"{size:,}", justify="right", no_wrap=True)
        for method in dict.fromkeys(row.method for row in rows):
            found = {row.ensemble_size: row for row in rows if row.method == method}
            table.add_row(style_of(method).label, *(_cell(found.get(size)) for size in sizes))
        if any(row.diverged for row in rows):
            table.caption = "✕k: k of the runs diverged, the error is that of the others"
        tables.append(table)
    rest = [row for row in result.rows if row.protocol is None]
    if rest:
        table = Table("of", "case", "what", "value", box=None, padding=(0, 1), pad_edge=False)
        for row in rest:
            table.add_row(style_of(row.method).label, row.case, row.metric.replace("_", " "), f"{row.value:.3g}")
        tables.append(table)
    return tables


def _cell(row: Row | None) -> str:
    if row is None:
        return ""
    lost = f" ✕{row.diverged}" if row.diverged else ""
    return lost.strip() if math.isnan(row.value) else f"{row.value:.3f}{lost}"
