"""One page from stored results, in one file: every claim with its verdict, then each study with its tables and figures."""

import json
import math
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import get_args

from matplotlib.figure import Figure

from bieqno.lab.report.charts import Chart
from bieqno.lab.report.claims import SMOKE, Judged, judge_all
from bieqno.lab.report.filter_charts import filter_charts
from bieqno.lab.report.filter_figures import filter_figures
from bieqno.lab.report.findings import Verdict
from bieqno.lab.report.headline import Headline, headlines
from bieqno.lab.report.live_figures import allowed_scripts, image_address, live_figure, scripts
from bieqno.lab.report.pivots import protocols
from bieqno.lab.report.regression_charts import regression_charts
from bieqno.lab.report.regression_figures import regression_figures
from bieqno.lab.report.style import asset
from bieqno.lab.report.tables import html_tables
from bieqno.lab.results import DAMAGED, FIGURES_FOLDER, METRICS_FILE, Result, read_result
from bieqno.lab.studies import EXPERIMENTS, Description
from bieqno.persistence.tensorfile import replace_file

PAGE_FILE = "report.html"


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
    replace_file(Path(folder) / PAGE_FILE, build_page(results_in(folder)).encode())
    return Path(folder) / PAGE_FILE


def found_in(folder: str | os.PathLike[str]) -> list[tuple[str, str]]:
    """Return what the first screen says of filters and of regression, from all results in a folder: title and sentence."""
    return [(half.title, half.sentence) for half in headlines(result for result, _ in results_in(folder))]


def results_in(folder: str | os.PathLike[str]) -> list[tuple[Result, dict[str, bytes]]]:
    """Return all results in a folder with their figures as PNG by name, in the order of the studies."""
    # Hidden folders are left by a run that was killed while it wrote.
    found = [path.parent for path in sorted(Path(folder).glob(f"*/{METRICS_FILE}")) if path.parent.name[0] != "."]
    if not found:
        raise ValueError(f"there are no results in {folder}; make some with: bieqno run demo --out {folder}")
    found.sort(key=lambda path: place_of(path.name))
    sources: dict[str, Path] = {}
    results = []
    for path in found:
        try:
            result = read_result(path)
        except DAMAGED as error:
            raise ValueError(f"the result in {path} is incomplete or damaged ({error}); run it again") from error
        first = sources.setdefault(result.experiment, path)
        if first != path:
            raise ValueError(f"{first} and {path} both hold {result.experiment}; move one of them to another folder")
        drawn = sorted((path / FIGURES_FOLDER).glob("*.png"))
        results.append((result, {file.stem: file.read_bytes() for file in drawn}))
    return results


def place_of(study: str) -> int:
    """Return the place of a study in the order of all, the last if it is not among them."""
    return [*EXPERIMENTS, study].index(study)


def build_page(results: Sequence[tuple[Result, Mapping[str, bytes]]], most_numbers: float = math.inf) -> str:
    """Return the page of results with figures as PNG by name; a live figure of more than `most_numbers` is shown as PNG."""
    charts: dict[str, Chart] = {}
    halves = [_half(half, results, charts) for half in headlines(result for result, _ in results)]
    sections = [_section(result, figures, charts, most_numbers) for result, figures in results]
    judged = judge_all(result for result, _ in results)
    verdicts = [one.finding.verdict for one in judged]
    names = [result.experiment for result, _ in results]
    return Template(asset("page.html")).substitute(
        style=asset("page.css"),
        scripts=scripts(charts),
        allowed_scripts=allowed_scripts(),
        halves="\n".join(halves),
        counts=", ".join(_verdict(one, f"{verdicts.count(one)} ") for one in get_args(Verdict) if one in verdicts),
        claims="\n".join(_claim(one) for one in judged),
        navigation="\n".join(f'<a href="#{escape(name)}">{escape(_about(name).title)}</a>' for name in names),
        sections="\n".join(sections),
        origins="\n".join(_origin(result) for result, _ in results),
    )


def _origin(result: Result) -> str:
    """Return how a result was made, as a row: the results of one page may have been made at different times."""
    config = result.config
    version = defaultdict(lambda: "?", config.get("versions", {}))
    took = f"{config['wall_seconds'] / 60:.1f} min" if "wall_seconds" in config else ""
    took += f" and {config['cases_resumed']} cases of an earlier run" if config.get("cases_resumed") else ""
    system = config.get("platform", {}).get("system", "unknown system")
    code = f"bieqno {version['bieqno']}, commit {config.get('commit') or 'unknown'}"
    made = f"{code}, JAX {version['jax']}, Python {version['python']}, {system}"
    commands = "; ".join(_commands(result))
    cells = (result.preset, config.get("started", ""), took, made, commands)
    return f'<tr><th scope="row">{escape(result.experiment)}</th>{"".join(f"<td>{escape(c)}</td>" for c in cells)}</tr>'


def _commands(result: Result) -> list[str]:
    return [part["command"] for part in (result.config, *result.config.get("parts", ())) if "command" in part]


