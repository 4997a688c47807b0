"""One page from stored results: a file that needs nothing else, neither network nor paper."""

import contextlib
import json
import os
import re
import secrets
from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any, get_args
from urllib.parse import quote

from matplotlib import colormaps
from matplotlib.colors import to_hex

from bieqno.experiments import EXPERIMENTS, Result, read_result
from bieqno.experiments.results import FIGURES_FOLDER, METRICS_FILE
from bieqno.report.charts import FIRST_SHOWN, Chart, charts
from bieqno.report.claims import Judged, Verdict, judge_all
from bieqno.report.html_tables import html_tables
from bieqno.report.studies import figure_name
from bieqno.report.style import style_of

_SAFE = " /=:;,.+-()[]{}!*$@|'?^~"  # what may stand in an address within double quotes
PAGE_FILE = "report.html"
_SCRIPTS = ("dom.js", "plot.js", "images.js", "orbit.js", "main.js")


def write_page(folder: str | os.PathLike[str]) -> Path:
    """Make ``report.html`` of all results in a folder, replacing an older one in one step.

    Raises:
        ValueError: if there is no result in it, or one that cannot be read.
    """
    folder = Path(folder)
    found = [path.parent for path in sorted(folder.glob(f"*/{METRICS_FILE}"))]
    if not found:
        raise ValueError(f"there are no results in {folder}; make some with: bieqno run demo --out {folder}")
    order = list(EXPERIMENTS)
    found.sort(key=lambda path: order.index(path.name) if path.name in order else len(order))
    page = build_page([(_read(path), _stored_figures(path)) for path in found])
    target = folder / PAGE_FILE
    partial = target.with_name(f".{PAGE_FILE}.{secrets.token_hex(4)}.partial")
    try:
        partial.write_text(page, encoding="utf-8")
        partial.replace(target)
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
    return target


def build_page(results: Sequence[tuple[Result, dict[str, str]]]) -> str:
    """The page of some results, each with its figures as SVG by name."""
    data: dict[str, Any] = {}
    sections = [_section(result, figures, data) for result, figures in results]
    methods = dict.fromkeys(
        series["method"] for chart in data.values() for view in _views(chart) for series in view["series"]
    )
    content = {
        "charts": data,
        "first": FIRST_SHOWN,
        "styles": {method: style_of(method)._asdict() for method in methods},
        "colours": {name: _colour_map(name) for name in ("viridis", "PuOr")},
    }
    judged = judge_all(result for result, _ in results)
    return Template(_asset("page.html")).substitute(
        style=_asset("page.css"),
        script="\n".join(_asset(name) for name in _SCRIPTS),
        data=_json_in_html(content),
        counts=_counts(judged),
        claims="\n".join(_claim(one) for one in judged),
        navigation="\n".join(
            f'<a href="#{escape(result.experiment)}">{escape(result.experiment)}</a>' for result, _ in results
        ),
        sections="\n".join(sections),
        origin=_origin(results[0][0]),
    )


def _section(result: Result, figures: dict[str, str], data: dict[str, Any]) -> str:
    """An experiment: question, claim, tables, figures, settings and command; its charts are put into `data`."""
    about = EXPERIMENTS[result.experiment].DESCRIPTION if result.experiment in EXPERIMENTS else None
    parts = result.parts()
    alone = list(parts) == [result.experiment]
    shown = []
    for name, part in parts.items():
        own = EXPERIMENTS[name].DESCRIPTION if name in EXPERIMENTS else None
        heading = "" if alone or own is None else (
            f"<h3>{escape(own.title)} <small>{escape(name)}</small></h3>"
            f"<p>{escape(own.question)}</p><p><b>The paper claims:</b> {escape(own.claim)}</p>"
        )  # fmt: skip
        shown.append(heading + '<h4 class="what">What was measured here</h4>' + html_tables(part))
        used: set[str] = set()
        for chart in charts(part):
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
    return Template(_asset("section.html")).substitute(
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


_CAPTIONS = {
    "covariance": "Predicted covariance of noisy new values along the line: what moves together",
    "distances": "How far the student in each role is from each teacher on unseen windows, RMS over members",
}


def _claim(judged: Judged) -> str:
    name, found = judged.claim.experiment, judged.finding
    link = f'<a href="#{escape(judged.source)}">{escape(judged.source)}</a>' if judged.source else ""
    number = escape(found.number) if judged.source else f"<code>{escape(found.number)}</code> runs it"
    more = "".join(f"<li>{escape(text)}</li>" for text in found.further)
    further = f"<details><summary>more numbers</summary><ul>{more}</ul></details>" if more else ""
    return (
        f'<tr><td><span class="about">{escape(name)}</span> {escape(judged.claim.text)}</td>'
        f"<td>{_verdict(found.verdict)}</td><td>{number}{further}</td><td>{link}</td></tr>"
    )


def _verdict(verdict: Verdict, count: str = "") -> str:
    return f'<span class="verdict {verdict.replace(" ", "-")}">{count}{verdict}</span>'


def _counts(judged: Iterable[Judged]) -> str:
    found = [one.finding.verdict for one in judged]
    return ", ".join(_verdict(one, f"{found.count(one)} ") for one in get_args(Verdict) if one in found)


def _origin(result: Result) -> str:
    versions = result.config.get("versions", {})
    return escape(
        f"bieqno {versions.get('bieqno', '?')}, commit {result.config.get('commit') or 'unknown'}, "
        f"JAX {versions.get('jax', '?')}, Python {versions.get('python', '?')}, "
        f"{result.config.get('platform', {}).get('system', 'unknown system')}"
    )


def _views(chart: dict[str, Any]) -> Iterable[dict[str, Any]]:
    views: dict[str, dict[str, Any]] = chart.get("views", {"": chart})
    return views.values()


def _read(path: Path) -> Result:
    try:
        return read_result(path)
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"the result in {path} is incomplete or damaged ({error}); run it again") from error


def _stored_figures(path: Path) -> dict[str, str]:
    return {file.stem: file.read_text(encoding="utf-8") for file in sorted((path / FIGURES_FOLDER).glob("*.svg"))}


def _data_uri(svg: str) -> str:
    """An image within the page; for a path a tenth of a point is exact enough."""
    small = re.sub(r' d="[^"]*"', lambda found: re.sub(r"(\.\d)\d+", r"\1", found[0]), svg)
    # Of images within it, as base64, the encoding leaves nearly all as it is.
    return f"data:image/svg+xml,{quote(' '.join(small.split()), safe=_SAFE)}"


def _json_in_html(content: Any) -> str:
    """JSON that cannot end the element it stands in."""
    text = json.dumps(content, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _colour_map(name: str) -> list[str]:
    return [to_hex(colormaps[name](place / 32)) for place in range(33)]


def _asset(name: str) -> str:
    return resources.files("bieqno.report").joinpath("assets", name).read_text(encoding="utf-8")
