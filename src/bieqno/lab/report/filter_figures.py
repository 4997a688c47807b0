"""Figures of the filtering studies (section 3.2 of the paper), drawn from stored rows and arrays alone.

What shows one run shows the first. A run that diverged is drawn up to its divergence, and marked.
"""

from collections.abc import Sequence

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from bieqno.lab.report.pivots import METRICS, PROTOCOL_NAMES, error_metric, of_growth
from bieqno.lab.report.style import style_of
from bieqno.lab.studies import Result

COMPARED = ("EnKF", "EnNF")  # the paper's two
ACROSS = ("baseline", "particle filter")  # of one size only: a line across
TRUTH = "black"


def filter_figures(result: Result) -> dict[str, Figure]:
    """All figures of a filtering study, by file name without the ending."""
    if "distances" in result.arrays:
        return {"distances": distances(result.arrays["distances"])}
    if of_growth(result):
        return {"growth": growth(result)}
    figures = {"errors": errors(result)}
    if "paper" not in result.arrays:
        return figures
    data = result.arrays["paper"]
    windows = data.sizes["window"]
    sizes = sorted({int(n) for n in data["ensemble_size"].values[np.isin(data["method"].values, COMPARED)]})
    if not sizes:  # neither was run
        return figures
    if data.sizes["variable"] == 3:
        span = min(16, windows // 2)
        figures["dynamics"] = dynamics(data, (0, 1, 2), sizes[0], span)
        figures["trajectories"] = trajectories(data, [n for n in (2, 4, 8, 16) if n in sizes], min(20, windows))
        return figures
    span = min(25, windows // 2)
    figures["dynamics"] = dynamics(data, (5, 11, 19), sizes[0], span)
    figures["waves"] = waves(data, [n for n in (8, 16, 32) if n in sizes] or sizes, min(50, windows))
    return figures


def errors(result: Result) -> Figure:
    """Error against ensemble size, with standard errors; a panel for each protocol.

    A cross at the upper rim marks an ensemble size with which runs diverged, and says how many; its error, where one is drawn,
    is that of the others.
    """
    protocols = list(dict.fromkeys(row.protocol for row in result.rows if row.protocol))
    metric = error_metric(result)
    figure = Figure(figsize=(5.2 * len(protocols) + 0.4, 4.6), layout="constrained")
    grid = figure.subplots(1, len(protocols), squeeze=False, sharey=True)[0]
    for axes, protocol in zip(grid, protocols, strict=True):
        rows = result.select(protocol=protocol, metric=metric)
        methods = list(dict.fromkeys(row.method for row in rows))
        for place, method in enumerate(methods):
            style = style_of(method)
            own = [row for row in rows if row.method == method]
            if len({row.ensemble_size for row in own}) == 1 and method in ACROSS:
                label = style.label if method == "baseline" else f"{style.label}, N = {own[0].ensemble_size:,}"
                axes.axhline(own[0].value, color=style.color, linestyle=style.line, linewidth=1.2, label=label)
                continue
            x = np.array([row.ensemble_size or 0 for row in own], float)
            y = np.array([row.value for row in own])
            bars = np.array([row.stderr or 0.0 for row in own])
            axes.errorbar(
                x, y, bars, color=style.color, linestyle=style.line, marker=style.marker, markersize=5,
                linewidth=1.4, capsize=2, label=style.label,
            )  # fmt: skip
            for row in own:
                if row.diverged:
                    axes.text(
                        row.ensemble_size or 0, 0.98 - 0.035 * place, f"✕{row.diverged}", color=style.color, fontsize=8,
                        transform=axes.get_xaxis_transform(), ha="center", va="top",
                    )  # fmt: skip
        axes.set_xscale("log", base=2)
        ticks = sorted({row.ensemble_size for row in rows if row.ensemble_size and row.method not in ACROSS})
        axes.set_xticks(ticks, [str(n) for n in ticks])
        axes.minorticks_off()
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5)))  # errors often span less than a power of ten
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.set(xlabel="ensemble size N", title=PROTOCOL_NAMES.get(protocol, protocol))
    grid[0].set_ylabel(METRICS[metric].name)
    handles, labels = grid[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(4, 2 * len(grid)), frameon=False)
    if any(row.diverged for row in result.rows):
        figure.supylabel("✕k: k of the runs diverged", fontsize=8)
    return figure


