"""A page in one file, without a script and without the network: texts, tables and figures one below the other."""

import io
from collections.abc import Sequence
from html import escape

import matplotlib as mpl
from matplotlib.figure import Figure

_STYLE = """
:root { color-scheme: light dark; --ink: #1c1c1e; --paper: #ffffff; --line: #d0d0d4; --mark: #e6f0fa; }
@media (prefers-color-scheme: dark) { :root { --ink: #ececf0; --paper: #17181b; --line: #3c3d42; --mark: #1d3550; } }
body { margin: 0 auto; max-width: 58rem; padding: 1.5rem 1rem 4rem; color: var(--ink); background: var(--paper);
  font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.25; }
h2 { font-size: 1.2rem; margin-top: 2.2rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .7rem; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; }
td.best { background: var(--mark); font-weight: 600; }
caption, figcaption { text-align: left; font-size: .9rem; padding: .4rem 0; }
caption { caption-side: bottom; }
figure { margin: 1rem 0; }
/* Figures keep their white ground in the dark, for their colours were chosen on it. */
figure svg { max-width: 100%; height: auto; background: #fff; border-radius: 6px; }
pre { overflow-x: auto; padding: .7rem; border: 1px solid var(--line); border-radius: 6px; }
"""


def plain_page(title: str, parts: Sequence[str]) -> str:
    """The whole page; the parts are made by the functions below.

    Example:
        >>> page = plain_page("A & B", [paragraph("2 < 3")])
        >>> "A &amp; B" in page, "2 &lt; 3" in page, "http" in page
        (True, True, False)
    """
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n<h1>{escape(title)}</h1>\n"
        + "\n".join(parts)
        + "\n</main>\n</body>\n</html>\n"
    )


def heading(text: str) -> str:
    """A heading within the page."""
    return f"<h2>{escape(text)}</h2>"


def paragraph(text: str) -> str:
    """A paragraph."""
    return f"<p>{escape(text)}</p>"


def verbatim(text: str) -> str:
    """A command or a file as it is."""
    return f"<pre>{escape(text)}</pre>"


def table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], *, caption: str, best: Sequence[tuple[int, int]]
) -> str:
    """A table; the cells in `best`, by row and column, are marked."""
    head = "".join(f'<th scope="col">{escape(text)}</th>' for text in headings)
    marked = set(best)
    body = "".join(
        "<tr>"
        + "".join(f"<td{' class=best' if (i, j) in marked else ''}>{escape(text)}</td>" for j, text in enumerate(row))
        + "</tr>"
        for i, row in enumerate(rows)
    )
    return (
        f'<div class="wide"><table><caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def drawing(figure: Figure, *, caption: str) -> str:
    """A figure as drawing within the page, with its caption for those who see and those who listen."""
    buffer = io.StringIO()
    # Letters as letters, and marks that are the same in every run: the same figure is the same text.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": caption, "font.family": "sans-serif"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :].replace("<svg ", f'<svg role="img" aria-label="{escape(caption)}" ', 1)
    return f"<figure>{svg}<figcaption>{escape(caption)}</figcaption></figure>"
