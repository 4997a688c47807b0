"""Tables of the filtering studies for a terminal."""

import math

from rich.table import Table

from bieqno.lab.report.pivots import pivots
from bieqno.lab.report.style import style_of
from bieqno.lab.studies import Result, Row


def filter_tables(result: Result) -> list[Table]:
    """For each protocol the errors and what else was scored, a row for each method and a column for each size; then the rest."""
    tables = []
    for pivot in pivots(result):
        table = Table(box=None, padding=(0, 1), pad_edge=False)
        about = result.experiment if pivot.protocol is None else f"{result.experiment}, {pivot.protocol}"
        table.title = f"{about}: {pivot.metric.name} (preset {result.preset})"
        table.add_column(pivot.corner, no_wrap=True)
        for column in pivot.columns:
            table.add_column(column, justify="right", no_wrap=True)
        for method, line in pivot.lines.items():
            cells = (_cell(line.get(column), pivot.metric.form) for column in pivot.columns)
            table.add_row(style_of(method).label, *cells)
        if any(row.diverged for row in pivot.rows):
            table.caption = "✕k: k of the runs diverged, the number is that of the others"
        tables.append(table)
    rest = [row for row in result.rows if row.protocol is None]
    if rest:
        table = Table("of", "case", "what", "value", box=None, padding=(0, 1), pad_edge=False)
        for row in rest:
            table.add_row(style_of(row.method).label, row.case, row.metric.replace("_", " "), f"{row.value:.3g}")
        tables.append(table)
    return tables


def _cell(row: Row | None, form: str) -> str:
    if row is None:
        return ""
    lost = f" ✕{row.diverged}" if row.diverged else ""
    return lost.strip() if math.isnan(row.value) else f"{row.value:{form}}{lost}"
