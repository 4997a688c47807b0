"""Interactive figures are valid for Plotly, and their numbers are those of the results."""

import base64
import csv
import io
import re
from html import unescape
from urllib.parse import unquote

import numpy as np
import plotly.graph_objects as go
import pytest
import synthetic
import xarray as xr
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from PIL import Image

from bieqno.lab.report.charts import log_axis
from bieqno.lab.report.filter_charts import filter_charts
from bieqno.lab.report.live_figures import csv_link, image_address, live_figure
from bieqno.lab.report.regression_charts import regression_charts
from bieqno.lab.report.style import asset, style_of
from bieqno.lab.studies import Result, Row


def growth():
    rows = [
        Row.of(f"n={n}", method, metric, [value, 2 * value], ensemble_size=10, protocol="all", diverged=0)
        for n in (40, 4000)
        for method in ("EnNF", "LETKF tuned")
        for metric, value in (("rmse", 0.3), ("seconds", 2.0))
    ]
    return Result("scale", "smoke", 0, tuple(rows))


def distances():
    data = xr.Dataset(
        {"distance": (("teacher", "student"), np.array([[0.1, 2.0], [3.0, 0.2]]))},
        {"teacher": ["EnKF", "ETKF"], "student": ["as EnKF", "as ETKF"]},
    )
    row = Row.of("unseen", "EnNF as EnKF", "share_of_typical", [0.1], protocol="unseen", ensemble_size=10)
    return Result("super-filter", "smoke", 0, (row,), {"distances": data})


STUDIES = {
    "step-1d": (synthetic.step, ["bands", "covariance", "reliability"]),
    "trig-2d": (synthetic.trig, ["maps", "diagonal", "covariance", "reliability"]),
    "lorenz63": (lambda: synthetic.filters("lorenz63", 3), ["errors", "orbit", "dynamics"]),
    "lorenz96": (lambda: synthetic.filters("lorenz96", 24), ["errors", "waves", "dynamics"]),
    "scale": (growth, ["growth"]),
    "qg": (synthetic.maps, ["errors", "fields"]),
    "super-filter": (distances, ["distances"]),
}


def charts_of(study):
    result = STUDIES[study][0]()
    return list((regression_charts if study in ("step-1d", "trig-2d") else filter_charts)(result))


def filled(chart, trace):
    """What the script makes of a trace."""
    look = {key: dict(value) if isinstance(value, dict) else value for key, value in trace["look"].items()}
    first, last = trace["rows"]
    for key, terms in trace["columns"].items():
        name, _, inner = key.partition(".")
        values = sum(factor * chart.table.iloc[first:last, k].to_numpy(float) for k, factor in terms)
        if inner:
            look[name][inner] = values
        else:
            look[name] = values
    return look


@pytest.mark.parametrize("study", STUDIES)
def test_every_figure_is_valid_for_plotly(study):
    made = charts_of(study)
    assert [chart.name for chart in made] == STUDIES[study][1]
    for chart in made:
        data = chart.data()
        for layout in (data["layout"], {**data["layout"], **data["narrow"]}):
            go.Layout(layout)  # raises a ValueError that names what Plotly does not know
            for scale in (axis["colorscale"] for name, axis in layout.items() if name.startswith("coloraxis")):
                places = [place for place, _ in scale]
                assert places == sorted(places)  # from 0 to 1, else Plotly takes a scale of its own
                assert (places[0], places[-1]) == (0, 1)
        drawn = [go.Figure([filled(chart, trace)]).data[0] for trace in data["traces"]]
        assert len(drawn) == len(chart.traces) > 0
        for trace in drawn:
            lengths = {len(trace[axis]) for axis in "xy"}
            assert len(lengths) == 1 or trace.type == "heatmap"
        # With the values that the controls can have, every trace can be seen.
        values = {control.name: set(control.values) for control in chart.controls}
        for trace in chart.traces:
            assert all(value in values[name] for name, value in trace.when.items())


