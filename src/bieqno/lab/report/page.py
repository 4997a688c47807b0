"""One page from stored results, in one file: every claim with its verdict, then each study with its tables and figures."""

import json
import os
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any, get_args
from urllib.parse import quote

from matplotlib import colormaps
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from bieqno.lab.report.charts import charts
from bieqno.lab.report.claims import SMOKE, Judged, judge_all
from bieqno.lab.report.filter_figures import filter_figures
from bieqno.lab.report.findings import Verdict
from bieqno.lab.report.pivots import protocols
from bieqno.lab.report.regression_figures import regression_figures
from bieqno.lab.report.style import FIRST_SHOWN, asset, style_of
from bieqno.lab.report.tables import html_tables
from bieqno.lab.results import FIGURES_FOLDER, METRICS_FILE, Result, read_result
from bieqno.lab.studies import EXPERIMENTS, Description
from bieqno.persistence.tensorfile import replace_file

PAGE_FILE = "report.html"
_SCRIPTS = ("dom.js", "plot.js", "images.js", "orbit.js", "main.js")
_SAFE = " /=:;,.+-()[]{}!*$@|'?^~"  # characters that need no escape in an address within double quotes


def study_figures(result: Result) -> dict[str, Figure]:
    """Return all figures of a result by name; those of a study that it took over begin with that study's name."""
    return {
        figure_name(result, name, figure): image
        for name, part in result.parts().items()
        for figure, image in (filter_figures if protocols(part) else regression_figures)(part).items()
    }


def figure_name(result: Result, part: str, figure: str) -> str:
    """Return the name under which the figure of a part is stored."""
    return figure if part == result.experiment else f"{part}-{figure}"


def title_and_caption(figure: str) -> tuple[str, str]:
    """Return the texts of a figure, by the first word of its name; of an unknown one the name itself."""
    title, caption = json.loads(asset("figures.json")).get(figure.split("-")[0], (figure, figure))
    return title, caption


def write_page(folder: str | os.PathLike[str]) -> Path:
    """Write ``report.html`` from all results in a folder; ValueError if there is none, a damaged one, or one twice."""
    folder = Path(folder)
    # Hidden folders are left by a run that was killed while it wrote.
    found = [path.parent for path in sorted(folder.glob(f"*/{METRICS_FILE}")) if path.parent.name[0] != "."]
    if not found:
        raise ValueError(f"there are no results in {folder}; make some with: bieqno run demo --out {folder}")
    order = list(EXPERIMENTS)
    found.sort(key=lambda path: order.index(path.name) if path.name in order else len(order))
    sources: dict[str, Path] = {}
    results = []
    for path in found:
        try:
            result = read_result(path)
        except (OSError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"the result in {path} is incomplete or damaged ({error}); run it again") from error
        first = sources.setdefault(result.experiment, path)
        if first != path:
            raise ValueError(f"{first} and {path} both hold {result.experiment}; move one of them to another folder")
        drawn = sorted((path / FIGURES_FOLDER).glob("*.svg"))
        results.append((result, {file.stem: file.read_text(encoding="utf-8") for file in drawn}))
    replace_file(folder / PAGE_FILE, build_page(results).encode())
    return folder / PAGE_FILE


