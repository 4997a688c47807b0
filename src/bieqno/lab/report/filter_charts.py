"""The filtering studies' figures to explore."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import xarray as xr

from bieqno.lab.report.chart import PAPERS_TWO, Chart, plot_data, short
from bieqno.lab.report.pivots import METRICS, PROTOCOL_NAMES, error_metric, of_growth
from bieqno.lab.studies import Result


def filter_charts(result: Result) -> Iterator[Chart]:
    """Errors, and where series were stored the orbit or the waves and chosen variables over time."""
    if "distances" in result.arrays:  # of roles and not of sizes
        return
    if of_growth(result):  # its figure says all
        return
    yield _errors(result)
    if "paper" in result.arrays:
        yield from _of_series(result.arrays["paper"])


def _errors(result: Result) -> Chart:
    views = {}
    metric = error_metric(result)
    for protocol in dict.fromkeys(row.protocol for row in result.rows if row.protocol):
        rows = result.select(protocol=protocol, metric=metric)
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
            views[PROTOCOL_NAMES.get(protocol, protocol)] = {"series": series}
    data = plot_data(views, "ensemble size N", METRICS[metric].name)
    data["x"]["log"] = data["y"]["log"] = True
    return Chart(
        "errors", "Error against ensemble size",
        "Bars are standard errors. A cross marks a size with which runs diverged; the error is that of the others.", data,
        ("errors",),
    )  # fmt: skip


def _of_series(data: xr.Dataset) -> Iterator[Chart]:
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
                "kind": "orbit", "first": PAPERS_TWO, "sizes": sizes, "truth": short(data["true_path"].values[part], 3),
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
                "kind": "images", "first": PAPERS_TWO, "sizes": sizes, "axes": ["variable", "time"],
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
        plot_data(views, "time", "value", sizes=sizes, first=PAPERS_TWO), ("dynamics",),
    )  # fmt: skip
