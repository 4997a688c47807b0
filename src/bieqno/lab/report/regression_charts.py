"""The interactive figures of the regression studies."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from bieqno.lab.report import images
from bieqno.lab.report.charts import (
    INK,
    Chart,
    Column,
    Control,
    Trace,
    axis,
    band,
    layout,
    line,
    methods_control,
    stacked,
    thin,
    truth_line,
)
from bieqno.lab.report.pivots import case_title
from bieqno.lab.report.regression_figures import SHOWN
from bieqno.lab.report.style import FIRST_SHOWN, style_of
from bieqno.lab.results import Result

Cases = Mapping[str, xr.Dataset]
_SIDE = 42  # points of an image along each side
_COVARIANCES = 22  # along each side as well


def regression_charts(result: Result) -> Iterator[Chart]:
    """Yield predictions, maps, the diagonal, covariances and the reliability diagram, as far as the study stored them."""
    first = next(iter(result.arrays.values()), None)
    if first is None or "reliability" not in first:
        return
    cases = result.arrays
    layouts = dict.fromkeys(case.split("-")[0] for case in result.arrays)
    if "noise" in first.attrs:  # real data are scattered points without a known truth
        if first.sizes["input"] == 1:
            yield bands(cases, static=[f"bands-{name}" for name in layouts])
            yield _covariance(cases, "x", [f"covariance-{name}" for name in layouts])
        else:
            yield _maps(cases)
            yield bands(cases, cut=True, static=["diagonal"])
            yield _covariance(cases, "x₁ = x₂", ["covariance"])
    yield _reliability(cases)


def _methods(arrays: xr.Dataset) -> list[str]:
    return [str(method) for method in arrays["method"].values]


def _cases_control(cases: Mapping[str, Any]) -> Control:
    return Control("select", "view", "Show", [case_title(case) for case in cases])


def bands(
    cases: Cases,
    *,
    cut: bool = False,
    static: Sequence[str] = (),
    first: Sequence[str] = FIRST_SHOWN,
    height: int = 400,
) -> Chart:
    """Return means with bands of two standard deviations; with `cut` along the diagonal."""
    limits, x, y = ([-1.8, 3.2], "x₁ = x₂", "f") if cut else ([-0.6, 1.6], "x", "y")
    blocks: dict[str, dict[str, Any]] = {}
    for case, arrays in cases.items():
        which = arrays["cut_point"].values if cut else np.arange(arrays.sizes["point"])
        which = which[thin(len(which), 200)]
        seen = 0 if cut else arrays.sizes["observation"]

        def column(values: np.ndarray, seen: int = seen) -> np.ndarray:
            return np.concatenate([values, np.full(seen, np.nan)]).round(4)

        made = {x: arrays["x"].values[which, 0], "truth": column(arrays["truth"].values[which])}
        if seen:  # the observations are the last rows of a case
            made[x] = np.concatenate([made[x], arrays["x_observed"].values[0, :, 0]])
            made["observed"] = np.concatenate([np.full(len(which), np.nan), arrays["y_observed"].values[0]])
        for place, method in enumerate(_methods(arrays)):
            label = style_of(method).label
            made[f"{label} mean"] = column(arrays["mean"].values[0, place, which])
            made[f"{label} sd"] = column(arrays["std"].values[0, place, which])
        blocks[case] = made
    table, ranges = stacked(blocks)
    traces: list[Trace] = []
    for case, (start, stop) in ranges.items():
        arrays, view = cases[case], {"view": case_title(case)}
        middle = stop - (0 if cut else arrays.sizes["observation"])
        for method in _methods(arrays):
            traces += _band(method, x, (start, middle), {**view, "method": method})
        traces.append(Trace(truth_line(), {"x": x, "y": "truth"}, (start, middle), view))
        if not cut:
            dots = {"mode": "markers", "marker": {"color": INK, "size": 5}, "name": "observed"}
            traces.append(Trace(truth_line() | dots, {"x": x, "y": "observed"}, (middle, stop), view))
    made_of = layout(axis(x, range=[0, 1]), axis(y, range=limits), height)
    controls = [_cases_control(cases), methods_control((m for a in cases.values() for m in _methods(a)), first)]
    return Chart("diagonal" if cut else "bands", table, traces, made_of, controls, static)


def _band(method: str, x: str, rows: tuple[int, int], when: dict[str, str]) -> list[Trace]:
    """Return the band of two standard deviations, and the mean."""
    label, color = style_of(method).label, style_of(method).color
    fill = f"rgba({', '.join(str(int(color[k : k + 2], 16)) for k in (1, 3, 5))}, 0.22)"
    mean, deviation = f"{label} mean", f"{label} sd"
    columns: dict[str, Column] = {"x": x, "y": mean, "customdata": [(deviation, 2)]}
    drawn = Trace(line(method) | {"hovertemplate": "%{y:.3g} ± %{customdata:.2g}"}, columns, rows, when)
    return [*band(x, ([(mean, 1), (deviation, -2)], [(mean, 1), (deviation, 2)]), rows, fill, **when), drawn]


def _maps(cases: Cases) -> Chart:
    blocks = {}
    for case, arrays in cases.items():
        side = round(arrays.sizes["point"] ** 0.5)
        keep = np.arange(side**2).reshape(side, side)[np.ix_(*[thin(side, _SIDE)] * 2)].ravel()
        x = arrays["x"].values[keep].round(3)
        blocks[case] = {"x₁": x[:, 0], "x₂": x[:, 1], "truth": arrays["truth"].values[keep].round(2)}
        means = zip(_methods(arrays), arrays["mean"].values[0], strict=True)
        blocks[case] |= {style_of(method).label: mean[keep].round(2) for method, mean in means}
    table, ranges = stacked(blocks)
    methods = list(dict.fromkeys(method for arrays in cases.values() for method in _methods(arrays)))
    series: list[tuple[str, str, dict[str, str]]] = [(style_of(method).label, method, {}) for method in methods]
    views = {case: ({"view": case_title(case)}, rows) for case, rows in ranges.items()}
    traces = images.compared_images(series, ("x₁", "x₂"), views)
    about: Any = (1.0, ("x₁", "x₂"), images.image_scales(float(table["truth"].abs().max())))
    wide, narrow = (images.image_layout(images.IMAGE_TITLES, columns, *about) for columns in (5, 2))
    controls = [_cases_control(cases), *images.image_controls(methods)]
    return Chart("maps", table, traces, wide, controls, ["maps"], narrow)


def _covariance(cases: Cases, label: str, static: Sequence[str]) -> Chart:
    """Return the predicted covariance along the line, of the paper's two, with colours that resolve small values."""
    blocks, limit, linear = {}, 0.0, np.inf
    run = list(dict.fromkeys(method for arrays in cases.values() for method in _methods(arrays)))
    shown = [*(method for method in SHOWN if method in run), *(method for method in run if method not in SHOWN)][:2]
    for case, arrays in cases.items():
        keep = thin(arrays.sizes["cut"], _COVARIANCES)
        at = arrays["x"].values[arrays["cut_point"].values[keep], 0].round(3)
        columns = {"at": np.repeat(at, len(keep)), "and at": np.tile(at, len(keep))}
        for method in shown:
            values = arrays["covariance"].sel({"method": method}).values[np.ix_(keep, keep)].ravel()
            columns[style_of(method).label], limit = values, max(limit, float(np.max(np.abs(values))))
        linear = min(linear, float(arrays.attrs["noise"]) ** 2)
        blocks[case] = columns
    table, ranges = stacked(blocks)
    titles, traces = [style_of(method).label for method in shown], []
    for case, rows in ranges.items():
        views = [(images.image(title, k), {"x": "at", "y": "and at", "z": title}) for k, title in enumerate(titles)]
        traces += [Trace(look, columns, rows, {"view": case_title(case)}) for look, columns in views]
    # Variances span orders of magnitude, from the noise to the jumps: even steps of colour are even steps of asinh.
    linear = min(linear, limit / 2) or 1.0
    reach = np.arcsinh(limit / linear)
    places = 0.5 + np.sinh(np.linspace(-reach, reach, 33)) * linear / limit / 2 if limit else np.linspace(0, 1, 33)
    scale = {
        "covariance": {"colorscale": images.colours("PuOr", places.clip(0, 1).tolist()), "cmin": -limit, "cmax": limit}
    }
    wide, narrow = (images.image_layout(titles, columns, 1.0, (label, label), scale) for columns in (3, 2))
    return Chart("covariance", table, traces, wide, [_cases_control(cases)], static, narrow)


def _reliability(cases: Cases) -> Chart:
    blocks, traces = {}, []
    for case, arrays in cases.items():
        curves = zip(_methods(arrays), arrays["reliability"].values, strict=True)
        blocks[case] = {"nominal coverage": arrays["level"].values} | {style_of(m).label: curve for m, curve in curves}
    table, ranges = stacked(blocks)
    for case, rows in ranges.items():
        diagonal = truth_line("calibrated", hoverinfo="skip") | {"x": [0, 1], "y": [0, 1]}
        traces.append(Trace(diagonal, when={"view": case_title(case)}))
        for method in _methods(cases[case]):
            columns = {"x": "nominal coverage", "y": style_of(method).label}
            traces.append(Trace(line(method, marker=True), columns, rows, {"view": case_title(case), "method": method}))
    made = layout(axis("nominal coverage", range=[0, 1]), axis("observed coverage", range=[0, 1.02]))
    controls = [_cases_control(cases), methods_control((m for a in cases.values() for m in _methods(a)), FIRST_SHOWN)]
    return Chart("reliability", table, traces, made, controls, ["reliability"])
