"""Images side by side: the truth, and of two methods to choose the values and their errors; with horizontal colour scales."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import to_hex

from bieqno.lab.report.charts import Control, Trace, axis, layout
from bieqno.lab.report.style import PAPERS_TWO, style_of

IMAGE_TITLES = ("truth", "first", "its error", "second", "its error")
DIVERGED = "#8a8a8a"  # seen where a run has diverged


def image_layout(
    titles: Sequence[str], columns: int, width_over_height: float, labels: tuple[str, str], scales: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the layout of images side by side in some columns, each with a title, over horizontal colour scales."""
    rows = math.ceil(len(titles) / columns)
    height = round(rows * (900 if columns > 2 else 330) / columns / width_over_height) + 40 * rows + 120
    made: dict[str, Any] = layout({}, {}, height, hovermode="closest", plot_bgcolor=DIVERGED)
    made["margin"] = {"l": 50, "r": 10, "t": 25, "b": 130}
    made["annotations"] = []
    gap, between = 0.02 if columns > 2 else 0.06, 70 / (height - 155)
    for place, title in enumerate(titles):
        row, column = divmod(place, columns)
        left, right = column * (1 + gap) / columns, min(1.0, (column + 1) * (1 + gap) / columns - gap)
        top = 1 - row * (1 + between) / rows
        bottom = max(0.0, top - (1 + between) / rows + between)
        number = "" if place == 0 else str(place + 1)
        under, beside = place + columns >= len(titles), column == 0
        across = axis(labels[0] if under else "", domain=[left, right], anchor=f"y{number}", showgrid=False)
        up = axis(labels[1] if beside else "", domain=[bottom, top], anchor=f"x{number}", showgrid=False)
        made[f"xaxis{number}"] = across | {"showticklabels": under, "nticks": 4} | ({"matches": "x"} if number else {})
        made[f"yaxis{number}"] = up | {"showticklabels": beside, "nticks": 5} | ({"matches": "y"} if number else {})
        made["annotations"].append(
            {"text": title, "x": (left + right) / 2, "y": top, "xref": "paper", "yref": "paper", "showarrow": False,
             "yanchor": "bottom"}
        )  # fmt: skip
    for place, (name, scale) in enumerate(scales.items()):
        share = min(1, len(titles) / columns) / len(scales)
        bar = {"orientation": "h", "x": (place + 0.5) * share, "len": 0.8 * share, "thickness": 10}
        bar |= {"y": -62 / (height - 155), "yanchor": "top", "title": {"text": name, "side": "bottom"}, "nticks": 5}
        made[f"coloraxis{place + 1 if place else ''}"] = {**scale, "colorbar": bar}
    return made


def image(name: str, place: int, scale: int = 0) -> dict[str, Any]:
    """Return the look of an image at a place of `image_layout`."""
    number = "" if place == 0 else str(place + 1)
    axes = {"xaxis": f"x{number}", "yaxis": f"y{number}", "coloraxis": f"coloraxis{scale + 1 if scale else ''}"}
    hover = f"{name}<br>%{{x:.3g}}, %{{y:.3g}}: %{{z:.3g}}<extra></extra>"
    return {"type": "heatmap", "name": name, "hovertemplate": hover, **axes}


def colours(name: str, places: Sequence[float] = ()) -> list[list[Any]]:
    """Return a colour scale of Matplotlib; `places` moves its colours, evenly spaced, to other shares of the range."""
    even = np.linspace(0, 1, len(places) or 17).tolist()
    at = [0.0, *list(places)[1:-1], 1.0] if len(places) else even  # rounding must not move the ends
    return [[place, to_hex(colormaps[name](share))] for place, share in zip(at, even, strict=True)]


def compared_images(
    series: Sequence[tuple[str, str, dict[str, str]]], axes: tuple[str, str], views: dict[str, Any]
) -> list[Trace]:
    """Return images of the truth, of two chosen methods and of their errors; `series` has column, method and when."""
    x, y = axes
    traces = [Trace(image("truth", 0), {"x": x, "y": y, "z": "truth"}, rows, when) for when, rows in views.values()]
    for column, method, more in series:
        for view, rows in views.values():
            for choice, place in (("first", 1), ("second", 3)):
                when, label = {choice: method, **view, **more}, style_of(method).label
                traces.append(Trace(image(label, place), {"x": x, "y": y, "z": column}, rows, when))
                gap = [(column, 1), ("truth", -1)]
                named = image(f"error of {label}", place + 1, 1)
                traces.append(Trace(named, {"x": x, "y": y, "z": gap}, rows, when))
    return traces


def image_controls(methods: Sequence[str]) -> list[Control]:
    """Return the choice of two methods, first the paper's."""
    usual = [*(method for method in PAPERS_TWO if method in methods), *methods]
    chosen = list(dict.fromkeys(usual))[:2]
    return [
        Control("select", "first", "First", methods, chosen[:1]), Control("select", "second", "Second", methods, chosen[-1:])
    ]  # fmt: skip


def image_scales(limit: float) -> dict[str, Any]:
    """Return the colour scales of values and of errors."""
    ends = {"cmin": -limit, "cmax": limit}
    return {"value": {"colorscale": colours("viridis"), **ends}, "error": {"colorscale": colours("PuOr"), **ends}}
