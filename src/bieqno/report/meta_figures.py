"""The figure of the study of tasks: densities and draws of new values, a panel for each family of functions."""

import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from bieqno.experiments import Result
from bieqno.report.style import style_of

_DRAWS = ("#D55E00", "#009E73")


def of_tasks(result: Result) -> bool:
    """Whether it is a study of tasks, scored by the likelihood of values."""
    return any(row.metric == "log_likelihood" for row in result.rows)


def task_figures(result: Result) -> dict[str, Figure]:
    """The figure, unless the process was not among the methods that were run."""
    if not result.arrays:
        return {}
    rows = -(-len(result.arrays) // 2)
    figure = Figure(figsize=(10.0, 2.9 * rows), layout="constrained")
    grid = figure.subplots(rows, 2, squeeze=False, sharex=True)
    colour = style_of("ggp-meta").color
    for axes, (case, arrays) in zip(grid.flat, result.arrays.items(), strict=False):
        x, y = arrays["x"].values, arrays["y"].values
        # The root shows a wide density beside a sharp one.
        shade = np.sqrt(np.minimum(arrays["density"].values, 8.0))
        alpha = (0.9 * shade / shade.max()).clip(0, 1)
        axes.imshow(
            np.zeros_like(shade), alpha=alpha, cmap=ListedColormap([colour]), origin="lower", aspect="auto",
            extent=(x[0], x[-1], y[0], y[-1]),
        )  # fmt: skip
        axes.plot(
            arrays["x_hidden"].values, arrays["y_hidden"].values, ".", color="#666666", markersize=3, label="hidden"
        )
        for line, draw in zip(_DRAWS, arrays["sample"].values, strict=False):
            axes.plot(x, draw, color=line, linewidth=0.8, label="drawn")
        axes.plot(
            arrays["x_observed"].values,
            arrays["y_observed"].values,
            "o",
            color="black",
            markersize=4.5,
            label="observed",
        )
        axes.set(xlim=(-2, 2), ylim=(y[0], y[-1]))
        axes.set_title(case, fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
    for axes in grid.flat[len(result.arrays) :]:
        axes.set_axis_off()
    for axes in grid[-1]:
        axes.set_xlabel("x")
    handles, labels = grid.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper right", frameon=False, fontsize=8, ncols=4)
    return {"tasks": figure}
