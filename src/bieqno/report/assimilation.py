"""Figures of an assimilation run, from the dataset that `to_dataset` makes of it."""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
import xarray as xr
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bieqno.scores import rank_histogram, spread

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
    if "posterior" in data:
        mean, deviation = data["posterior"].mean("member"), data["posterior"].std("member", ddof=1)
    elif "mean" in data and "spread" in data:
        mean, deviation = data["mean"], data["spread"]
    else:
        raise ValueError(f"expected 'posterior', or 'mean' and 'spread', in the dataset; got {list(data.data_vars)}")
    part = slice(*windows.indices(data.sizes["time"]))
    chosen = list(range(min(3, data.sizes["state"]))) if variables is None else list(variables)
    time = data["time"].values[part]
    figure = Figure(figsize=(9, 1.9 * len(chosen) + 0.6), layout="constrained")
    axes = np.atleast_1d(figure.subplots(len(chosen), 1, sharex=True))
    for axis, variable in zip(axes, chosen, strict=True):
        centre, wide = mean.values[part, variable], deviation.values[part, variable]
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
        truth, ensemble = _sound(data, name, burn_in)
        counts = rank_histogram(jnp.asarray(truth), jnp.asarray(ensemble))
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
        data: from `to_dataset`, with ensembles and truth.
        burn_in: windows at the beginning that do not count for the groups.
    """
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    series, scatter = figure.subplots(1, 2, width_ratios=(2, 1))
    truth, ensemble = data["truth"].values, data["posterior"].values
    error = np.sqrt(np.mean((ensemble.mean(1) - truth) ** 2, axis=1))
    series.plot(data["time"], error, color=OBSERVED, lw=1, label="error of the mean")
    series.plot(data["time"], spread(jnp.asarray(ensemble)), color=ENSEMBLE, lw=1, label="spread")
    series.set(xlabel="time", ylabel="RMSE, spread", ylim=(0, None))
    series.legend(frameon=False)
    _mark_divergence(series, data)
    truth, ensemble = _sound(data, "posterior", burn_in)
    deviation, gap = ensemble.std(1, ddof=1).ravel(), (ensemble.mean(1) - truth).ravel()
    order = np.array_split(np.argsort(deviation), min(12, deviation.size))
    x = [np.sqrt(np.mean(deviation[group] ** 2)) for group in order]
    y = [np.sqrt(np.mean(gap[group] ** 2)) for group in order]
    top = 1.05 * max(*x, *y)
    scatter.plot([0, top], [0, top], color=TRUTH, ls="--", lw=1)
    scatter.plot(x, y, "o-", color=ENSEMBLE, ms=4, lw=1)
    scatter.set(xlabel="spread", ylabel="error", xlim=(0, top), ylim=(0, top), aspect="equal")
    scatter.set_title("groups of equal spread")
    return figure


def _sound(data: xr.Dataset, name: str, burn_in: int) -> tuple[np.ndarray, np.ndarray]:
    """Truth and ensemble of the windows after the burn-in in which the run was sound."""
    if name not in data or "truth" not in data:
        raise ValueError(f"expected '{name}' and 'truth' in the dataset, got {list(data.data_vars)}")
    keep = np.arange(data.sizes["time"]) >= burn_in
    if "sound" in data:
        keep &= data["sound"].values == 1
    if not keep.any():
        raise ValueError(f"no sound window is left after a burn-in of {burn_in} of {keep.size}")
    return data["truth"].values[keep], data[name].values[keep]


def _mark_divergence(axis: Axes, data: xr.Dataset) -> None:
    """Shade what comes after a divergence, and say so."""
    at = int(data.attrs.get("diverged", -1))
    if at >= 0:
        begin = float(data["time"].values[at])
        axis.axvspan(begin, float(data["time"].values[-1]), color=LOST, alpha=0.3, lw=0)
        axis.text(begin, 0.95, " diverged", transform=axis.get_xaxis_transform(), va="top")
