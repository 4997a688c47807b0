"""The opponents are tuned as well as they can be."""

import warnings

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from bieqno.lab.methods import classical_regressors as baselines
from bieqno.lab.studies import step_1d, trig_2d

NOISE = 0.01


def data(count=30, seed=0):
    problem = step_1d.draw(np.random.default_rng(seed), layout="random", count=count, points=50)
    return problem.x, problem.y


def log_likelihood(x, y, variance, length, noise):
    """By the definition, without scikit-learn."""
    K = variance * np.exp(-0.5 * ((x - x.T) / length) ** 2) + noise**2 * np.eye(len(x))
    return multivariate_normal(np.zeros(len(x)), K).logpdf(y)


@pytest.mark.parametrize("seed", range(3))
def test_tuned_se_reaches_the_best_of_a_fine_grid(seed):
    x, y = data(seed=seed)
    model = baselines.tune(x, y, noise=NOISE)
    y = y - y.mean()  # the process lies around the mean of the data
    lengths = np.geomspace(np.ptp(x) / len(x) / 3, 10 * np.ptp(x), 60)
    variances = np.geomspace(1e-3, 1e3, 40) * np.mean(y**2)
    best = max(log_likelihood(x, y, v, length, NOISE) for v in variances for length in lengths)
    # A grid can only be worse than the optimum; the optimiser stops at a relative 1e-7 of a value of tens.
    assert model.log_marginal_likelihood >= best - 1e-4
    variance, length = np.exp(model.regressor.kernel_.theta)
    assert model.log_marginal_likelihood == pytest.approx(log_likelihood(x, y, variance, length, NOISE), abs=1e-6)


def test_more_starts_find_nothing_better():
    x, y = data(count=60, seed=3)
    for kernel in baselines.KERNELS:
        found = baselines.tune(x, y, kernel=kernel, noise=NOISE).log_marginal_likelihood
        exhaustive = baselines.tune(x, y, kernel=kernel, noise=NOISE, lengths=10, climbs=20).log_marginal_likelihood
        # Two climbs that end in one optimum differ by what the stop allows.
        assert found == pytest.approx(exhaustive, abs=1e-2), kernel


def test_tuning_never_falls_behind_the_default_start():
    x, y = data()
    tuned, default = baselines.tune(x, y, noise=NOISE), baselines.as_in_the_paper(x, y, noise=NOISE)
    assert tuned.log_marginal_likelihood > default.log_marginal_likelihood
    # On these data the default start collapses to a length scale at its bound, and says so without a warning.
    assert default.at_bound
    assert not tuned.at_bound


def test_learned_noise_is_found():
    rng = np.random.default_rng(0)
    x = np.linspace(0, 1, 200)[:, None]
    y = np.sin(6 * x[:, 0]) + 0.1 * rng.normal(size=200)
    model = baselines.tune(x, y, noise=None)
    # The standard error of a standard deviation from 200 values is 5 %; three of them.
    assert np.exp(model.regressor.kernel_.theta[-1] / 2) == pytest.approx(0.1, rel=0.15)
    far = model.predict(np.array([[0.5]]))[1]
    assert far[0] >= np.exp(model.regressor.kernel_.theta[-1] / 2)  # the noise is in what is predicted


@pytest.mark.parametrize("noise", [NOISE, None])
def test_covariance_is_that_of_noisy_values(noise):
    x, y = data()
    model = baselines.tune(x, y, noise=noise)
    points = np.linspace(0, 1, 40)[:, None]
    covariance = model.covariance(points)
    # The same numbers by two routes in double precision.
    assert np.sqrt(np.diag(covariance)) == pytest.approx(model.predict(points)[1], rel=1e-6)
    assert np.min(np.linalg.eigvalsh(covariance)) > 0


@pytest.mark.parametrize("noise", [NOISE, None])
def test_the_short_way_of_many_points_ends_at_the_same_place(noise):
    """Beyond 300 points fewer starts are tried. This function traps: smooth with much noise, or rough with little."""
    problem = trig_2d.draw(np.random.default_rng(0), side=18, points=4)
    short = baselines.tune(problem.x, problem.y, noise=noise)
    full = baselines.tune(problem.x, problem.y, noise=noise, climbs=7)
    # Two climbs that end in one optimum differ by what the stop allows.
    assert short.log_marginal_likelihood == pytest.approx(full.log_marginal_likelihood, abs=1e-2)


def test_length_scales_stay_above_a_third_of_the_spacing():
    """White noise wants a length scale of zero."""
    rng = np.random.default_rng(0)
    x, y = np.linspace(0, 1, 50)[:, None], rng.normal(size=50)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = baselines.tune(x, y, noise=NOISE)
    assert np.exp(model.regressor.kernel_.theta[1]) >= 1 / 50 / 3 * (1 - 1e-9)


def test_unknown_kernel_is_named():
    with pytest.raises(ValueError, match=r"matern12.*got 'rbf'"):
        baselines.tune(*data(), kernel="rbf", noise=NOISE)
