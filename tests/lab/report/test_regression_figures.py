"""Figures are drawn from stored arrays alone."""

import numpy as np
import pytest
import synthetic
from matplotlib.colors import to_rgb
from rich.console import Console

from bieqno.lab.methods.regression import METHODS, Prediction
from bieqno.lab.report.regression_figures import regression_figures
from bieqno.lab.report.style import style_of
from bieqno.lab.report.tables import study_tables
from bieqno.lab.studies import Result, Row, step_1d, trig_2d


def constant(problem, seed):
    n, k = len(problem.points), len(problem.cut)
    return Prediction(np.full(n, problem.y.mean()), np.full(n, 0.5), 0.25 * np.eye(k), 1.0)


@pytest.fixture(params=[step_1d, trig_2d], ids=["step-1d", "trig-2d"])
def result(request):
    return synthetic.regression(request.param, {"ggp": constant, "gp-se": constant})


def test_each_study_has_its_figures(result, tmp_path):
    figures = regression_figures(result)
    expected = {
        "step-1d": {"bands-random", "covariance-random", "reliability"},
        "trig-2d": {"maps", "diagonal", "covariance", "reliability"},
    }
    assert set(figures) == expected[result.experiment]
    for name, figure in figures.items():
        figure.savefig(tmp_path / f"{name}.png")  # the layout is made here; a glyph that is missing would warn
        # Both counts of observations are in every figure.
        text = " ".join(label for axes in figure.axes for label in (axes.get_title(), axes.get_ylabel()))
        for arrays in result.arrays.values():
            assert f"{arrays.sizes['observation']} observations" in text


def test_one_colour_a_method():
    colours = [to_rgb(style_of(method).color) for method in (*METHODS, "gp-best")]
    assert len(set(colours)) == len(colours)
    assert style_of("new").label == "new"


def test_tables_show_each_case_and_mark_the_chosen_kernel(result):
    made = study_tables(result)
    assert len(made) == len(result.arrays)
    cells = list(made[0].columns[0].cells)
    assert [cell.endswith("*") for cell in cells].count(True) == 1


def test_tables_fit_80_columns():
    # As wide as numbers of these studies get: y is of order one, a fit of the quick preset takes under 100 s.
    widest = {
        "rmse": 0.1234, "rmse_near_jump": 0.1234, "nlpd": -12.345, "crps": 0.1234, "coverage_95": 0.95, "seconds": 99.9,
    }  # fmt: skip
    rows = tuple(Row("random-100", m, metric, value, 0.1234, 5) for m in METHODS for metric, value in widest.items())
    console = Console(width=80)
    with console.capture() as captured:
        console.print(
            study_tables(Result("step-1d", "quick", 0, (*rows, Row("random-100", "gp-best", "rmse", 1.0, 1.0, 5))))[0]
        )
    assert "…" not in captured.get()
    assert "NLPD" in captured.get()
