"""Tables in the terminal and on the page: every case, the best of each column marked."""

import pytest
import synthetic
from rich.console import Console

from bieqno.lab.methods.regression import METHODS
from bieqno.lab.report.pivots import pivots
from bieqno.lab.report.tables import html_tables, study_tables
from bieqno.lab.studies import Result, Row


def printed(result, width=80):
    console = Console(width=width)
    with console.capture() as captured:
        for table in study_tables(result):
            console.print(table)
    return captured.get()


def line(text, label):
    """The lines of a printed table that begin with a label, without repeated blanks."""
    return [" ".join(one.split()) for one in text.splitlines() if one.startswith(label)]


@pytest.fixture
def neural_process():
    """Rows of one metric, with an oracle and with published numbers that have no standard error."""
    published = {"sawtooth, inside": 3.62, "mixture, inside": 0.56, "mixture, shifted": 0.56}
    cases = ("eq, inside", "eq, shifted", *published)
    return Result(
        "neural-process",
        "quick",
        0,
        (
            *(Row.of(case, "ggp", "log_likelihood", [0.9, 1.1]) for case in cases),
            *(Row.of(case, "gp-true", "log_likelihood", [2.0, 2.2]) for case in cases[:2]),
            *(
                Row(case, "AR ConvCNP (published)", "log_likelihood", value, None, 1)
                for case, value in published.items()
            ),
            Row("mixture, inside", "GNP (published)", "log_likelihood", -0.69, None, 1),
        ),
    )


def test_of_one_metric_the_cases_are_columns_and_the_highest_likelihood_is_best(neural_process):
    tables = pivots(neural_process)
    assert [table.columns for table in tables] == [["inside", "shifted"], ["inside"], ["inside", "shifted"]]
    eq, sawtooth, mixture = tables
    assert eq.best("inside") is None  # an oracle is not an opponent
    assert sawtooth.best("inside") == "AR ConvCNP (published)"
    assert mixture.best("shifted") == "ggp"
    assert list(mixture.lines) == ["ggp", "AR ConvCNP (published)", "GNP (published)"]


def test_published_rows_are_in_the_terminal_and_on_the_page(neural_process):
    text, page = printed(neural_process), html_tables(neural_process)
    assert line(text, "AR ConvCNP") == ["AR ConvCNP, published ▸3.62", "AR ConvCNP, published 0.56 0.56"]
    assert line(text, "gGP")[-1] == "gGP ▸1.00 ±0.10 ▸1.00 ±0.10"
    assert "▸ best" in text
    assert "mixture: log-likelihood per value" in page
    assert '<td class="number winner">3.62 <span class="best"' in page
    assert page.count('class="best"') == text.count("▸") - text.count("▸ best") == 3


@pytest.mark.parametrize("study", [synthetic.step, synthetic.trig])
def test_tables_show_each_case_and_mark_the_chosen_kernel(study):
    result = study()
    made = study_tables(result)
    assert len(made) == len(result.arrays)
    cells = list(made[0].columns[0].cells)
    assert [cell.endswith("*") for cell in cells].count(True) == 1


def test_tables_fit_80_columns():
    # As wide as numbers of these studies get: y is of order one, a fit of the quick preset takes under 100 s.
    widest = {
        "rmse": 0.1234,
        "rmse_near_jump": 0.1234,
        "nlpd": -12.345,
        "crps": 0.1234,
        "coverage_95": 0.95,
        "epochs": 150.0,
        "seconds": 99.9,
    }
    rows = [Row("random-100", m, metric, value, 0.1234, 5) for m in METHODS for metric, value in widest.items()]
    rows.append(Row("random-100", "ggp-paper", "nlpd", 1234.56, 123.45, 3))  # a density that explodes
    text = printed(Result("step-1d", "quick", 0, (*rows, Row("random-100", "gp-best", "rmse", 1.0, 1.0, 5))))
    assert "…" not in text
    assert "NLPD" in text


def test_diverged_runs_count_before_the_error():
    result = synthetic.filters("lorenz63", 3)
    (errors, *_), text = pivots(result), printed(result)
    assert errors.best("4") == "EnNF"  # all runs of the EnKF diverged
    assert line(text, "EnKF ")[0] == "EnKF 0.525 ✕2"
    assert "✕k: k diverged runs left out" in " ".join(text.split())
