"""Studies of filters trained against the truth: rows as agreed, everything paired, nothing computed twice."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from scipy import stats

from bieqno.assimilation import make_trials
from bieqno.lab.methods.filters import SMOKE_VALIDATION, FilterSettings, TwinTest, score_filter
from bieqno.lab.methods.scale_process import Job
from bieqno.lab.report.filter_figures import filter_figures
from bieqno.lab.report.pivots import error_metric, pivots
from bieqno.lab.report.tables import html_tables
from bieqno.lab.studies import (
    EXPERIMENTS,
    Cases,
    Result,
    Row,
    dapper,
    irregular,
    linear_gaussian,
    mnmef,
    psef,
    qg,
    scale,
    zero_shot,
)

SMALL = {"width": 8, "channels": 2}
TINY = {"student": SMALL, "training": {"sizes": {2: 4}, "steps": 2}, "validation": SMOKE_VALIDATION}


def test_a_study_trains_tunes_scores_and_goes_on_where_it_was(tmp_path):
    # As many truths as fine-tuning has, so that both are one compiled program.
    settings = FilterSettings(
        "tiny", (64,), (4,), 2, 12, 2, (2, 12), SMALL, {"sizes": {64: 5}, "steps": 2}, {"steps": 2}, SMOKE_VALIDATION
    )
    only = ("EnNF", "EnNF fine-tuned", "EnKF tuned")
    cases = Cases(tmp_path / "cases")
    result = EXPERIMENTS["lorenz63-truth"].run(settings, only=only, cases=cases)
    assert {(row.method, row.ensemble_size) for row in result.rows if row.protocol == "unseen"} == {
        ("EnNF", 64),
        ("EnNF fine-tuned", 64),
        ("EnKF tuned", 4),
    }
    scores = {row.metric for row in result.rows if row.protocol}
    assert scores == {"rmse", "relative_rmse", "spread_error_ratio", "coverage_90"}
    facts = {(row.method, row.metric) for row in result.rows if not row.protocol}
    assert {("EnNF", "seconds"), ("EnNF", "blown_up"), ("EnKF tuned", "inflation")} <= facts
    for row in result.select(metric="rmse", protocol="unseen"):
        assert row.n + row.diverged == 2
    again = Cases(tmp_path / "cases")
    assert EXPERIMENTS["lorenz63-truth"].run(settings, only=only, cases=again).rows == result.rows
    assert len(again.taken) >= 5  # two trainings and three runs


def test_the_pretrained_filter_stands_beside_trained_ones_and_meets_a_wrong_forcing(tmp_path):
    right, wrong = "Lorenz-96 sparse", "Lorenz-96 sparse, wrong forcing"
    settings = replace(zero_shot.PRESETS["smoke"], systems=(right, wrong))
    cases = Cases(tmp_path / "cases")
    result = zero_shot.EXPERIMENT.run(settings, only=[zero_shot.NAME, zero_shot.FINE_TUNED], cases=cases)
    errors = {(row.method, row.protocol): row.value for row in result.rows if row.metric == "rmse"}
    assert set(errors) == {(zero_shot.NAME, right), (zero_shot.NAME, wrong), (zero_shot.FINE_TUNED, right)}
    assert len(set(errors.values())) == 3
    assert max(errors.values()) < 8
    (seconds,) = [row for row in result.rows if row.metric == "seconds"]
    assert (seconds.case, seconds.method) == (f"training, {right}", zero_shot.FINE_TUNED)
    system = zero_shot.LEFT_OUT[right].system()
    off = zero_shot.with_wrong_forcing(system)
    assert off.model.forcing == pytest.approx(1.1 * system.model.forcing)
    again = Cases(tmp_path / "cases")
    assert zero_shot.EXPERIMENT.run(settings, only=[zero_shot.NAME], cases=again).rows[0] == result.rows[0]


def test_published_rows_stand_beside_and_are_marked():
    rows = mnmef.EXPERIMENT.run("quick", only=["MNMEF (published)"]).rows
    assert {row.ensemble_size: row.value for row in rows} == {5: 1.61, 10: 1.48, 20: 1.35, 40: 1.25, 100: 1.15}


def test_squares_and_arctangents_have_places_and_published_scores():
    rows = psef.EXPERIMENT.run("quick", only=["PSEF (published)"]).rows
    assert {(row.protocol, row.ensemble_size): row.value for row in rows}["x^2", 40] == 10.3
    assert len(rows) == 15
    for name in psef.MAPS:
        np.testing.assert_array_equal(psef.ring(name).observation_places.positions[:, 0], np.arange(0.0, 40.0, 4.0))


def test_the_exact_posterior_is_calibrated():
    trials = make_trials(linear_gaussian.ring(), 400, truths=4, members=5, key=jax.random.key(0))
    test = TwinTest(linear_gaussian.ring(), trials, None, jax.random.key(1), burn_in=50)
    scores = score_filter(test, linear_gaussian.kalman(test))
    # Of 4 x 350 windows of 20 values, which are correlated over a few windows.
    assert abs(scores["spread_error_ratio"].mean() - 1) < 0.03
    assert abs(scores["coverage_90"].mean() - 0.9) < 0.02


def test_scores_of_dapper_stand_beside_by_set_up():
    chosen = ("LETKF (published)", "iterative EnKS (published)")
    rows = dapper.EXPERIMENT.run("quick", only=chosen).rows
    found = {(row.protocol, row.method.split(" (")[0], row.ensemble_size): row.value for row in rows}
    assert found["sakov2008", "LETKF", 7] == 0.22
    assert found["spantini2019", "iterative EnKS", 40] == 0.52
    assert max(size for *_, size in found) <= dapper.PRESETS["quick"].most
    systems = {name: setup.system() for name, setup in dapper.SETUPS.items()}
    assert {
        name: (system.size, system.observed) for name, system in systems.items() if system.observed != system.size
    } == {"wiljes2017": (3, 1), "bocquet2010_m40": (40, 20), "spantini2019": (40, 20), "todter2015": (80, 40)}


def test_the_law_of_laplace_is_that_of_scipy():
    law, known = dapper.Laplace(1.0), stats.laplace(3.0, 0.5**0.5)
    value, predicted = jax.numpy.array([1.0, 3.0, 4.5]), jax.numpy.full(3, 3.0)
    np.testing.assert_allclose(law.log_prob(value, predicted), known.logpdf(value), rtol=1e-5)
    np.testing.assert_allclose(law.cdf(value, predicted), known.cdf(value), rtol=1e-5)
    assert float(law.std(predicted)[0]) == pytest.approx(known.std())
    drawn = np.asarray(law.sample(jax.numpy.full(4000, 3.0), key=jax.random.key(0)))
    assert stats.kstest(drawn, known.cdf).pvalue > 1e-3


@pytest.mark.parametrize("name", irregular.NETWORKS)
def test_networks_are_what_they_are_called(name):
    seen = np.asarray(irregular.NETWORKS[name](50, jax.random.key(0)))
    assert seen.shape == (50, 40)
    if name == "half missing":
        assert not seen[:, 1::2].any()
        # Of a thousand values half are there, with a standard deviation of 1.6 %; five of them.
        assert abs(seen[:, ::2].mean() - 0.5) < 0.08
    else:
        assert (seen.sum(axis=1) == 10).all()
    if name == "moving":
        np.testing.assert_array_equal(seen[1:], np.roll(seen[:-1], 1, axis=1))
    if name in ("every fourth", "random places"):
        assert (seen == seen[0]).all()


@pytest.mark.long
def test_a_ring_is_measured_on_one_process_and_on_two():
    settings = replace(scale.PRESETS["smoke"], sizes=(800,), weak=400, windows=2, **TINY)
    result = scale.EXPERIMENT.run(settings)
    assert {row.protocol for row in result.rows} == {f"{n} variables on {c}" for n, c in ((800, 1), (800, 2), (400, 1))}
    for method in scale.DESCRIPTION.methods:
        (one,), (two,) = (
            result.select(method=method, metric="seconds", protocol=f"800 variables on {c}") for c in (1, 2)
        )
        assert min(one.value, two.value) > 0
        (error,) = result.select(method=method, metric="rmse", protocol="800 variables on 2")
        assert 0.2 < error.value < 4
        (sent,) = result.select(method=method, metric="halo_bytes")
        assert 0 < sent.value < 800 * 4 * 5 * 2
    assert "growth" in filter_figures(result)


def test_processes_that_fail_are_a_result():
    about = {"radius": 6.0, "inflation": 1.1}
    assert scale.measured(Job(801, {}, 3, processes=2), "LETKF tuned", about) == {"failed": 1.0}


def test_gyres_are_scored_and_pictured():
    """Pictures are of the first run, and have what the scores are made of."""
    result = qg.EXPERIMENT.run(replace(qg.PRESETS["smoke"], windows=20, tuning=(1, 4)), only=["LETKF tuned"])
    (row,) = result.select(metric="rmse", method="LETKF tuned")
    assert row.n == 2
    fields = result.arrays["fields"]
    assert dict(fields.sizes) == {"entry": 1, "window": 7, "y": 11, "x": 11}
    assert fields["window"].values.tolist() == [2, 5, 8, 11, 14, 17, 20]
    np.testing.assert_allclose(fields["truth"].values[..., 0], 0, atol=1e-5)  # the coast
    assert np.abs(fields["mean"].values - fields["truth"].values).max() > 0
    figures = filter_figures(result)
    assert len(figures["fields"].axes) == 8  # four images, each with its colours


def test_published_scores_of_the_gyres_stand_beside_on_their_grid_alone():
    assert {row.ensemble_size for row in qg.published(129)} == {25, 45}
    assert not qg.published(33)


def filtered(method, size, value, metric="rmse", protocol="unseen", **more):
    return Row.of(f"N={size}", method, metric, [value, value], ensemble_size=size, protocol=protocol, **more)


def test_tables_are_by_size_and_show_who_is_best():
    rows = (
        filtered("EnNF", 5, 1.5),
        filtered("EnNF", 5, 0.4, "relative_rmse"),
        filtered("LETKF (published)", 5, 2.6),
        filtered("EnNF", 5, 1.1, "spread_error_ratio"),
        filtered("EnKF tuned", 5, 1.0, diverged=1),
    )
    result = Result("mnmef", "quick", 0, rows)
    assert error_metric(result) == "rmse"  # the one that all have
    errors, spread = pivots(result)
    assert (errors.columns, list(errors.lines)) == (["5"], ["EnNF", "LETKF (published)", "EnKF tuned"])
    assert errors.best("5") == "EnNF"  # the lower error is of a filter of which a run diverged
    assert spread.best("5") is None  # nobody to be better than
    assert "1 diverged" in html_tables(result)


def test_growth_is_a_table_by_number_of_variables():
    rows = tuple(
        replace(filtered(method, 10, value, protocol=f"{n} variables"), case=f"n={n}")
        for method, value in (("EnNF", 1.3), ("LETKF tuned", 2.0))
        for n in (40, 400)
    )
    (table,) = pivots(Result("scale", "quick", 0, rows))
    assert table.columns == ["40 variables", "400 variables"]
    assert table.best("400 variables") == "EnNF"
