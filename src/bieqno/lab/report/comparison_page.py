"""The page of ``bieqno compare``: which filter has the lowest error, and which predicts the next observations best."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.figure import Figure

from bieqno.lab.compare import Outcome
from bieqno.lab.methods.filters import PREDICTIVE, TwinTest
from bieqno.lab.report import filter_charts
from bieqno.lab.report.charts import Chart, Trace, axis, layout, line, methods_control, truth_line
from bieqno.lab.report.filter_figures import errors
from bieqno.lab.report.pivots import pivots
from bieqno.lab.report.plain_pages import CAPTIONS, PlainTable, plain_page, plain_table
from bieqno.lab.report.record_page import BINS, CENTRES, pit_shares
from bieqno.lab.report.style import panels, style_of
from bieqno.lab.report.tables import plain_rows
from bieqno.lab.results import Result


def comparison_page(
    entries: Sequence[Outcome[TwinTest]], arrays: xr.Dataset, *, burn_in: int, command: str, setup_text: str
) -> str:
    """Return the page that shows which filter has the lowest error in a twin experiment, at which ensemble size."""
    runs, windows = arrays["truth"].shape[:2]
    caption = CAPTIONS["scores"].format(runs=runs, windows=windows, burn_in=burn_in)
    result = _result(entries)
    settings = []
    for one in entries:
        if one.settings:
            chosen = ", ".join(f"{key} {value:g}" for key, value in one.settings.items())
            settings.append([style_of(one.method).label, str(one.case.about["ensemble_size"]), chosen])
    predicted = prediction_tables(entries).items()
    parts = {
        "predictions": "".join(plain_table(each, f"N = {size}: {CAPTIONS['predictions']}") for size, each in predicted),
        "scores": plain_table(comparison_rows(entries), caption),
        "spreads": plain_table(plain_rows(pivots(result)[1]), CAPTIONS["spreads"]),
        "settings": plain_table((["filter", "N", "settings"], settings, []), CAPTIONS["settings"]),
    }
    drawn = {
        "errors": (filter_charts.errors(result), errors(result)),
        "series": (_series_chart(arrays), _series(arrays)),
        "pits": (_pit_chart(arrays), _pits(arrays)),
    }
    texts = {"verdict": comparison_verdict(entries), "command": command, "setup": setup_text}
    return plain_page("comparison.html", "Which filter has the lowest error?", parts, drawn, **texts)


def comparison_verdict(entries: Sequence[Outcome[TwinTest]]) -> str:
    """Return the best filter of each ensemble size in a sentence."""
    pivot, said = pivots(_result(entries))[0], []
    for size in pivot.columns:
        best = pivot.best(size)
        found = f"{style_of(best).label} ({pivot.lines[best][size].value:.3f})" if best else "none (all diverged)"
        said.append(f"{found} at N = {size}")
    return f"Lowest error: {', '.join(said)}."


def comparison_rows(entries: Sequence[Outcome[TwinTest]]) -> PlainTable:
    """Return the table of errors: one row per filter, one column per ensemble size."""
    (_, *sizes), rows, best = plain_rows(pivots(_result(entries))[0])
    return ["filter", *(f"N = {size}" for size in sizes)], rows, best


def prediction_tables(entries: Sequence[Outcome[TwinTest]]) -> dict[str, PlainTable]:
    """Return how well observations were predicted one step ahead, by ensemble size: one row per filter, one column per score."""
    rows = [row for entry in entries for row in entry.rows(PREDICTIVE)]
    found = {}
    for size in dict.fromkeys(row.ensemble_size for row in rows):
        own = (replace(row, protocol=None, ensemble_size=None) for row in rows if row.ensemble_size == size)
        (pivot,) = pivots(Result("comparison", "", 0, tuple(own)))
        (_, *scores), table, best = plain_rows(pivot)
        found[str(size)] = ["filter", *scores], table, best
    return found


def _result(entries: Sequence[Outcome[TwinTest]]) -> Result:
    """Return the entries as the rows of a study: error, and spread over error."""
    rows = []
    for entry in entries:
        error, spread = entry.rows(("rmse", "spread"))
        ratio = spread.value / error.value
        rows += [error, replace(spread, metric="spread_error_ratio", value=ratio, stderr=None)]
    return Result("comparison", "", 0, tuple(rows))


def _largest(arrays: xr.Dataset, name: str) -> dict[str, np.ndarray]:
    """Return what a variable holds of each filter with the largest ensemble."""
    chosen = np.flatnonzero(arrays["members"].values == int(arrays["members"].max()))
    return {str(arrays["method"].values[k]): arrays[name].values[k] for k in chosen}


def _errors(arrays: xr.Dataset) -> dict[str, np.ndarray]:
    """Return the error in each window of the first truth."""
    first = {method: mean[0] - arrays["truth"].values[0] for method, mean in _largest(arrays, "mean").items()}
    return {method: np.sqrt(np.mean(gap**2, axis=1)) for method, gap in first.items()}


def _series(arrays: xr.Dataset) -> Figure:
    figure, ((axes,),) = panels(1, 1, (8.6, 3.4), "time", "RMSE")
    for method, error in _errors(arrays).items():
        axes.plot(arrays["time"].values, error, linewidth=1.2, **style_of(method).keywords(marker=False))
    axes.set_ylim(0, None)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside right center", frameon=False, fontsize=9, title=f"N = {int(arrays['members'].max())}")
    return figure


def _series_chart(arrays: xr.Dataset) -> Chart:
    found = _errors(arrays)
    columns = {"time": arrays["time"].values} | {style_of(method).label: error for method, error in found.items()}
    rows = 0, arrays.sizes["time"]
    traces = [Trace(line(one), {"x": "time", "y": style_of(one).label}, rows, {"method": one}) for one in found]
    made = layout(axis("time"), axis(f"RMSE, N = {int(arrays['members'].max())}", rangemode="tozero"))
    return Chart("series", pd.DataFrame(columns), traces, made, [methods_control(found, found)])


def _histograms(arrays: xr.Dataset) -> dict[str, np.ndarray]:
    """Return the histogram of the PIT of each filter."""
    return {method: pit_shares(pit) for method, pit in _largest(arrays, "pit").items()}


def _pits(arrays: xr.Dataset) -> Figure:
    figure, ((axes,),) = panels(1, 1, (8.6, 3.4), "PIT", "share of the values")
    axes.axhline(1 / BINS, color="black", linewidth=0.8)
    for method, shares in _histograms(arrays).items():
        axes.plot(CENTRES, shares, linewidth=1.2, **style_of(method).keywords())
    figure.legend(loc="outside right center", frameon=False, fontsize=9)
    return figure


def _pit_chart(arrays: xr.Dataset) -> Chart:
    found = _histograms(arrays)
    columns = {"PIT": CENTRES} | {style_of(method).label: shares for method, shares in found.items()}
    traces = [Trace(truth_line("calibrated", x=[0, 1], y=[1 / BINS] * 2, hoverinfo="skip"))]
    for method in found:
        names = {"x": "PIT", "y": style_of(method).label}
        traces.append(Trace(line(method, marker=True), names, (0, BINS), {"method": method}))
    made = layout(axis("PIT", range=[0, 1]), axis("share of the values", rangemode="tozero"))
    return Chart("pits", pd.DataFrame(columns), traces, made, [methods_control(found, found)])
