"""The data of the page's interactive figures, as the script draws them; their texts are in ``assets/figures.json``.

A chart has views, of which one is selected, and series of a method and perhaps an ensemble size, which a slider selects.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from bieqno.lab.report import pivots
from bieqno.lab.report.filter_figures import ONE_SIZE
from bieqno.lab.report.style import PAPERS_TWO
from bieqno.lab.results import Result


class Chart(NamedTuple):
    """The data of an interactive figure, and the names of the static figures that replace it in print."""

    name: str
    data: dict[str, Any]
    static: tuple[str, ...]


def charts(result: Result) -> Iterator[Chart]:
    """Yield the interactive figures of a study; none if only tables or static figures show it."""
    if not pivots.protocols(result):
        yield from _regression_charts(result)
    elif "distances" not in result.arrays and not pivots.of_growth(result):
        yield _errors(result)
        if "paper" in result.arrays:
            data = result.arrays["paper"]
            yield _orbit(data) if data.sizes["variable"] == 3 else _waves(data)
            yield _dynamics(data)


def _plot(views: dict[str, Any], x: str, y: str, limits: list[float] | None = None, **more: Any) -> dict[str, Any]:
    return {"kind": "plot", "x": {"label": x}, "y": {"label": y, "limits": limits}, "views": views, **more}


def _thin(count: int, most: int) -> np.ndarray:
    """Return at most about `most` of `count` indices, with the first and the last."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int))


def _short(values: Any, digits: int = 4) -> list[float | None]:
    """Return the numbers with few digits in one list; None for what is not finite."""
    return [float(f"{value:.{digits}g}") if np.isfinite(value) else None for value in np.ravel(values).tolist()]


def _errors(result: Result) -> Chart:
    views: dict[str, Any] = {}
    metric = pivots.error_metric(result)
    for protocol in pivots.protocols(result):
        series = [
            {
                "method": method,
                "x": [row.ensemble_size for row in rows],
                "y": _short([row.value for row in rows]),
                "error": _short([row.stderr or 0.0 for row in rows]),
                "diverged": [row.diverged or 0 for row in rows],
                "flat": len(rows) == 1 and method in ONE_SIZE,
            }
            for method, rows in pivots.by_method(result.select(protocol=protocol, metric=metric)).items()
        ]
        if series:
            views[pivots.PROTOCOL_NAMES.get(protocol, protocol)] = {"series": series}
    data = _plot(views, "ensemble size N", pivots.FILTER_METRICS[metric].name)
    data["x"]["log"] = data["y"]["log"] = True
    return Chart("errors", data, ("errors",))


def _entries(data: xr.Dataset) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the index of each stored entry and the head of its series; the particle filter's series is not stored."""
    for place, (method, size) in enumerate(zip(data["method"].values, data["ensemble_size"].values, strict=True)):
        if method != "particle filter":
            yield place, {"method": str(method), "size": None if method == "baseline" else int(size)}


def _of_sizes(data: xr.Dataset) -> dict[str, Any]:
    """Return the ensemble sizes of stored series, and the methods that are shown first."""
    return {"sizes": sorted({head["size"] for _, head in _entries(data)} - {None}), "first": PAPERS_TWO}


def _orbit(data: xr.Dataset) -> Chart:
    windows = data.sizes["window"]
    steps, span = data.sizes["step"] // windows, min(24, windows)
    first = max(0, min(100, windows - span))
    part = np.arange(first * steps, (first + span) * steps, 2)
    paths = [{**head, "path": _short(data["path"].values[place, part], 3)} for place, head in _entries(data)]
    content = {"kind": "orbit", "truth": _short(data["true_path"].values[part], 3), "series": paths}
    return Chart("orbit", content | _of_sizes(data), ("trajectories",))


def _waves(data: xr.Dataset) -> Chart:
    span, columns = min(50, data.sizes["window"]), data.sizes["variable"]  # as in the paper's figure
    time = data["time"].values[:span]
    means = data["mean"].values[:, 0, :span][:, ::-1]
    series = [{**head, "values": _short(means[place], 3)} for place, head in _entries(data)]
    view = {"rows": span, "columns": columns, "aspect": 0.7, "extent": [1, columns, float(time[0]), float(time[-1])]}
    view |= {"truth": _short(data["truth"].values[0, :span][::-1], 3), "series": series}
    content = {"kind": "images", "axes": ["variable", "time"], "views": {"": view}}
    return Chart("waves", content | _of_sizes(data), ("waves",))


