"""One experiment on the page: question, claim, tables, figures, settings and command."""

import json
import re
from collections.abc import Sequence
from html import escape
from string import Template
from typing import Any
from urllib.parse import quote

from bieqno.lab.report.assets import asset
from bieqno.lab.report.chart import Chart
from bieqno.lab.report.filter_charts import filter_charts
from bieqno.lab.report.html_tables import html_tables
from bieqno.lab.report.regression_charts import regression_charts
from bieqno.lab.report.studies import figure_name, of_filters
from bieqno.lab.studies import EXPERIMENTS, Result

_SAFE = " /=:;,.+-()[]{}!*$@|'?^~"  # what may stand in an address within double quotes
_CAPTIONS = {
    "covariance": "Predicted covariance of noisy new values along the line: what moves together",
    "tasks": "What the process says about a function after twelve of its values (black): the density of each new value by itself "
    "(shade), two draws of all together by the chain rule (lines), and what the values were (dots)",
    "growth": "Error, time and memory of one analysis against the number of variables; time is the least of five",
    "distances": "How far the student in each role is from each teacher on unseen windows, RMS over members",
}


def section(result: Result, figures: dict[str, str], data: dict[str, Any]) -> str:
    """An experiment: question, claim, tables, figures, settings and command; its charts are put into `data`."""
    about = EXPERIMENTS[result.experiment].description if result.experiment in EXPERIMENTS else None
    parts = result.parts()
    alone = list(parts) == [result.experiment]
    shown = []
    for name, part in parts.items():
        own = EXPERIMENTS[name].description if name in EXPERIMENTS else None
        heading = "" if alone or own is None else (
            f"<h3>{escape(own.title)} <small>{escape(name)}</small></h3>"
            f"<p>{escape(own.question)}</p><p><b>The paper claims:</b> {escape(own.claim)}</p>"
        )  # fmt: skip
        shown.append(heading + '<h4 class="what">What was measured here</h4>' + html_tables(part))
        used: set[str] = set()
        for chart in filter_charts(part) if of_filters(part) else regression_charts(part):
            identity = f"{result.experiment}-{name}-{chart.name}"
            data[identity] = chart.data
            fallback = [figure_name(result, name, static) for static in chart.static]
            used.update(fallback)
            shown.append(_live_figure(identity, chart, [figures[key] for key in fallback if key in figures]))
        prefix = figure_name(result, name, "")
        shown += [
            _static_figure(key.removeprefix(prefix), svg)
            for key, svg in figures.items() if key.startswith(prefix) and key not in used
        ]  # fmt: skip
    return Template(asset("section.html")).substitute(
        name=escape(result.experiment),
        title=escape(about.title if about else result.experiment),
        question=escape(about.question if about else ""),
        claim=escape(about.claim if about else ""),
        preset=escape(result.preset),
        seed=result.seed,
        parts="\n".join(shown),
        command=escape(str(result.config.get("command", ""))),
        settings=escape(json.dumps(result.config, indent=1)),
    )


def _live_figure(identity: str, chart: Chart, images: Sequence[str]) -> str:
    static = "".join(f'<img class="static" alt="{escape(chart.title)}" src="{_data_uri(svg)}">' for svg in images)
    return (
        f'<figure data-chart="{escape(identity)}" id="{escape(identity)}"><h4>{escape(chart.title)}</h4>'
        f'<div class="live"></div>{static}<figcaption>{escape(chart.caption)}</figcaption></figure>'
    )


def _static_figure(name: str, svg: str) -> str:
    title = _CAPTIONS.get(name.split("-")[0], name)
    return (
        f'<figure><img alt="{escape(title)}" src="{_data_uri(svg)}"><figcaption>{escape(title)}</figcaption></figure>'
    )


def _data_uri(svg: str) -> str:
    """An image within the page; for a path a tenth of a point is exact enough."""
    small = re.sub(r' d="[^"]*"', lambda found: re.sub(r"(\.\d)\d+", r"\1", found[0]), svg)
    # Of images within it, as base64, the encoding leaves nearly all as it is.
    return f"data:image/svg+xml,{quote(' '.join(small.split()), safe=_SAFE)}"
