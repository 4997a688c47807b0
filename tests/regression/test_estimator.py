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
from bieqno.regression import GGPRegressor

# Small networks and few steps: what is tested here is the estimator, not how well it fits.
SMALL = {"width": 16, "depth": 2, "rank": 3, "max_steps": 100, "batch_size": 8, "random_state": 0}


def wave(count=40, seed=0):
    X = np.random.default_rng(seed).uniform(size=(count, 1))
    return X, np.sin(6 * X[:, 0])


@pytest.fixture(scope="module")
def fitted():
    return GGPRegressor(members=2, **SMALL).fit(*wave())


def test_scikit_learn_accepts_it():
    """All checks that apply to a regressor; those on accuracy need some training (R2 above 0.5 on ten variables).

    In a process of its own, without the type checks of this suite: scikit-learn passes wrong types on purpose.
    """
    code = """
from sklearn.utils.estimator_checks import check_estimator
from bieqno import GGPRegressor
model = GGPRegressor(width=16, depth=2, rank=2, members=1, max_steps=300, batch_size=4, learning_rate=5e-3)
for result in check_estimator(model, on_fail=None, on_skip=None):
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
    # Nominal 0.95; sixty points do not tell more precisely than this.
    assert 0.85 <= np.mean(np.abs(observed - mean) < 1.96 * std) <= 1


def test_a_subset_gets_the_subset_of_predictions_and_chunks_do_not_matter(fitted, monkeypatch):
    X = np.linspace(0, 1, 100)[:, None]
    mean, std = fitted.predict(X, return_std=True)
    part, part_std = fitted.predict(X[10:23], return_std=True)
    np.testing.assert_allclose(part, mean[10:23], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(part_std, std[10:23], rtol=1e-5)
    monkeypatch.setattr("bieqno.regression.fitted.CHUNK", 16)
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
    with pytest.raises(ValueError, match="fitted to 3 outputs"):
        model.log_predictive_density(X, y)


def test_pipelines_grids_clones_and_pickles(fitted, tmp_path):
    X, y = wave()
    pipeline = make_pipeline(StandardScaler(), GGPRegressor(members=2, **SMALL)).fit(X, y)
    assert pipeline.predict(X).shape == (40,)
    grid = GridSearchCV(GGPRegressor(members=1, **SMALL), {"rank": [1, 3]}, cv=2).fit(X, y)
    assert grid.best_params_["rank"] in {1, 3}
    assert clone(fitted).get_params() == fitted.get_params()
    assert (pickle.loads(pickle.dumps(fitted)).predict(X) == fitted.predict(X)).all()
    fitted.save(tmp_path / "model.bieqno")
    again = GGPRegressor.load(tmp_path / "model.bieqno")
    assert (again.predict(X) == fitted.predict(X)).all()
    assert again.width == 16
    bieqno.save(tmp_path / "other.bieqno", bieqno.MeanPool())
    with pytest.raises(PersistenceError, match="not a regressor"):
        GGPRegressor.load(tmp_path / "other.bieqno")


def test_missing_targets_are_left_out_and_counted():
    X, y = wave()
    y[[3, 9]] = np.nan
    with pytest.warns(UserWarning, match="2 rows with a NaN target are left out"):
        model = GGPRegressor(members=2, **SMALL).fit(X, y)
    kept = ~np.isnan(y)
    assert (model.predict(X) == GGPRegressor(members=2, **SMALL).fit(X[kept], y[kept]).predict(X)).all()
    with pytest.raises(ValueError, match="40 of 40 rows have a NaN target"):
        GGPRegressor(**SMALL).fit(X, np.full(40, np.nan))


def test_new_observations_without_training(fitted):
    X, y = wave()
    model = pickle.loads(pickle.dumps(fitted))
    before = model.predict(X)
    assert (model.condition(X, y).predict(X) == before).all()
    assert (model.condition(X[:20], y[:20] + 1).predict(X) != before).any()
    with pytest.raises(ValueError, match="2 features"):
        model.condition(np.ones((5, 2)), np.ones(5))


def test_warm_start_goes_on():
    X, y = wave()
    model = GGPRegressor(members=1, warm_start=True, **SMALL).fit(X, y)
    error = np.mean((model.predict(X) - y) ** 2)
    for _ in range(3):
        model.fit(X, y)
    assert np.mean((model.predict(X) - y) ** 2) < error


def test_noisier_rows_count_less():
    """Half of the rows are shifted by three and said to be very noisy: the others win."""
    X, y = wave(60)
    shifted = y + 3 * (np.arange(60) % 2)
    alpha = 100.0 * (np.arange(60) % 2)
    settings = {**SMALL, "max_steps": 400}
    plain = GGPRegressor(members=1, **settings).fit(X, shifted)
    told = GGPRegressor(members=1, alpha=alpha, **settings).fit(X, shifted)
    assert np.mean(np.abs(told.predict(X) - y)) < 0.5 * np.mean(np.abs(plain.predict(X) - y))
    with pytest.raises(ValueError, match="one for each of 60 rows"):
        GGPRegressor(alpha=np.ones(3), **SMALL).fit(X, y)


def test_duplicated_points_with_different_values_and_constants():
    X = np.repeat(np.linspace(0, 1, 10), 4)[:, None]
    y = np.tile([-1.0, 1.0], 20)
    model = GGPRegressor(members=2, **{**SMALL, "max_steps": 300}).fit(X, y)
    mean, std = model.predict(X, return_std=True)
    # Values of plus and minus one at every point: no mean can explain them, only a spread of about one.
    assert (std > 0.5).all()
    assert (np.abs(y - mean) < 3 * std).all()
    constant = GGPRegressor(members=2, **SMALL).fit(X, np.full(40, 5.0))
    np.testing.assert_allclose(constant.predict(X), 5, atol=0.05)
    same_x = GGPRegressor(members=2, **SMALL).fit(np.ones((20, 1)), np.arange(20.0))
    assert np.isfinite(same_x.predict(np.ones((1, 1)))).all()


@pytest.mark.parametrize(
    ("X", "y", "message"),
    [
        (np.zeros((0, 1)), np.zeros(0), "0 sample"),
        (np.ones((1, 1)), np.ones(1), "minimum of 2 is required"),
        (np.ones((5, 1)) * np.inf, np.ones(5), "infinity"),
        (np.ones((5, 1)), np.full(5, np.inf), "infinity"),
        (np.full((5, 1), np.nan), np.ones(5), "NaN"),
        (np.array([["a"], ["b"]]), np.ones(2), "string"),
        (np.ones((5, 1)), np.ones(4), "inconsistent numbers of samples"),
        (np.ones(5), np.ones(5), "Expected 2D array"),
    ],
)
def test_wrong_data(X, y, message):
    with pytest.raises(ValueError, match=message):
        GGPRegressor(**SMALL).fit(X, y)


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"members": 0}, "members must be at least 1"), ({"noise": -1.0}, "noise must not be negative")],
)
def test_wrong_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        GGPRegressor(**{**SMALL, **settings}).fit(*wave())


def test_prediction_needs_a_fit_and_the_right_columns(fitted):
    with pytest.raises(NotFittedError):
        GGPRegressor().predict(np.ones((2, 1)))
    with pytest.raises(ValueError, match="2 features"):
        fitted.predict(np.ones((2, 2)))


def test_very_few_points():
    X, y = wave(3)
    assert np.isfinite(GGPRegressor(**SMALL).fit(X, y).predict(X)).all()


def test_progress_is_shown_only_when_asked(capsys):
    X, y = wave()
    GGPRegressor(members=1, **SMALL).fit(X, y)
    assert capsys.readouterr().out == ""
    GGPRegressor(members=1, verbose=True, **SMALL).fit(X, y)
    assert "loss" in capsys.readouterr().out
