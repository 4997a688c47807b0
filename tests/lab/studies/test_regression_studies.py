"""The paper's two regression studies: its functions, its settings, and a run from end to end."""

import dataclasses
from functools import partial

import numpy as np
import pytest

from bieqno.lab.methods import classical_regressors as baselines
from bieqno.lab.methods.regression import METHODS, Prediction, regression_methods
from bieqno.lab.report.page import study_figures, write_page
from bieqno.lab.report.tables import study_tables
from bieqno.lab.results import Result, Row
from bieqno.lab.studies import (
    coverage,
    joint,
    other_functions,
    read_result,
    real_data,
    step_1d,
    tables,
    trig_2d,
    write_result,
)
from bieqno.lab.study import Run

STUDIES = {study.EXPERIMENT.name: study for study in (step_1d, trig_2d)}
SCORES = {"rmse", "nlpd", "nlpd_excess", "crps", "coverage_50", "coverage_90", "coverage_95", "seconds"}


def test_step_function_at_known_points():
    x = np.array([0.0, 0.29, 0.3, 0.5, 0.69, 0.7, 1.0])
    assert step_1d.function(x).tolist() == [0, 0, 1, 1, 1, 0, 0]


@pytest.mark.parametrize(
    ("point", "value"),
    [
        ((0.0, 0.0), 1.0),  # the long wave alone
        ((0.5, 0.0), -1.0),
        ((0.25, 0.1), 0.0),
        # In the lower square: cos^2 + sin^2(4 pi x) + sin^2(16 pi x), with x = 9/32 the finest wave is at its crest.
        ((9 / 32, 9 / 32), np.cos(9 * np.pi / 16) ** 2 + np.sin(9 * np.pi / 8) ** 2 + 1.0),
        # In the upper square the wave of length 1/4 is at its crest at x = 9/16.
        ((9 / 16, 9 / 16), np.cos(9 * np.pi / 8) ** 2 + np.sin(9 * np.pi / 4) ** 2 + 1.0),
        # In the big square, but in neither small one.
        ((0.4, 0.6), np.cos(0.8 * np.pi) * np.cos(1.2 * np.pi) + np.sin(1.6 * np.pi) * np.sin(2.4 * np.pi)),
    ],
)
def test_trigonometric_function_at_known_points(point, value):
    assert trig_2d.function(np.array([point]))[0] == pytest.approx(value, abs=1e-12)


def test_trigonometric_function_has_no_jumps():
    x = np.linspace(0, 1, 4001)
    for other in (0.3, 0.45, 0.62):
        values = trig_2d.function(np.stack([x, np.full_like(x, other)], axis=1))
        # The steepest slope is below the sum of all, 2 pi (1 + 2 + 4 + 8).
        assert np.max(np.abs(np.diff(values))) < 30 * np.pi / 4000


def test_paper_settings_are_the_papers():
    for preset in ("quick", "paper"):
        step, trig = step_1d.PRESETS[preset], trig_2d.PRESETS[preset]
        assert (dict(step.targets), step.points) == ({30: 20, 100: 10}, 1000)
        assert (trig.sides, trig.targets, trig.points) == ((16, 32), 32, 128)
        assert step.repetitions >= 5
        assert trig.repetitions >= 5
    assert step_1d.PRESETS["paper"].pairs == 20_000
    assert trig_2d.PRESETS["paper"].pairs == 50_000
    assert step_1d.NOISE == trig_2d.NOISE == 0.01


def test_observations_lie_where_the_study_says():
    rng = np.random.default_rng(0)
    even = step_1d.draw(rng, layout="even", count=30, points=1000)
    assert even.x[:, 0] == pytest.approx(np.arange(30) / 29)
    random = step_1d.draw(rng, layout="random", count=100, points=1000)
    assert random.points.shape == (1000, 1)
    assert np.std(np.diff(random.x[:, 0])) > 1e-3
    grid = trig_2d.draw(rng, side=16, points=128)
    assert grid.x.shape == (256, 2)
    assert grid.points.shape == (128 * 128, 2)
    assert np.unique(grid.x) == pytest.approx((np.arange(16) + 0.5) / 16)
    # The cut is the diagonal.
    assert np.all(grid.points[grid.cut, 0] == grid.points[grid.cut, 1])
    assert len(grid.cut) == 128


