"""Predictions have heavier tails than normal ones where rows that were left out have them, in everything that speaks of them."""

import jax
import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from bieqno.regression import PretrainedGGPRegressor, metrics, tails
from bieqno.regression.metrics import HeldOut
from bieqno.regression.pretrained.joint import ChainGaussian
from bieqno.regression.pretrained.joint_tails import TailedGaussian


@pytest.mark.parametrize("tail", [0.0, 0.4, 0.9, 1.5])
def test_the_law_has_mass_variance_and_quantiles_of_its_own(tail):
    # The integrals run over the normal scores, in which the law's tails are short.
    def expected(f):
        return quad(lambda z: norm.pdf(z) * f(tails.from_normal(z, tail)), -12, 12)[0]

    assert expected(lambda t: t**2) == pytest.approx(1, rel=1e-6)
    assert quad(lambda t: np.exp(tails.log_density(t, tail)), -np.inf, 0)[0] == pytest.approx(0.5, abs=1e-6)
    z = np.linspace(-3, 3, 7)
    assert tails.to_normal(tails.from_normal(z, tail), tail) == pytest.approx(z)

    def slope(z):
        return np.exp(norm.logpdf(z) - tails.log_density(tails.from_normal(z, tail), tail))

    for t in (-2.0, 0.3):
        end = float(tails.to_normal(t, tail))
        # The squared distance of the distribution function from a step, on either side of it.
        parts = [quad(lambda z: norm.cdf(z) ** 2 * slope(z), -12, sign * end)[0] for sign in (1, -1)]
        assert float(tails.crps(t, tail)) == pytest.approx(sum(parts), rel=1e-5)


def test_a_tail_may_differ_from_value_to_value():
    t, own = np.array([-3.0, 0.5, 2.0]), np.array([0.0, 0.5, 1.2])
    for function in (tails.from_normal, tails.to_normal, tails.log_density, tails.crps):
        assert function(t, own) == pytest.approx([float(function(*one)) for one in zip(t, own, strict=True)])


def test_tails_are_found_where_they_are_and_cost_something():
    rng = np.random.default_rng(0)
    for count in (10, 100, 1000):
        for size in (0.5, 1.0, 2.0):  # values that are predicted too carefully have no heavy tails
            assert np.mean([tails.find_tail(size * rng.normal(size=count)) for _ in range(50)]) < 0.1
    assert np.mean([tails.find_tail(rng.standard_t(3, 500)) for _ in range(20)]) == pytest.approx(0.9, abs=0.1)
    assert tails.find_tail(np.zeros(50)) == 0


def test_held_out_rows_are_scored_by_their_law():
    t = np.random.default_rng(0).standard_t(3, 4000) / 3**0.5
    normal, heavy = (HeldOut(2 * t, np.full(4000, 2.0), tail).scores() for tail in (0.0, 0.9))
    assert heavy["nlpd"] < normal["nlpd"] - 0.1
    assert heavy["coverage_50"] == pytest.approx(0.5, abs=0.03) != normal["coverage_50"]
    assert np.ptp(heavy["pit"]) < 0.5 * np.ptp(normal["pit"])
    assert heavy["rmse"] == normal["rmse"]
    assert metrics.crps(np.zeros(4000), np.ones(4000), t, 0.9) < metrics.crps(np.zeros(4000), np.ones(4000), t)
    with pytest.raises(ValueError, match="a tail is between"):
        HeldOut(t, t, -1.0)


