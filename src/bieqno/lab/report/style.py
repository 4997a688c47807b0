"""The files in ``assets``, and one label, colour, line and marker per method, the same in every figure.

The colours are those of Okabe and Ito and seven more, safe for colour-blind readers. They differ in lightness as well as in hue
and are visible on white and on black; line and marker distinguish what colour alone would not.
"""

import functools
import json
from importlib import resources
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

PAPERS_TWO = ("ggp", "gp-se", "EnNF", "EnKF")  # shown first where many curves or images would be hard to read
FIRST_SHOWN = (*PAPERS_TWO, "gp-matern12", "LETKF tuned", "ETKF tuned")
TRUTH = "black"


@functools.cache
def asset(name: str) -> str:
    """Return the text of a file in ``assets``."""
    return (resources.files("bieqno.lab.report") / "assets" / name).read_text(encoding="utf-8")


class Style(NamedTuple):
    """Label and appearance of a method."""

    label: str
    color: str
    line: str
    marker: str

    def keywords(self, *, marker: bool = True) -> dict[str, Any]:
        """Return the keywords of Matplotlib's `plot` and `errorbar`, with the label for the legend."""
        line = {"color": self.color, "linestyle": self.line, "label": self.label}
        return line | {"marker": self.marker} if marker else line


_STYLES = {method: Style(*style) for method, style in json.loads(asset("styles.json")).items()}


def style_of(method: str) -> Style:
    """Return the style of a method; grey under its own name if it has none."""
    return _STYLES.get(method, Style(method, "#666666", "-", "."))


def panels(
    rows: int, columns: int, size: tuple[float, float], x: str = "", y: str = "", **sharing: Any
) -> tuple[Figure, np.ndarray]:
    """Return a figure and its grid of axes, labelled at the lower and at the left edge."""
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, **sharing)
    for axes in grid[-1]:
        axes.set_xlabel(x)
    for axes in grid[:, 0]:
        axes.set_ylabel(y)
    return figure, grid
