"""Scores against closed forms."""

import numpy as np
import pytest
from scipy.stats import norm

from bieqno.regression import metrics

N = 200_000


@pytest.fixture(scope="module")
def calibrated():
    """A prediction that knows mean and spread of every value."""
    rng = np.random.default_rng(0)
    mean, std = rng.normal(size=N), rng.uniform(0.1, 2.0, size=N)
    return mean, std, mean + std * rng.normal(size=N)


def test_rmse_of_a_constant_error():
    truth = np.linspace(0, 1, 11)
    assert metrics.rmse(truth + 0.3, truth) == pytest.approx(0.3)


def test_nlpd_is_the_mean_of_scipys_logpdf(calibrated):
    mean, std, values = calibrated
    assert metrics.nlpd(mean, std, values) == pytest.approx(-norm.logpdf(values, mean, std).mean())


def test_whoever_knows_the_function_scores_the_entropy_of_the_noise():
    rng = np.random.default_rng(1)
    truth = np.sin(np.arange(N))
    values = truth + 0.01 * rng.normal(size=N)
    found = metrics.scores(truth, np.full(N, 0.01), truth=truth, values=values, noise=0.01)
    assert metrics.noise_entropy(0.01) == pytest.approx(norm(0, 0.01).entropy())
    # The standard deviation of z^2 / 2 is sqrt(1/2): five standard errors of its mean over N values.
    assert abs(found["nlpd_excess"]) < 5 * np.sqrt(0.5 / N)
    assert found["rmse"] == 0


def test_crps_at_the_mean_has_its_closed_form():
    """At value = mean, the CRPS of a normal is sd (sqrt(2) - 1) / sqrt(pi)."""
    std = np.array([0.5, 1.0, 3.0])
    expected = np.mean(std) * (np.sqrt(2) - 1) / np.sqrt(np.pi)
    assert metrics.crps(np.zeros(3), std, np.zeros(3)) == pytest.approx(expected)


def test_crps_tends_to_the_absolute_error():
    assert metrics.crps(np.zeros(2), np.full(2, 1e-9), np.array([1.0, -3.0])) == pytest.approx(2.0, rel=1e-6)


@pytest.mark.parametrize("level", metrics.COVERAGE_LEVELS)
def test_an_calibrated_prediction_covers_what_it_promises(calibrated, level):
    # Five standard deviations of a binomial share.
    assert abs(metrics.coverage(*calibrated, level) - level) < 5 * np.sqrt(level * (1 - level) / N)


def test_reliability_tells_the_bold_from_the_timid(calibrated):
    mean, std, values = calibrated
    levels = np.array([0.2, 0.5, 0.8])
    assert np.all(metrics.reliability(mean, std / 2, values, levels) < levels)
    assert np.all(metrics.reliability(mean, std * 2, values, levels) > levels)


def test_rmse_near_a_jump_looks_there_only():
    truth = np.zeros(4)
    found = metrics.scores(
        np.array([0.0, 2.0, 2.0, 0.0]),
        np.ones(4),
        truth=truth,
        values=truth,
        noise=1.0,
        jump=np.array([False, True, True, False]),
    )
    assert found["rmse_near_jump"] == pytest.approx(2.0)
    assert found["rmse"] == pytest.approx(np.sqrt(2.0))


@pytest.mark.parametrize("std", [0.0, -1.0, np.nan, np.inf])
def test_what_is_no_gaussian_is_refused(std):
    one = np.ones(1)
    with pytest.raises(ValueError, match="finite positive"):
        metrics.scores(one, np.array([std]), truth=one, values=one, noise=1.0)
