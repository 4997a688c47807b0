"""Tables of a study, drawn for the terminal and for the page."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from html import escape

import pandas as pd
from rich.table import Table
from rich.text import Text

from bieqno.lab.report.charts import swatch
from bieqno.lab.report.live_figures import csv_link, heading
from bieqno.lab.report.pivots import Metric, Pivot, pivots, protocols
from bieqno.lab.report.style import style_of
from bieqno.lab.results import Result, Row


def _further(result: Result) -> list[Row]:
    """Return what belongs to no protocol of a filtering study: settings found by tuning, times, counts."""
    return [row for row in result.rows if row.protocol is None] if protocols(result) else []


def study_tables(result: Result) -> list[Table]:
    """Return all tables of a result, and of the studies that it took over, for a terminal."""
    return [table for part in result.parts().values() for table in _terminal_tables(part)]


def _terminal_tables(result: Result) -> Iterator[Table]:
    for pivot in pivots(result):
        # The mark of the best is in the second blank between the columns.
        table = Table(box=None, padding=(0, 0, 0, 1), pad_edge=False, title=pivot.title)
        table.add_column(pivot.corner, no_wrap=True)
        for column, metric in zip(pivot.columns, pivot.metrics, strict=True):
            table.add_column(metric.short if column == metric.name else column, justify="right", no_wrap=True)
        for method, line in pivot.lines.items():
            cells = (
                Text(("▸" if best else " ") + _cell(row, metric, metric.error), style="bold" if best else "")
                for row, metric, best in pivot.cells(line)
            )
            table.add_row(style_of(method).label + " *" * (method == pivot.chosen), *cells)
        notes = {
            "▸ best": any(best for line in pivot.lines.values() for _, _, best in pivot.cells(line)),
            "✕k: k diverged runs left out": any(row.diverged for line in pivot.lines.values() for row in line.values()),
            "* highest marginal likelihood": pivot.chosen in pivot.lines,
        }
        table.caption = ", ".join(note for note, needed in notes.items() if needed) or None
        yield table
    rest = _further(result)
    if rest:
        table = Table("of", "case", "what", "value", box=None, padding=(0, 1), pad_edge=False)
        for row in rest:
            table.add_row(style_of(row.method).label, row.case, row.metric.replace("_", " "), f"{row.value:.3g}")
        yield table


def _cell(row: Row | None, metric: Metric, with_error: bool) -> str:
    if row is None:
        return ""
    form = ".0f" if metric.error and abs(row.value) >= 100 else metric.form  # a density that explodes
    error = f" ±{row.stderr:{form}}" if with_error and row.stderr is not None else ""
    value = "" if math.isnan(row.value) else f"{row.value:{form}}{error}"
    return f"{value} ✕{row.diverged}".strip() if row.diverged else value


def plain_rows(pivot: Pivot) -> tuple[list[str], list[list[str]], list[tuple[int, int]]]:
    """Return headings, rows, and the best cells by row and column."""
    rows = [
        [style_of(method).label, *(_cell(row, metric, True) for row, metric, _ in pivot.cells(line))]
        for method, line in pivot.lines.items()
    ]
    marks = ((i, enumerate(pivot.cells(line), start=1)) for i, line in enumerate(pivot.lines.values()))
    best = [(i, j) for i, cells in marks for j, (_, _, is_best) in cells if is_best]
    return [pivot.corner, *pivot.columns], rows, best


def html_tables(result: Result) -> str:
    """Return all tables of a study as HTML."""
    made = []
    for pivot in pivots(result):
        body = [(method, [_html_cell(*cell) for cell in pivot.cells(line)]) for method, line in pivot.lines.items()]
        made.append(_html_table(pivot.caption, pivot.corner, pivot.columns, body))
    rest = _further(result)
    if rest:
        listed = []
        for row in rest:
            about = [f"<td>{escape(text.replace('_', ' '))}</td>" for text in (row.case, row.metric)]
            listed.append((row.method, [*about, _html_cell(row, Metric("", ",.4g"), False)]))
        tuned = any(row.ensemble_size for row in rest)
        caption = "Further numbers" + (", and the settings that tuning found on truths of its own" if tuned else "")
        table = _html_table(caption, "of", ["case", "what", "value"], listed)
        made.append(f"<details><summary>{caption}</summary>{table}</details>")
    rows = pd.DataFrame([asdict(row) for row in result.rows])
    return "\n".join([*made, csv_link(rows, f"{result.experiment}-rows")])


def _html_cell(row: Row | None, metric: Metric, best: bool) -> str:
    if row is None:
        return "<td></td>"
    error = "" if row.stderr is None else f" <small>± {row.stderr:{metric.form}}</small>"
    diverged = f' <span class="diverged">{row.diverged} diverged</span>' if row.diverged else ""
    value = "" if math.isnan(row.value) else f"{row.value:{metric.form}}{error}"
    mark = ' <span class="best" title="best of its column">best</span>' if best else ""
    # Where all runs diverged there is no value to sort by.
    sorted_by = "" if value else ' data-value=""'
    return f'<td class="number{" winner" if best else ""}"{sorted_by}>{value}{diverged}{mark}</td>'


def _html_table(caption: str, corner: str, headings: Sequence[str], body: Iterable[tuple[str, Sequence[str]]]) -> str:
    dense = ' class="dense"' if len(headings) > 6 else ""
    head = "".join(map(heading, headings))
    rows = "\n".join(
        f'<tr><th scope="row">{swatch(style_of(method))}{escape(style_of(method).label)}</th>{"".join(cells)}</tr>'
        for method, cells in body
    )
    return (
        f'<div class="table" role="region" tabindex="0" aria-label="{escape(caption)}"><table{dense}>'
        f"<caption>{escape(caption)}</caption>\n"
        f"<thead><tr>{heading(corner)}{head}</tr></thead>\n<tbody>{rows}</tbody></table></div>"
    )
