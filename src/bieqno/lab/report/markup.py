"""A plain page in one file, without script and without network, and the tables and figures on it."""

import io
from collections.abc import Mapping, Sequence
from html import escape
from string import Template

import matplotlib as mpl
from matplotlib.figure import Figure

from bieqno.lab.report.style import asset


def plain_page(body: str, title: str, parts: Mapping[str, str], **texts: str) -> str:
    """Return a page from the template of its body: `parts` are HTML from the functions below, `texts` are escaped."""
    filled = Template(asset(body)).substitute(parts, **{name: escape(text) for name, text in texts.items()})
    return Template(asset("plain.html")).substitute(title=escape(title), style=asset("plain.css"), body=filled)


def table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], best: Sequence[tuple[int, int]] = (), *, caption: str
) -> str:
    """Return a table in which the cells in `best`, by row and column, are marked."""
    head = "".join(f'<th scope="col">{escape(text)}</th>' for text in headings)
    body = ""
    for i, row in enumerate(rows):
        marks = (" class=best" if (i, j) in best else "" for j in range(len(row)))
        cells = (f"<td{mark}>{escape(text)}</td>" for mark, text in zip(marks, row, strict=True))
        body += f"<tr>{''.join(cells)}</tr>"
    return (
        f'<div class="wide"><table><caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def drawing(figure: Figure, *, caption: str) -> str:
    """Return a figure as inline SVG, with its caption as label for screen readers."""
    buffer = io.StringIO()
    # Text stays text, and identifiers are the same in every run: the same figure is the same file.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": caption, "font.family": "sans-serif"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :].replace("<svg ", f'<svg role="img" aria-label="{escape(caption)}" ', 1)
    return f"<figure>{svg}<figcaption>{escape(caption)}</figcaption></figure>"
