"""Figures of one assimilation run, from the dataset that `to_dataset` makes of it."""

import io
from collections.abc import Sequence
from typing import TypeAlias

import jax.numpy as jnp
import matplotlib
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bieqno.assimilation import Explanation
from bieqno.lab.report.style import TRUTH, panels
from bieqno.scores import rank_histogram

Indices: TypeAlias = Sequence[int] | None
# Colours that differ in lightness as well, for colour-blind readers and for grey print.
ENSEMBLE, OBSERVED, DIVERGED = "#3b76b0", "#c8553d", "#999999"


def plot_run(
    data: xr.Dataset, *, variables: Indices = None, observed: Indices = None, windows: slice = slice(None)
) -> Figure:
    """Plot truth, observations, ensemble mean and two standard deviations of some variables, by default three, over time.

    `observed` is the variable that each observation is of; None omits the observations.

    Example:
        >>> import numpy as np, xarray as xr
        >>> series = xr.DataArray(np.zeros((5, 2)), dims=("time", "state"))
        >>> data = xr.Dataset({"mean": series, "spread": series + 1, "truth": series}, {"time": np.arange(5.0)})
        >>> len(plot_run(data).axes)
        2
    """
    mean, deviation = _moments(data)
    part, size = slice(*windows.indices(data.sizes["time"])), data.sizes["state"]
    chosen = list(range(min(3, size))) if variables is None else list(variables)
    if not chosen or not all(0 <= variable < size for variable in chosen):
        raise ValueError(f"expected numbers of some of the {size} variables, from 0, got {chosen}")
    observations = data.sizes.get("observation", 0)
    if observed is not None and len(observed) != observations:
        raise ValueError(f"expected the variable of each of the {observations} observations, got {len(observed)}")
    time = data["time"].values[part]
    figure, grid = panels(len(chosen), 1, (9.0, 1.9 * len(chosen) + 0.6), "time", sharex=True)
    for axis, variable in zip(grid[:, 0], chosen, strict=True):
        centre, wide = mean[part, variable], deviation[part, variable]
        axis.fill_between(time, centre - 2 * wide, centre + 2 * wide, color=ENSEMBLE, alpha=0.25, lw=0, label="± 2 sd")
        if "posterior" in data and data.sizes["member"] <= 100:
            axis.plot(time, data["posterior"].values[part, :, variable], color=ENSEMBLE, lw=0.4, alpha=0.3)
        axis.plot(time, centre, color=ENSEMBLE, lw=1.6, label="ensemble mean")
        if "truth" in data:
            axis.plot(time, data["truth"].values[part, variable], color=TRUTH, lw=1.2, ls="--", label="truth")
        for number, place in enumerate(observed or ()):
            if place == variable and "observed" in data:
                axis.plot(time, data["observed"].values[part, number], ".", color=OBSERVED, ms=5, label="observed")
        axis.set_ylabel(f"$z_{{{variable + 1}}}$")
        _mark_divergence(axis, data)
    labelled = (pair for axis in grid.flat for pair in zip(*axis.get_legend_handles_labels(), strict=True))
    unique = {label: handle for handle, label in labelled}
    figure.legend(list(unique.values()), list(unique), loc="outside upper center", ncols=len(unique), frameon=False)
    return figure


def plot_rank_histogram(data: xr.Dataset, *, burn_in: int = 0, bins: int = 25) -> Figure:
    """Plot the ranks of the truth among the members, forecast and analysis; flat for a calibrated ensemble.

    The dataset has ensembles and truth; the first `burn_in` windows are left out; at most `bins` bars join neighbouring ranks.
    """
    figure, grid = panels(1, 2, (8.0, 3.0), "rank of the truth / (N + 1)", "frequency / expected", sharey=True)
    for axis, name, title in zip(grid[0], ("prior", "posterior"), ("forecast", "analysis"), strict=True):
        keep = _sound(data, name, burn_in)
        counts = rank_histogram(*(jnp.asarray(data[which].values[keep]) for which in ("truth", name)))
        groups = np.array_split(counts, min(bins, counts.size))
        widths = np.array([group.size for group in groups]) / counts.size
        share = np.array([group.sum() for group in groups]) / counts.sum() / widths
        axis.bar(np.cumsum(widths) - widths, share, widths, align="edge", color=ENSEMBLE, edgecolor="white", lw=0.5)
        axis.axhline(1, color=TRUTH, ls="--", lw=1)
        axis.set(title=title, xlim=(0, 1))
    return figure