def growth(result: Result) -> Figure:
    """Error, time and memory against the number of variables."""
    found = {metric: [row for row in result.rows if row.metric == metric] for metric in METRICS}
    found = {metric: rows for metric, rows in found.items() if rows}
    figure = Figure(figsize=(4.2 * len(found) + 0.4, 4.0), layout="constrained")
    grid = figure.subplots(1, len(found), squeeze=False)[0]
    for axes, (metric, rows) in zip(grid, found.items(), strict=True):
        for method in dict.fromkeys(row.method for row in rows):
            style, own = style_of(method), [row for row in rows if row.method == method]
            x = [int(row.case.removeprefix("n=")) for row in own]
            axes.errorbar(
                x, [row.value for row in own], [row.stderr or 0.0 for row in own], color=style.color, linestyle=style.line,
                marker=style.marker, label=style.label, capsize=2,
            )  # fmt: skip
        axes.set(xscale="log", xlabel="number of variables", ylabel=METRICS[metric].name)
        axes.set_yscale("linear" if metric == "rmse" else "log")
        axes.set_ylim(bottom=0 if metric == "rmse" else None)
    grid[0].legend(frameon=False)
    return figure


def dynamics(data: xr.Dataset, variables: Sequence[int], size: int, span: int) -> Figure:
    """Chosen variables over the first windows and over late ones, with the smallest ensemble."""
    windows = data.sizes["window"]
    steps = data.sizes["step"] // windows
    figure = Figure(figsize=(10, 1.9 * len(variables) + 0.8), layout="constrained")
    grid = figure.subplots(len(variables), 2, squeeze=False, sharex="col")
    for column, first in enumerate((0, windows - span)):
        part = slice(first * steps, (first + span) * steps)
        time = data["path_time"].values[part]
        for axes, variable in zip(grid[:, column], variables, strict=True):
            true = data["true_path"].values[part, variable]
            axes.plot(time, true, color=TRUTH, linewidth=1.6, label="truth")
            for method, members in (("baseline", 1), *((method, size) for method in COMPARED)):
                if method not in data["method"].values:
                    continue
                style = style_of(method)
                path = _path(data, method, members)[part, variable]
                axes.plot(time, path, color=style.color, linestyle=style.line, linewidth=1.2, label=style.label)
                if np.isnan(path[-1]):
                    sound = np.flatnonzero(~np.isnan(path))
                    where = time[sound[-1]] if sound.size else time[0]
                    axes.axvline(where, color=style.color, linewidth=0.8, linestyle=":")
                    axes.text(where, 0.97, f" {style.label} diverged", color=style.color, fontsize=8, va="top",
                              transform=axes.get_xaxis_transform())  # fmt: skip
            # A filter that is far off would squeeze the rest: the truth sets the scale.
            low, high = np.nanmin(true), np.nanmax(true)
            axes.set_ylim(low - 0.5 * (high - low), high + 0.5 * (high - low))
            axes.set_xlim(time[0], time[-1])
        grid[-1, column].set_xlabel("time")
    for axes, variable in zip(grid[:, 0], variables, strict=True):
        axes.set_ylabel(f"$z_{{{variable + 1}}}$")
    grid[0, 0].set_title("first windows", fontsize=10)
    grid[0, 1].set_title("after the training period", fontsize=10)
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=4, frameon=False, title=f"N = {size}")
    return figure


