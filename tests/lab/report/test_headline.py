"""The first screen says who wins, by how much, and where it loses."""

from dataclasses import replace

import pytest
import synthetic

from bieqno.lab.report.headline import headlines
from bieqno.lab.studies import Result, Row


def filters(*rows, name="lorenz63-truth", preset="quick"):
    """A study of rows (method, N, error, diverged)."""
    made = [
        Row(f"N={size}", method, "rmse", value, None, 4, size, "unseen", lost) for method, size, value, lost in rows
    ]
    return Result(name, preset, 0, tuple(made))


@pytest.fixture
def mixed():
    """Two wins and a loss against the best of two tuned opponents."""
    ours = (("EnNF", 2, 0.2, 0), ("EnNF", 8, 0.9, 0), ("EnNF", 16, 1.2, 0))
    etkf = (("ETKF tuned", 2, 0.8, 0), ("ETKF tuned", 8, 1.0, 0), ("ETKF tuned", 16, 1.0, 0))
    return filters(*ours, *etkf, ("EnKF tuned", 2, 0.4, 0), ("EnKF tuned", 8, 3.0, 0), ("EnKF", 2, 0.1, 0))


def test_a_range_of_wins_and_the_loss_are_said(mixed):
    (told,) = headlines([mixed])
    assert (told.title, told.study) == ("Filters", "lorenz63-truth")
    assert (
        "the RMSE of EnNF is 10 % (N = 8) to 50 % (N = 2) lower than that of the best tuned opponent "
        "(EnKF, tuned or ETKF, tuned)" in told.sentence
    )
    assert "loses 1 of 3, at worst the RMSE of EnNF is 20 % higher than that of ETKF, tuned (N = 16)" in told.sentence
    assert "In all 3 cases, each against the best tuned opponent: 2 won, 0 tied" in told.rest
    assert told.rest.endswith("1 lost.")
    worse = filters(("EnNF", 2, 0.5, 0), ("ETKF tuned", 2, 0.2, 0), name="mnmef")
    first, second = sorted(next(headlines([mixed, worse])).losses)
    assert first.endswith("learned filters, 1 of 1; at worst the RMSE of EnNF is 2.5 times that of ETKF, tuned (N = 2)")
    assert "1 of 3; at worst the RMSE of EnNF is 20 % higher than that of ETKF, tuned (N = 16)" in second
    assert set(told.chart.controls[-1].chosen) == {"EnNF", "ETKF tuned", "EnKF tuned", "EnKF"}  # every one is shown


def test_the_paper_s_form_and_test_runs_are_not_ours(mixed):
    paper = filters(("EnNF, paper", 2, 0.01, 0), ("ETKF tuned", 2, 0.8, 0), name="lorenz63")
    smoke = filters(("EnNF", 2, 0.01, 0), ("ETKF tuned", 2, 0.8, 0), name="lorenz63-truth", preset="smoke")
    assert list(headlines([paper])) == []
    assert next(headlines([paper, smoke, mixed])).sentence == next(headlines([mixed])).sentence


def test_diverged_runs_decide_before_the_error():
    (told,) = headlines([filters(("EnNF", 2, 0.9, 0), ("ETKF tuned", 2, 0.5, 3))])
    assert "EnNF has 0 diverged runs, ETKF, tuned 3 (N = 2)" in told.sentence
    assert "1 won, 0 tied (within two standard errors), 0 lost." in told.rest
    (told,) = headlines([filters(("EnNF", 2, 0.1, 1), ("ETKF tuned", 2, 0.5, 0))])
    assert "EnNF has 1 diverged runs, ETKF, tuned 0 (N = 2)" in told.sentence
    assert "0 won, 0 tied (within two standard errors), 1 lost." in told.rest
    lost = filters(("EnNF", 2, float("nan"), 4), ("ETKF tuned", 2, float("nan"), 4))
    assert list(headlines([lost])) == []


def test_published_numbers_and_ties_are_told(mixed):
    beside = filters(("EnNF", 2, 0.9, 0), ("MNMEF (published)", 2, 1.0, None), ("ETKF tuned", 2, 0.95, 0), name="mnmef")
    (told,) = headlines([beside])
    assert "Against the best published numbers (MNMEF" in told.sentence
    assert "10 % lower (N = 2)." in told.sentence
    uncertain = replace(beside, rows=tuple(replace(row, stderr=0.05) for row in beside.rows))
    assert "0 won, 1 tied (within two standard errors), 0 lost." in next(headlines([uncertain])).rest


def test_studies_without_a_tuned_opponent_are_named(mixed):
    alone = filters(("EnNF", 2, 0.9, 0), name="standard")
    assert "Without a tuned opponent, so not counted: standard." in next(headlines([mixed, alone])).rest
    assert "not counted" not in next(headlines([mixed])).rest


def test_of_regression_both_bands_are_shown():
    study = replace(synthetic.step(), preset="quick")
    (told,) = headlines([study])
    assert told.study == "step-1d"
    # Matérn-1/2 is five times better than gGP in these made-up numbers.
    assert "than that of GP, Matérn-1/2" in told.sentence
    assert "higher" in told.sentence
    assert "In all 4 cases, each against the best tuned opponent: 0 won, 0 tied" in told.rest
    assert told.chart.controls[-1].chosen == ["ggp", "gp-matern12"]
    assert told.chart.static == ["bands-random"]


def test_of_a_part_of_the_demo_it_can_be_said_too(mixed):
    rows = tuple(replace(row, case=f"lorenz63-truth/{row.case}") for row in mixed.rows)
    (told,) = headlines([Result("demo", "quick", 0, rows)])
    assert told.sentence == next(headlines([mixed])).sentence


def test_boosted_trees_of_other_packages_are_opponents():
    rows = [
        Row("wine", method, "crps", value, 0.0, 5)
        for method, value in (("ggp", 0.5), ("catboost", 0.4), ("gp-ard", 0.6))
    ]
    (told,) = headlines([Result("tables", "quick", 0, tuple(rows))])
    assert "25 % higher than that of CatBoost" in told.sentence


def test_one_chart_of_many_sizes_comes_before_many_charts_of_few(mixed):
    few = [
        replace(row, protocol=f"set-up {k}")
        for k in range(9)
        for row in filters(("EnNF", 2, 0.2, 0), ("ETKF tuned", 2, 0.4, 0)).rows
    ]
    assert next(headlines([Result("dapper", "quick", 0, tuple(few)), mixed])).study == "lorenz63-truth"


def test_a_benchmark_that_others_have_published_on_comes_first(mixed):
    for ours in (0.9, 1.1):  # whoever wins
        rows = (("EnNF", 2, ours, 0), ("ETKF tuned", 2, 1.0, 0), ("MNMEF (published)", 2, 1.0, None))
        assert next(headlines([mixed, filters(*rows, name="mnmef")])).study == "mnmef"


def test_a_study_without_ours_is_not_on_the_first_screen(mixed):
    alone = filters(*(("ETKF tuned", size, 1.0, 0) for size in range(2, 12)), name="mnmef")
    assert next(headlines([alone, mixed])).study == "lorenz63-truth"
