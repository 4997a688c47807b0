"""Figures of the filtering studies (section 3.2 of the paper), from stored rows and arrays alone; of runs the first."""

import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from bieqno.lab.report import pivots
from bieqno.lab.report.style import TRUTH, panels, style_of
from bieqno.lab.results import Result, Row

COMPARED = ("EnKF", "EnNF")  # the paper's two
FIELD_TITLES = ("truth", "analysis", "its error", "spread")
FIELD_COLOURS = {"value": "RdBu_r", "error": "PuOr", "spread": "viridis"}
ONE_SIZE = ("baseline", "particle filter")  # of one ensemble size only: a horizontal line


def filter_figures(result: Result) -> dict[str, Figure]:
    """Return all figures of a filtering study, by file name without the suffix."""
    if "distances" in result.arrays:
        return {"distances": distances(result.arrays["distances"])}
    if pivots.of_growth(result):
        return {"growth": growth(result)}
    figures = {"errors": errors(result)}
    if "fields" in result.arrays:
        figures["fields"] = fields(result.arrays["fields"])
    if "paper" not in result.arrays:
        return figures
    data = result.arrays["paper"]
    windows = data.sizes["window"]
    sizes = sorted({int(n) for n in data["ensemble_size"].values[np.isin(data["method"].values, COMPARED)]})
    if not sizes:  # neither was run
        return figures
    if data.sizes["variable"] == 3:
        figures["dynamics"] = dynamics(data, (0, 1, 2), sizes[0], min(16, windows // 2))
        figures["trajectories"] = trajectories(data, [n for n in (2, 4, 8, 16) if n in sizes], min(20, windows))
    else:
        figures["dynamics"] = dynamics(data, (5, 11, 19), sizes[0], min(25, windows // 2))
        figures["waves"] = waves(data, [n for n in (8, 16, 32) if n in sizes] or sizes, min(50, windows))
    return figures


def errors(result: Result) -> Figure:
    """Draw the error against the ensemble size; a panel for each protocol; crosses count the diverged runs of a size."""
    shown, metric = pivots.protocols(result), pivots.error_metric(result)
    labels = "ensemble size N", pivots.FILTER_METRICS[metric].name
    figure, grid = panels(1, len(shown), (5.2 * len(shown) + 0.4, 4.6), *labels, sharey=True)
    for axes, protocol in zip(grid[0], shown, strict=True):
        rows = result.select(protocol=protocol, metric=metric)
        for place, own in enumerate(pivots.by_method(rows).values()):
            method, style = own[0].method, style_of(own[0].method)
            if len({row.ensemble_size for row in own}) == 1 and method in ONE_SIZE:
                label = style.label if method == "baseline" else f"{style.label}, N = {own[0].ensemble_size:,}"
                axes.axhline(own[0].value, linewidth=1.2, **style._replace(label=label).keywords(marker=False))
                continue
            _bars(axes, [row.ensemble_size or 0 for row in own], own, markersize=5, linewidth=1.4)
            for row in (row for row in own if row.diverged):
                x, height = float(row.ensemble_size or 0), 0.98 - 0.035 * place  # each method has its own height
                _note(axes, x, height, f"✕{row.diverged}", style.color, ha="center")
        axes.set_xscale("log", base=2)
        axes.set_title(pivots.PROTOCOL_NAMES.get(protocol, protocol))
        ticks = sorted({row.ensemble_size for row in rows if row.ensemble_size and row.method not in ONE_SIZE})
        axes.set_xticks(ticks, [str(n) for n in ticks])
        axes.minorticks_off()
        if not any(
            row.value > 0 for row in result.select(metric=metric)
        ):  # all runs diverged: there is nothing to scale
            continue
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5)))  # errors often span less than a power of ten
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
    legend, columns = grid[0, 0].get_legend_handles_labels(), min(4, 2 * len(shown))
    figure.legend(*legend, loc="outside lower center", ncols=columns, frameon=False)
    if any(row.diverged for row in result.rows):
        figure.supylabel("✕k: k of the runs diverged", fontsize=8)
    return figure


def _note(axes: Axes, x: float, height: float, text: str, color: str, **place: Any) -> None:
    axes.text(x, height, text, transform=axes.get_xaxis_transform(), color=color, fontsize=8, va="top", **place)


def _bars(axes: Axes, x: Sequence[int], rows: Sequence[Row], **look: Any) -> None:
    """Draw the values of one method with bars of one standard error."""
    values, bars = [row.value for row in rows], [row.stderr or 0.0 for row in rows]
    axes.errorbar(x, values, bars, capsize=2, **look, **style_of(rows[0].method).keywords())


def growth(result: Result) -> Figure:
    """Draw error, time and memory against the number of variables; the number at a line's end is that of processes."""
    found = {metric: rows for metric in pivots.FILTER_METRICS if (rows := result.select(metric=metric))}
    lines = -(-len(found) // 3)
    figure, grid = panels(lines, 3, (9.0, 2.6 * lines), "number of variables")
    for axes in grid.flat[len(found) :]:
        axes.remove()
    for axes, (metric, rows) in zip(grid.flat, found.items(), strict=False):
        for (_, processes), own in pivots.by_processes(rows).items():
            sizes = [int(row.case.removeprefix("n=")) for row in own]
            _bars(axes, sizes, own)
            axes.annotate(f" {processes}", (sizes[-1], own[-1].value), fontsize=8)
        scale = {"ylim": (0, None)} if metric == "rmse" else {"yscale": "log"}
        axes.set(xscale="log", ylabel=textwrap.fill(pivots.FILTER_METRICS[metric].name, 26), **scale)
    handles, labels = grid[0, 0].get_legend_handles_labels()
    once = dict(zip(labels, handles, strict=True))
    grid[0, 0].legend(once.values(), once, frameon=False)
    return figure


def dynamics(data: xr.Dataset, variables: Sequence[int], size: int, span: int) -> Figure:
    """Draw variables over the first windows and over the last ones, with the smallest ensemble."""
    windows = data.sizes["window"]
    steps = data.sizes["step"] // windows
    figure, grid = panels(len(variables), 2, (10.0, 1.9 * len(variables) + 0.8), "time", sharex="col")
    for column, (first, title) in enumerate(((0, "first windows"), (windows - span, "after the training period"))):
        part = slice(first * steps, (first + span) * steps)
        grid[0, column].set_title(title, fontsize=10)
        for axes, variable in zip(grid[:, column], variables, strict=True):
            _paths(axes, data, variable, size, part)
    for axes, variable in zip(grid[:, 0], variables, strict=True):
        axes.set_ylabel(f"$z_{{{variable + 1}}}$")
    legend = grid[0, 0].get_legend_handles_labels()
    figure.legend(*legend, loc="outside upper center", ncols=4, frameon=False, title=f"N = {size}")
    return figure


def _paths(axes: Axes, data: xr.Dataset, variable: int, size: int, part: slice) -> None:
    """Draw one variable of the truth, of no assimilation and of the paper's two filters over a part of the steps."""
    time, truth = data["path_time"].values[part], data["true_path"].values[part, variable]
    axes.plot(time, truth, color=TRUTH, linewidth=1.6, label="truth")
    for method, members in (("baseline", 1), *((method, size) for method in COMPARED)):
        if method not in data["method"].values:
            continue
        style, path = style_of(method), data["path"].values[_entry(data, method, members), part, variable]
        axes.plot(time, path, linewidth=1.2, **style.keywords(marker=False))
        if np.isnan(path[-1]):
            end = time[max(0, int(np.sum(~np.isnan(path))) - 1)]
            axes.axvline(end, color=style.color, linewidth=0.8, linestyle=":")
            _note(axes, float(end), 0.97, f" {style.label} diverged", style.color)
    # The truth sets the scale, whatever the errors of the filters.
    low, high = np.nanmin(truth), np.nanmax(truth)
    axes.set_ylim(low - 0.5 * (high - low), high + 0.5 * (high - low))
    axes.set_xlim(time[0], time[-1])


def trajectories(data: xr.Dataset, sizes: Sequence[int], span: int) -> Figure:
    """Draw the trajectory in the plane of the first and third variable for some ensemble sizes, over the truth's."""
    steps = data.sizes["step"] // data.sizes["window"]
    first = max(0, min(100, data.sizes["window"] - span))
    part = slice(first * steps, (first + span) * steps)
    truth, methods = data["true_path"].values[part], _compared(data)
    figsize = 2.6 * len(sizes) + 0.6, 5.4
    figure, grid = panels(len(methods), len(sizes), figsize, "$z_1$", "$z_3$", sharex=True, sharey=True)
    for axes_row, method in zip(grid, methods, strict=True):
        style = style_of(method)
        for axes, size in zip(axes_row, sizes, strict=True):
            path = data["path"].values[_entry(data, method, size), part]
            axes.plot(truth[:, 0], truth[:, 2], color=TRUTH, linewidth=0.9, label="truth")
            axes.plot(path[:, 0], path[:, 2], color=style.color, linewidth=0.9, label=style.label)
            axes.set_title(f"{style.label}, N = {size}", fontsize=10)
            if np.isnan(path).any():
                axes.text(0.5, 0.02, "diverged", transform=axes.transAxes, ha="center", color=style.color)
    return figure


def waves(data: xr.Dataset, sizes: Sequence[int], span: int) -> Figure:
    """Draw all variables over time for the truth and the methods, each with its error beside it."""
    truth, time, methods = data["truth"].values[0, :span], data["time"].values[:span], _compared(data)
    extent = (0.5, truth.shape[1] + 0.5, float(time[0]), float(time[-1]))
    limit = float(np.max(np.abs(truth)))
    shape, figsize = (len(sizes), 1 + 2 * len(methods)), (11.0, 2.5 * len(sizes) + 0.9)
    figure, grid = panels(*shape, figsize, "variable", "time", sharex=True, sharey=True)

    def show(axes: Axes, values: np.ndarray, title: str, colours: str) -> None:
        axes.set_facecolor("#999999")  # seen where a run has diverged
        axes.imshow(values, origin="lower", aspect="auto", extent=extent, cmap=colours, vmin=-limit, vmax=limit)
        axes.set_title(title, fontsize=9)
        if np.isnan(values).any():
            axes.text(0.5, 0.97, "diverged", transform=axes.transAxes, ha="center", va="top", fontsize=9)

    for axes_row, size in zip(grid, sizes, strict=True):
        show(axes_row[0], truth, "truth", "viridis")
        for axes, beside, method in zip(axes_row[1::2], axes_row[2::2], methods, strict=True):
            mean = data["mean"].values[_entry(data, method, size), 0, :span]
            show(axes, mean, f"{style_of(method).label}, N = {size}", "viridis")
            show(beside, mean - truth, "its error", "PuOr")
    figure.colorbar(grid[0, 0].images[0], ax=list(grid[:, :2].ravel()), location="bottom", shrink=0.6, label="z")
    figure.colorbar(grid[0, 2].images[0], ax=list(grid[:, 2:].ravel()), location="bottom", shrink=0.6, label="error")
    return figure


def fields(data: xr.Dataset) -> Figure:
    """Draw truth, analysis mean, its error and spread in the last window, a row for each filter of the largest size."""
    most = int(data["ensemble_size"].values.max())
    rows = [k for k, size in enumerate(data["ensemble_size"].values) if size == most]
    figure, grid = panels(len(rows), 4, (11.0, 2.7 * len(rows) + 0.6), "x", "y", sharex=True, sharey=True)
    extent = tuple(float(data[name].values[end]) for name in ("x", "y") for end in (0, -1))
    for axes_row, row in zip(grid, rows, strict=True):
        truth, mean, spread = (data[name].values[row, -1] for name in ("truth", "mean", "spread"))
        limit, wrong = (float(np.nanmax(np.abs(values), initial=1e-6)) for values in (truth, mean - truth))
        spans = [(-limit, limit), (-limit, limit), (-wrong, wrong), (0.0, float(np.nanmax(spread, initial=1e-6)))]
        colours = [FIELD_COLOURS[name] for name in ("value", "value", "error", "spread")]
        shown = zip(axes_row, (truth, mean, mean - truth, spread), FIELD_TITLES, spans, colours, strict=True)
        label = style_of(str(data["method"].values[row])).label
        for axes, values, title, (low, high), colour in shown:
            axes.set_facecolor("#999999")  # seen where a run has diverged
            drawn = axes.imshow(values, origin="lower", extent=extent, cmap=colour, vmin=low, vmax=high)
            axes.set_title(f"{label}, N = {most}" if title == "analysis" else title, fontsize=9)
            figure.colorbar(drawn, ax=axes, shrink=0.7)
    return figure


def distances(data: xr.Dataset) -> Figure:
    """Draw the distance of the student in each role from each teacher, on unseen windows."""
    values = data["distance"].values
    figure, ((axes,),) = panels(1, 1, (6.0, 4.4), y="teacher")
    image = axes.imshow(values, cmap="viridis", vmin=0)
    for (row, column), value in np.ndenumerate(values):
        color = "white" if value < values.max() / 2 else "black"
        axes.text(column, row, f"{value:.2f}", ha="center", va="center", color=color)
    axes.set_xticks(range(values.shape[1]), [str(name) for name in data["student"].values], rotation=25, ha="right")
    axes.set_yticks(range(values.shape[0]), [str(name) for name in data["teacher"].values])
    figure.colorbar(image, label="distance of members, RMS")
    return figure


def _compared(data: xr.Dataset) -> list[str]:
    return [method for method in COMPARED if method in data["method"].values]


def _entry(data: xr.Dataset, method: str, size: int) -> int:
    return list(zip(data["method"].values, data["ensemble_size"].values, strict=True)).index((method, size))