def test_noise_has_the_stated_size():
    problem = trig_2d.draw(np.random.default_rng(0), side=32, points=128)
    # The relative standard error of a standard deviation from n values is 1 / sqrt(2 n); four of them.
    for residual in (problem.y - trig_2d.function(problem.x), problem.values - problem.truth):
        assert np.std(residual) == pytest.approx(0.01, rel=4 / np.sqrt(2 * residual.size))


@pytest.fixture(scope="module", params=["step-1d", pytest.param("trig-2d", marks=pytest.mark.long)])
def smoke(request, tmp_path_factory):
    """A study from end to end: its result is stored with its figures, and on the page."""
    out = tmp_path_factory.mktemp("runs")
    # One data set: every further shape is compiled anew.
    fewer = {"step-1d": {"targets": {30: 20}}, "trig-2d": {"sides": (7,)}}[request.param]
    settings = dataclasses.replace(STUDIES[request.param].PRESETS["smoke"], **fewer)
    result = STUDIES[request.param].EXPERIMENT.run(settings)
    write_result(result, out, study_figures(result))
    write_page(out)
    return result, out / request.param


def test_smoke_run_prints_and_stores(smoke):
    result, folder = smoke
    assert any("NLPD" in str(column.header) for table in study_tables(result) for column in table.columns)
    assert {path.name for path in folder.iterdir()} == {"config.json", "metrics.json", "arrays.nc", "figures"}
    result = read_result(folder)
    assert result.preset == "smoke"
    figures = {
        "step-1d": {"bands-random", "covariance-random", "reliability", "epochs"},
        "trig-2d": {"maps", "diagonal", "covariance", "reliability", "epochs"},
    }
    for ending in ("png", "svg"):
        assert {path.stem for path in folder.glob(f"figures/*.{ending}")} == figures[result.experiment]
    assert list(result.arrays) == list(dict.fromkeys(row.case for row in result.rows))
    assert "The paper's claims" in (folder.parent / "report.html").read_text()


def test_smoke_run_has_every_method_and_score(smoke):
    result = read_result(smoke[1])
    assert len(result.arrays) == 1
    for case in result.arrays:
        for method in (*METHODS, "gp-best"):
            found = {row.metric for row in result.select(case=case, method=method)}
            assert found >= SCORES
            assert ("rmse_near_jump" in found) == (result.experiment == "step-1d")
        assert sum(row.value for row in result.select(case=case, metric="chosen")) == 1.0
    assert all(np.isfinite(row.value) for row in result.rows)


def test_arrays_are_those_of_the_scores(smoke):
    result = read_result(smoke[1])
    for case, arrays in result.arrays.items():
        for method in arrays["method"].values:
            mean = arrays["mean"].sel({"method": method}).values[0]
            rmse = np.sqrt(np.mean((mean - arrays["truth"].values) ** 2))
            # The arrays are stored in single precision.
            assert rmse == pytest.approx(result.value(case, str(method), "rmse"), rel=1e-4)
            covariance = arrays["covariance"].sel({"method": method}).values
            std = arrays["std"].sel({"method": method}).values[0, arrays["cut_point"].values]
            assert np.sqrt(np.diag(covariance)) == pytest.approx(std, rel=1e-3)
            stored = arrays["score"].sel({"method": method, "metric": "rmse"}).values
            assert stored.mean() == pytest.approx(result.value(case, str(method), "rmse"))


def test_the_other_functions_are_those_that_are_named():
    x = np.array([0.0, 0.5, 1.0])
    assert other_functions.chirp(x) == pytest.approx([0.0, 0.5, 1.0], abs=1e-12)  # whole numbers of swings on the slope
    centre, radius = other_functions.CENTRE, other_functions.RADIUS
    ground = 0.5 * np.sin(3 * centre[0] + 2 * centre[1])
    assert other_functions.kink(centre[None])[0] == pytest.approx(ground + 0.9)
    # The slope jumps by that of the cone at its edge, and nowhere do values jump.
    step = 1e-4
    beside = centre + np.array([[radius - step, 0], [radius, 0], [radius + step, 0]])
    inside, outside = np.diff(other_functions.kink(beside)) / step
    assert outside - inside == pytest.approx(3, abs=0.01)