def test_moments_of_a_joint_law_are_those_of_its_draws_also_given_values():
    rng = np.random.default_rng(0)
    factor = rng.normal(size=(4, 4))
    chain = ChainGaussian.dense(np.zeros(4), factor @ factor.T + np.eye(4))
    mean, std = np.arange(4.0), np.array([1.0, 2.0, 0.5, 1.0])
    whole = TailedGaussian.of(mean, std, chain.blocks, 0.6)
    assert (whole.mean, whole.std) == (pytest.approx(mean), pytest.approx(std))
    for law in (whole, whole.condition(np.array([1]), np.array([6.0]))):
        draws = law.sample(100_000, key=jax.random.key(0))
        assert draws.mean(axis=0) == pytest.approx(law.mean, abs=0.03)
        assert np.cov(draws.T) == pytest.approx(law.covariance(), abs=0.08)
        assert np.diag(law.covariance()) == pytest.approx(law.variance)
    one = whole.marginal(np.array([2]))
    value = np.array([3.1])
    assert one.log_prob(value) == pytest.approx(tails.log_density((3.1 - 2) / 0.5, 0.6) - np.log(0.5))
    total = one.log_prob(value) + whole.condition(np.array([2]), value).log_prob(mean[[0, 1, 3]])
    assert total == pytest.approx(whole.log_prob(np.array([0, 1, 3.1, 3])))
    for wrong in (1.0, np.zeros(3)):
        with pytest.raises(ValueError, match="expected 4 values"):
            whole.log_prob(wrong)
    with pytest.raises(ValueError, match="within 4 points"):
        whole.condition([7], [0.0])


def table(noise, count=150):
    rng = np.random.default_rng(3)
    x = rng.uniform(size=(count, 2))
    return x, np.sin(5 * x[:, 0]) + x[:, 1] + 0.3 * (
        rng.normal(size=count) if noise is None else rng.standard_t(noise, count)
    )


@pytest.fixture(scope="module")
def heavy():
    return PretrainedGGPRegressor(correction=False, random_state=0).fit(*table(2.5))


def test_views_of_a_prediction_with_heavy_tails_agree(heavy, tmp_path):
    x, y = table(2.5, 60)
    tail = float(heavy.tail_[0])
    assert tail > 0.3
    (mean, std), law, joint = heavy.predict(x, return_std=True), heavy.predict_distribution(x), heavy.posterior(x)
    assert (joint.mean, joint.std) == (pytest.approx(mean, abs=1e-4), pytest.approx(std, rel=1e-4))
    assert np.diag(joint.covariance()) == pytest.approx(std**2, rel=1e-4)
    assert law.log_pdf(y) == pytest.approx(tails.log_density((y - mean) / std, tail) - np.log(std))
    low, high = heavy.predict_quantiles(x, (0.05, 0.999)).T
    assert law.cdf(low) == pytest.approx(0.05)
    assert (high - mean) / std == pytest.approx(float(tails.from_normal(norm.ppf(0.999), tail)))
    assert joint.log_prob(y) > norm.logpdf(y, mean, std).sum()
    some = np.array([30, 2, 11])
    given = joint.condition(some, y[some])
    total = joint.marginal(some).log_prob(y[some]) + given.log_prob(np.delete(y, some))
    assert total == pytest.approx(joint.log_prob(y), rel=1e-6)
    draws = (heavy.sample_y(x, 8000, random_state=0) - mean[:, None]) / std[:, None]
    assert draws.std() == pytest.approx(1, abs=0.03)
    assert np.mean(np.abs(draws) > 4) > 10 * 2 * norm.sf(4)
    heavy.save(tmp_path / "model.bieqno")
    loaded = PretrainedGGPRegressor.load(tmp_path / "model.bieqno")
    assert loaded.tail_ == heavy.tail_
    assert loaded.predict_quantiles(x, (0.01,)) == pytest.approx(heavy.predict_quantiles(x, (0.01,)), rel=1e-9)


def test_normal_noise_is_predicted_by_normal_laws():
    model = PretrainedGGPRegressor(correction=False, random_state=0).fit(*table(None))
    assert model.tail_ == 0
    x, y = table(None, 20)
    mean, std = model.predict(x, return_std=True)
    assert np.array_equal(model.predict_distribution(x).log_pdf(y), norm.logpdf((y - mean) / std) - np.log(std))
