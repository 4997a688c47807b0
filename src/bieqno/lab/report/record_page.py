"""The page of ``bieqno assimilate`` on a record: how well values were predicted, beside what needs no model; what to do next."""

from collections.abc import Mapping
from html import escape

import numpy as np
import pandas as pd
import xarray as xr
from jaxtyping import Float
from matplotlib.figure import Figure

from bieqno.assimilation import calibration_band
from bieqno.lab.report.charts import Chart, Trace, axis, band, layout
from bieqno.lab.report.plain_pages import PlainTable, plain_page, plain_table
from bieqno.lab.report.style import panels

BINS = 10  # of the histogram of the PIT
CENTRES = (np.arange(BINS) + 0.5) / BINS
SPIN = 20  # one in so many windows at the beginning does not count
CLOSE = 0.02  # difference of log scores per value that counts as none
FILTER = "filter"
Scores = Mapping[str, Mapping[str, np.ndarray]]  # of each method: log score, CRPS and PIT of each window


def record_scores(found: Scores) -> dict[str, dict[str, float]]:
    """Return the mean log score and CRPS and the coverage of each method, without the first windows."""
    scored = {}
    sound = np.all([np.isfinite(kept["pit"]) for kept in found.values()], axis=0)  # the same windows for all
    for name, kept in found.items():
        log_score, crps, pit = (np.asarray(kept[key], float) for key in ("log_score", "crps", "pit"))
        counted = sound & (np.arange(len(pit)) >= len(pit) // SPIN)
        if not counted.any():
            raise ValueError(
                f"nothing was predicted after the first {100 / SPIN:.0f} % of the windows, which are not scored: there are no "
                "values, or the filter diverged"
            )
        inside = (pit > 0.05) & (pit < 0.95)
        own = (np.mean(log_score[counted]), np.mean(crps[counted]), np.mean(inside[counted]))
        scored[name] = dict(zip(("log_score", "crps", "coverage_90"), map(float, own), strict=True))
    return scored


def score_table(scored: Mapping[str, Mapping[str, float]]) -> PlainTable:
    """Return the table of scores; the best of each column is marked."""
    headings = ["prediction", "log score per window", "CRPS", "90 % interval holds"]
    rows = [
        [name, f"{own['log_score']:.3f}", f"{own['crps']:.4g}", f"{own['coverage_90']:.2f}"]
        for name, own in scored.items()
    ]
    log_scores, crps = ([own[key] for own in scored.values()] for key in ("log_score", "crps"))
    return headings, rows, [(int(np.nanargmax(log_scores)), 1), (int(np.nanargmin(crps)), 2)]


def next_steps(scored: Mapping[str, Mapping[str, float]], pit: Float[np.ndarray, "T"], diverged: int) -> list[str]:
    """Return what to do next, in words.

    Example:
        >>> scored = {"filter": {"log_score": -2.0}, "persistence": {"log_score": -1.5}}
        >>> print(next_steps(scored, np.linspace(0.01, 0.99, 200), -1)[1])
        The forecasts are calibrated: the histogram of the PIT is within its band.
    """
    if diverged >= 0:
        return [
            f"The filter diverged in window {diverged + 1}. Look at the model's state there; take coordinates in which it cannot "
            'leave its range (Transformed; zeros have no logarithm, but "log1p" and "sqrt"), more members, or a larger limit.'
        ]
    others = {name: own["log_score"] for name, own in scored.items() if name != FILTER}
    best = max(others, key=lambda name: others[name])
    lead = scored[FILTER]["log_score"] - others[best]
    if lead < -CLOSE:
        said = [
            f"A prediction without a model, {best}, is better by {-lead:.3f} per value: the model does not yet add anything. "
            "Fit its parameters by the largest log score, and let what drives it be uncertain."
        ]
    elif lead < CLOSE:
        said = [f"Filter and {best} predict equally well: what the model knows is in the last values, too."]
    else:
        said = [f"The filter is better than the best prediction without a model, {best}, by {lead:.3f} per value."]
    known = pit[np.isfinite(pit)]
    low, high = calibration_band(max(len(known), 1), BINS)
    shares = pit_shares(pit)
    if np.all((shares >= low) & (shares <= high)):
        return [*said, "The forecasts are calibrated: the histogram of the PIT is within its band."]
    ends, middle = shares[[0, -1]].mean(), shares[4:6].mean()
    tilt = known.mean() - 0.5
    if abs(tilt) > 0.05:
        said.append(
            f"The forecasts are too {'low' if tilt > 0 else 'high'} on average: look for a bias of model or inputs."
        )
    if ends > high:
        said.append(
            "Too many values are outside of what was forecast: give the model more noise, or inflate the ensemble."
        )
    elif middle > high:
        said.append("The forecasts are wider than need be: less noise of the model, or smaller errors in the law.")
    elif abs(tilt) <= 0.05:
        said.append("The histogram of the PIT is outside of its band: look at which values are forecast badly.")
    return said


def record_page(
    data: xr.Dataset, found: Scores, *, title: str, command: str, setup_text: str, diverged: int = -1
) -> str:
    """Return the page of one observed value."""
    scored = record_scores(found)
    pit = np.asarray(found[FILTER]["pit"], float)
    caption = (
        "One step ahead, each value before it was used; without the first windows. Predictions without a model were fitted to "
        "the very values they are scored on."
    )
    steps = "".join(f"<li>{escape(text)}</li>" for text in next_steps(scored, pit, diverged))
    parts = {"scores": plain_table(score_table(scored), caption), "steps": f"<ul>{steps}</ul>"}
    drawn = {"bands": (_band_chart(data), _bands(data)), "pit": (_pit_chart(pit), _pit(pit))}
    verdict = f"{np.isfinite(pit).sum()} of {len(pit)} windows have a value of {title}."
    return plain_page("record.html", title, parts, drawn, verdict=verdict, command=command, setup=setup_text)


def _bands(data: xr.Dataset) -> Figure:
    figure, ((axes,),) = panels(1, 1, (8.6, 3.4), "time", "value")
    time, mean, spread = (data[name].values for name in ("time", "mean", "spread"))
    look = {"color": "0.85", "linewidth": 0, "label": "forecast, two deviations"}
    axes.fill_between(time, mean - 2 * spread, mean + 2 * spread, **look)
    axes.plot(time, mean, color="0.4", linewidth=0.8, label="mean of the forecast")
    axes.plot(time, data["observed"].values, ".", color="black", markersize=3, label="observed")
    figure.legend(loc="outside right center", frameon=False, fontsize=9)
    return figure


def _band_chart(data: xr.Dataset) -> Chart:
    columns = {name: data[name].values for name in ("time", "observed", "mean", "spread")}
    rows = (0, len(columns["time"]))
    low, high = ([("mean", 1), ("spread", sign)] for sign in (-2, 2))
    traces = band("time", (low, high), rows, "rgba(128, 128, 128, 0.25)")
    dots = {"type": "scatter", "mode": "markers", "marker": {"size": 4}, "name": "observed"}
    traces.append(Trace({"type": "scatter", "mode": "lines", "name": "mean"}, {"x": "time", "y": "mean"}, rows))
    traces.append(Trace(dots, {"x": "time", "y": "observed"}, rows))
    return Chart("bands", pd.DataFrame(columns), traces, layout(axis("time"), axis("value")), [])


def pit_shares(pit: Float[np.ndarray, "..."]) -> Float[np.ndarray, "b"]:
    """Return the histogram of the PIT of all values that were observed."""
    known = pit[np.isfinite(pit)]
    return np.histogram(known, BINS, (0, 1))[0] / max(len(known), 1)


def _pit(pit: Float[np.ndarray, "T"]) -> Figure:
    figure, ((axes,),) = panels(1, 1, (5.0, 3.0), "PIT", "share of the values")
    low, high = calibration_band(max(int(np.isfinite(pit).sum()), 1), BINS)
    axes.axhspan(low, high, color="0.88")
    axes.bar(CENTRES, pit_shares(pit), 0.8 / BINS, color="0.4")
    return figure


def _pit_chart(pit: Float[np.ndarray, "T"]) -> Chart:
    columns = {"PIT": CENTRES, "share of the values": pit_shares(pit)}
    trace = Trace({"type": "bar", "name": "PIT"}, {"x": "PIT", "y": "share of the values"}, (0, BINS))
    return Chart("pit", pd.DataFrame(columns), [trace], layout(axis("PIT"), axis("share of the values")), [])
