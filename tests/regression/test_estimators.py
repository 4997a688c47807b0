import pickle
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import bieqno
from bieqno import PersistenceError
from bieqno.regression import GGPRegressor, PretrainedGGPRegressor, base, load_regressor

# Small networks and few steps: what is tested here is the estimator, not how well it fits.
SMALL = {"width": 16, "depth": 2, "rank": 3, "max_steps": 100, "batch_size": 8, "random_state": 0}


def wave(count=40, seed=0):
    X = np.random.default_rng(seed).uniform(size=(count, 1))
    return X, np.sin(6 * X[:, 0])


@pytest.fixture(scope="module")
def fitted():
    return GGPRegressor(members=2, **SMALL).fit(*wave())


@pytest.mark.parametrize(
    "model", [pytest.param("GGPRegressor(**small)", marks=pytest.mark.long), "PretrainedGGPRegressor(correction=False)"]
)
def test_scikit_learn_accepts_it(model):
    """All checks that apply to a regressor; those on accuracy need some training (R2 above 0.5 on ten variables).

    What is fitted there is linear, so networks of one layer suffice; each shape of data compiles anew.

    In a process of its own, without the type checks of this suite: scikit-learn passes wrong types on purpose.
    """
    code = f"""
from sklearn.utils.estimator_checks import check_estimator
from bieqno import GGPRegressor, PretrainedGGPRegressor
small = dict(width=16, depth=1, rank=2, members=1, max_steps=150, batch_size=4, learning_rate=2e-2)
for result in check_estimator({model}, on_fail=None, on_skip=None):
    if result["status"] != "passed":
        print(result["check_name"], result["status"], repr(result["exception"]))
print("checked")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert lines[-1] == "checked"
    assert {line.split()[0] for line in lines[:-1]} <= {"check_array_api_input"}, lines  # needs SCIPY_ARRAY_API


def test_it_learns_a_function_with_calibrated_uncertainty():
    X, y = wave(60)
    noisy = y + 0.1 * np.random.default_rng(1).normal(size=60)
    model = GGPRegressor(width=32, max_steps=500, members=3, random_state=0).fit(X, noisy)
    new, truth = wave(500, seed=2)
    observed = truth + 0.1 * np.random.default_rng(3).normal(size=500)
    mean, std = model.predict(new, return_std=True)
    # The noise alone gives 0.1; a mean of the data would give 0.7.
    assert np.sqrt(np.mean((mean - truth) ** 2)) < 0.15
    # Nominal 0.95 and 1; sixty points do not tell more precisely than this, but too wide is wrong as well.
    assert 0.85 <= np.mean(np.abs(observed - mean) < 1.96 * std) <= 0.995
    assert 0.4 < np.mean(((observed - mean) / std) ** 2) < 2
    # The fit says the same about itself: every row was held out once, and the variance was scaled to be right there.
    assert model.validation_scores_["rows"].tolist() == [60]
    assert 0.85 <= model.validation_scores_["coverage_95"][0] <= 1
    assert 0.1 <= model.validation_scores_["rmse"][0] < 0.2
    assert model.summary().splitlines()[1].split()[:2] == ["y", "60"]


def test_a_subset_gets_the_subset_of_predictions_and_chunks_do_not_matter(fitted, monkeypatch):
    X = np.linspace(0, 1, 100)[:, None]
    mean, std = fitted.predict(X, return_std=True)
    part, part_std = fitted.predict(X[10:23], return_std=True)
    np.testing.assert_allclose(part, mean[10:23], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(part_std, std[10:23], rtol=1e-5)
    monkeypatch.setattr("bieqno.regression.trained.ensemble.CHUNK", 16)
    np.testing.assert_allclose(fitted.predict(X), mean, rtol=1e-5, atol=1e-6)
    posterior = fitted.posterior(X)
    np.testing.assert_allclose(posterior.mean, mean, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(posterior.std, std, rtol=1e-5)


def test_all_views_agree(fitted):
    X, y = wave(6, seed=5)
    mean, covariance = fitted.predict(X, return_cov=True)
    _, std = fitted.predict(X, return_std=True)
    np.testing.assert_allclose(np.sqrt(np.diag(covariance)), std, rtol=1e-4)
    posterior = fitted.posterior(X)
    assert isinstance(posterior, bieqno.LowRankGaussian)
    density = fitted.log_predictive_density(X, y)
    np.testing.assert_allclose(density, posterior.log_prob(jnp.asarray(y, jnp.float32)), rtol=1e-4)
    samples = fitted.sample_y(X, 4000, random_state=1)
    assert samples.shape == (6, 4000)
    # Five standard errors of a mean of 4000 samples.
    assert (np.abs(samples.mean(1) - mean) < 5 * std / np.sqrt(4000)).all()
    assert (fitted.sample_y(X, 3, random_state=7) == fitted.sample_y(X, 3, random_state=7)).all()
    with pytest.raises(ValueError, match="not both"):
        fitted.predict(X, return_std=True, return_cov=True)


def test_same_seed_same_predictions():
    X, y = wave()
    first, second = (GGPRegressor(members=2, **SMALL).fit(X, y).predict(X) for _ in range(2))
    assert (first == second).all()


def test_several_outputs():
    X, y = wave()
    Y = np.stack([y, -y, 3 + 0 * y], axis=1)
    model = GGPRegressor(members=2, **SMALL).fit(X, Y)
    mean, std = model.predict(X[:5], return_std=True)
    assert mean.shape == std.shape == (5, 3)
    np.testing.assert_allclose(mean[:, 2], 3, atol=0.05)
    assert len(model.posterior(X[:5])) == 3
    assert model.sample_y(X[:5], 4).shape == (5, 3, 4)
    assert np.isfinite(model.log_predictive_density(X, Y))
    with pytest.raises(ValueError, match="40 rows of X and 3 outputs"):
        model.log_predictive_density(X, Y.T)


def test_pipelines_grids_clones_and_pickles(fitted, tmp_path):
    X, y = wave()
    pipeline = make_pipeline(StandardScaler(), GGPRegressor(members=2, **SMALL)).fit(X, y)
    assert pipeline.predict(X).shape == (40,)
    # A grid of NumPy's numbers, as many write it.
    grid = GridSearchCV(GGPRegressor(members=2, **SMALL), {"patience": np.array([1, 3])}, cv=4).fit(*wave(60))
    assert grid.best_params_["patience"] in {1, 3}
    assert clone(fitted).get_params() == fitted.get_params()
    assert (pickle.loads(pickle.dumps(fitted)).predict(X) == fitted.predict(X)).all()


def test_saved_and_loaded_it_is_the_same(fitted, tmp_path):
    X, _ = wave()
    fitted.save(tmp_path / "model.bieqno")
    again = GGPRegressor.load(tmp_path / "model.bieqno")
    assert (again.predict(X) == fitted.predict(X)).all()
    assert again.get_params() == fitted.get_params()
    for name in ("n_features_in_", "n_iter_", "calibration_"):
        assert getattr(again, name) == getattr(fitted, name)
    assert again.summary() == fitted.summary()
    bieqno.save(tmp_path / "other.bieqno", bieqno.MeanPool())
    with pytest.raises(PersistenceError, match="not a regressor"):
        GGPRegressor.load(tmp_path / "other.bieqno")


@pytest.mark.parametrize(
    ("part", "value", "message"),
    [
        ("settings", {"rank": 3, "prior": None}, r"settings that this version does not know: \['prior'\]"),
        ("settings", {"rank": -3}, "cannot be used: The 'rank' parameter"),
        ("kind", "PretrainedGGPRegressor", "no fitted processes of a PretrainedGGPRegressor"),
        ("processes", (), "no fitted processes"),
        ("found", {"n_features_in_": 7}, "names 7 inputs, its processes have 1"),
        ("found", {"n_features_in_": 1, "predict": "x"}, "no fit finds 'x' for predict"),
    ],
)
def test_a_forged_file_is_refused(fitted, tmp_path, part, value, message):
    """Whole, but not what a regressor writes: the same error as for damage, before anything is used."""
    found = {name: getattr(fitted, name) for name in base._FITTED if name != "feature_names_in_"}
    parts = {"kind": "GGPRegressor", "settings": fitted.get_params(), "found": found, "processes": fitted.processes_}
    forged = object.__new__(base.Saved)
    for name, content in {**parts, part: value}.items():
        object.__setattr__(forged, name, content)
    bieqno.save(tmp_path / "forged.bieqno", forged, known=base.STORED)
    with pytest.raises(PersistenceError, match=message):
        GGPRegressor.load(tmp_path / "forged.bieqno")


def test_names_of_columns_survive_saving(fitted, tmp_path):
    model = pickle.loads(pickle.dumps(fitted))
    model.feature_names_in_ = np.array(["depth"], dtype=object)
    model.save(tmp_path / "model.bieqno")
    assert GGPRegressor.load(tmp_path / "model.bieqno").feature_names_in_.tolist() == ["depth"]


def test_missing_targets_are_left_out_and_counted():
    X, y = wave()
    y[[3, 9]] = np.nan
    with pytest.warns(UserWarning, match="2 rows with a NaN target are left out"):
        model = GGPRegressor(members=2, **SMALL).fit(X, y)
    kept = ~np.isnan(y)
    assert (model.predict(X) == GGPRegressor(members=2, **SMALL).fit(X[kept], y[kept]).predict(X)).all()
    with pytest.warns(UserWarning, match="2 rows"):
        listed = GGPRegressor(members=2, **SMALL).fit(X, [None if np.isnan(value) else value for value in y])
    assert (listed.predict(X) == model.predict(X)).all()
    with pytest.raises(ValueError, match="40 of 40 rows have a NaN target"):
        GGPRegressor(**SMALL).fit(X, np.full(40, np.nan))


def test_new_observations_without_training(fitted):
    X, y = wave()
    model = pickle.loads(pickle.dumps(fitted))
    before = model.predict(X)
    assert (model.condition(X, y).predict(X) == before).all()
    assert (model.condition(X[:20], y[:20] + 1).predict(X) != before).any()
    assert np.isfinite(model.condition(X[:1], y[:1]).predict(X)).all()
    with pytest.raises(ValueError, match="2 features"):
        model.condition(np.ones((5, 2)), np.ones(5))
    with pytest.raises(ValueError, match="without one alpha per row"):
        model.condition(X, y, alpha=1.0)
    with pytest.raises(ValueError, match="a million times as far"):
        model.condition(X, y + 1e9)


def test_warm_start_goes_on():
    X, y = wave()
    # Random numbers that go on as well: each fit has splits of its own.
    settings = {**SMALL, "random_state": np.random.RandomState(0), "noise": 0.1}
    model = GGPRegressor(members=2, warm_start=True, **settings).fit(X, y)
    error, folds = np.mean((model.predict(X) - y) ** 2), model.seed_
    for _ in range(3):
        model.fit(X, y)
    assert np.mean((model.predict(X) - y) ** 2) < error
    assert model.seed_ == folds  # what was held out stays held out
    model.set_params(noise=0.3).fit(X, y)
    # The noise that is known now; 1 % for single precision and the least noise.
    assert np.exp(model.processes_[0].members[0].log_noise) * y.std() == pytest.approx(0.3, rel=0.01)
    with pytest.raises(ValueError, match="warm_start cannot continue"):
        model.set_params(rank=5).fit(X, y)
    with pytest.raises(ValueError, match="from 1 outputs with 2"):
        model.set_params(rank=3).fit(X, np.stack([y, y], axis=1))


def test_noisier_rows_count_less():
    """Half of the rows are shifted by three and said to be very noisy: the others win."""
    X, y = wave(60)
    shifted = y + 3 * (np.arange(60) % 2)
    alpha = 100.0 * (np.arange(60) % 2)
    settings = {**SMALL, "max_steps": 400}
    plain = GGPRegressor(members=1, **settings).fit(X, shifted)
    told = GGPRegressor(members=1, alpha=alpha, **settings).fit(X, shifted)
    assert np.mean(np.abs(told.predict(X) - y)) < 0.5 * np.mean(np.abs(plain.predict(X) - y))
    before = told.predict(X)
    assert (told.condition(X, shifted, alpha=np.zeros(60)).predict(X) != before).any()
    for wrong, message in [
        (np.ones(3), "one for each of 60 rows"),
        (-1.0, "The 'alpha' parameter"),
        (np.full(60, -1.0), "not negative, got -1 to -1"),
    ]:
        with pytest.raises(ValueError, match=message):
            GGPRegressor(alpha=wrong, **SMALL).fit(X, y)


def test_units_do_not_matter(fitted):
    """Far from zero, tiny or huge: scaling in double precision makes it the same problem."""
    X, y = wave()
    mean, std = fitted.predict(X, return_std=True)
    for shift, scale in [(1e8, 1.0), (0.0, 1e-30), (-3e5, 1e30)]:
        model = GGPRegressor(members=2, **SMALL).fit(shift + scale * X, shift + scale * y)
        moved, spread = model.predict(shift + scale * X, return_std=True)
        # 1e8 leaves eight digits of the data itself; training amplifies the last ones.
        np.testing.assert_allclose((moved - shift) / scale, mean, atol=0.02)
        np.testing.assert_allclose(spread / scale, std, rtol=0.05)
        density = model.log_predictive_density(shift + scale * X, shift + scale * y)
        assert density + 40 * np.log(scale) == pytest.approx(fitted.log_predictive_density(X, y), rel=0.05)
    assert np.isfinite(fitted.predict(np.array([[1e300]]), return_std=True)).all()


@pytest.mark.parametrize("kind", [GGPRegressor, PretrainedGGPRegressor])
def test_what_cannot_be_squared_in_double_precision_is_refused(kind):
    X, y = wave()
    for inputs, targets, message in [
        (X, 1e200 * y, r"targets are at most 1e\+150, .* got 9.99e\+199"),
        (X, 1e-200 * y, "targets have a standard deviation of at least 1e-150"),
        (1e200 * X, y, r"inputs are at most 1e\+150"),
    ]:
        with pytest.raises(ValueError, match=message):
            kind().fit(inputs, targets)


def test_large_targets_are_predicted_and_their_posterior_in_single_precision_is_refused():
    X, y = wave()
    plain, large = (PretrainedGGPRegressor(correction=False).fit(X, unit * y) for unit in (1.0, 1e140))
    for one, other in zip(plain.predict(X, return_cov=True), large.predict(X, return_cov=True), strict=True):
        unit = 1e140 if one.ndim == 1 else 1e280
        # Scaled targets differ by rounding, and climbs of likelihoods end where that takes them.
        np.testing.assert_allclose(other / unit, one, rtol=1e-3, atol=3e-4)
    assert np.isfinite(large.sample_y(X, 2)).all()
    assert np.isfinite(large.validation_scores_["nlpd"]).all()
    assert np.isfinite(large.posterior(X).log_prob(1e140 * y))
    trained = GGPRegressor(members=2, **SMALL).fit(X, 1e140 * y)
    with pytest.raises(ValueError, match="use predict, sample_y or log_predictive_density"):
        trained.posterior(X)


def test_inputs_that_single_precision_merges_are_counted_in_a_warning():
    """Two bursts of readings within one second, a year apart; the readings of one burst alone are told apart."""
    second = np.random.default_rng(0).uniform(size=20)
    times = np.concatenate([1.7e9 + second, 1.7e9 + 365.25 * 86400 + second])[:, None]
    y = np.tile(np.sin(9 * second), 2)
    with pytest.warns(UserWarning, match="of 40 distinct inputs are merged.*use PretrainedGGPRegressor") as warned:
        GGPRegressor(members=2, **SMALL).fit(times, np.stack([y, -y], axis=1))
    assert len(warned) == 1
    assert int(str(warned[0].message).split()[0]) >= 30
    GGPRegressor(members=2, **SMALL).fit(times[:20], y[:20])


def test_known_noise_is_the_least_spread():
    X, y = wave()
    _, std = GGPRegressor(members=2, noise=0.5, **SMALL).fit(X, y).predict(X, return_std=True)
    assert (std > 0.4999).all()


def test_duplicated_points_with_different_values_and_constants():
    X = np.repeat(np.linspace(0, 1, 10), 4)[:, None]
    y = np.tile([-1.0, 1.0], 20)
    model = GGPRegressor(members=2, **{**SMALL, "max_steps": 300}).fit(X, y)
    mean, std = model.predict(X, return_std=True)
    # Values of plus and minus one at every point: no mean can explain them, only a spread of about one.
    assert (std > 0.5).all()
    assert (np.abs(y - mean) < 3 * std).all()
    for value in (5.0, 0.0):
        constant = GGPRegressor(members=2, **SMALL).fit(np.hstack([X, 0 * X]), np.full(40, value))
        np.testing.assert_allclose(constant.predict(np.hstack([X, 0 * X])), value, atol=0.05)
    same_x = GGPRegressor(members=2, **SMALL).fit(np.ones((40, 1)), np.arange(40.0))
    assert np.isfinite(same_x.predict(np.ones((40, 1)))).all()


@pytest.mark.parametrize(
    ("X", "y", "message"),
    [
        (np.zeros((0, 1)), np.zeros(0), "0 sample"),
        (np.ones((1, 1)), np.ones(1), "minimum of 3 is required"),
        (np.ones((5, 1)) * np.inf, np.ones(5), "infinity"),
        (np.ones((5, 1)), np.full(5, np.inf), "infinity"),
        (np.full((5, 1), np.nan), np.ones(5), "NaN"),
        (np.array([["a"], ["b"], ["c"]]), np.ones(3), "string"),
        (np.ones((5, 1)), np.ones(4), "inconsistent numbers of samples"),
        (np.ones(5), np.ones(5), "Expected 2D array"),
    ],
)
def test_wrong_data(X, y, message):
    with pytest.raises(ValueError, match=message):
        GGPRegressor(**SMALL).fit(X, y)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"members": 0}, "'members' parameter .* must be an int in the range .1, 10000.. Got 0"),
        ({"rank": 2.5}, "'rank' parameter .* must be an int"),
        ({"targets": 0}, "'targets' parameter .* or None. Got 0"),
        ({"noise": -1.0}, "'noise' parameter .* must be a float in the range .0.0, inf. or None. Got -1.0"),
        ({"noise": float("nan")}, "'noise' parameter"),
        ({"learning_rate": 0}, "'learning_rate' parameter"),
        ({"set_interaction": "no"}, "'set_interaction' parameter"),
        ({"random_state": "x"}, "'random_state' parameter"),
        ({"on_progress": 1}, "'on_progress' parameter .* must be a callable or None"),
    ],
)
def test_wrong_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        GGPRegressor(**SMALL).set_params(**settings).fit(*wave())


def test_prediction_needs_a_fit_and_the_right_columns(fitted):
    with pytest.raises(NotFittedError):
        GGPRegressor().predict(np.ones((2, 1)))
    with pytest.raises(ValueError, match="2 features"):
        fitted.predict(np.ones((2, 2)))


@pytest.mark.parametrize(("rows", "members"), [(3, 2), (8, 3)])
def test_very_few_points(rows, members):
    """Too few to learn much, but held-out points keep the prediction from being sure of what it does not know.

    Of three rows two members could not leave two to learn from: there are three members in both cases.
    """
    X, y = wave(rows)
    new, truth = wave(200, seed=1)
    mean, std = GGPRegressor(members=members, **SMALL).fit(X, y).predict(new, return_std=True)
    assert np.mean(np.abs(truth - mean) < 3 * std) > 0.5


def test_wrong_targets_of_a_density(fitted):
    X, y = wave()
    with pytest.raises(ValueError, match=r"shape \(40,\) for 40 rows of X and 1 outputs, got \(39,\)"):
        fitted.log_predictive_density(X, y[:39])
    with pytest.raises(ValueError, match="NaN"):
        fitted.log_predictive_density(X, np.full(40, np.nan))
    with pytest.raises(ValueError, match="n_samples must be at least 1"):
        fitted.sample_y(X, -1)


def test_progress_is_reported_and_nothing_is_printed(capsys, tmp_path):
    X, y = wave()
    steps = []
    model = GGPRegressor(members=1, on_progress=lambda progress: steps.append(progress.step), **SMALL).fit(X, y)
    assert steps == [0, 50, 100]
    assert capsys.readouterr() == ("", "")
    model.save(tmp_path / "model.bieqno")
    assert GGPRegressor.load(tmp_path / "model.bieqno").on_progress is None
    assert pickle.loads(pickle.dumps(model)).on_progress is None


def test_a_file_says_which_regressor_it_holds(fitted, tmp_path):
    fitted.save(tmp_path / "model.bieqno")
    assert type(load_regressor(tmp_path / "model.bieqno")) is GGPRegressor
    with pytest.raises(PersistenceError, match="holds a GGPRegressor, not a PretrainedGGPRegressor"):
        PretrainedGGPRegressor.load(tmp_path / "model.bieqno")


def test_a_setting_that_an_older_file_lacks_takes_its_default(fitted, tmp_path):
    settings = {name: value for name, value in fitted.get_params().items() if name != "patience"}
    found = {name: getattr(fitted, name) for name in base._FITTED if name != "feature_names_in_"}
    older = base.Saved("GGPRegressor", settings, found, fitted.processes_)
    bieqno.save(tmp_path / "older.bieqno", older, known=base.STORED)
    assert GGPRegressor.load(tmp_path / "older.bieqno").patience == GGPRegressor().patience


@pytest.mark.parametrize("kind", [GGPRegressor, PretrainedGGPRegressor])
def test_a_fit_that_fails_leaves_no_trace(kind):
    """An inf among the targets is found after scikit-learn has set the number of columns; so are missing targets."""
    X, y = wave()
    model = kind()
    for wrong in (np.full(40, np.nan), np.where(np.arange(40) == 3, np.inf, y)):
        with pytest.raises(ValueError, match=r"NaN|infinity"):
            model.fit(X, wrong)
        assert vars(model) == vars(kind())
        with pytest.raises(NotFittedError):
            model.predict(X)


def test_a_fit_that_fails_keeps_the_earlier_one(fitted):
    X, _ = wave()
    model = pickle.loads(pickle.dumps(fitted))
    with pytest.raises(ValueError, match="2 of 4 rows have a NaN target"):
        model.fit(np.ones((4, 3)), np.array([np.nan, np.nan, 1.0, 2.0]))
    assert model.n_features_in_ == 1
    assert (model.predict(X) == fitted.predict(X)).all()


def test_samples_follow_the_random_state(fitted):
    """By default the one of the fit; equal calls give equal samples."""
    X, _ = wave(5)
    assert (fitted.sample_y(X, 3) == fitted.sample_y(X, 3)).all()
    other = pickle.loads(pickle.dumps(fitted))
    other.seed_ += 1
    assert (fitted.sample_y(X, 3) != other.sample_y(X, 3)).any()


@pytest.mark.parametrize("rows", [10, 80])
def test_a_constant_target_of_several_inputs_is_predicted(rows):
    X = np.random.default_rng(0).normal(size=(rows, 4))
    mean, std = PretrainedGGPRegressor(correction=False).fit(X, np.full(rows, 3.0)).predict(X + 1, return_std=True)
    np.testing.assert_allclose(mean, 3.0, rtol=1e-3)
    assert np.all((std > 0) & (std < 0.03))


def test_noise_of_more_inputs_than_rows_is_taken_for_noise():
    """The volume of a ball in 100 dimensions is zero in single precision: the spacing was zero, and predictions NaN.

    And 300 length scales explained 120 values so well that intervals held one new value in a hundred.
    """
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(120, 300)), rng.normal(size=120)
    mean, std = PretrainedGGPRegressor().fit(X, y).predict(rng.normal(size=(100, 300)), return_std=True)
    assert np.sqrt(np.mean(mean**2)) < 0.5
    assert np.all((std > 0.6) & (std < 1.6))
