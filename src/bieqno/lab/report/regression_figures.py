"""Figures of the regression studies (section 3.1 of the paper), from stored arrays alone; of repetitions the first."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.colors import Normalize, SymLogNorm
from matplotlib.figure import Figure

from bieqno.lab.report.style import TRUTH, panels, style_of
from bieqno.lab.results import Result

Cases: TypeAlias = Mapping[str, xr.Dataset]
Images: TypeAlias = Callable[[xr.Dataset], tuple[dict[str, np.ndarray], Normalize]]  # by title, and their colour scale

SHOWN = ("gp-se", "ggp")  # the paper's two


def regression_figures(result: Result) -> dict[str, Figure]:
    """Return all figures of a study, by file name without the suffix; none if it stored no predictions."""
    first = next(iter(result.arrays.values()), None)
    if first is None or "reliability" not in first:
        return {}
    figures = {"reliability": reliability(result.arrays)}
    if "history" in first:
        figures["epochs"] = epochs(result.arrays)
    if "noise" not in first.attrs:  # real data: scattered points and no known truth
        return figures
    run = [str(method) for method in first["method"].values]
    shown = [*(method for method in SHOWN if method in run), *(method for method in run if method not in SHOWN)][:2]
    if first.sizes["input"] == 2:
        return figures | {
            "maps": maps(result.arrays, shown),
            "diagonal": bands(result.arrays, shown, cut=True),
            "covariance": covariances(result.arrays, "x₁ = x₂", shown),
        }
    for layout in dict.fromkeys(case.split("-")[0] for case in result.arrays):
        cases = {case: arrays for case, arrays in result.arrays.items() if case.startswith(layout)}
        figures[f"bands-{layout}"] = bands(cases, shown)
        figures[f"covariance-{layout}"] = covariances(cases, "x", shown)
    return figures


def bands(cases: Cases, methods: Sequence[str], *, cut: bool = False) -> Figure:
    """Draw mean and two-sigma band of each method (row) in each case (column); with `cut` along the diagonal."""
    limits, x_label, y_label = ((-1.8, 3.2), "x₁ = x₂", "f") if cut else ((-0.6, 1.6), "x", "y")
    size = 4.8 * len(cases) + 0.4, 2.6 * len(methods) + 0.4
    figure, grid = panels(len(methods), len(cases), size, x_label, y_label, sharex=True, sharey=True)
    # Space between the columns, so that the last tick of one does not touch the first of the next.
    figure.set_layout_engine("constrained", wspace=0.05)
    for axes_row, method in zip(grid, methods, strict=True):
        for axes, arrays in zip(axes_row, cases.values(), strict=True):
            which = arrays["cut_point"].values if cut else slice(None)
            style, x = style_of(method), arrays["x"].values[which, 0]
            axes.plot(x, arrays["truth"].values[which], color=TRUTH, linewidth=1.2, label="truth")
            mean, std = (arrays[name].sel({"method": method}).values[0, which] for name in ("mean", "std"))
            band = {"color": style.color, "alpha": 0.25, "linewidth": 0, "label": "± 2 sd"}
            axes.fill_between(x, mean - 2 * std, mean + 2 * std, **band)
            axes.plot(x, mean, color=style.color, linewidth=1.6, label=style.label)
            if not cut:
                data = arrays["x_observed"].values[0, :, 0], arrays["y_observed"].values[0]
                axes.plot(*data, marker=".", linestyle="none", color="black", markersize=5, label="observations")
            axes.set(ylim=limits, xlim=(0, 1), xticks=(0.0, 0.25, 0.5, 0.75, 1.0))
            axes.spines[["top", "right"]].set_visible(False)
        axes_row[0].legend(fontsize=8, frameon=False, ncols=2, loc="upper left")
    for axes, (case, arrays) in zip(grid[0], cases.items(), strict=True):
        axes.set_title(_title(case, arrays), fontsize=10)
    return figure


def maps(cases: Cases, methods: Sequence[str]) -> Figure:
    """Draw the predicted means as maps beside the truth; a row for each case."""

    def images(arrays: xr.Dataset) -> tuple[dict[str, np.ndarray], Normalize]:
        truth, named = arrays["truth"].values, {}
        for method in methods:
            mean = arrays["mean"].sel({"method": method}).values[0]
            named[f"{style_of(method).label}  (RMSE {np.sqrt(np.mean((mean - truth) ** 2)):.3f})"] = mean
        side, limit = round(truth.size**0.5), float(np.max(np.abs(truth)))
        named["truth"] = truth
        return {title: values.reshape(side, side) for title, values in named.items()}, Normalize(-limit, limit)

    return _images(cases, images, "x₁", "x₂", "f")


def covariances(cases: Cases, label: str, methods: Sequence[str]) -> Figure:
    """Draw the predicted covariance along the cut as images; a row for each case."""

    def images(arrays: xr.Dataset) -> tuple[dict[str, np.ndarray], Normalize]:
        named = {style_of(method).label: arrays["covariance"].sel({"method": method}).values for method in methods}
        limit = max(float(np.max(np.abs(values))) for values in named.values())
        # Variances span orders of magnitude, from the noise to the jumps; the scale is linear below that of the noise.
        linear = min(float(arrays.attrs["noise"]) ** 2, limit / 2)
        return named, SymLogNorm(linear, vmin=-limit, vmax=limit)

    return _images(cases, images, label, label, "covariance")


def _images(cases: Cases, images: Images, x_label: str, y_label: str, colour_label: str) -> Figure:
    """Draw a row of named images with one colour scale for each case."""
    rows = {_title(case, arrays): images(arrays) for case, arrays in cases.items()}
    columns = max(len(named) for named, _ in rows.values())
    size = 3.2 * columns + 0.9, 3.0 * len(cases) + 0.3
    figure, grid = panels(len(cases), columns, size, x_label, sharex=True, sharey=True)
    # An SVG file puts the first line of a label of two lines nearer to the edge than the layout assumes.
    figure.set_layout_engine("constrained", w_pad=0.1)
    for axes_row, (title, (named, norm)) in zip(grid, rows.items(), strict=True):
        for axes, (name, values) in zip(axes_row, named.items(), strict=True):
            image = axes.imshow(values.T, origin="lower", extent=(0, 1, 0, 1), cmap="PuOr", norm=norm)
            axes.set_title(name, fontsize=10)
        axes_row[0].set_ylabel(f"{title}\n{y_label}")
        figure.colorbar(image, ax=list(axes_row), shrink=0.85, label=colour_label)
    return figure


def reliability(cases: Cases) -> Figure:
    """Draw the reliability diagram of each case, averaged over its data sets."""
    columns = min(2, len(cases))
    rows = -(-len(cases) // columns)
    figure, grid = panels(rows, columns, (3.6 * columns + 2.6, 3.5 * rows), sharex=True, sharey=True)
    for axes, (case, arrays) in zip(grid.flat, cases.items(), strict=False):
        curves = zip(arrays["method"].values, arrays["reliability"].values, strict=True)
        draw_reliability(axes, arrays["level"].values, {str(method): curve for method, curve in curves})
        axes.set_title(_title(case, arrays))
    for axes in grid.flat:
        axes.label_outer()
    for axes in grid.flat[len(cases) :]:
        axes.set_axis_off()
    figure.legend(*grid.flat[0].get_legend_handles_labels(), loc="outside right center", frameon=False, fontsize=9)
    return figure


def epochs(cases: Cases) -> Figure:
    """Draw training loss, RMSE and NLPD of the paper's form against epochs, a column for each case, a line for each data set."""
    labels, style = ("training loss", "RMSE", "NLPD"), style_of("ggp-paper")
    size = 3.4 * len(cases) + 0.6, 2.0 * len(labels) + 0.4
    figure, grid = panels(len(labels), len(cases), size, "epoch", sharex="col", sharey="row")
    for column, (case, arrays) in zip(grid.T, cases.items(), strict=True):
        for axes, label, series in zip(column, labels, np.moveaxis(arrays["history"].values, -1, 0), strict=True):
            axes.plot(np.arange(1, series.shape[1] + 1), series.T, color=style.color, linewidth=1.2)
            axes.spines[["top", "right"]].set_visible(False)
            # Linear where a density is a sensible one; beyond, where it explodes, by powers of ten.
            axes.set_yscale(
                "symlog" if label == "NLPD" else "linear", **({"linthresh": 5.0} if label == "NLPD" else {})
            )
        column[0].set_title(_title(case, arrays), fontsize=10)
    for axes, label in zip(grid[:, 0], labels, strict=True):
        axes.set_ylabel(label)
    return figure


def draw_reliability(axes: Axes, levels: np.ndarray, curves: Mapping[str, np.ndarray]) -> None:
    """Draw the share of values inside central intervals against the nominal level, a curve for each method."""
    axes.plot([0, 1], [0, 1], color="black", linewidth=0.8)
    for method, curve in curves.items():
        axes.plot(levels, curve, markersize=4, markevery=3, linewidth=1.3, **style_of(method).keywords())
    axes.set(xlim=(0, 1), ylim=(0, 1.02), aspect="equal", xlabel="nominal coverage", ylabel="observed coverage")


def _title(case: str, arrays: xr.Dataset) -> str:
    """Return the case in words: ``30 observations, random``."""
    return f"{arrays.sizes['observation']} observations, {case.split('-')[0]}"
