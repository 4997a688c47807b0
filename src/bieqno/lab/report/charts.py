"""Interactive figures as data: the numbers as one table, and how Plotly draws its columns; texts are in ``assets/figures.json``.

A page holds the table once, as the CSV file that can be downloaded under the figure; the script draws the numbers from there.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pandas as pd

from bieqno.lab.report.style import Style, style_of

Column: TypeAlias = str | Sequence[tuple[str, int]]
"""A column of the table, or a sum of columns with factors."""
INK, RULE = "var(--ink)", "var(--rule)"  # the script puts the colours of the theme in their places
_BLACK = "#000000"  # of what is not a method but a limit; it follows the theme
_DASHES = {"-": "solid", "--": "dash", "-.": "dashdot", ":": "dot"}
_SYMBOLS = {
    "o": "circle", "^": "triangle-up", "v": "triangle-down", "<": "triangle-left", ">": "triangle-right", "s": "square",
    "D": "diamond", "d": "diamond-tall", "P": "cross", "X": "x", "x": "x-thin-open", "*": "star", "p": "pentagon",
    "h": "hexagon", "8": "octagon", ".": "circle",
}  # fmt: skip


class Trace(NamedTuple):
    """What Plotly draws: its look, its numbers as columns of the rows from `first` to `last`, and when it is shown.

    `when` holds the values of controls with which the trace is shown. With a `pace`, the control "time" shows that many rows
    for each of its steps.
    """

    look: Mapping[str, Any]
    columns: Mapping[str, Column] = {}
    rows: tuple[int, int] = (0, 0)
    when: Mapping[str, str] = {}
    pace: int = 0


class Control(NamedTuple):
    """A native control: "select", "range" (a slider) or "methods" (boxes to check), its values, and those that are chosen."""

    kind: str
    name: str
    label: str
    values: Sequence[str]
    chosen: Sequence[str] = ()


class Chart(NamedTuple):
    """An interactive figure, and the names of the static figures that replace it in print and without scripts."""

    name: str
    table: pd.DataFrame
    traces: Sequence[Trace]
    layout: Mapping[str, Any]
    controls: Sequence[Control] = ()
    static: Sequence[str] = ()
    narrow: Mapping[str, Any] = {}  # what of the layout differs on a small screen
    axes: Mapping[str, Any] = {}  # what of the vertical axis differs between the views

    def data(self) -> dict[str, Any]:
        """Return the figure for the script: columns by number."""
        places = {str(name): place for place, name in enumerate(self.table.columns)}

        def terms(column: Column) -> list[list[int]]:
            pairs = [(column, 1)] if isinstance(column, str) else column
            return [[places[name], factor] for name, factor in pairs]

        traces = [
            trace._asdict() | {"columns": {key: terms(column) for key, column in trace.columns.items()}}
            for trace in self.traces
        ]
        return {"traces": traces, "layout": self.layout, "narrow": self.narrow, "axes": self.axes}


def stacked(blocks: Mapping[str, Mapping[str, Any]]) -> tuple[pd.DataFrame, dict[str, tuple[int, int]]]:
    """Return tables one under another with their names as first column, and the rows of each."""
    frames = {title: pd.DataFrame(columns) for title, columns in blocks.items()}
    table = pd.concat(frames, names=["case"]).reset_index(level=0).reset_index(drop=True)
    ends = np.cumsum([0, *(len(frame) for frame in frames.values())]).tolist()
    return table, {title: (ends[k], ends[k + 1]) for k, title in enumerate(frames)}


def thin(count: int, most: int) -> np.ndarray:
    """Return at most about `most` of `count` indices, with the first and the last."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int))


def line(method: str, *, marker: bool = False, width: float = 2.0, **look: Any) -> dict[str, Any]:
    """Return the look of a method's line."""
    style = style_of(method)
    drawn = {"type": "scatter", "mode": "lines", "name": style.label, "hovertemplate": "%{y:.4g}", **look}
    color = INK if style.color == _BLACK else style.color
    drawn["line"] = {"color": color, "dash": _DASHES[style.line], "width": width}
    if marker:
        drawn |= {"mode": "lines+markers", "marker": {"symbol": _SYMBOLS[style.marker], "size": 7, "color": color}}
    return drawn


def band(x: str, edges: tuple[Column, Column], rows: tuple[int, int], fill: str, **when: str) -> list[Trace]:
    """Return two edges, which are not drawn, and what is between them, filled."""
    edge = {"type": "scatter", "mode": "lines", "line": {"width": 0}, "hoverinfo": "skip"}
    looks = edge, edge | {"fill": "tonexty", "fillcolor": fill}
    return [Trace(look, {"x": x, "y": y}, rows, when) for look, y in zip(looks, edges, strict=True)]


def truth_line(name: str = "truth", **look: Any) -> dict[str, Any]:
    """Return the look of the truth, or of what else all lines are compared with."""
    drawn = {"type": "scatter", "mode": "lines", "name": name, "hovertemplate": "%{y:.4g}"}
    return drawn | {"line": {"color": INK, "width": 1.2}} | look


def swatch(style: Style) -> str:
    """Return a short line as a method's lines are drawn, as SVG."""
    dashes = {"-": "", "--": "6 3", "-.": "6 2 2 2", ":": "2 3"}[style.line]
    color = "currentColor" if style.color == _BLACK else style.color
    return (
        '<svg class="swatch" width="26" height="8" aria-hidden="true">'
        f'<line x1="0" y1="4" x2="26" y2="4" stroke="{color}" stroke-width="3" stroke-dasharray="{dashes}"/></svg>'
    )


def axis(title: str = "", **more: Any) -> dict[str, Any]:
    """Return an axis in the colours of the theme."""
    made = {"title": {"text": title, "standoff": 8}, "gridcolor": RULE, "linecolor": RULE, "zeroline": False}
    return made | {"automargin": True} | more


def log_axis(title: str, values: Iterable[float]) -> dict[str, Any]:
    """Return a logarithmic axis with round numbers in the range of the values, a handful of them."""
    finite = [value for value in values if math.isfinite(value) and value > 0] or [1.0]
    low, high = min(finite) / 1.15, max(finite) * 1.15
    leads = (1, 2, 5) if high / low > 8 else (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [round(lead * 10.0**power, 12) for power in powers for lead in leads if low <= lead * 10.0**power <= high]
    ends = [math.log10(low), math.log10(high)]
    return axis(title, type="log", range=ends, tickvals=ticks, ticktext=[f"{tick:g}" for tick in ticks])


def layout(x: Mapping[str, Any], y: Mapping[str, Any], height: int = 400, **more: Any) -> dict[str, Any]:
    """Return the layout of one pair of axes; the legend is made of native controls."""
    return {
        "xaxis": x, "yaxis": y, "height": height, "hovermode": "x unified", "showlegend": False, "dragmode": "pan",
        "hoverdistance": -1,
        "margin": {"l": 50, "r": 10, "t": 10, "b": 45}, "font": {"color": INK, "family": "system-ui, sans-serif", "size": 13},
        "paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)", "hoverlabel": {"bgcolor": "var(--paper)"},
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": "var(--soft)", "activecolor": INK},
    } | more  # fmt: skip


def methods_control(methods: Iterable[str], first: Iterable[str]) -> Control:
    """Return the boxes that show and hide methods; without any of the `first`, two are shown."""
    every, wanted = list(dict.fromkeys(methods)), set(first)
    shown = [method for method in every if method in wanted] or every[:2]
    return Control("methods", "method", "Methods", every, shown)
