"""The regression studies' figures to explore."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import xarray as xr

from bieqno.lab.report.chart import PAPERS_TWO, Chart, plot_data, short, thin
from bieqno.lab.report.html_tables import case_title
from bieqno.lab.studies import Result


def regression_charts(result: Result) -> Iterator[Chart]:
    """Predictions, maps, the diagonal and the reliability, as far as the study has them."""
    if not result.arrays:
        return
    first = next(iter(result.arrays.values()))
    if "reliability" not in first:  # tasks, whose figures stand as they are
        return
    cases = {case_title(case): arrays for case, arrays in result.arrays.items()}
    if "noise" not in first.attrs:
        pass  # data from the world: scattered points, and no truth to draw
    elif first.sizes["input"] == 1:
        layouts = dict.fromkeys(case.split("-")[0] for case in result.arrays)
        yield Chart(
            "bands", "Predictions with their uncertainty",
            "Mean and two standard deviations of noisy new values, one data set. Where the truth leaves the band, the method was "
            "too sure; where the band is wide without need, it was not sure enough.",
            plot_data({title: _bands(a, thin(a.sizes["point"], 250)) for title, a in cases.items()}, "x", "y", [-0.6, 1.6]),
            tuple(f"bands-{layout}" for layout in layouts),
        )  # fmt: skip
    else:
        yield Chart(
            "maps", "The predicted function as a map",
            "Truth, prediction and error over the unit square, one data set. The finest waves are in the lower "
            "left quarter of the middle.",
            {"kind": "images", "first": PAPERS_TWO, "axes": ["x₁", "x₂"],
             "views": {title: _maps(a) for title, a in cases.items()}}, ("maps",),
        )  # fmt: skip
        yield Chart(
            "diagonal", "Along the diagonal",
            "Mean and two standard deviations where both variables are equal: all four wave lengths lie on this line.",
            plot_data({title: _bands(a, a["cut_point"].values) for title, a in cases.items()}, "x₁ = x₂", "f", [-1.8, 3.2]),
            ("diagonal",),
        )  # fmt: skip
    yield Chart(
        "reliability", "Do the intervals hold what they promise?",
        "Share of new values inside central intervals. On the straight line the predicted uncertainty is right; below it "
        "the method is too sure, above it not sure enough.",
        plot_data({title: _reliability(a) for title, a in cases.items()}, "promised", "found", [0.0, 1.02]), ("reliability",),
    )  # fmt: skip


def _bands(arrays: xr.Dataset, which: np.ndarray) -> dict[str, Any]:
    x = arrays["x"].values[which, 0]
    view: dict[str, Any] = {
        "truth": {"x": short(x), "y": short(arrays["truth"].values[which])},
        "series": [
            {
                "method": str(method),
                "x": short(x),
                "y": short(arrays["mean"].values[0, place, which]),
                "band": short(2 * arrays["std"].values[0, place, which]),
            }
            for place, method in enumerate(arrays["method"].values)
        ],
    }
    if arrays.sizes["input"] == 1:
        observed = arrays["x_observed"].values[0, :, 0]
        view["points"] = {"x": short(observed), "y": short(arrays["y_observed"].values[0])}
    return view


def _maps(arrays: xr.Dataset) -> dict[str, Any]:
    side = round(arrays.sizes["point"] ** 0.5)
    keep = thin(side, 64)

    def image(values: np.ndarray) -> list[float | None]:
        # The first variable is the slow one; an image wants rows of the second, from the top down.
        return short(values.reshape(side, side)[np.ix_(keep, keep)].T[::-1], 3)

    series = [
        {"method": str(method), "values": image(arrays["mean"].values[0, place])}
        for place, method in enumerate(arrays["method"].values)
    ]
    return {"rows": len(keep), "columns": len(keep), "extent": [0, 1, 0, 1], "truth": image(arrays["truth"].values),
            "series": series}  # fmt: skip


def _reliability(arrays: xr.Dataset) -> dict[str, Any]:
    level = short(arrays["level"].values)
    series = [
        {"method": str(method), "x": level, "y": short(arrays["reliability"].values[place])}
        for place, method in enumerate(arrays["method"].values)
    ]
    return {"truth": {"x": [0, 1], "y": [0, 1], "label": "as promised"}, "series": series}
