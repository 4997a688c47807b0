"""Figures of the regression studies, drawn from stored arrays alone.

Each function takes the data sets of some cases, as `bieqno.lab.studies` stores them, and returns a Matplotlib figure;
what shows one data set shows the first repetition.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.colors import SymLogNorm
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from bieqno.lab.report.style import style_of
from bieqno.lab.studies import Result

Cases: TypeAlias = Mapping[str, xr.Dataset]

_TICKS = (0.0, 0.25, 0.5, 0.75, 1.0)
SHOWN = ("gp-se", "ggp")  # the paper's two
_DATA: dict[str, Any] = {"marker": ".", "linestyle": "none", "color": "black", "markersize": 5, "label": "observations"}
_TRUTH: dict[str, Any] = {"color": "black", "linewidth": 1.2, "label": "truth"}


def regression_figures(result: Result) -> dict[str, Figure]:
    """All figures of a study, by file name without the ending."""
    figures = {"reliability": reliability(result.arrays)}
    first = next(iter(result.arrays.values()))
    if "noise" not in first.attrs:  # data from the world: scattered points, and no truth to draw
        return figures
    run = [str(method) for method in first["method"].values]
    shown = [*(method for method in SHOWN if method in run), *(method for method in run if method not in SHOWN)][:2]
    if first.sizes["input"] == 2:
        return figures | {
            "maps": maps(result.arrays, shown),
            "diagonal": diagonal(result.arrays, shown),
            "covariance": covariances(result.arrays, "x₁ = x₂", shown),
        }
    for layout in dict.fromkeys(case.split("-")[0] for case in result.arrays):
        cases = {case: arrays for case, arrays in result.arrays.items() if case.startswith(layout)}
        figures[f"bands-{layout}"] = bands(cases, shown)
        figures[f"covariance-{layout}"] = covariances(cases, "x", shown)
    return figures


def bands(cases: Cases, methods: Sequence[str]) -> Figure:
    """Mean and two-sigma band of the methods over data and truth; a row for each method, a column for each case."""

    def draw(axes: Axes, arrays: xr.Dataset, method: str) -> None:
        x = arrays["x"].values[:, 0]
        axes.plot(x, arrays["truth"].values, **_TRUTH)
        _band(axes, x, arrays, method, slice(None))
        axes.plot(arrays["x_observed"].values[0, :, 0], arrays["y_observed"].values[0], **_DATA)
        axes.set(ylim=(-0.6, 1.6), xlim=(0, 1), xticks=_TICKS)

    return _matrix(cases, methods, draw, "x", "y")


def diagonal(cases: Cases, methods: Sequence[str]) -> Figure:
    """Mean and two-sigma band along the diagonal of the unit square."""

    def draw(axes: Axes, arrays: xr.Dataset, method: str) -> None:
        cut = arrays["cut_point"].values
        x = arrays["x"].values[cut, 0]
        axes.plot(x, arrays["truth"].values[cut], **_TRUTH)
        _band(axes, x, arrays, method, cut)
        axes.set(ylim=(-1.8, 3.2), xlim=(0, 1), xticks=_TICKS)

    return _matrix(cases, methods, draw, "x₁ = x₂", "f")


def maps(cases: Cases, methods: Sequence[str]) -> Figure:
    """The predicted means as maps beside the truth; a row for each case."""
    columns = [*methods, "truth"]
    figure = Figure(figsize=(3.1 * len(columns) + 0.6, 3.0 * len(cases) + 0.3), layout=_two_lines())
    grid = figure.subplots(len(cases), len(columns), squeeze=False, sharex=True, sharey=True)
    for axes_row, (case, arrays) in zip(grid, cases.items(), strict=True):
        side = round(arrays.sizes["point"] ** 0.5)
        truth = arrays["truth"].values
        limit = float(np.max(np.abs(truth)))
        for axes, column in zip(axes_row, columns, strict=True):
            values = truth if column == "truth" else arrays["mean"].sel({"method": column}).values[0]
            image = axes.imshow(
                values.reshape(side, side).T, origin="lower", extent=(0, 1, 0, 1), cmap="PuOr", vmin=-limit, vmax=limit
            )
            name = "truth" if column == "truth" else style_of(column).label
            axes.set_title(name if column == "truth" else f"{name}  (RMSE {_rmse(values, truth):.3f})", fontsize=10)
        axes_row[0].set_ylabel(f"{_title(case, arrays)}\nx₂")
        figure.colorbar(image, ax=list(axes_row), shrink=0.85)
    for axes in grid[-1]:
        axes.set_xlabel("x₁")
    return figure


def covariances(cases: Cases, label: str, methods: Sequence[str]) -> Figure:
    """The predicted covariance along the cut as images; a row for each case."""
    figure = Figure(figsize=(3.4 * len(methods) + 0.9, 3.0 * len(cases) + 0.3), layout=_two_lines())
    grid = figure.subplots(len(cases), len(methods), squeeze=False, sharex=True, sharey=True)
    for axes_row, (case, arrays) in zip(grid, cases.items(), strict=True):
        shown = arrays["covariance"].sel({"method": list(methods)}).values
        # Variances span orders of magnitude, from the noise to the jumps; below that of the noise all is as good as 0.
        limit = float(np.max(np.abs(shown)))
        norm = SymLogNorm(min(float(arrays.attrs["noise"]) ** 2, limit / 2), vmin=-limit, vmax=limit)
        for axes, method, covariance in zip(axes_row, methods, shown, strict=True):
            image = axes.imshow(covariance.T, origin="lower", extent=(0, 1, 0, 1), cmap="PuOr", norm=norm)
            axes.set_title(style_of(method).label, fontsize=10)
        axes_row[0].set_ylabel(f"{_title(case, arrays)}\n{label}")
        figure.colorbar(image, ax=list(axes_row), shrink=0.85, label="covariance")
    for axes in grid[-1]:
        axes.set_xlabel(label)
    return figure


def reliability(cases: Cases) -> Figure:
    """Share of new values inside central intervals against what the intervals promise, averaged over the data sets."""
    columns = min(2, len(cases))
    rows = -(-len(cases) // columns)
    figure = Figure(figsize=(3.6 * columns + 2.6, 3.5 * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    for axes, (case, arrays) in zip(grid.flat, cases.items(), strict=False):
        axes.plot([0, 1], [0, 1], color="black", linewidth=0.8)
        for method in arrays["method"].values:
            style = style_of(str(method))
            axes.plot(
                arrays["level"].values, arrays["reliability"].sel({"method": method}).values,
                color=style.color, linestyle=style.line, marker=style.marker, markersize=4, markevery=3, linewidth=1.3,
                label=style.label,
            )  # fmt: skip
        axes.set(title=_title(case, arrays), xlim=(0, 1), ylim=(0, 1.02), aspect="equal")
    for axes in grid[-1]:
        axes.set_xlabel("promised")
    for axes in grid[:, 0]:
        axes.set_ylabel("found")
    for axes in grid.flat[len(cases) :]:
        axes.set_axis_off()
    handles, labels = grid.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", frameon=False, fontsize=9)
    return figure


def _band(axes: Axes, x: np.ndarray, arrays: xr.Dataset, method: str, which: slice | np.ndarray) -> None:
    style = style_of(method)
    mean = arrays["mean"].sel({"method": method}).values[0, which]
    std = arrays["std"].sel({"method": method}).values[0, which]
    axes.fill_between(x, mean - 2 * std, mean + 2 * std, color=style.color, alpha=0.25, linewidth=0, label="± 2 sd")
    axes.plot(x, mean, color=style.color, linewidth=1.6, label=style.label)


def _matrix(
    cases: Cases, methods: Sequence[str], draw: Callable[[Axes, xr.Dataset, str], None], x_label: str, y_label: str
) -> Figure:
    """A panel for each method (row) and case (column)."""
    # Room between the columns, so that the last tick of one does not run into the first of the next.
    layout = ConstrainedLayoutEngine(wspace=0.05)
    figure = Figure(figsize=(4.8 * len(cases) + 0.4, 2.6 * len(methods) + 0.4), layout=layout)
    grid = figure.subplots(len(methods), len(cases), squeeze=False, sharex=True, sharey=True)
    for row, method in enumerate(methods):
        for axes, (case, arrays) in zip(grid[row], cases.items(), strict=True):
            draw(axes, arrays, method)
            if row == 0:
                axes.set_title(_title(case, arrays), fontsize=10)
            axes.spines[["top", "right"]].set_visible(False)
        grid[row, 0].set_ylabel(y_label)
        grid[row, 0].legend(fontsize=8, frameon=False, ncols=2, loc="upper left")
    for axes in grid[-1]:
        axes.set_xlabel(x_label)
    return figure


def _two_lines() -> ConstrainedLayoutEngine:
    """A layout for labels of two lines, the first of which an SVG file puts nearer to the edge than was reckoned."""
    return ConstrainedLayoutEngine(w_pad=0.1)


def _title(case: str, arrays: xr.Dataset) -> str:
    """For a reader: ``30 observations, random``."""
    return f"{arrays.sizes['observation']} observations, {case.split('-')[0]}"


def _rmse(values: np.ndarray, truth: np.ndarray) -> float:
    return float(np.sqrt(np.mean((values - truth) ** 2)))
