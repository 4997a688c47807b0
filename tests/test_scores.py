"""Scores against closed forms and their own definitions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scoringrules
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from bieqno.scores import (
    autocorrelated_interval,
    coverage,
    crps,
    energy_score,
    independent_interval,
    rank_histogram,
    relative_rmse,
    rmse,
    spread,
    spread_error_ratio,
)


def calibrated(times=4000, members=19, variables=2, seed=0):
    """Truth and members drawn from one law, about a centre that moves."""
    centre_key, draw_key = jax.random.split(jax.random.key(seed))
    centre = 5 * jax.random.normal(centre_key, (times, 1, variables))
    draws = centre + jax.random.normal(draw_key, (times, members + 1, variables))
    return draws[:, 0], draws[:, 1:]


def test_crps_of_a_large_gaussian_ensemble_is_the_closed_form():
    levels = (np.arange(4000) + 0.5) / 4000
    members = jnp.asarray(norm.ppf(levels))[None, :, None]
    for truth in (0.0, 1.3):
        exact = truth * (2 * norm.cdf(truth) - 1) + 2 * norm.pdf(truth) - 1 / np.sqrt(np.pi)
        assert float(crps(jnp.array([[truth]]), members)[0]) == pytest.approx(exact, abs=2e-3)


@given(seed=st.integers(0, 1000))
def test_energy_score_of_one_variable_is_crps_and_by_definition(seed):
    truth, ensemble = calibrated(times=3, members=5, variables=1, seed=seed)
    assert jnp.allclose(energy_score(truth, ensemble), crps(truth, ensemble), atol=1e-4)
    x, y = np.asarray(ensemble)[0, :, 0], float(truth[0, 0])
    definition = np.mean(np.abs(x - y)) - 0.5 * np.mean(np.abs(x[:, None] - x))
    assert float(crps(truth, ensemble)[0]) == pytest.approx(definition, abs=1e-4)


@pytest.mark.parametrize(("members", "variables"), [(1, 1), (2, 3), (19, 4)])
def test_proper_scores_are_those_of_scoringrules(x64, members, variables):
    """Ties among the members and with the truth included."""
    truth, ensemble = calibrated(times=6, members=members, variables=variables)
    truth, ensemble = jnp.round(truth, 1), jnp.round(ensemble, 1)
    each = scoringrules.crps_ensemble(np.asarray(truth), np.asarray(ensemble), m_axis=1, estimator="qd")
    np.testing.assert_allclose(crps(truth, ensemble), each.mean(axis=1), rtol=1e-12)
    expected = scoringrules.es_ensemble(np.asarray(truth), np.asarray(ensemble), m_axis=1, v_axis=2)
    np.testing.assert_allclose(energy_score(truth, ensemble), expected, rtol=1e-12)


def test_a_calibrated_ensemble_is_recognised():
    truth, ensemble = calibrated()
    # 8,000 pairs: shares are accurate to half a per cent, the ratio to one; three times that.
    assert float(spread_error_ratio(truth, ensemble)) == pytest.approx(1, abs=0.03)
    assert float(coverage(truth, ensemble, 0.8)) == pytest.approx(0.8, abs=0.015)
    counts = rank_histogram(truth, ensemble)
    assert counts.sum() == 8000
    # Five standard deviations of a binomial with mean 400.
    assert np.abs(counts - 400).max() < 5 * np.sqrt(400)


def test_ties_are_spread_evenly():
    counts = rank_histogram(jnp.zeros((4, 1)), jnp.zeros((4, 3, 1)))
    assert counts.tolist() == [1, 1, 1, 1]


def test_simple_scores():
    truth = jnp.full((3, 4), 2.0)
    assert relative_rmse(truth, truth).item() == 0
    assert relative_rmse(truth, 0 * truth).item() == 1
    assert rmse(truth, truth + 1).tolist() == [1, 1, 1]
    assert spread(jnp.zeros((2, 1, 4))).tolist() == [0, 0]


def test_autocorrelation_widens_the_interval():
    rng = np.random.default_rng(0)
    series = np.zeros(20000)
    for step in range(1, series.size):
        series[step] = 0.9 * series[step - 1] + rng.normal()
    # The variance of the mean of an AR(1) series is (1 + r) / (1 - r) = 19 times that of independent values.
    naive = independent_interval(jnp.asarray(series)).stderr
    honest = autocorrelated_interval(jnp.asarray(series)).stderr
    assert honest / naive == pytest.approx(np.sqrt(19), rel=0.2)


def test_intervals_cover_as_promised():
    rng = np.random.default_rng(1)
    hits = [
        low < 0 < high for _, _, low, high in (independent_interval(jnp.asarray(x)) for x in rng.normal(size=(500, 6)))
    ]
    # Three standard errors of a share of 0.95 among 500.
    assert np.mean(hits) == pytest.approx(0.95, abs=0.03)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rmse(jnp.zeros((2, 3)), jnp.zeros((3, 3))), r"truth has shape \(2, 3\), the estimate \(3, 3\)"),
        (lambda: coverage(jnp.zeros((1, 1)), jnp.zeros((1, 2, 1)), 1.0), "between 0 and 1, got 1.0"),
        (lambda: independent_interval(jnp.zeros(1)), "at least 2 independent values"),
        (lambda: autocorrelated_interval(jnp.zeros(3)), "at least 4 values"),
    ],
)
def test_what_does_not_fit_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
