"""Pages in one file and without network, and the one of ``bieqno evaluate``."""

import io
import json
from collections.abc import Mapping
from html import escape
from string import Template
from typing import TypeAlias

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from bieqno.lab.report.charts import Chart, Column, Trace, axis, band, layout, line, methods_control, truth_line
from bieqno.lab.report.live_figures import allowed_scripts, heading, live_figure, scripts
from bieqno.lab.report.regression_figures import draw_reliability
from bieqno.lab.report.style import asset, panels, style_of
from bieqno.lab.user_comparisons import LEVELS, Evaluation

PlainTable: TypeAlias = tuple[list[str], list[list[str]], list[tuple[int, int]]]  # headings, rows, the best cells
_SCORES = {"rmse": "RMSE", "nlpd": "NLPD", "crps": "CRPS"}
Drawn: TypeAlias = Mapping[str, tuple[Chart, Figure]]  # by name, and what replaces it in print
CAPTIONS = json.loads(asset("plain_captions.json"))


def evaluation_page(found: Evaluation, *, source: str, target: str, inputs: list[str], command: str) -> str:
    """Return the page that shows which method predicts held-out rows best, and whether it is calibrated."""
    scores = f"{source}: trained on {found.trained} rows, scored on {len(found.observed)} others."
    parts = {"scores": plain_table(score_rows(found), scores)}
    drawn = {
        "calibration": (_calibration_chart(found), _calibration(found)),
        "scatter": (_scatter_chart(found), _scatter(found)),
    }
    title = f"How well is {target} predicted from {', '.join(inputs)}?"
    return plain_page("evaluation.html", title, parts, drawn, verdict=evaluation_verdict(found), command=command)


def evaluation_verdict(found: Evaluation) -> str:
    """Return the comparison with the chosen Gaussian process in a sentence."""
    gap = found.difference()
    by, error = gap["crps"], gap["crps_stderr"]
    ours, theirs = style_of("ggp").label, style_of(found.opponent).label
    if abs(by) <= 2 * error:
        said = f"do not differ significantly: difference in CRPS {by:+.3g} ± {error:.2g}"
    else:
        said = f"differ: the CRPS of the {ours} is {'lower' if by < 0 else 'higher'} by {abs(by):.3g} ± {error:.2g}"
    return f"On {len(found.observed)} held-out rows {ours} and the best Gaussian process ({theirs}) {said}."


def score_rows(found: Evaluation) -> PlainTable:
    """Return the table of scores."""
    scores = {name: found.scores(name) for name in found.forecasts}
    coverages = [key for key in next(iter(scores.values())) if key.startswith("coverage")]
    headings = ["method", *_SCORES.values(), *(f"{key.removeprefix('coverage_')} %" for key in coverages), "seconds"]
    rows = []
    for name, own in scores.items():
        label = style_of(name).label + (" *" if name == found.opponent else "")
        spread = {key: f" ± {own[f'{key}_stderr']:.2g}" for key in _SCORES if f"{key}_stderr" in own}
        values = [f"{own[key]:.3g}{spread.get(key, '')}" for key in _SCORES]
        rows.append([label, *values, *(f"{own[key]:.2f}" for key in coverages), f"{own['seconds']:.1f}"])
    best = [(int(np.argmin([own[key] for own in scores.values()])), 1 + j) for j, key in enumerate(_SCORES)]
    return headings, rows, best


def _calibration(found: Evaluation) -> Figure:
    figure, ((axes,),) = panels(1, 1, (6.6, 4.2))
    error = 2 * np.sqrt(LEVELS * (1 - LEVELS) / len(found.observed))
    axes.fill_between(LEVELS, LEVELS - error, LEVELS + error, color="0.88", linewidth=0, label="two standard errors")
    draw_reliability(axes, LEVELS, {name: found.reliability(name) for name in found.forecasts})
    figure.legend(loc="outside right center", frameon=False, fontsize=9)
    return figure


