"""The page of ``bieqno compare``: which filter has the lowest error in a twin experiment, at which ensemble size."""

import math
from collections.abc import Sequence

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from bieqno.lab.report.filter_figures import errors
from bieqno.lab.report.markup import drawing, plain_page, table
from bieqno.lab.report.pivots import pivots
from bieqno.lab.report.style import style_of
from bieqno.lab.report.tables import plain_rows
from bieqno.lab.results import Result, Row
from bieqno.lab.user_comparisons import Entry

_ERRORS = "RMSE of the analysis mean by ensemble size, with standard errors."
_SERIES = (
    "Error of the analysis mean on the first truth, with the largest ensemble; a line ends where its run diverged."
)
_SPREADS = "Spread / error by ensemble size N: about 1 for a calibrated ensemble, below 1 for an overconfident one."
_SETTINGS = "If the best value is the first or last of its list, extend the list."


def comparison_page(
    entries: Sequence[Entry], arrays: xr.Dataset, *, burn_in: int, command: str, setup_text: str
) -> str:
    """Return one self-contained page."""
    runs, windows = arrays["truth"].shape[:2]
    caption = (
        f"RMSE ± standard error over {runs} truths that no filter was trained or tuned on, {windows} windows each, without the "
        f"first {burn_in}. ✕k: k of the runs diverged, the error is that of the others."
    )
    result = _result(entries)
    settings = [
        [
            style_of(one.method).label,
            str(one.members),
            ", ".join(f"{key} {value:g}" for key, value in one.settings.items()),
        ]
        for one in entries
        if one.settings
    ]
    parts = {
        "scores": table(*comparison_rows(entries), caption=caption),
        "errors": drawing(errors(result), caption=_ERRORS),
        "series": drawing(_series(arrays), caption=_SERIES),
        "spreads": table(*plain_rows(pivots(result)[1]), caption=_SPREADS),
        "settings": table(["filter", "N", "settings"], settings, caption=_SETTINGS),
    }
    texts = {"verdict": verdict(entries), "command": command, "setup": setup_text}
    return plain_page("comparison.html", "Which filter has the lowest error?", parts, **texts)


def verdict(entries: Sequence[Entry]) -> str:
    """Return the best filter of each ensemble size in a sentence."""
    pivot, said = pivots(_result(entries))[0], []
    for size in pivot.columns:
        best = pivot.best(size)
        found = f"{style_of(best).label} ({pivot.lines[best][size].value:.3f})" if best else "none (all diverged)"
        said.append(f"{found} at N = {size}")
    return f"Lowest error: {', '.join(said)}."


def comparison_rows(entries: Sequence[Entry]) -> tuple[list[str], list[list[str]], list[tuple[int, int]]]:
    """Return headings, a row for each filter with a column for each ensemble size, and the best cell of each column."""
    (_, *sizes), rows, best = plain_rows(pivots(_result(entries))[0])
    return ["filter", *(f"N = {size}" for size in sizes)], rows, best


def _result(entries: Sequence[Entry]) -> Result:
    """Return the entries as the rows of a study: error, and spread over error."""
    rows = []
    for entry in entries:
        (error, stderr), (spread, _) = entry.average(entry.errors), entry.average(entry.spreads)
        values = {"rmse": (error, None if math.isnan(stderr) else stderr), "spread_error_ratio": (spread / error, None)}
        n = len(entry.errors) - entry.lost
        for metric, value in values.items():
            case = f"N={entry.members}"
            rows.append(Row(case, entry.method, metric, *value, n, entry.members, "unseen", entry.lost))
    return Result("comparison", "", 0, tuple(rows))


def _series(arrays: xr.Dataset) -> Figure:
    figure = Figure(figsize=(8.6, 3.4), layout="constrained")
    axes = figure.subplots()
    largest = int(arrays["members"].max())
    truth = arrays["truth"].values[0]
    for k in np.flatnonzero(arrays["members"].values == largest):
        error = np.sqrt(np.mean((arrays["mean"].values[k, 0] - truth) ** 2, axis=1))
        style = style_of(str(arrays["method"].values[k]))
        axes.plot(arrays["time"].values, error, linewidth=1.2, **style.keywords(marker=False))
    axes.set(xlabel="time", ylabel="RMSE", ylim=(0, None))
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside right center", frameon=False, fontsize=9, title=f"N = {largest}")
    return figure