def build_page(results: Sequence[tuple[Result, dict[str, str]]]) -> str:
    """Return the page of some results, each with its figures as SVG by name."""
    data: dict[str, Any] = {}
    sections = [_section(result, figures, data) for result, figures in results]
    views = [view for chart in data.values() for view in chart.get("views", {"": chart}).values()]
    methods = dict.fromkeys(series["method"] for view in views for series in view["series"])
    content = {
        "charts": data,
        "first": FIRST_SHOWN,
        "styles": {method: style_of(method)._asdict() for method in methods},
        "colours": {name: [to_hex(colormaps[name](place / 32)) for place in range(33)] for name in ("viridis", "PuOr")},
    }
    embedded = json.dumps(content, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    judged = judge_all(result for result, _ in results)
    verdicts = [one.finding.verdict for one in judged]
    names = [escape(result.experiment) for result, _ in results]
    config = results[0][0].config
    version = defaultdict(lambda: "?", config.get("versions", {}))
    system = config.get("platform", {}).get("system", "unknown system")
    made = f"bieqno {version['bieqno']}, commit {config.get('commit') or 'unknown'}"
    return Template(asset("page.html")).substitute(
        style=asset("page.css"),
        script="\n".join(asset(name) for name in _SCRIPTS),
        # Escaped, so that no text of it ends the element that it is in.
        data=embedded.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"),
        counts=", ".join(_verdict(one, f"{verdicts.count(one)} ") for one in get_args(Verdict) if one in verdicts),
        claims="\n".join(_claim(one) for one in judged),
        navigation="\n".join(f'<a href="#{name}">{name}</a>' for name in names),
        sections="\n".join(sections),
        origin=escape(f"{made}, JAX {version['jax']}, Python {version['python']}, {system}"),
    )


def _claim(judged: Judged) -> str:
    """Return a claim as a row: the finding on the paper's form, and on bieqno's."""
    cells = "".join(f"<td>{_found(one)}</td>" for one in (judged, judged.ours) if one is not None)
    return f'<tr><td><span class="about">{escape(judged.claim.experiment)}</span> {escape(judged.claim.text)}</td>{cells}</tr>'


def _found(judged: Judged) -> str:
    """Return verdicts, number and source of a form."""
    finding, source = judged.finding, escape(judged.source or "")
    link = f'<a href="#{source}">{source}</a>' if source else ""
    if judged.preset == SMOKE:
        link += " at preset smoke, a test run: the verdict means nothing"
    number = escape(finding.number) if source else f"<code>{escape(finding.number)}</code> runs it"
    more = "".join(f"<li>{escape(text)}</li>" for text in finding.further)
    further = f"<details><summary>more numbers</summary><ul>{more}</ul></details>" if more else ""
    tuned = f"<br>{_verdict(finding.tuned)} against the best tuned opponent" if finding.tuned else ""
    return f"{_verdict(finding.verdict)}{tuned}<br>{number} {link}{further}"


def _verdict(verdict: Verdict, count: str = "") -> str:
    return f'<span class="verdict {verdict.replace(" ", "-")}">{count}{verdict}</span>'


def _section(result: Result, figures: dict[str, str], data: dict[str, Any]) -> str:
    """Return an experiment: question, claim, tables, figures, settings and command; put its charts into `data`."""
    parts, shown = result.parts(), []
    for name, part in parts.items():
        if list(parts) != [result.experiment] and name in EXPERIMENTS:
            about = _about(name)
            shown.append(f"<h3>{escape(about.title)} <small>{escape(name)}</small></h3><p>{escape(about.question)}</p>")
            shown.append(f"<p><b>The paper claims:</b> {escape(about.claim)}</p>")
        shown.append('<h4 class="what">What was measured here</h4>' + html_tables(part))
        shown += _figures(result, name, part, figures, data)
    about = _about(result.experiment)
    texts = {"title": about.title, "question": about.question, "claim": about.claim, "seed": result.seed}
    texts |= {"name": result.experiment, "preset": result.preset, "command": result.config.get("command", "")}
    texts["settings"] = json.dumps(result.config, indent=1)
    escaped = {key: escape(str(text)) for key, text in texts.items()}
    return Template(asset("section.html")).substitute(escaped, parts="\n".join(shown))


def _about(name: str) -> Description:
    return EXPERIMENTS[name].description if name in EXPERIMENTS else Description(name, "", "", {})


def _figures(result: Result, name: str, part: Result, figures: dict[str, str], data: dict[str, Any]) -> Iterator[str]:
    """Yield the interactive figures of a part, with static ones for print, then the static figures that remain."""
    used: set[str] = set()
    for chart in charts(part):
        identity = f"{result.experiment}-{name}-{chart.name}"
        data[identity] = chart.data
        stored = [figure_name(result, name, static) for static in chart.static]
        used.update(stored)
        title, caption = (escape(text) for text in title_and_caption(chart.name))
        found = [_data_uri(figures[key]) for key in stored if key in figures]
        images = [f'<img class="static" alt="{title}" src="{address}">' for address in found]
        yield (
            f'<figure data-chart="{escape(identity)}" id="{escape(identity)}"><h4>{title}</h4>'
            f'<div class="live"></div>{"".join(images)}<figcaption>{caption}</figcaption></figure>'
        )
    prefix = figure_name(result, name, "")
    for key, svg in figures.items():
        if key.startswith(prefix) and key not in used:
            caption = escape(title_and_caption(key.removeprefix(prefix))[1])
            yield f'<figure><img alt="{caption}" src="{_data_uri(svg)}"><figcaption>{caption}</figcaption></figure>'


def _data_uri(svg: str) -> str:
    """Return an image as address; a tenth of a point is exact enough for a path."""
    small = re.sub(r' d="[^"]*"', lambda found: re.sub(r"(\.\d)\d+", r"\1", found[0]), svg)
    return f"data:image/svg+xml,{quote(' '.join(small.split()), safe=_SAFE)}"
