"""Pieces of HTML, and a plain page of them in one file: texts, tables and figures, without script and without network."""

import io
from collections.abc import Sequence
from html import escape
from string import Template

import matplotlib as mpl
from matplotlib.figure import Figure

from bieqno.lab.report.style import asset


def plain_page(title: str, parts: Sequence[str]) -> str:
    """Return a whole page; the parts are made by the functions below.

    Example:
        >>> page = plain_page("A & B", [paragraph("2 < 3")])
        >>> "A &amp; B" in page, "2 &lt; 3" in page, "http" in page
        (True, True, False)
    """
    template = Template(asset("plain.html"))
    return template.substitute(title=escape(title), style=asset("plain.css"), parts="\n".join(parts))


def heading(text: str) -> str:
    """Return a heading."""
    return f"<h2>{escape(text)}</h2>"


def paragraph(text: str) -> str:
    """Return a paragraph."""
    return f"<p>{escape(text)}</p>"


def verbatim(text: str) -> str:
    """Return a command or a file as it is."""
    return f"<pre>{escape(text)}</pre>"


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