def _half(half: Headline, results: Sequence[tuple[Result, Mapping[str, bytes]]], charts: dict[str, Chart]) -> str:
    """Return what the first screen says of filters or of regression; its static figure is that of the study."""
    shown, source = "", ""
    for result, figures in results:
        if half.study not in result.parts() or shown:
            continue
        if half.chart:
            names = [figure_name(result, half.study, static) for static in half.chart.static]
            images = [figures[name] for name in names if name in figures]
            identity, source = f"headline-{half.title.lower()}", result.experiment
            charts[identity] = half.chart
            shown = live_figure(half.chart, identity, title_and_caption(half.chart.name), images, level=3)
        elif figures and not result.arrays:  # kept without its arrays: its first figure as it was drawn
            source, name = result.experiment, next(iter(figures))
            shown = _still_figure([figures[name]], *title_and_caption(name))
    return Template(asset("half.html")).substitute(
        {key: _text(getattr(half, key)) for key in ("title", "sentence", "rest")},
        losses="".join(f"<li>{_text(loss)}</li>" for loss in half.losses),
        figure=shown,
        source=f'<a href="#{escape(source)}">{escape(half.study)}</a>' if source else escape(half.study),
    )


def _text(text: str) -> str:
    return escape(text).replace(" %", "&nbsp;%")


def _claim(judged: Judged) -> str:
    """Return a claim as a row: the finding on the paper's form, and on bieqno's."""
    cells = "".join(f"<td>{_found(one)}</td>" for one in (judged, judged.ours) if one is not None)
    return f'<tr><td><span class="about">{escape(judged.claim.experiment)}</span> {escape(judged.claim.text)}</td>{cells}</tr>'


def _found(judged: Judged) -> str:
    """Return verdicts, number and source of a form."""
    finding, source = judged.finding, escape(judged.source or "")
    link = f'<a href="#{source}">{source}</a>' if source else ""
    link += f" at preset {escape(judged.preset)}" if judged.preset else ""
    if judged.preset == SMOKE:
        link += ", a test run: the verdict means nothing"
    number = escape(finding.number) if source else f"<code>{escape(finding.number)}</code> runs it"
    more = "".join(f"<li>{escape(text)}</li>" for text in finding.further)
    further = f"<details><summary>more numbers</summary><ul>{more}</ul></details>" if more else ""
    tuned = f"<br>{_verdict(finding.tuned)} against the best tuned opponent" if finding.tuned else ""
    return f"{_verdict(finding.verdict)}{tuned}<br>{number} {link}{further}"


def _verdict(verdict: Verdict, count: str = "") -> str:
    return f'<span class="verdict {verdict.replace(" ", "-")}">{count}{verdict}</span>'


def _section(result: Result, figures: Mapping[str, bytes], charts: dict[str, Chart], most_numbers: float) -> str:
    """Return an experiment: question, claim, tables, figures, settings and command; put its charts into `charts`."""
    parts, shown = result.parts(), []
    for name, part in parts.items():
        if list(parts) != [result.experiment] and name in EXPERIMENTS:
            about = _about(name)
            shown.append(f"<h3>{escape(about.title)} <small>{escape(name)}</small></h3><p>{escape(about.question)}</p>")
            shown.append(f"<p><b>The paper claims:</b> {escape(about.claim)}</p>")
        shown.append('<h4 class="what">Results</h4>' + html_tables(part))
        shown += _figures(result, name, part, figures, charts, most_numbers)
    about = _about(result.experiment)
    texts = {"title": about.title, "question": about.question, "claim": about.claim, "seed": result.seed}
    texts |= {"name": result.experiment, "preset": result.preset, "command": "\n".join(_commands(result))}
    texts["settings"] = json.dumps(result.config, indent=1)
    escaped = {key: escape(str(text)) for key, text in texts.items()}
    return Template(asset("section.html")).substitute(escaped, parts="\n".join(shown))


def _about(name: str) -> Description:
    return EXPERIMENTS[name].description if name in EXPERIMENTS else Description(name, "", {}, claim="")


def _figures(
    result: Result, name: str, part: Result, figures: Mapping[str, bytes], charts: dict[str, Chart], most_numbers: float
) -> Iterator[str]:
    """Yield the interactive figures of a part, with static ones for print, then the static figures that remain."""
    used: set[str] = set()
    for chart in (filter_charts if protocols(part) else regression_charts)(part):
        identity, texts = f"{result.experiment}-{name}-{chart.name}", title_and_caption(chart.name)
        stored = [figure_name(result, name, static) for static in chart.static]
        used.update(stored)
        images = [figures[key] for key in stored if key in figures]
        if images and chart.table.size > most_numbers:
            yield _still_figure(images, *texts)
        else:
            charts[identity] = chart
            yield live_figure(chart, identity, texts, images)
    prefix = figure_name(result, name, "")
    for key, image in figures.items():
        if key.startswith(prefix) and key not in used:
            yield _still_figure([image], "", title_and_caption(key.removeprefix(prefix))[1])


def _still_figure(images: Iterable[bytes], title: str, caption: str) -> str:
    """Return a figure of images alone, each as PNG."""
    headed, caption = f"<h4>{escape(title)}</h4>" if title else "", escape(caption)
    shown = "".join(f'<img alt="{escape(title) or caption}" src="{image_address(image)}">' for image in images)
    return f"<figure>{headed}{shown}<figcaption>{caption}</figcaption></figure>"
