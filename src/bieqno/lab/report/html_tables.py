"""Tables of results for the page: every method alike, the best of each column marked."""

import math
from collections.abc import Callable, Sequence
from html import escape
from typing import NamedTuple

from bieqno.lab.report.pivots import pivots
from bieqno.lab.report.studies import of_filters
from bieqno.lab.report.style import style_of
from bieqno.lab.studies import Result, Row


class _Column(NamedTuple):
    """A metric: its heading, format, and what is small when it is good."""

    metric: str
    heading: str
    form: str
    badness: Callable[[float], float] | None = lambda value: value


_REGRESSION = (
    _Column("rmse", "RMSE", ".3f"),
    _Column("rmse_near_jump", "RMSE near jumps", ".3f"),
    _Column("nlpd", "NLPD", ".2f"),
    _Column("log_likelihood", "log-likelihood per value", ".2f", lambda value: -value),
    _Column("crps", "CRPS", ".3f"),
    _Column("coverage_95", "inside the 95 % interval", ".2f", lambda value: abs(value - 0.95)),
    _Column("seconds", "seconds", ".1f", None),
)
_PROTOCOLS = {
    "paper": "The paper's test: one truth, on whose first windows the EnNF was trained",
    "unseen": "Unseen truths: no filter was trained or tuned on them",
}


def html_tables(result: Result) -> str:
    """All tables of a study."""
    return _of_filters(result) if of_filters(result) else _of_regression(result)


def case_title(case: str) -> str:
    """A case for a reader.

    Example:
        >>> case_title("random-30"), case_title("grid-16"), case_title("nile")
        ('30 observations, random', '16 x 16 observations', 'nile')
    """
    layout, _, count = case.partition("-")
    if not count:
        return case
    if layout == "grid":
        return f"{count} x {count} observations"
    return f"{count} observations, {'evenly spaced' if layout == 'even' else layout}"


def _of_regression(result: Result) -> str:
    made = []
    for case in dict.fromkeys(row.case for row in result.rows):
        rows = result.select(case=case)
        found = {(row.method, row.metric): row for row in rows}
        columns = [column for column in _REGRESSION if any(row.metric == column.metric for row in rows)]
        best = {column.metric: _best(rows, column) for column in columns}
        body = [
            (method, [_cell(found.get((method, c.metric)), c.form, best=method == best[c.metric]) for c in columns])
            for method in dict.fromkeys(row.method for row in rows)
        ]
        n = max(row.n for row in rows)
        caption = f"{case_title(case)}; {'mean of ' if n > 1 else ''}{n} data set{'s' if n > 1 else ''}"
        made.append(_table(caption, "method", [column.heading for column in columns], body))
    return "\n".join(made)


def _best(rows: Sequence[Row], column: _Column) -> str | None:
    # The one chosen by likelihood is another one's row again, and the limit is for nobody to reach.
    own = [r for r in rows if r.metric == column.metric and r.method not in ("gp-best", "limit")]
    own = [r for r in own if not math.isnan(r.value)]
    badness = column.badness
    return None if badness is None or not own else min(own, key=lambda row: badness(row.value)).method


def _of_filters(result: Result) -> str:
    made = []
    for pivot in pivots(result):
        best = {column: pivot.best(column) for column in pivot.columns}
        body = [
            (method, [_cell(line.get(c), pivot.metric.form, best=best[c] == method) for c in pivot.columns])
            for method, line in pivot.lines.items()
        ]
        counts = sorted({row.n + (row.diverged or 0) for row in pivot.rows})
        runs = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
        name = pivot.metric.name[0].upper() + pivot.metric.name[1:]
        sizes = " by ensemble size N" if pivot.protocol else f", N = {pivot.rows[0].ensemble_size}"
        caption = name + sizes + (f", mean of {runs} runs" if counts[-1] > 1 else "")
        if pivot.protocol:
            caption = f"{_PROTOCOLS.get(pivot.protocol, f'Network: {pivot.protocol}')}. {caption}"
        made.append(_table(caption, pivot.corner, pivot.columns, body))
    rest = [row for row in result.rows if row.protocol is None]
    if rest:
        listed = [
            (row.method, [*(f"<td>{escape(text.replace('_', ' '))}</td>" for text in (row.case, row.metric)), _cell(row, ",.4g")])
            for row in rest
        ]  # fmt: skip
        tuned = any(row.ensemble_size for row in rest)
        caption = "Further numbers" + (", and the settings that tuning found on truths of its own" if tuned else "")
        made.append(_table(caption, "of", ["case", "what", "value"], listed))
    return "\n".join(made)


def _cell(row: Row | None, form: str, *, best: bool = False) -> str:
    if row is None:
        return "<td></td>"
    error = "" if row.stderr is None else f" <small>± {row.stderr:{form}}</small>"
    lost = f' <span class="lost">{row.diverged} lost</span>' if row.diverged else ""
    value = "" if math.isnan(row.value) else f"{row.value:{form}}{error}"
    mark = ' <span class="best" title="best of its column">best</span>' if best else ""
    return f'<td class="number{" winner" if best else ""}">{value}{lost}{mark}</td>'


def _table(caption: str, corner: str, headings: Sequence[str], body: Sequence[tuple[str, Sequence[str]]]) -> str:
    dense = ' class="dense"' if len(headings) > 6 else ""
    head = "".join(f'<th scope="col">{escape(heading)}</th>' for heading in headings)
    rows = "\n".join(
        f'<tr><th scope="row"><span class="swatch" style="background:{style_of(method).color}"></span>'
        f"{escape(style_of(method).label)}</th>{''.join(cells)}</tr>"
        for method, cells in body
    )
    return (
        f'<div class="table" role="region" tabindex="0" aria-label="{escape(caption)}"><table{dense}>'
        f"<caption>{escape(caption)}</caption>\n"
        f'<thead><tr><th scope="col">{escape(corner)}</th>{head}</tr></thead>\n<tbody>{rows}</tbody></table></div>'
    )
