"""Figures are drawn from stored arrays alone."""

import numpy as np
import pytest
import synthetic
from matplotlib.colors import to_rgb

from bieqno.lab.methods.regression import METHODS, Prediction
from bieqno.lab.report.page import study_figures
from bieqno.lab.report.regression_figures import regression_figures
from bieqno.lab.report.style import style_of
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


def test_each_method_has_its_own_colour():
    colours = [to_rgb(style_of(method).color) for method in (*METHODS, "gp-best")]
    assert len(set(colours)) == len(colours)
    assert style_of("new").label == "new"


def test_a_study_without_stored_predictions_has_no_figures():
    rows = (Row.of("eq, inside", "ggp", "log_likelihood", [0.5, 0.7]),)
    assert study_figures(Result("neural-process", "quick", 0, rows)) == {}
