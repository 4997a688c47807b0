"""Figures of an assimilation run, from the dataset that `to_dataset` makes of it."""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
import xarray as xr
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bieqno.scores import rank_histogram

# Colours that differ in lightness as well, for those who see few hues and for grey print.
TRUTH, ENSEMBLE, OBSERVED, LOST = "black", "#3b76b0", "#c8553d", "#999999"


def plot_run(
    data: xr.Dataset,
    *,
    variables: Sequence[int] | None = None,
    observed: Sequence[int] | None = None,
    windows: slice = slice(None),
) -> Figure:
    """Truth, observations, ensemble mean and two standard deviations of some variables over time.

    Args:
        data: from `to_dataset`, of a record that keeps ensembles or moments.
        variables: which variables to draw; the first three by default.
        observed: the variable that each observation is of, to draw them too; None to leave them out.
        windows: which part of the series.

    Example:
        >>> import numpy as np, xarray as xr
        >>> series = xr.DataArray(np.zeros((5, 2)), dims=("time", "state"))
        >>> data = xr.Dataset({"mean": series, "spread": series + 1, "truth": series}, {"time": np.arange(5.0)})
        >>> len(plot_run(data).axes)
        2
    """
    mean, deviation = _moments(data)
    part = slice(*windows.indices(data.sizes["time"]))
    chosen = list(range(min(3, data.sizes["state"]))) if variables is None else list(variables)
    if not chosen or not all(0 <= variable < data.sizes["state"] for variable in chosen):
        raise ValueError(f"expected numbers of some of the {data.sizes['state']} variables, from 0, got {chosen}")
    if observed is not None and len(observed) != data.sizes.get("observation"):
        raise ValueError(
            f"expected the variable of each of the {data.sizes.get('observation', 0)} observations, got {len(observed)}"
        )
    time = data["time"].values[part]
    figure = Figure(figsize=(9, 1.9 * len(chosen) + 0.6), layout="constrained")
    axes = np.atleast_1d(figure.subplots(len(chosen), 1, sharex=True))
    for axis, variable in zip(axes, chosen, strict=True):
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
    axes[-1].set_xlabel("time")
    unique: dict[str, Artist] = {}
    for axis in axes:
        handles, labels = axis.get_legend_handles_labels()
        unique.update(zip(labels, handles, strict=True))
    figure.legend(list(unique.values()), list(unique), loc="outside upper center", ncols=len(unique), frameon=False)
    return figure


def plot_rank_histogram(data: xr.Dataset, *, burn_in: int = 0, bins: int = 25) -> Figure:
    """Ranks of the truth among the members, forecast and analysis, against the flat line of a calibrated ensemble.

    Args:
        data: from `to_dataset`, with ensembles and truth.
        burn_in: windows at the beginning that do not count.
        bins: most bars; neighbouring ranks are joined.
    """
    figure = Figure(figsize=(8, 3), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    for axis, name, title in zip(axes, ("prior", "posterior"), ("forecast", "analysis"), strict=True):
        keep = _sound(data, name, burn_in)
        counts = rank_histogram(*(jnp.asarray(data[which].values[keep]) for which in ("truth", name)))
        groups = np.array_split(counts, min(bins, counts.size))
        widths = np.array([group.size for group in groups]) / counts.size
        share = np.array([group.sum() for group in groups]) / counts.sum() / widths
        axis.bar(np.cumsum(widths) - widths, share, widths, align="edge", color=ENSEMBLE, edgecolor="white", lw=0.5)
        axis.axhline(1, color=TRUTH, ls="--", lw=1)
        axis.set(title=title, xlabel="rank of the truth / (N + 1)", xlim=(0, 1))
    axes[0].set_ylabel("frequency / expected")
    return figure


def plot_spread_error(data: xr.Dataset, *, burn_in: int = 0) -> Figure:
    """Spread and error of the analysis over time, and against each other in groups of equal spread.

    Args:
        data: from `to_dataset`, with ensembles or moments, and truth.
        burn_in: windows at the beginning that do not count for the groups.
    """
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    series, scatter = figure.subplots(1, 2, width_ratios=(2, 1))
    keep = _sound(data, "truth", burn_in)
    mean, deviation = _moments(data)
    gap = mean - data["truth"].values
    series.plot(data["time"], np.sqrt(np.mean(gap**2, axis=1)), color=OBSERVED, lw=1, label="error of the mean")
    series.plot(data["time"], np.sqrt(np.mean(deviation**2, axis=1)), color=ENSEMBLE, lw=1, label="spread")
    series.set(xlabel="time", ylabel="RMSE, spread", ylim=(0, None))
    series.legend(frameon=False)
    _mark_divergence(series, data)
    deviation, gap = deviation[keep].ravel(), gap[keep].ravel()
    order = np.array_split(np.argsort(deviation), min(12, deviation.size))
    x = [np.sqrt(np.mean(deviation[group] ** 2)) for group in order]
    y = [np.sqrt(np.mean(gap[group] ** 2)) for group in order]
    top = 1.05 * max(*x, *y)
    scatter.plot([0, top], [0, top], color=TRUTH, ls="--", lw=1)
    scatter.plot(x, y, "o-", color=ENSEMBLE, ms=4, lw=1)
    scatter.set(xlabel="spread", ylabel="error", xlim=(0, top), ylim=(0, top), aspect="equal")
    scatter.set_title("groups of equal spread")
    return figure


def _moments(data: xr.Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of the analysis; the latter is zero for one member."""
    if "posterior" in data:
        members = data["posterior"].values
        scale = np.sqrt(members.shape[1] / max(members.shape[1] - 1, 1))
        return members.mean(axis=1), scale * members.std(axis=1)
    if "mean" in data and "spread" in data:
        return data["mean"].values, data["spread"].values
    raise ValueError(f"expected 'posterior', or 'mean' and 'spread', in the dataset; got {list(data.data_vars)}")


def _sound(data: xr.Dataset, name: str, burn_in: int) -> np.ndarray:
    """Which windows are after the burn-in and sound; a ValueError if none is, or `name` or the truth is missing."""
    if name not in data or "truth" not in data:
        raise ValueError(f"expected '{name}' and 'truth' in the dataset, got {list(data.data_vars)}")
    keep = np.arange(data.sizes["time"]) >= burn_in
    if "sound" in data:
        keep &= data["sound"].values == 1
    if not keep.any():
        raise ValueError(f"no sound window is left after a burn-in of {burn_in} of {keep.size}")
    return keep


def _mark_divergence(axis: Axes, data: xr.Dataset) -> None:
    """Shade what comes after a divergence, and say so."""
    at = int(data.attrs.get("diverged", -1))
    if at >= 0:
        begin = float(data["time"].values[at])
        axis.axvspan(begin, float(data["time"].values[-1]), color=LOST, alpha=0.3, lw=0)
        axis.text(begin, 0.95, " diverged", transform=axis.get_xaxis_transform(), va="top")