def _dynamics(data: xr.Dataset) -> Chart:
    """Show some variables of the analysis mean at every window."""
    shown = slice(0, min(100, data.sizes["window"]))
    time = _short(data["time"].values[shown])
    views = {}
    for variable in (0, 1, 2) if data.sizes["variable"] == 3 else (5, 11, 19):
        truth = data["truth"].values[0, shown, variable]
        low, high = float(truth.min()), float(truth.max())
        margin = 0.4 * (high - low)  # the truth sets the scale, whatever the errors of the filters
        means = data["mean"].values[:, 0, shown, variable]
        views[f"variable {variable + 1}"] = {
            "limits": [low - margin, high + margin],
            "truth": {"x": time, "y": _short(truth)},
            "series": [{**head, "x": time, "y": _short(means[place])} for place, head in _entries(data)],
        }
    return Chart("dynamics", _plot(views, "time", "value", **_of_sizes(data)), ("dynamics",))


def _regression_charts(result: Result) -> Iterator[Chart]:
    """Yield predictions, maps, the diagonal and the reliability diagram, as far as the study stored them."""
    first = next(iter(result.arrays.values()), None)
    if first is None or "reliability" not in first:
        return
    cases = {pivots.case_title(case): arrays for case, arrays in result.arrays.items()}
    synthetic = "noise" in first.attrs  # real data are scattered points without a known truth
    if synthetic and first.sizes["input"] == 1:
        views = {title: _bands(a, _thin(a.sizes["point"], 250)) for title, a in cases.items()}
        static = dict.fromkeys(f"bands-{case.split('-')[0]}" for case in result.arrays)
        yield Chart("bands", _plot(views, "x", "y", [-0.6, 1.6]), tuple(static))
    elif synthetic:
        views = {title: _map(a) for title, a in cases.items()}
        content = {"kind": "images", "first": PAPERS_TWO, "axes": ["x₁", "x₂"], "views": views}
        yield Chart("maps", content, ("maps",))
        views = {title: _bands(a, a["cut_point"].values) for title, a in cases.items()}
        yield Chart("diagonal", _plot(views, "x₁ = x₂", "f", [-1.8, 3.2]), ("diagonal",))
    views = {}
    for title, a in cases.items():
        level, pairs = _short(a["level"].values), zip(a["method"].values, a["reliability"].values, strict=True)
        series = [{"method": str(method), "x": level, "y": _short(curve)} for method, curve in pairs]
        views[title] = {"truth": {"x": [0, 1], "y": [0, 1], "label": "calibrated"}, "series": series}
    content = _plot(views, "nominal coverage", "observed coverage", [0.0, 1.02])
    yield Chart("reliability", content, ("reliability",))


def _bands(arrays: xr.Dataset, which: np.ndarray) -> dict[str, Any]:
    x, means, stds = _short(arrays["x"].values[which, 0]), arrays["mean"].values[0], arrays["std"].values[0]
    curves = zip(arrays["method"].values, means[:, which], 2 * stds[:, which], strict=True)
    series = [{"method": str(method), "x": x, "y": _short(mean), "band": _short(band)} for method, mean, band in curves]
    view: dict[str, Any] = {"truth": {"x": x, "y": _short(arrays["truth"].values[which])}, "series": series}
    if arrays.sizes["input"] == 1:
        observed = arrays["x_observed"].values[0, :, 0]
        view["points"] = {"x": _short(observed), "y": _short(arrays["y_observed"].values[0])}
    return view


def _map(arrays: xr.Dataset) -> dict[str, Any]:
    side = round(arrays.sizes["point"] ** 0.5)
    keep = _thin(side, 64)

    def image(values: np.ndarray) -> list[float | None]:
        # The first variable is the slow one; an image has rows of the second, from the top down.
        return _short(values.reshape(side, side)[np.ix_(keep, keep)].T[::-1], 3)

    pairs = zip(arrays["method"].values, arrays["mean"].values[0], strict=True)
    series = [{"method": str(method), "values": image(mean)} for method, mean in pairs]
    truth, extent = image(arrays["truth"].values), [0, 1, 0, 1]
    return {"rows": len(keep), "columns": len(keep), "extent": extent, "truth": truth, "series": series}
