"""The page of ``bieqno compare``: which filter follows the truths of a set-up best, at which ensemble size."""

import math
from collections.abc import Sequence

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from bieqno.lab.report.plain_page import drawing, heading, paragraph, plain_page, table, verbatim
from bieqno.lab.report.style import style_of
from bieqno.lab.system_files import Entry


def own_setup_page(entries: Sequence[Entry], arrays: xr.Dataset, *, burn_in: int, command: str, setup_text: str) -> str:
    """One self-contained page."""
    runs, windows = arrays["truth"].shape[:2]
    headings, rows, best = comparison_rows(entries)
    return plain_page(
        "Which filter follows the truth best?",
        [
            paragraph(verdict(entries)),
            heading("Error of the analysis"),
            table(
                headings, rows, best=best,
                caption=f"RMSE ± standard error over {runs} truths that no filter was trained or tuned on, "
                f"{windows} windows each, the first {burn_in} left out. ✕k: k of the runs diverged, the error is that of "
                "the others.",
            ),
            paragraph(
                "The classical filters were tuned for each ensemble size on other truths; the settings that won are "
                "below. All filters saw the same observations and the same perturbations."
            ),
            drawing(_errors(entries), caption="RMSE of the analysis mean by ensemble size, with standard errors."),
            heading("Along the first truth"),
            drawing(
                _series(arrays),
                caption="Error of the analysis mean on the first truth, with the largest ensemble; a line ends where its "
                "filter diverged.",
            ),
            heading("Is the spread honest?"),
            _spreads(entries),
            heading("Settings found by tuning"),
            _settings(entries),
            heading("Made by"),
            verbatim(command),
            verbatim(setup_text),
        ],
    )  # fmt: skip


def verdict(entries: Sequence[Entry]) -> str:
    """The winner for each ensemble size, in words."""
    said = []
    for size in _sizes(entries):
        here = [entry for entry in entries if entry.members == size]
        winner = min(here, key=_rank)
        error = winner.average(winner.errors)[0]
        best = "none, for all diverged," if math.isnan(error) else f"{_label(winner)} ({error:.3f})"
        said.append(f"{best} at N = {size}")
    return f"Least error: {', '.join(said)}."


def comparison_rows(entries: Sequence[Entry]) -> tuple[list[str], list[list[str]], list[tuple[int, int]]]:
    """Headings, a row for each filter and a column for each ensemble size, and the best cell of each column."""
    sizes, methods = _sizes(entries), list(dict.fromkeys(entry.method for entry in entries))
    found = {(entry.method, entry.members): entry for entry in entries}
    rows = [[style_of(method).label, *(_cell(found[method, size]) for size in sizes)] for method in methods]
    best = [
        (min(range(len(methods)), key=lambda i: _rank(found[methods[i], size])), 1 + j) for j, size in enumerate(sizes)
    ]  # fmt: skip
    return ["filter", *(f"N = {size}" for size in sizes)], rows, best


def _rank(entry: Entry) -> tuple[int, float]:
    """Fewer diverged runs are better, whatever the error; then the error counts."""
    error = entry.average(entry.errors)[0]
    return entry.lost, math.inf if math.isnan(error) else error


def _cell(entry: Entry) -> str:
    mean, error = entry.average(entry.errors)
    lost = f" ✕{entry.lost}" if entry.lost else ""
    if math.isnan(mean):
        return lost.strip()
    return f"{mean:.3f}" + (f" ± {error:.3f}" if math.isfinite(error) else "") + lost


def _sizes(entries: Sequence[Entry]) -> list[int]:
    return list(dict.fromkeys(entry.members for entry in entries))


def _label(entry: Entry) -> str:
    return style_of(entry.method).label


def _spreads(entries: Sequence[Entry]) -> str:
    rows = []
    for entry in entries:
        error, spread = entry.average(entry.errors)[0], entry.average(entry.spreads)[0]
        cells = ["", "", ""] if math.isnan(error) else [f"{error:.3f}", f"{spread:.3f}", f"{spread / error:.2f}"]
        rows.append([_label(entry), str(entry.members), *cells])
    caption = (
        "Spread over error: about 1 where the ensemble knows how wrong it is, below 1 where it is too sure of itself."
    )
    return table(["filter", "N", "error", "spread", "ratio"], rows, caption=caption, best=[])


def _settings(entries: Sequence[Entry]) -> str:
    rows = [
        [_label(entry), str(entry.members), ", ".join(f"{name} {value:g}" for name, value in entry.settings.items())]
        for entry in entries
        if entry.settings
    ]
    return table(
        ["filter", "N", "settings"], rows, caption="A value at the end of its list asks for a longer list.", best=[]
    )


def _errors(entries: Sequence[Entry]) -> Figure:
    figure = Figure(figsize=(7.6, 4.0), layout="constrained")
    axes = figure.subplots()
    for method in dict.fromkeys(entry.method for entry in entries):
        style = style_of(method)
        here = [entry for entry in entries if entry.method == method]
        averages = np.array([entry.average(entry.errors) for entry in here])
        axes.errorbar(
            [entry.members for entry in here], averages[:, 0], yerr=np.nan_to_num(averages[:, 1]),
            color=style.color, linestyle=style.line, marker=style.marker, capsize=2, label=style.label,
        )  # fmt: skip
    axes.set_xscale("log", base=2)
    sizes = _sizes(entries)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.set(xlabel="ensemble size N", ylabel="RMSE", ylim=(0, None))
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside right center", frameon=False, fontsize=9)
    return figure


def _series(arrays: xr.Dataset) -> Figure:
    largest = int(arrays["members"].max())
    figure = Figure(figsize=(8.6, 3.4), layout="constrained")
    axes = figure.subplots()
    truth = arrays["truth"].values[0]
    for k in np.flatnonzero(arrays["members"].values == largest):
        style = style_of(str(arrays["method"].values[k]))
        error = np.sqrt(np.mean((arrays["mean"].values[k, 0] - truth) ** 2, axis=1))
        axes.plot(arrays["time"].values, error, color=style.color, linestyle=style.line, lw=1.2, label=style.label)
    axes.set(xlabel="time", ylabel="RMSE", ylim=(0, None))
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside right center", frameon=False, fontsize=9, title=f"N = {largest}")
    return figure