@pytest.mark.long
@pytest.mark.parametrize("experiment", [other_functions.CHIRP, other_functions.KINK], ids=lambda one: one.name)
def test_other_functions_from_end_to_end(experiment):
    result = experiment.run("smoke", only=["ggp-experts", "gp-paper"])
    assert {row.method for row in result.rows} == {"ggp-experts", "gp-paper"}
    assert "rmse_near_jump" not in {row.metric for row in result.rows}
    target = other_functions.chirp if experiment.name == "chirp-1d" else other_functions.kink
    for arrays in result.arrays.values():
        x = arrays["x"].values
        np.testing.assert_allclose(arrays["truth"].values, target(x[:, 0] if x.shape[1] == 1 else x))


def constant(problem, seed):
    """A method for tests of the loop: predicts the mean of y."""
    n, k = len(problem.points), len(problem.cut)
    return Prediction(np.full(n, problem.y.mean()), np.full(n, 0.5), 0.25 * np.eye(k), float(problem.y[0]))


def test_same_seed_same_numbers_and_data_are_paired():
    settings = dataclasses.replace(step_1d.PRESETS["smoke"], repetitions=2)
    methods = {"gp-a": constant, "gp-b": constant}
    study = partial(step_1d.study, methods=lambda **_: methods)
    experiment, parts = dataclasses.replace(step_1d.EXPERIMENT, study=study), []
    first, again, other = (experiment.run(settings, seed=seed, on_progress=parts.append) for seed in (3, 3, 4))
    assert [part.done for part in parts] == 3 * list(range(parts[0].total))

    def numbers(result):
        return [(row.case, row.method, row.metric, row.value) for row in result.rows if row.metric != "seconds"]

    assert numbers(first) == numbers(again)
    assert numbers(first) != numbers(other)
    a, b = (
        [(row.metric, row.value) for row in first.select(method=name) if row.metric not in ("seconds", "chosen")]
        for name in methods
    )
    assert a == b
    y = first.arrays["random-30"]["y_observed"].values
    assert not np.array_equal(y[0], y[1])


def test_methods_know_or_learn_the_noise_as_their_names_say(monkeypatch):
    made = regression_methods(targets=20, pairs=320, epochs=1, halving=1, ggp={"max_steps": 1}, lengths=3)
    assert tuple(made) == METHODS
    told = {}

    def tune(x, y, *, kernel, noise, lengths):
        told[name] = (kernel, noise)
        raise InterruptedError

    monkeypatch.setattr(baselines, "tune", tune)
    problem = step_1d.draw(np.random.default_rng(0), layout="random", count=30, points=10)
    for name in METHODS:
        if name.startswith("gp-") and name != "gp-paper":
            with pytest.raises(InterruptedError):
                made[name](problem, 0)
    assert told.pop("gp-se-learned-noise") == ("se", None)
    assert told == {f"gp-{kernel}": (kernel, step_1d.NOISE) for kernel in baselines.KERNELS}


def test_the_papers_form_records_every_epoch(smoke):
    result = read_result(smoke[1])
    for case, arrays in result.arrays.items():
        history = arrays["history"].values
        assert history.shape == (1, 2, 3)
        # The scores after the last epoch are those of the prediction.
        scores = [result.value(case, "ggp-paper", name) for name in ("rmse", "nlpd")]
        assert history[0, -1, 1:] == pytest.approx(scores, rel=1e-4)
        assert result.value(case, "ggp-paper", "epochs") == 2
        assert result.value(case, "ggp-paper", "levelled") == 0


def test_a_method_on_fewer_data_sets_keeps_the_first_ones():
    settings = dataclasses.replace(step_1d.PRESETS["smoke"], repetitions=3, paper_repetitions=2)
    methods = {"ggp-paper": constant, "gp-b": constant}
    rows, arrays = step_1d.study(settings, Run(), methods=lambda **_: methods)
    counts = {row.method: row.n for row in rows if row.case == "random-30" and row.metric == "rmse"}
    assert counts == {"ggp-paper": 2, "gp-b": 3, "gp-best": 3}
    mean = arrays["random-30"]["mean"]
    np.testing.assert_array_equal(mean.values[:2, 0], mean.values[:2, 1])
    assert np.isnan(mean.values[2, 0]).all()


