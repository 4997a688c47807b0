"""What the page's figures are drawn from: the stored arrays, thinned, as JSON.

A chart has views (of which one is picked), and series that belong to a method and perhaps to an ensemble size (picked with a
slider). ``null`` is where a run has diverged.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from bieqno.experiments import Result
from bieqno.report.html_tables import PROTOCOL_NAMES, case_title
from bieqno.report.studies import of_filters

# The rest can be switched on; where curves or images would crowd, the paper's two alone come first.
FIRST_SHOWN = ("ggp", "gp-se", "gp-matern12", "EnNF", "EnKF", "LETKF tuned", "ETKF tuned")
_PAPERS_TWO = ("ggp", "gp-se", "EnNF", "EnKF")


@dataclass(frozen=True)
class Chart:
    """A figure to explore: its text, the data that the script draws, and the names of the figures that stand for it in print."""

    name: str
    title: str
    caption: str
    data: dict[str, Any]
    static: tuple[str, ...]


def charts(result: Result) -> list[Chart]:
    """All figures to explore of a study."""
    if not result.arrays:
        return [_errors(result)] if of_filters(result) else []
    if not of_filters(result):
        return list(_of_regression(result))
    return [_errors(result), *_of_filters(result)] if "paper" in result.arrays else []


def _of_regression(result: Result) -> Iterator[Chart]:
    first = next(iter(result.arrays.values()))
    cases = {case_title(case): arrays for case, arrays in result.arrays.items()}
    if first.sizes["input"] == 1:
        layouts = dict.fromkeys(case.split("-")[0] for case in result.arrays)
        yield Chart(
            "bands", "Predictions with their uncertainty",
            "Mean and two standard deviations of noisy new values, one data set. Where the truth leaves the band, the method was "
            "too sure; where the band is wide without need, it was not sure enough.",
            _plot({title: _bands(a, thin(a.sizes["point"], 250)) for title, a in cases.items()}, "x", "y", [-0.6, 1.6]),
            tuple(f"bands-{layout}" for layout in layouts),
        )  # fmt: skip
    else:
        yield Chart(
            "maps", "The predicted function as a map",
            "Truth, prediction and error over the unit square, one data set. The finest waves are in the lower "
            "left quarter of the middle.",
            {"kind": "images", "first": _PAPERS_TWO, "axes": ["x₁", "x₂"],
             "views": {title: _maps(a) for title, a in cases.items()}}, ("maps",),
        )  # fmt: skip
        yield Chart(
            "diagonal", "Along the diagonal",
            "Mean and two standard deviations where both variables are equal: all four wave lengths lie on this line.",
            _plot({title: _bands(a, a["cut_point"].values) for title, a in cases.items()}, "x₁ = x₂", "f", [-1.8, 3.2]),
            ("diagonal",),
        )  # fmt: skip
    yield Chart(
        "reliability", "Do the intervals hold what they promise?",
        "Share of new values inside central intervals. On the straight line the predicted uncertainty is right; below it "
        "the method is too sure, above it not sure enough.",
        _plot({title: _reliability(a) for title, a in cases.items()}, "promised", "found", [0.0, 1.02]), ("reliability",),
    )  # fmt: skip


def _plot(views: dict[str, Any], x: str, y: str, limits: list[float] | None = None, **more: Any) -> dict[str, Any]:
    return {"kind": "plot", "x": {"label": x}, "y": {"label": y, "limits": limits}, "views": views, **more}


def _bands(arrays: xr.Dataset, which: np.ndarray) -> dict[str, Any]:
    x = arrays["x"].values[which, 0]
    view: dict[str, Any] = {
        "truth": {"x": short(x), "y": short(arrays["truth"].values[which])},
        "series": [
            {
                "method": str(method),
                "x": short(x),
                "y": short(arrays["mean"].values[0, place, which]),
                "band": short(2 * arrays["std"].values[0, place, which]),
            }
            for place, method in enumerate(arrays["method"].values)
        ],
    }
    if arrays.sizes["input"] == 1:
        observed = arrays["x_observed"].values[0, :, 0]
        view["points"] = {"x": short(observed), "y": short(arrays["y_observed"].values[0])}
    return view


def _maps(arrays: xr.Dataset) -> dict[str, Any]:
    side = round(arrays.sizes["point"] ** 0.5)
    keep = thin(side, 64)

    def image(values: np.ndarray) -> list[float | None]:
        # The first variable is the slow one; an image wants rows of the second, from the top down.
        return short(values.reshape(side, side)[np.ix_(keep, keep)].T[::-1], 3)

    series = [
        {"method": str(method), "values": image(arrays["mean"].values[0, place])}
        for place, method in enumerate(arrays["method"].values)
    ]
    return {"rows": len(keep), "columns": len(keep), "extent": [0, 1, 0, 1], "truth": image(arrays["truth"].values),
            "series": series}  # fmt: skip


def _reliability(arrays: xr.Dataset) -> dict[str, Any]:
    level = short(arrays["level"].values)
    series = [
        {"method": str(method), "x": level, "y": short(arrays["reliability"].values[place])}
        for place, method in enumerate(arrays["method"].values)
    ]
    return {"truth": {"x": [0, 1], "y": [0, 1], "label": "as promised"}, "series": series}


def _errors(result: Result) -> Chart:
    views = {}
    for protocol, title in PROTOCOL_NAMES.items():
        rows = result.select(protocol=protocol, metric="relative_rmse")
        series = []
        for method in dict.fromkeys(row.method for row in rows):
            own = [row for row in rows if row.method == method]
            one: dict[str, Any] = {
                "method": method,
                "x": [row.ensemble_size for row in own],
                "y": short(np.array([row.value for row in own])),
                "error": short(np.array([row.stderr or 0.0 for row in own])),
                "lost": [row.diverged or 0 for row in own],
            }
            # One size only, far from the others or none at all: a line across.
            if len(own) == 1 and method in ("baseline", "particle filter"):
                one["flat"] = True
            series.append(one)
        if series:
            views[title] = {"series": series}
    data = _plot(views, "ensemble size N", "relative RMSE")
    data["x"]["log"] = data["y"]["log"] = True
    return Chart(
        "errors", "Error against ensemble size",
        "Bars are standard errors. A cross marks a size with which runs diverged; the error is that of the others.", data,
        ("errors",),
    )  # fmt: skip


def _of_filters(result: Result) -> Iterator[Chart]:
    data = result.arrays["paper"]
    windows = data.sizes["window"]
    steps = data.sizes["step"] // windows
    entries = [
        (place, str(method), int(size))
        for place, (method, size) in enumerate(zip(data["method"].values, data["ensemble_size"].values, strict=True))
        if method != "particle filter"  # its way is not kept
    ]
    sizes = sorted({size for _, method, size in entries if method != "baseline"})
    if data.sizes["variable"] == 3:
        span = min(24, windows)
        first = max(0, min(100, windows - span))
        part = np.arange(first * steps, (first + span) * steps, 2)
        yield Chart(
            "orbit", "The way through the three variables",
            "Drag to turn, or use the arrow keys. Truth and ensemble mean of one run over 24 windows.",
            {
                "kind": "orbit", "first": _PAPERS_TWO, "sizes": sizes, "truth": short(data["true_path"].values[part], 3),
                "series": [
                    {"method": method, "size": None if method == "baseline" else size,
                     "path": short(data["path"].values[place, part], 3)}
                    for place, method, size in entries
                ],
            },
            ("trajectories",),
        )  # fmt: skip
    else:
        span = min(50, windows)  # as in the paper's figure
        rows, columns = span, data.sizes["variable"]
        time = data["time"].values[:span]
        yield Chart(
            "waves", "Travelling waves",
            "All variables over time, from the bottom up: truth, analysis mean and its error, one run. Grey: it has diverged.",
            {
                "kind": "images", "first": _PAPERS_TWO, "sizes": sizes, "axes": ["variable", "time"],
                "views": {"": {
                    "rows": rows, "columns": columns, "aspect": 0.7, "extent": [1, columns, float(time[0]), float(time[-1])],
                    "truth": short(data["truth"].values[0, :span][::-1], 3),
                    "series": [
                        {"method": method, "size": None if method == "baseline" else size,
                         "values": short(data["mean"].values[place, 0, :span][::-1], 3)}
                        for place, method, size in entries
                    ],
                }},
            },
            ("waves",),
        )  # fmt: skip
    yield _dynamics(data, entries, sizes)


def _dynamics(data: xr.Dataset, entries: Sequence[tuple[int, str, int]], sizes: list[int]) -> Chart:
    """Chosen variables at every window: what the analysis makes of them."""
    variables = (0, 1, 2) if data.sizes["variable"] == 3 else (5, 11, 19)
    shown = slice(0, min(100, data.sizes["window"]))
    time = short(data["time"].values[shown])
    views = {}
    for variable in variables:
        truth = data["truth"].values[0, shown, variable]
        low, high = float(truth.min()), float(truth.max())
        margin = 0.4 * (high - low)  # a filter that is far off would squeeze the rest
        views[f"variable {variable + 1}"] = {
            "limits": [low - margin, high + margin],
            "truth": {"x": time, "y": short(truth)},
            "series": [
                {"method": method, "size": None if method == "baseline" else size, "x": time,
                 "y": short(data["mean"].values[place, 0, shown, variable])}
                for place, method, size in entries
            ],
        }  # fmt: skip
    return Chart(
        "dynamics", "One variable over time",
        "Analysis mean at the end of each window, one run. A line that ends has diverged.",
        _plot(views, "time", "value", sizes=sizes, first=_PAPERS_TWO), ("dynamics",),
    )  # fmt: skip


def thin(count: int, most: int) -> np.ndarray:
    """Indices of at most about `most` of `count` places, the first and the last among them."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int))


def short(values: np.ndarray, digits: int = 4) -> list[float | None]:
    """Numbers with few digits, in one list; None for what is not finite."""
    return [float(f"{value:.{digits}g}") if np.isfinite(value) else None for value in np.ravel(values).tolist()]