def plot_spread_error(data: xr.Dataset, *, burn_in: int = 0) -> Figure:
    """Plot spread and error of the analysis over time, and against each other in groups of similar spread.

    The dataset has ensembles or moments, and truth; the first `burn_in` windows are left out of the groups.
    """
    figure, ((series, scatter),) = panels(1, 2, (9.0, 3.2), width_ratios=(2, 1))
    keep = _sound(data, "truth", burn_in)
    mean, deviation = _moments(data)
    gap = mean - data["truth"].values
    series.plot(data["time"], np.sqrt(np.mean(gap**2, axis=1)), color=OBSERVED, lw=1, label="error of the mean")
    series.plot(data["time"], np.sqrt(np.mean(deviation**2, axis=1)), color=ENSEMBLE, lw=1, label="spread")
    series.set(xlabel="time", ylabel="RMSE, spread", ylim=(0, None))
    series.legend(frameon=False)
    _mark_divergence(series, data)
    deviation, gap = deviation[keep].ravel(), gap[keep].ravel()
    groups = np.array_split(np.argsort(deviation), min(12, deviation.size))
    x, y = ([np.sqrt(np.mean(values[group] ** 2)) for group in groups] for values in (deviation, gap))
    top = 1.05 * max(*x, *y)
    scatter.plot([0, top], [0, top], color=TRUTH, ls="--", lw=1)
    scatter.plot(x, y, "o-", color=ENSEMBLE, ms=4, lw=1)
    scatter.set(xlabel="spread", ylabel="error", xlim=(0, top), ylim=(0, top), aspect="equal")
    scatter.set_title("groups of similar spread")
    return figure


def _moments(data: xr.Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and standard deviation of the analysis; the latter is zero for one member."""
    if "posterior" in data:
        members = data["posterior"].values
        return members.mean(axis=1), members.std(axis=1, ddof=min(1, members.shape[1] - 1))
    if "mean" in data and "spread" in data:
        return data["mean"].values, data["spread"].values
    raise ValueError(f"expected 'posterior', or 'mean' and 'spread', in the dataset; got {list(data.data_vars)}")


def _sound(data: xr.Dataset, name: str, burn_in: int) -> np.ndarray:
    """Return the mask of windows after the burn-in and before a divergence; a ValueError if there is none."""
    if name not in data or "truth" not in data:
        raise ValueError(f"expected '{name}' and 'truth' in the dataset, got {list(data.data_vars)}")
    keep = np.arange(data.sizes["time"]) >= burn_in
    if "sound" in data:
        keep &= data["sound"].values == 1
    if not keep.any():
        raise ValueError(f"no sound window is left after a burn-in of {burn_in} of {keep.size}")
    return keep


def _mark_divergence(axis: Axes, data: xr.Dataset) -> None:
    at = int(data.attrs.get("diverged", -1))
    if at >= 0:
        begin, end = float(data["time"].values[at]), float(data["time"].values[-1])
        axis.axvspan(begin, end, color=DIVERGED, alpha=0.3, lw=0)
        axis.text(begin, 0.95, " diverged", transform=axis.get_xaxis_transform(), va="top")


def explanation_picture(found: Explanation, *, title: str) -> bytes:
    """Return a PNG: contributions as a map of variables and observations, with the sums along both sides."""
    parts, increment, innovation = (np.asarray(x) for x in (found.contribution, found.increment, found.innovation))
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplot_mosaic([["innovation", "."], ["map", "increment"]], width_ratios=(4, 1), height_ratios=(1, 4))
    bound = float(np.abs(parts).max(initial=0)) or 1.0
    shown = axes["map"].imshow(
        parts, aspect="auto", cmap=matplotlib.colormaps["RdBu_r"], vmin=-bound, vmax=bound, interpolation="nearest"
    )
    axes["map"].set(xlabel="observation", ylabel="variable")
    figure.colorbar(shown, ax=axes["map"], label="contribution", location="left")
    axes["innovation"].bar(np.arange(len(innovation)), innovation, color="0.4")
    axes["innovation"].set(ylabel="innovation", xlim=(-0.5, len(innovation) - 0.5), title=title)
    axes["increment"].barh(np.arange(len(increment)), increment, color="0.4")
    axes["increment"].set(xlabel="increment", ylim=(len(increment) - 0.5, -0.5))
    stream = io.BytesIO()
    figure.savefig(stream, dpi=120)
    return stream.getvalue()