def test_the_numbers_of_a_figure_are_those_of_the_rows():
    result = synthetic.filters("lorenz63", 3)
    errors = next(filter_charts(result))
    wanted = result.select(metric="relative_rmse", protocol="unseen", method="EnNF")
    trace = next(
        trace for trace in errors.data()["traces"] if trace["when"] == {"view": "unseen truths", "method": "EnNF"}
    )
    drawn = filled(errors, trace)
    assert drawn["x"].tolist() == [row.ensemble_size for row in wanted]
    assert drawn["y"].tolist() == [row.value for row in wanted]
    assert drawn["error_y"]["array"].tolist() == [row.stderr for row in wanted]


def test_a_band_is_two_standard_deviations_wide():
    result = synthetic.step()
    bands = next(regression_charts(result))
    lower, upper, mean = (filled(bands, trace)["y"] for trace in bands.data()["traces"][:3])
    np.testing.assert_allclose(upper - mean, 2 * 0.1)
    np.testing.assert_allclose(mean - lower, 2 * 0.1)


def test_the_csv_file_is_the_table():
    errors = next(filter_charts(synthetic.filters("lorenz63", 3)))
    link = csv_link(errors.table, "x")
    text = unquote(unescape(re.search(r'href="data:text/csv;charset=utf-8,([^"]*)"', link)[1]))
    head, *rows = csv.reader(io.StringIO(text))
    assert head == [str(name) for name in errors.table.columns]
    assert len(rows) == len(errors.table)
    assert [row[1] for row in rows] == list(errors.table["method"])  # a comma in a label is quoted


def test_labels_and_columns_are_text_and_never_markup():
    evil = '"><img src=x onerror=alert(1)>&'
    rows = [Row.of("N=2", evil, "rmse", [0.5], ensemble_size=2, protocol="unseen", diverged=1)]
    chart = next(filter_charts(Result("own", "quick", 0, tuple(rows))))
    text = live_figure(chart, evil, (evil, evil), [])
    assert "<img src=x" not in text


def test_logarithmic_axes_have_round_numbers_in_range():
    assert log_axis("", [0.04, 0.9])["ticktext"] == ["0.05", "0.1", "0.2", "0.5", "1"]
    assert log_axis("", [1.1, 2.0])["ticktext"] == ["1", "1.2", "1.5", "2"]
    assert log_axis("", [float("nan")])["tickvals"]


def test_static_images_keep_the_colours_of_methods_apart():
    figure = Figure(figsize=(8, 4), dpi=150)
    axes = figure.subplots()
    wanted = [style_of(method).color for method in ("EnNF", "EnKF", "ETKF tuned", "EnKF tuned")]
    for place, color in enumerate(wanted):
        axes.plot([0, 1], [place, place + 0.5], color=color)
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png")
    small = base64.b64decode(image_address(drawn.getvalue()).partition(",")[2])
    points = np.asarray(Image.open(io.BytesIO(small)).convert("RGB"), float).reshape(-1, 3)
    for color in wanted:
        assert np.abs(points - 255 * np.array(to_rgb(color))).max(axis=1).min() < 30


def test_the_script_is_short():
    """Charts are Plotly's: what is written here only joins it to native controls, tables and keys."""
    assert len(asset("page.js").splitlines()) <= 60


def test_maps_are_shown_for_a_window_a_filter_and_a_size():
    (chart,) = (chart for chart in charts_of("qg") if chart.name == "fields")
    result = synthetic.maps()
    chosen = {"time": "8", "method": "LETKF tuned", "size": "5"}
    data = result.arrays["fields"]
    truth, mean, spread = (data[name].values[1, 1].ravel() for name in ("truth", "mean", "spread"))
    named = {
        trace["look"]["name"]: filled(chart, trace)["z"]
        for trace in chart.data()["traces"]
        if trace["when"].items() <= chosen.items()
    }
    assert len(named) == 4
    for (name, values), expected in zip(named.items(), (truth, mean, mean - truth, spread), strict=True):
        np.testing.assert_allclose(values, expected, atol=0.0101, err_msg=name)  # two digits each
