"""One page from stored results: a file that needs nothing else, neither network nor paper."""

import contextlib
import json
import os
import secrets
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any, get_args

from matplotlib import colormaps
from matplotlib.colors import to_hex

from bieqno.lab.report.assets import asset
from bieqno.lab.report.chart import FIRST_SHOWN
from bieqno.lab.report.claims import SMOKE, Judged, judge_all
from bieqno.lab.report.findings import Verdict
from bieqno.lab.report.sections import section
from bieqno.lab.report.style import style_of
from bieqno.lab.results import FIGURES_FOLDER, METRICS_FILE
from bieqno.lab.studies import EXPERIMENTS, Result, read_result

PAGE_FILE = "report.html"
_SCRIPTS = ("dom.js", "plot.js", "images.js", "orbit.js", "main.js")


def write_page(folder: str | os.PathLike[str]) -> Path:
    """Make ``report.html`` of all results in a folder, replacing an older one in one step.

    Raises:
        ValueError: if there is no result in it, one that cannot be read, or two of one experiment.
    """
    folder = Path(folder)
    # Hidden is what a run that was killed while it wrote has left.
    found = [path.parent for path in sorted(folder.glob(f"*/{METRICS_FILE}")) if path.parent.name[0] != "."]
    if not found:
        raise ValueError(f"there are no results in {folder}; make some with: bieqno run demo --out {folder}")
    order = list(EXPERIMENTS)
    found.sort(key=lambda path: order.index(path.name) if path.name in order else len(order))
    results = [_read(path) for path in found]
    _check_each_once(found, results)
    page = build_page([(result, _stored_figures(path)) for result, path in zip(results, found, strict=True)])
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
    sections = [section(result, figures, data) for result, figures in results]
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
    return Template(asset("page.html")).substitute(
        style=asset("page.css"),
        script="\n".join(asset(name) for name in _SCRIPTS),
        data=_json_in_html(content),
        counts=_counts(judged),
        claims="\n".join(_claim(one) for one in judged),
        navigation="\n".join(
            f'<a href="#{escape(result.experiment)}">{escape(result.experiment)}</a>' for result, _ in results
        ),
        sections="\n".join(sections),
        origin=_origin(results[0][0]),
    )


def _claim(judged: Judged) -> str:
    name, found = judged.claim.experiment, judged.finding
    link = f'<a href="#{escape(judged.source)}">{escape(judged.source)}</a>' if judged.source else ""
    if judged.preset == SMOKE:
        link += " at preset smoke: it shows that everything runs, the verdict means nothing"
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


def _check_each_once(folders: Sequence[Path], results: Sequence[Result]) -> None:
    """Two results of one experiment would share their place on the page, and one would show the other's figures."""
    first: dict[str, Path] = {}
    for folder, result in zip(folders, results, strict=True):
        other = first.setdefault(result.experiment, folder)
        if other != folder:
            raise ValueError(f"{other} and {folder} both hold {result.experiment}; move one of them to another place")


def _stored_figures(path: Path) -> dict[str, str]:
    return {file.stem: file.read_text(encoding="utf-8") for file in sorted((path / FIGURES_FOLDER).glob("*.svg"))}


def _json_in_html(content: Any) -> str:
    """JSON that cannot end the element it stands in."""
    text = json.dumps(content, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _colour_map(name: str) -> list[str]:
    return [to_hex(colormaps[name](place / 32)) for place in range(33)]