@pytest.mark.parametrize("module", STUDIES.values(), ids=list(STUDIES))
def test_unknown_preset_is_named(module):
    with pytest.raises(ValueError, match="no preset 'fast'; there are smoke, quick, paper"):
        module.EXPERIMENT.run("fast")


def test_unknown_layout_is_named():
    with pytest.raises(ValueError, match="'random' or 'even', got 'sorted'"):
        step_1d.draw(np.random.default_rng(0), layout="sorted", count=3, points=5)


def test_real_data_are_tables_of_numbers():
    shapes = {"fault": 2, "sea floor": 2, "co2": 1, "nile": 1, "diabetes": 10}
    for name, load in real_data.SETS.items():
        x, y = load()
        assert x.shape == (len(y), shapes[name])
        assert np.isfinite(x).all()
        assert np.isfinite(y).all()
        problem = real_data.draw(np.random.default_rng(0), table=(x, y), observed=50, asked=30)
        assert (len(problem.y), problem.noise) == (50, None)
        seen, asked = np.column_stack([problem.x, problem.y]), np.column_stack([problem.points, problem.values])
        assert not {tuple(row) for row in seen} & {tuple(row) for row in asked}


@pytest.mark.long
def test_real_data_from_end_to_end():
    result = real_data.EXPERIMENT.run("smoke", only=["ggp-experts", "gp-se", "trees"])
    assert {row.case for row in result.rows} == {"nile", "sea floor"}
    assert {"ggp-experts", "gp-se", "trees", "gp-best"} == {row.method for row in result.rows}
    assert "nlpd_excess" not in {row.metric for row in result.rows}  # nobody knows the noise


def test_tables_from_end_to_end():
    result = tables.EXPERIMENT.run("smoke", only=["ggp", "NGBoost (published)"])
    found = {(row.method, row.metric): row.value for row in result.rows}
    assert found["NGBoost (published)", "rmse"] == 5.06
    # From a hundred rows; the strengths have a deviation of 16.
    assert found["ggp", "rmse"] < 10
    assert 0.8 <= found["ggp", "coverage_90"] <= 1
    splits = [tables.draw("wine", split, 10**6) for split in range(5)]
    assert all(problem.x.shape == (1439, 11) for problem in splits)
    assert not np.array_equal(splits[0].values, splits[1].values)


def test_the_joint_distribution_is_compared_with_the_chain():
    result = joint.EXPERIMENT.run(joint.Settings("tiny", 1, 2, ("eq", "step"), (1,)))
    methods = {row.method for row in result.rows if row.case == "eq, 1-D"}
    assert methods == {"ggp", "ggp-marginals", "ggp-chain", "gp-true"}
    assert {row.case for row in result.rows if row.metric == joint.SHARE} == {"eq, 1-D", "step, 1-D"}
    rows = [Row("eq, 1-D", "ggp", joint.SHARE, share, None, 4) for share in (0.5, 0.9)]
    assert joint.misses(Result("joint", "quick", 0, tuple(rows))) == ["eq, 1-D: 50% of the chain's gain, not 85%"]
    # The first of the values is all that a chain of one knows of: it is the marginal.
    task = joint.draw(np.random.default_rng(0), "eq", 1, 1)
    assert joint.in_turn(task) == pytest.approx(joint.alone(task))


def test_coverage_is_a_probability_and_fails_out_of_bounds():
    result = coverage.EXPERIMENT.run("smoke")
    assert {row.method for row in result.rows} == set(coverage.PLACES)
    values = {row.case.split(", ")[-1]: row.value for row in result.rows if row.method == "away"}
    assert set(values) == {"once", "copied four-fold"}
    assert all(0.7 < value < 1 for value in values.values())
    low = Row("1 inputs", "away", coverage.METRIC, 0.9, None, 1)
    assert coverage.misses(Result("coverage", "quick", 0, (low,))) == ["1 inputs, away: 0.900"]
