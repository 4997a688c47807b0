"""Interactive figures as HTML: native controls, the drawing, a static image for print, and the numbers as table and as CSV."""

import base64
import hashlib
import io
import json
from collections.abc import Iterable, Mapping
from functools import cache
from html import escape
from urllib.parse import quote

import pandas as pd
from PIL import Image
from plotly.offline import get_plotlyjs

from bieqno.lab.report.charts import Chart, Control, swatch, thin
from bieqno.lab.report.style import asset, style_of

_SAFE = " /=:;,.+-()[]{}!*$@|'?^~"  # characters that need no escape in an address within double quotes
_LONG, _SOME = 60, 25  # a table of more rows is shown in part
# Plotly offers to upload figures to its cloud: not from here.
_BUTTONS = [["toImage", "resetViews"]]
_CONFIG = {"responsive": True, "displaylogo": False, "plotlyServerURL": "", "modeBarButtons": _BUTTONS}
_WIDTH, _COLOURS = 800, 64  # of a static image: drawings have few colours, and many images make a page large


def live_figure(chart: Chart, identity: str, texts: tuple[str, str], images: Iterable[bytes], level: int = 4) -> str:
    """Return a figure with its title, if it has one, and caption; `images` are static ones as PNG."""
    title, caption = (escape(text) for text in texts)
    headed = f"<h{level}>{title}</h{level}>" if title else ""
    title = title or caption
    static = "".join(f'<img class="static" alt="{title}" src="{image_address(image)}">' for image in images)
    controls = "".join(_control(control, f"{identity}-{control.name}") for control in chart.controls)
    name = escape(identity)
    return (
        f'<figure data-chart id="{name}">{headed}<div class="controls">{controls}</div>'
        f'<div class="live" role="group" tabindex="0" style="--height:{chart.layout["height"]}px" '
        f'aria-label="{title}. Arrow keys read values or turn it."></div>'
        f'<output class="readout" aria-live="polite"></output>{static}<figcaption>{caption}</figcaption>'
        f"{numbers(chart.table, identity)}</figure>"
    )


def _control(control: Control, identity: str) -> str:
    label, name = escape(control.label), escape(control.name)
    chosen = list(control.chosen) or list(control.values[:1])
    if control.kind == "range":
        at = control.values.index(chosen[0]) if chosen else 0
        hidden = " hidden" if len(control.values) < 2 else ""
        return (
            f"<label{hidden}>{label} = <span>{escape(''.join(chosen[:1]))}</span> "
            f'<input type="range" name="{name}" min="0" max="{max(0, len(control.values) - 1)}" value="{at}" '
            f'data-values="{escape("|".join(control.values))}"></label>'
        )
    if control.kind == "select":
        selected = {value: " selected" if value in chosen else "" for value in control.values}
        options = "".join(
            f'<option value="{escape(value)}"{mark}>{escape(style_of(value).label)}</option>'
            for value, mark in selected.items()
        )
        hidden = " hidden" if len(control.values) < 2 else ""
        return f'<label{hidden}>{label} <select name="{name}" id="{escape(identity)}">{options}</select></label>'
    boxes = "".join(
        f'<label><input type="checkbox" name="{name}" value="{escape(value)}"{" checked" if value in chosen else ""}>'
        f"{swatch(style_of(value))}{escape(style_of(value).label)}</label>"
        for value in control.values
    )
    return f'<fieldset class="legend"><legend>{label}</legend>{boxes}</fieldset>'


def numbers(table: pd.DataFrame, name: str) -> str:
    """Return the numbers of a figure, folded: a table that can be sorted, of many rows some, and all of them as CSV."""
    part = table.iloc[thin(len(table), _SOME)] if len(table) > _LONG else table
    text = part.to_csv(index=False, header=False, float_format="%.4g", sep="\t").splitlines()
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row.split(chr(9)))}</tr>" for row in text)
    shown = f"{len(part)} of {len(table)} rows; all are in the CSV file" if len(part) < len(table) else "All rows"
    head = "".join(heading(str(column)) for column in table.columns)
    return (
        f'<details class="numbers"><summary>The numbers</summary><div class="table" role="region" tabindex="0" '
        f'aria-label="The numbers of this figure"><table><caption>{shown}</caption><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div></details>{csv_link(table, name)}"
    )


def heading(text: str) -> str:
    """Return the heading of a column, by which a table can be sorted."""
    return f'<th scope="col"><button type="button" title="sort">{escape(text)}</button></th>'


def csv_link(table: pd.DataFrame, name: str) -> str:
    """Return a link that downloads a table as CSV, with four digits of each number."""
    address = quote(table.to_csv(index=False, float_format="%.4g", lineterminator="\n"), safe=_SAFE)
    return f'<a class="csv" download="{escape(name)}.csv" href="data:text/csv;charset=utf-8,{address}">Download CSV</a>'


def image_address(png: bytes) -> str:
    """Return an image as address, with fewer points and colours."""
    with Image.open(io.BytesIO(png)) as image:
        plain = image.convert("RGB")
    size = (min(_WIDTH, plain.width), round(plain.height * min(1.0, _WIDTH / plain.width)))
    # Few points of a drawing are coloured: unlike the default this quantization keeps rare colours.
    rare, plain = Image.Quantize.FASTOCTREE, plain.resize(size, Image.Resampling.LANCZOS)
    small = plain.quantize(_COLOURS, rare, dither=Image.Dither.NONE)
    buffer = io.BytesIO()
    small.save(buffer, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def scripts(charts: Mapping[str, Chart]) -> str:
    """Return what makes the figures of a page live: how to draw them, Plotly, and the script; nothing is loaded."""
    content = {"charts": {identity: chart.data() for identity, chart in charts.items()}, "config": _CONFIG}
    data = json.dumps(content, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    # Escaped, so that no text of it ends the element that it is in.
    data = data.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
    # With the ends of lines that a browser reads, for it compares digests of what it read.
    code = "\n".join(f"<script>{text}</script>" for text in _code())
    return f'<script type="application/json" id="data">{data}</script>\n{code}'


def allowed_scripts() -> str:
    """Return what the Content-Security-Policy of a page says of scripts: these and no others are run, by their digests."""
    digests = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in _code())
    return " ".join(f"'sha256-{digest}'" for digest in digests)


@cache
def _code() -> tuple[str, ...]:
    """Return the scripts of a page: Plotly, and what draws its figures."""
    both = get_plotlyjs(), f'"use strict";\n{asset("page.js")}'
    return tuple(text.replace("\r\n", "\n").replace("\r", "\n") for text in both)