def trajectories(data: xr.Dataset, sizes: Sequence[int], span: int) -> Figure:
    """The way through the plane of the first and third variable for some ensemble sizes, beside the truth's."""
    steps = data.sizes["step"] // data.sizes["window"]
    first = max(0, min(100, data.sizes["window"] - span))
    part = slice(first * steps, (first + span) * steps)
    figure = Figure(figsize=(2.6 * len(sizes) + 0.6, 5.4), layout="constrained")
    methods = _compared(data)
    grid = figure.subplots(len(methods), len(sizes), squeeze=False, sharex=True, sharey=True)
    for axes_row, method in zip(grid, methods, strict=True):
        style = style_of(method)
        for axes, size in zip(axes_row, sizes, strict=True):
            true = data["true_path"].values[part]
            path = _path(data, method, size)[part]
            axes.plot(true[:, 0], true[:, 2], color=TRUTH, linewidth=0.9, label="truth")
            axes.plot(path[:, 0], path[:, 2], color=style.color, linewidth=0.9, label=style.label)
            axes.set_title(f"{style.label}, N = {size}", fontsize=10)
            if np.isnan(path).any():
                axes.text(0.5, 0.02, "diverged", transform=axes.transAxes, ha="center", color=style.color)
        axes_row[0].set_ylabel("$z_3$")
    for axes in grid[-1]:
        axes.set_xlabel("$z_1$")
    return figure


def waves(data: xr.Dataset, sizes: Sequence[int], span: int) -> Figure:
    """Travelling waves: all variables over time for the truth and the methods, each with its error beside it."""
    truth = data["truth"].values[0, :span]
    time = data["time"].values[:span]
    extent = (0.5, truth.shape[1] + 0.5, float(time[0]), float(time[-1]))
    limit = float(np.max(np.abs(truth)))
    figure = Figure(figsize=(11, 2.5 * len(sizes) + 0.9), layout="constrained")
    methods = _compared(data)
    grid = figure.subplots(len(sizes), 1 + 2 * len(methods), squeeze=False, sharex=True, sharey=True)

    def show(axes: Axes, values: np.ndarray, title: str, colours: str) -> None:
        axes.set_facecolor("#999999")  # where a run has diverged there is nothing
        axes.imshow(values, origin="lower", aspect="auto", extent=extent, cmap=colours, vmin=-limit, vmax=limit)
        axes.set_title(title, fontsize=9)
        if np.isnan(values).any():
            axes.text(0.5, 0.97, "diverged", transform=axes.transAxes, ha="center", va="top", fontsize=9)

    for axes_row, size in zip(grid, sizes, strict=True):
        show(axes_row[0], truth, "truth", "viridis")
        for place, method in enumerate(methods):
            mean = data["mean"].values[_entry(data, method, size), 0, :span]
            label = f"{style_of(method).label}, N = {size}"
            show(axes_row[1 + 2 * place], mean, label, "viridis")
            show(axes_row[2 + 2 * place], mean - truth, "its error", "PuOr")
        axes_row[0].set_ylabel("time")
    for axes in grid[-1]:
        axes.set_xlabel("variable")
    figure.colorbar(grid[0, 0].images[0], ax=list(grid[:, :2].ravel()), location="bottom", shrink=0.6, label="z")
    figure.colorbar(grid[0, 2].images[0], ax=list(grid[:, 2:].ravel()), location="bottom", shrink=0.6, label="error")
    return figure


def distances(data: xr.Dataset) -> Figure:
    """How far the student in each role is from each teacher, on unseen windows."""
    values = data["distance"].values
    figure = Figure(figsize=(6, 4.4), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(values, cmap="viridis", vmin=0)
    for (row, column), value in np.ndenumerate(values):
        axes.text(
            column,
            row,
            f"{value:.2f}",
            ha="center",
            va="center",
            color="white" if value < values.max() / 2 else "black",
        )
    axes.set_xticks(range(values.shape[1]), [str(name) for name in data["student"].values], rotation=25, ha="right")
    axes.set_yticks(range(values.shape[0]), [str(name) for name in data["teacher"].values])
    axes.set_ylabel("teacher")
    figure.colorbar(image, label="distance of members, RMS")
    return figure


def _compared(data: xr.Dataset) -> list[str]:
    """Those of the paper's two that were run."""
    return [method for method in COMPARED if method in data["method"].values]


def _entry(data: xr.Dataset, method: str, size: int) -> int:
    """Where a method with an ensemble size is."""
    found = np.flatnonzero((data["method"].values == method) & (data["ensemble_size"].values == size))
    if not found.size:
        raise ValueError(f"there is no {method} with N = {size} among the results")
    return int(found[0])


def _path(data: xr.Dataset, method: str, size: int) -> np.ndarray:
    path: np.ndarray = data["path"].values[_entry(data, method, size)]
    return path
