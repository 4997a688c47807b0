"""Skewed targets are predicted under a monotone transform, and everything is stated in the units of the data."""

import jax
import numpy as np
import pytest
from scipy.integrate import quad

from bieqno.regression import PretrainedGGPRegressor
from bieqno.regression.pretrained.transforms import Transform, promising_transforms


def positive(count=100, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.uniform(size=(count, 1))
    return x, np.exp(3 * np.sin(4 * x[:, 0]) + 0.4 * rng.normal(size=count))


@pytest.mark.parametrize("kind", ["none", "log", "asinh"])
def test_forward_inverse_and_slope_agree(kind):
    _, y = positive()
    transform = Transform.of(kind, y)
    assert transform.inverse(transform.forward(y)) == pytest.approx(y)
    numeric = (transform.forward(y * 1.000001) - transform.forward(y)) / (y * 1e-6)
    assert np.exp(transform.log_slope(y)) == pytest.approx(numeric, rel=1e-3)


def test_a_skewed_target_is_transformed_and_a_normal_one_is_not():
    x, y = positive()
    assert promising_transforms(x, y)[0].kind == "log"
    assert not promising_transforms(x, np.log(y))
    rng = np.random.default_rng(0)
    both_tails = np.sinh(np.log(y) + 0.2 * rng.normal(size=100)) ** 3
    assert [own.kind for own in promising_transforms(x, both_tails)] == ["asinh"]


def test_views_agree_in_the_units_of_the_data(tmp_path):
    x, y = positive()
    model = PretrainedGGPRegressor(correction=False, random_state=0).fit(x, y)
    plain = PretrainedGGPRegressor(correction=False, target_transform="none", random_state=0).fit(x, y)
    new, values = positive(200, seed=1)
    mean, std = model.predict(new, return_std=True)
    posterior = model.posterior(new[:20])
    assert posterior.mean == pytest.approx(mean[:20])
    assert np.diag(posterior.covariance()) == pytest.approx(std[:20] ** 2, rel=1e-6)
    draws = posterior.sample(20_000, key=jax.random.key(0))
    assert draws.mean(axis=0) == pytest.approx(mean[:20], rel=0.05)
    assert (draws > 0).all()
    assert model.log_predictive_density(new, values) > plain.log_predictive_density(new, values) + 50
    low, middle, high = model.predict_quantiles(new, [0.05, 0.5, 0.95]).T
    assert (low > 0).all()
    assert (middle < mean).all()
    assert 0.83 < np.mean((values > low) & (values < high)) < 0.97
    # The density of one value has the mass one.
    one = model.posterior(new[:1])
    assert quad(lambda t: np.exp(one.log_prob(np.array([np.exp(t)])) + t), -9, 9)[0] == pytest.approx(1, abs=1e-3)
    rest = posterior.condition(np.array([0]), posterior.mean[:1])
    assert rest.mean.shape == (19,)
    model.save(tmp_path / "model.bieqno")
    assert np.array_equal(PretrainedGGPRegressor.load(tmp_path / "model.bieqno").predict(new), mean)
    assert model.validation_scores_["coverage_90"][0] > 0.8


@pytest.mark.parametrize("zeros", [True, False])
def test_means_stay_within_reach_of_the_data_where_a_logarithm_has_the_highest_density(zeros):
    """Means were up to 10^10 standard deviations off: an atom at zero, or values near it, span many decades."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(450, 5))
    rain = np.maximum(X[:, 0] + 0.5 * X[:, 1] ** 2 + 0.7 * rng.normal(size=450), 0) ** 2
    y = rain if zeros else rng.gamma(0.3, size=450)
    assert promising_transforms(X[:300], y[:300])[0].kind == "log"
    model = PretrainedGGPRegressor(correction=False, random_state=0).fit(X[:300], y[:300])
    error = np.sqrt(np.mean((model.predict(X[300:]) - y[300:]) ** 2))
    assert error < 1.15 * y[300:].std()