def _calibration_chart(found: Evaluation) -> Chart:
    error = 2 * np.sqrt(LEVELS * (1 - LEVELS) / len(found.observed))
    columns = {"nominal coverage": LEVELS, "two standard errors": error}
    columns |= {style_of(name).label: found.reliability(name) for name in found.forecasts}
    rows = (0, len(LEVELS))
    low, high = ([("nominal coverage", 1), ("two standard errors", sign)] for sign in (-1, 1))
    traces = band("nominal coverage", (low, high), rows, "rgba(128, 128, 128, 0.2)")
    traces.append(Trace(truth_line("calibrated", x=[0, 1], y=[0, 1], hoverinfo="skip")))
    for name in found.forecasts:
        names = {"x": "nominal coverage", "y": style_of(name).label}
        traces.append(Trace(line(name, marker=True), names, rows, {"method": name}))
    made = layout(axis("nominal coverage", range=[0, 1]), axis("observed coverage", range=[0, 1.02]))
    methods = methods_control(found.forecasts, found.forecasts)
    return Chart("calibration", pd.DataFrame(columns), traces, made, [methods])


def _scatter_chart(found: Evaluation) -> Chart:
    columns, traces, both = {"observed": found.observed}, [], ("ggp", found.opponent)
    ends = [float(np.min(found.observed)), float(np.max(found.observed))]
    traces.append(Trace(truth_line("equal", x=ends, y=ends, hoverinfo="skip")))
    for name in both:
        label = style_of(name).label
        columns[f"{label} mean"], columns[f"{label} sd"], _ = found.forecast(name).values()
        look = line(name, marker=True, error_x={"type": "data", "thickness": 0.6, "width": 0}) | {"mode": "markers"}
        names: dict[str, Column] = {"x": f"{label} mean", "y": "observed", "error_x.array": [(f"{label} sd", 2)]}
        traces.append(Trace(look, names, (0, min(300, len(found.observed))), {"method": name}))
    made = layout(axis("predicted"), axis("observed"), hovermode="closest")
    return Chart("scatter", pd.DataFrame(columns), traces, made, [methods_control(both, both)])


def _scatter(found: Evaluation) -> Figure:
    figure, grid = panels(1, 2, (8.4, 4.0), "predicted", "observed", sharex=True, sharey=True)
    ends = [float(np.min(found.observed)), float(np.max(found.observed))]
    part = slice(0, 300)  # more bars would be illegible, and the page large
    for axes, name in zip(grid[0], ("ggp", found.opponent), strict=True):
        (mean, std, _), style = found.forecast(name).values(), style_of(name)
        axes.plot(ends, ends, color="black", linewidth=0.8)
        look = {"fmt": style.marker, "color": style.color, "markersize": 4, "elinewidth": 0.6, "alpha": 0.8}
        axes.errorbar(mean[part], found.observed[part], xerr=2 * std[part], **look)
        axes.set_title(style.label)
    return figure


def plain_page(body: str, title: str, parts: Mapping[str, str], drawn: Drawn, **texts: str) -> str:
    """Return a page from the template of its body: `parts` are HTML, `drawn` figures, `texts` are escaped."""
    figures = {}
    for name, (chart, figure) in drawn.items():
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=150)
        figures[name] = live_figure(chart, name, ("", CAPTIONS[name]), [buffer.getvalue()])
    filled = Template(asset(body)).substitute(parts, **figures, **{name: escape(text) for name, text in texts.items()})
    script = scripts({name: chart for name, (chart, _) in drawn.items()})
    page = {"title": escape(title), "style": asset("page.css"), "body": filled, "scripts": script}
    page["allowed_scripts"] = allowed_scripts()
    return Template(asset("plain.html")).substitute(page)


def plain_table(content: PlainTable, caption: str) -> str:
    """Return a table in which the best cells are marked."""
    headings, rows, best = content
    head = "".join(map(heading, headings))
    body = ""
    for i, row in enumerate(rows):
        marks = (" winner" if (i, j) in best else "" for j in range(len(row)))
        cells = (f'<td class="number{mark}">{escape(text)}</td>' for mark, text in zip(marks, row, strict=True))
        body += f"<tr>{''.join(cells)}</tr>"
    return (
        f'<div class="table"><table><caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )
