"""The interactive figures of the filtering studies."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from bieqno.lab.report import images, pivots
from bieqno.lab.report.charts import (
    INK,
    RULE,
    Chart,
    Column,
    Control,
    Trace,
    axis,
    layout,
    line,
    log_axis,
    methods_control,
    thin,
    truth_line,
)
from bieqno.lab.report.filter_figures import FIELD_COLOURS, FIELD_TITLES, ONE_SIZE
from bieqno.lab.report.style import PAPERS_TWO, style_of
from bieqno.lab.results import Result, Row

_ERROR, _SIZE = "standard error", "ensemble size N"


def filter_charts(result: Result) -> Iterator[Chart]:
    """Yield the interactive figures of a study of filters."""
    if "distances" in result.arrays:
        yield _distances(result.arrays["distances"])
    elif pivots.of_growth(result):
        yield _growth(result)
    else:
        yield errors(result)
        if "fields" in result.arrays:
            yield _fields(result.arrays["fields"])
        if "paper" in result.arrays:
            data = result.arrays["paper"]
            yield _orbit(data) if data.sizes["variable"] == 3 else _waves(data)
            yield _dynamics(data)


def _of_rows(rows: Sequence[Row], x: str, at: Callable[[Row], int | None], value: str) -> dict[str, Any]:
    """Return the columns of some rows."""
    columns: dict[str, Any] = {"method": [style_of(row.method).label for row in rows], x: [at(row) for row in rows]}
    columns |= {value: [row.value for row in rows], _ERROR: [row.stderr for row in rows]}
    columns |= {"runs": [row.n + (row.diverged or 0) for row in rows], "diverged": [row.diverged or 0 for row in rows]}
    return columns


def _with_bars(method: str, x: str, value: str, rows: tuple[int, int], when: dict[str, str]) -> Trace:
    """Return a line with bars of one standard error."""
    bars = {"type": "data", "thickness": 1.2, "width": 3}
    return Trace(line(method, marker=True, error_y=bars), {"x": x, "y": value, "error_y.array": _ERROR}, rows, when)


def errors(result: Result, shown: Sequence[str] = (), height: int = 400) -> Chart:
    """Return the error against the ensemble size; a view for each protocol, of all or of those `shown`."""
    metric, found = pivots.error_metric(result), {}
    value = pivots.FILTER_METRICS[metric].name
    for protocol in shown or pivots.protocols(result):
        for method, rows in pivots.by_method(result.select(protocol=protocol, metric=metric)).items():
            view = pivots.PROTOCOL_NAMES.get(protocol, protocol)
            found[view, method] = sorted(rows, key=lambda row: row.ensemble_size or 0)
    every = [row for rows in found.values() for row in rows]
    sizes = sorted({row.ensemble_size or 1 for row in every if row.method not in ONE_SIZE} or {1, 2})
    ends = [sizes[0] / 1.15, sizes[-1] * 1.15]
    traces: list[Trace] = []
    start = 0
    labels: Counter[str] = Counter()
    for (view, method), rows in found.items():
        when = {"view": view, "method": method}
        if len(rows) == 1 and method in ONE_SIZE:
            size = "" if method == "baseline" else f", N = {rows[0].ensemble_size:,}"
            along = sizes if len(sizes) > 1 else ends
            flat = {"name": style_of(method).label + size, "x": along, "y": [rows[0].value] * len(along)}
            traces += [Trace(line(method, width=1.4) | flat, when=when)] if rows[0].n else []
        else:
            traces.append(_with_bars(method, _SIZE, value, (start, start + len(rows)), when))
            traces += _crosses(rows, 0.97 - 0.05 * labels[view], when)
            labels[view] += any(row.diverged for row in rows)
        start += len(rows)
    columns: dict[str, Any] = {"truths": [view for (view, _), rows in found.items() for _ in rows]}
    columns |= _of_rows(every, _SIZE, lambda row: row.ensemble_size, value)
    ticks = {"tickvals": sizes, "ticktext": [f"{size:,}" for size in sizes]}
    across = axis(_SIZE, type="log", range=np.log10(ends).tolist(), **ticks)
    reached = [row.value + sign * (row.stderr or 0) for row in every for sign in (0, 1) if row.value > 0]
    if reached:  # room for the labels above the lines
        reached.append(max(reached) * (max(reached) / min(reached)) ** (0.08 * max(labels.values(), default=0)))
    up = log_axis(f"{value} (lower is better)", reached)
    over = {"overlaying": "y", "range": [0, 1], "visible": False, "fixedrange": True}
    controls = [_views(view for view, _ in found), _methods_of(method for _, method in found)]
    return Chart("errors", pd.DataFrame(columns), traces, layout(across, up, height, yaxis2=over), controls, ["errors"])


def _crosses(rows: Sequence[Row], height: float, when: Mapping[str, str]) -> list[Trace]:
    """Return the number of diverged runs at the sizes that have some, as labels on an axis of their own."""
    lost = [row for row in rows if row.diverged]
    look: dict[str, Any] = {"type": "scatter", "mode": "text", "hoverinfo": "skip", "yaxis": "y2", "cliponaxis": False}
    look |= {"x": [row.ensemble_size for row in lost], "y": [height] * len(lost)}
    look["text"] = [f"{row.diverged} lost" for row in lost]
    look["textfont"] = {"color": style_of(rows[0].method).color, "size": 12}
    return [Trace(look, when=when)] if lost else []


def _methods_of(methods: Iterable[str]) -> Control:
    every = list(methods)
    return methods_control(every, every)


def _views(values: Iterable[str]) -> Control:
    return Control("select", "view", "Show", list(dict.fromkeys(values)))


def _entries(data: xr.Dataset) -> Iterator[tuple[int, str, dict[str, str], str]]:
    """Yield index, method, what shows it and its name; the particle filter's series is not stored."""
    for place, (method, size) in enumerate(zip(data["method"].values, data["ensemble_size"].values, strict=True)):
        if method != "particle filter":
            sized = method != "baseline"
            name = f"{style_of(method).label}, N = {size}" if sized else style_of(method).label
            yield place, str(method), {"size": str(size)} if sized else {}, name


def _sizes(data: xr.Dataset) -> Control:
    sizes = sorted({int(when["size"]) for _, _, when, _ in _entries(data) if when})
    return Control("range", "size", "Ensemble size N", [str(size) for size in sizes])


def _methods(data: xr.Dataset) -> list[str]:
    return list(dict.fromkeys(method for _, method, _, _ in _entries(data)))


def _orbit(data: xr.Dataset) -> Chart:
    """Return the trajectory in three variables, up to a time."""
    windows = data.sizes["window"]
    steps, span = data.sizes["step"] // windows, min(16, windows)
    first, per_window = max(0, min(100, windows - span)), min(25, steps)
    part = (np.arange(span)[:, None] * steps + thin(steps, per_window)).ravel() + first * steps
    columns = {"time": data["path_time"].values[part]}
    columns |= {f"truth z{k + 1}": data["true_path"].values[part, k] for k in range(3)}
    look = {"type": "scatter3d", "mode": "lines", "hovertemplate": "%{x:.3g}, %{y:.3g}, %{z:.3g}"}
    named = {at: f"truth z{k + 1}" for k, at in enumerate("xyz")}
    traces = [Trace(truth_line() | look | {"line": {"color": INK, "width": 1.5}}, named, (0, len(part)))]
    for place, method, when, name in _entries(data):
        named = {at: f"{name} z{k + 1}" for k, at in enumerate("xyz")}
        columns |= {named[at]: data["path"].values[place, part, k].round(1) for k, at in enumerate("xyz")}
        drawn = line(method, width=4.0) | look | {"name": name}
        traces.append(Trace(drawn, named, (0, len(part)), {"method": method, **when}, len(part) // span))
    times = [f"{time:.3g}" for time in columns["time"][len(part) // span - 1 :: len(part) // span]]
    plain = {"gridcolor": RULE, "zeroline": False, "showbackground": False}
    scene: dict[str, Any] = {f"{at}axis": {"title": {"text": f"z{k + 1}"}, **plain} for k, at in enumerate("xyz")}
    scene |= {"camera": {"eye": {"x": 0.8, "y": -2.1, "z": 0.5}}, "aspectmode": "cube"}
    made = layout({}, {}, 460, scene=scene, hovermode="closest", dragmode="turntable")
    made["margin"] = {"l": 0, "r": 0, "t": 0, "b": 0}
    controls = [_sizes(data), Control("range", "time", "Up to time", times, times[-1:])]
    controls.append(methods_control(_methods(data), PAPERS_TWO))
    return Chart("orbit", pd.DataFrame(columns), traces, made, controls, ["trajectories"])


def _waves(data: xr.Dataset) -> Chart:
    """Return all variables over time as images."""
    span, count = min(50, data.sizes["window"]), data.sizes["variable"]  # as in the paper's figure
    time, truth = data["time"].values[:span], data["truth"].values[0, :span]
    columns = {
        "variable": np.tile(np.arange(1, count + 1), span),
        "time": np.repeat(time, count),
        "truth": truth.ravel(),
    }
    series = []
    for place, method, when, name in _entries(data):
        columns[name] = data["mean"].values[place, 0, :span].ravel().round(1)
        series.append((name, method, when))
    table = pd.DataFrame(columns)
    traces = images.compared_images(series, ("variable", "time"), {"": ({}, (0, len(table)))})
    about: Any = (0.7, ("variable", "time"), images.image_scales(float(np.max(np.abs(truth)))))
    wide, narrow = (images.image_layout(images.IMAGE_TITLES, columns, *about) for columns in (5, 2))
    return Chart(
        "waves", table, traces, wide, [_sizes(data), *images.image_controls(_methods(data))], ["waves"], narrow
    )


def _fields(data: xr.Dataset) -> Chart:
    """Return a square at some times as images: truth, analysis mean, its error and the spread."""
    shape = data.sizes["window"], data.sizes["y"], data.sizes["x"]
    window, y, x = np.meshgrid(*(data[name].values for name in ("window", "y", "x")), indexing="ij")
    columns = {"window": window.ravel(), "y": y.ravel(), "x": x.ravel()}
    columns["truth"] = data["truth"].values[0].ravel().round(2)
    count, at = shape[1] * shape[2], {"x": "x", "y": "y"}
    blocks = {str(number): (k * count, (k + 1) * count) for k, number in enumerate(data["window"].values)}
    traces = [
        Trace(images.image("truth", 0), {**at, "z": "truth"}, rows, {"time": time}) for time, rows in blocks.items()
    ]
    for place, method, sized, name in _entries(data):
        for what in ("mean", "spread"):
            columns[f"{what}, {name}"] = data[what].values[place].ravel().round(2)
        shown: list[Column] = [f"mean, {name}", [(f"mean, {name}", 1), ("truth", -1)], f"spread, {name}"]
        for panel, (title, column) in enumerate(zip(FIELD_TITLES[1:], shown, strict=True), 1):
            look = images.image(f"{title}, {style_of(method).label}", panel, max(0, panel - 1))
            traces += [
                Trace(look, {**at, "z": column}, rows, {"time": time, "method": method, **sized})
                for time, rows in blocks.items()
            ]
    error = np.nanmax(np.abs(data["mean"].values - data["truth"].values), initial=1e-6)
    ends = {"value": np.max(np.abs(data["truth"].values)), "error": error}
    ends["spread"] = np.nanmax(data["spread"].values, initial=1e-6)
    scales = {
        name: {"colorscale": images.colours(FIELD_COLOURS[name]), "cmin": -end * (name != "spread"), "cmax": end}
        for name, end in ((name, float(end)) for name, end in ends.items())
    }
    wide, narrow = (images.image_layout(FIELD_TITLES, number, 1.0, ("x", "y"), scales) for number in (4, 2))
    methods = Control("select", "method", "Filter", _methods(data))
    controls = [Control("range", "time", "Window", list(blocks), list(blocks)[-1:]), _sizes(data), methods]
    return Chart("fields", pd.DataFrame(columns), traces, wide, controls, ["fields"], narrow)


def _dynamics(data: xr.Dataset) -> Chart:
    """Return some variables of the analysis mean at every window."""
    part = slice(0, min(100, data.sizes["window"]))
    columns, traces, ranges = {"time": data["time"].values[part]}, [], {}
    for variable in (0, 1, 2) if data.sizes["variable"] == 3 else (5, 11, 19):
        view, truth = f"variable {variable + 1}", data["truth"].values[0, part, variable]
        margin = 0.4 * float(np.ptp(truth))  # the truth sets the scale, whatever the errors of the filters
        ranges[view] = {"range": [float(truth.min()) - margin, float(truth.max()) + margin]}
        columns[f"truth z{variable + 1}"] = truth
        everything = (0, len(truth))
        for place, method, when, name in _entries(data):
            column = f"{name} z{variable + 1}"
            columns[column] = data["mean"].values[place, 0, part, variable].round(2)
            shown = {"view": view, "method": method, **when}
            traces.append(Trace(line(method), {"x": "time", "y": column}, everything, shown))
        dotted = truth_line(line={"color": INK, "width": 1.5, "dash": "dot"})  # over the lines that cover it
        traces.append(Trace(dotted, {"x": "time", "y": f"truth z{variable + 1}"}, everything, {"view": view}))
    controls = [_views(ranges), _sizes(data), methods_control(_methods(data), PAPERS_TWO)]
    made = layout(axis("time"), axis("value"))
    return Chart("dynamics", pd.DataFrame(columns), traces, made, controls, ["dynamics"], axes=ranges)


def _growth(result: Result) -> Chart:
    """Return error, time and memory against the number of variables, a line for each number of processes."""
    found = {}
    for key, metric in pivots.FILTER_METRICS.items():
        for (method, processes), rows in pivots.by_processes(result.select(metric=key)).items():
            found[metric.name, method, processes] = rows
    every, traces, start = [row for rows in found.values() for row in rows], [], 0
    for (view, method, _), rows in found.items():
        when = {"view": view, "method": method}
        traces.append(_with_bars(method, "variables", "value", (start, start + len(rows)), when))
        start += len(rows)
    columns: dict[str, Any] = {"measure": [view for (view, *_), rows in found.items() for _ in rows]}
    if any(processes for *_, processes in found):
        columns["processes"] = [processes for (*_, processes), rows in found.items() for _ in rows]
    columns |= _of_rows(every, "variables", lambda row: int(row.case.removeprefix("n=")), "value")
    controls = [_views(view for view, *_ in found), _methods_of(method for _, method, _ in found)]
    made = layout(axis("number of variables", type="log", nticks=6), axis("", type="log", nticks=6))
    return Chart("growth", pd.DataFrame(columns), traces, made, controls, ["growth"])


def _distances(data: xr.Dataset) -> Chart:
    """Return the distance of the student in each role from each teacher as an image."""
    students, teachers = ([str(name) for name in data[key].values] for key in ("student", "teacher"))
    values = data["distance"].values
    table = pd.DataFrame(
        {"teacher": np.repeat(teachers, len(students)), "student": students * len(teachers), "distance": values.ravel()}
    )
    look = {"type": "heatmap", "x": students, "y": teachers, "z": values.round(4).tolist(), "texttemplate": "%{z:.2f}"}
    look |= {
        "colorscale": images.colours("viridis"),
        "zmin": 0,
        "colorbar": {"title": {"text": "distance"}, "outlinecolor": RULE},
    }
    made = layout(axis("", showgrid=False), axis("teacher", showgrid=False), hovermode="closest")
    return Chart("distances", table, [Trace(look)], made, static=["distances"])
