"""The experts of a whole table: a process with a length scale for each input, boosted trees, and their stack."""

import jax
import numpy as np
import pytest
from scipy.linalg import solve_triangular
from scipy.optimize import approx_fprime
from scipy.stats import multivariate_normal, norm
from sklearn.ensemble import HistGradientBoostingRegressor

from bieqno.regression import PretrainedGGPRegressor
from bieqno.regression.pretrained import ard, joint, joint_mixture, leave_one_out, stacking, trees
from bieqno.regression.pretrained import likelihood as likelihoods
from bieqno.regression.pretrained.ard import ARDProcess, fit_ard
from bieqno.regression.pretrained.boosting import boost
from bieqno.regression.pretrained.correction import no_correction
from bieqno.regression.pretrained.joint_mixture import draw_processes
from bieqno.regression.pretrained.likelihood import SHAPES, Likelihood
from bieqno.regression.pretrained.mixture import Moments
from bieqno.regression.pretrained.process import CHUNK
from bieqno.regression.pretrained.table import fit_table
from bieqno.regression.pretrained.trees import fit_trees, forest_of


def table(count, inputs, noise=0.1, seed=0):
    """Standardised values of a function of the first two inputs."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, inputs))
    y = np.sin(2 * x[:, 0]) + 0.5 * x[:, min(1, inputs - 1)] + noise * rng.normal(size=count)
    return x, (y - y.mean()) / y.std()


@pytest.mark.parametrize("shape", SHAPES)
def test_the_gradient_is_that_of_the_likelihood_in_both_precisions(shape, monkeypatch):
    likelihood = Likelihood(*table(30, 3), None)
    theta = likelihood.start(1.0, 0.1) + 0.3 * np.random.default_rng(1).normal(size=6)
    value, gradient = likelihood(shape, theta)
    monkeypatch.setattr(likelihoods, "_HIDES_ROUNDING", np.inf)
    numeric = approx_fprime(theta, lambda t: likelihood(shape, t)[0], 1e-6)
    assert likelihood(shape, theta)[1] == pytest.approx(numeric, abs=1e-4)
    assert value == pytest.approx(likelihood(shape, theta)[0], abs=1e-4)
    assert value != likelihood(shape, theta)[0]  # it was in single precision
    assert gradient == pytest.approx(numeric, abs=1e-3)


def test_a_climb_that_takes_over_axes_needs_fewer_steps():
    few, all_of_them = Likelihood(*table(60, 4), None), Likelihood(*table(120, 4), None)
    first = few.climb("eq", few.start(1.0, 0.1), 30)
    begun = first.of_more(2.0)
    ends = [all_of_them.climb("eq", first.theta, 4, False, axes) for axes in (None, begun.axes)]
    assert ends[1].value >= ends[0].value
    assert np.all(all_of_them.climb("eq", first.theta, 4, True).axes[:, :4].std(axis=1) == 0)  # tied lengths stay so


def test_a_local_expert_that_is_far_behind_is_not_judged_by_all_rows():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 6))
    process = fit_table(no_correction(), x, np.sin(x @ rng.normal(size=6)) + x[:, 0], seed=0)
    assert process.weights[0] == 0
    assert len(process.local.held_out.error) == CHUNK
    assert len(process.held_out.error) == 300


@pytest.mark.parametrize("seed", [47, 143])
def test_a_smooth_shape_is_not_lost_where_a_rough_one_followed_the_noise(seed):
    """Begun from the rough one's end, its climb fell to where all is noise: of new values at the rows 40 % were covered."""
    rng = np.random.default_rng(seed)
    x, directions = rng.uniform(size=(100, 4)), rng.normal(size=(4, 3))
    y = np.sin(3 * x @ directions).sum(axis=1) + 0.1 * rng.normal(size=100)
    targets, inputs = (y - y.mean()) / y.std(), (x - x.mean(axis=0)) / x.std(axis=0)
    likelihood = Likelihood(inputs, targets, None)
    rough = likelihood.climb("matern52", likelihood.start(1.0, 0.01), 30)
    assert likelihood.climb_others("matern52", rough, 8)["eq"].value > rough.value
    found = fit_ard(inputs, targets)
    assert found.shape == "eq"
    assert 0.05 < np.sqrt(found.noise) * y.std() < 0.2


def test_irrelevant_inputs_get_long_scales_and_the_noise_is_found():
    process = fit_ard(*table(200, 8))
    lengths = np.exp(process.log_lengths)
    assert lengths[2:].min() > 5 * lengths[0]
    assert np.sqrt(process.noise) == pytest.approx(0.1 / 0.85, rel=0.3)  # in units of the values' deviation
    assert Likelihood(*table(30, 3), 0.5).climb("eq", np.zeros(6), 3).theta[-1] == pytest.approx(2 * np.log(0.5))


def test_rows_are_left_out_with_their_duplicates():
    x, y = table(40, 2)
    x[1] = x[0]
    process, groups = fit_ard(x, y), np.append([0, 0], np.arange(1, 39))
    found = process.leave_out(np.arange(2), groups)
    rest = ARDProcess(x[2:], y[2:], process.log_lengths, process.log_variances, process.shape).predict(x[:2])
    assert found.mean == pytest.approx(rest.mean)
    assert found.variance == pytest.approx(rest.variance)


def test_many_rows_are_predicted_from_the_nearest(monkeypatch):
    x, y = table(600, 2)
    process = fit_ard(x[:500], y[:500])
    exact, left = process.predict(x[500:]), process.leave_out(np.arange(20), np.arange(500))
    monkeypatch.setattr(ard, "EXACT_ROWS", 100)
    near, left_near = process.predict(x[500:]), process.leave_out(np.arange(20), np.arange(500))
    for a, b in ((near, exact), (left_near, left)):
        assert a.mean == pytest.approx(b.mean, abs=0.05)
        assert a.variance == pytest.approx(b.variance, rel=0.1)


def test_bands_of_rows_and_points_change_no_prediction(monkeypatch):
    x, y = table(90, 3)
    whole = fit_ard(x[:70], y[:70])
    expected = whole.predict(x[70:]), whole.leave_out(np.arange(70), np.arange(70))
    monkeypatch.setattr(ard, "_BAND", 16)
    process = ARDProcess(x[:70], y[:70], whole.log_lengths, whole.log_variances, whole.shape)
    found = process.predict(x[70:]), process.leave_out(np.arange(70), np.arange(70))
    for a, b in zip(found, expected, strict=True):
        assert a.mean == pytest.approx(b.mean)
        assert a.variance == pytest.approx(b.variance)


def test_trees_as_arrays_predict_what_scikit_learn_predicts():
    x, y = table(200, 3)
    y = y + 2 * (x[:, 2] > 0)
    expert, out_of_fold = fit_trees(x, y, np.arange(200), fit_ard(x, y), np.arange(200), seed=0)

    model = HistGradientBoostingRegressor(max_iter=10, min_samples_leaf=5).fit(x, y)
    assert forest_of([model]).predict(x) == pytest.approx(model.predict(x))
    assert np.std(y - out_of_fold.mean) < 0.6 * np.std(y)
    new, values = table(300, 3, seed=1)
    values = values + 2 * (new[:, 2] > 0)
    mean, variance = expert.predict(new)
    assert 0.85 < np.mean(np.abs(values - mean) < 1.96 * np.sqrt(variance)) < 0.995


@pytest.mark.parametrize("many", [False, True])
def test_of_few_and_of_many_rows_trees_find_the_same_cliffs(many, monkeypatch):
    monkeypatch.setattr(trees, "_FEW", 0 if many else 1000)
    x, y = table(400, 4)
    y = y + 2 * (x[:, 2] > 0) * (x[:, 3] > 0.5)
    found = fit_trees(x, y, np.arange(400), fit_ard(x, y), np.arange(400), seed=0)[1]
    assert np.std(y - found.mean) < 0.4 * np.std(y)


def test_boosted_trees_predict_rows_of_a_fold_without_it():
    x, y = table(120, 3)
    x[:, 1], folds = np.round(x[:, 1]), np.arange(120) % 4
    forest, found = boost(x, y, folds, (30, 0.3, 3), np.square)
    for fold in range(4):
        own = folds == fold
        there = forest.baseline[fold] + forest.stages(fold, x[own]).sum(axis=0)
        assert there == pytest.approx(found[own], abs=1e-12)
    # Without a say in the number of rounds, what a row's own fold has for values changes nothing for it.
    other = boost(x, np.where(folds == 2, 9.0, y), folds, (1, 0.3, 3), lambda error: np.zeros_like(error))[1]
    same = boost(x, y, folds, (1, 0.3, 3), lambda error: np.zeros_like(error))[1]
    assert np.array_equal(other[folds == 2], same[folds == 2])
    assert not np.allclose(other[folds != 2], same[folds != 2])


def test_the_first_question_leaves_the_least_squares():
    x, y = table(30, 2)  # of more rows not all thresholds are tried
    folds = np.arange(30) % 3
    forest, _ = boost(x, y, folds, (1, 1.0, 1), np.square)
    for fold in range(3):
        x_, y_ = x[folds != fold], y[folds != fold] - y[folds != fold].mean()
        sums = {}
        for column in range(2):
            between = np.unique(x[:, column])
            for bound in (between[1:] + between[:-1]) / 2:
                left, right = y_[x_[:, column] <= bound], y_[x_[:, column] > bound]
                if min(len(left), len(right)) >= 5:
                    sums[column, bound] = sum(side.sum() ** 2 / (len(side) + 1) for side in (left, right))
        column, bound = int(forest.feature[fold, 0, 0]), float(forest.threshold[fold, 0, 0])
        assert sums[column, bound] == pytest.approx(max(sums.values()))


def test_an_input_with_one_value_splits_nothing():
    x = np.stack([np.zeros(40), np.arange(40.0)], axis=1)
    forest, _ = boost(x, 1.0 * (x[:, 1] > 19), np.arange(40) % 4, (20, 0.5, 2), np.square)
    assert forest.predict(np.array([[5.0, 3.0], [-5.0, 36.0]])) == pytest.approx([0, 1], abs=0.05)
    nothing, found = boost(x[:, :1], x[:, 1], np.arange(40) % 4, (20, 0.5, 2), np.square)
    assert nothing.predict(x[:3, :1]) == pytest.approx(np.full(3, 19.5))
    assert np.ptp(found) < 3  # the means without each fold


def test_what_takes_no_part_is_kept_in_a_file(tmp_path, monkeypatch):
    """Rows that were not left out, leaves of trees and inputs without relevance are infinities, which a file may hold there."""
    monkeypatch.setattr(leave_one_out, "MOST_ROWS", 30)
    x, y = table(80, 5)
    model = PretrainedGGPRegressor(correction=False, random_state=0).fit(x, y + 2 * (x[:, 2] > 0))
    process = model.processes_[0]
    assert not np.isfinite(process.local.log_bayes_factor).all()
    assert process.trees is not None
    model.save(tmp_path / "model.bieqno")
    assert np.array_equal(PretrainedGGPRegressor.load(tmp_path / "model.bieqno").predict(x), model.predict(x))


def test_the_stack_follows_its_best_expert():
    rng = np.random.default_rng(0)
    values = rng.normal(size=100)
    good = Moments(values + 0.1 * rng.normal(size=100), np.full(100, 0.01))
    poor = Moments(np.zeros(100), np.ones(100))
    assert stacking.best_weights(values, [poor, good, poor]).tolist() == [0, 1, 0]
    # Two that err independently are better together.
    other = Moments(values + 0.1 * rng.normal(size=100), np.full(100, 0.01))
    assert 0.2 < stacking.best_weights(values, [good, other])[0] < 0.8


@pytest.mark.parametrize(("inputs", "noise"), [(1, 0.3), (5, 0.3), (5, 1.0), (10, 0.3)])
def test_intervals_hold_at_next_to_and_away_from_the_rows(inputs, noise):
    """From 120 rows the noise is known to 7 %, hence the share of new values to 3 %."""
    rng = np.random.default_rng(inputs)

    def f(x):
        return np.sin(4 * x[:, 0]) + (2 * x[:, 1] * x[:, 2] if inputs > 2 else 0)

    x, away = rng.uniform(size=(2, 120, inputs))
    noise = noise * f(x).std()
    model = PretrainedGGPRegressor(correction=False).fit(x, f(x) + noise * rng.normal(size=120))
    for points in (x, x + 0.01 * rng.normal(size=x.shape), away):
        mean, std = model.predict(points, return_std=True)
        inside = np.abs(f(points) + noise * rng.normal(size=(20, 120)) - mean) < 1.96 * std
        assert inside.mean() > 0.88


def test_duplicated_inputs_teach_the_noise():
    x = np.repeat(np.linspace(0, 1, 30), 2)[:, None]
    y = np.sin(3 * x[:, 0]) + 0.5 * np.random.default_rng(0).normal(size=60)
    std = PretrainedGGPRegressor(correction=False).fit(x, y).predict(x, return_std=True)[1]
    assert ((std > 0.35) & (std < 0.8)).all()


def test_copies_of_rows_tell_nothing():
    """A table copied four-fold is the table, not one without noise."""
    x, y = table(40, 1, noise=0.5)
    model = PretrainedGGPRegressor(correction=False, random_state=0)
    points, found = np.linspace(-1, 1, 5)[:, None], []
    for times in (1, 4):
        model.fit(np.repeat(x, times, axis=0), np.repeat(y, times))
        found.append([*model.predict(points, return_std=True), model.validation_scores_["rmse"]])
    for a, b in zip(*found, strict=True):
        assert a == pytest.approx(b)


def test_noise_that_repeated_places_tell_is_not_widened():
    rng = np.random.default_rng(0)
    x = np.repeat(rng.uniform(size=(25, 5)), 4, axis=0)
    y = np.sin(9 * x).sum(axis=1) + 0.1 * rng.normal(size=100)
    process = PretrainedGGPRegressor(correction=False, random_state=0).fit(x, y).processes_[0]
    assert np.sqrt(process.noise_variance) * process.scaling.target_scale == pytest.approx(0.1, rel=0.25)
    at, away = (process.moments(points)[1] for points in (x, rng.uniform(size=(50, 5))))
    assert np.median(at) < 0.3
    assert np.median(away) > 3 * np.median(at)


def test_the_joint_distribution_of_a_process_is_exact():
    process, points = fit_ard(*table(60, 1, noise=0.05)), np.linspace(-1, 1, 12)[:, None]
    mean, variance = process.predict(points)
    found = joint.chain(process, points, mean, np.sqrt(variance), np.full(12, process.noise))
    exact = process.posterior_covariance(points, True) + process.noise * np.eye(12)
    assert found.covariance() == pytest.approx(exact, abs=1e-5)
    values = mean + np.sqrt(variance)
    assert found.log_prob(values) == pytest.approx(multivariate_normal(mean, exact).logpdf(values), rel=1e-4)


def test_the_joint_distribution_has_the_predicted_marginals_and_learns_from_its_values():
    """A mixture of hypotheses: of any order, equal to its own chain rule, and better than its marginals."""
    x, y = table(60, 1, noise=0.05)
    model = PretrainedGGPRegressor(correction=False).fit(x[:20], y[:20])
    points, values = x[20:], y[20:]
    posterior, (mean, std) = model.posterior(points), model.predict(points, return_std=True)
    assert posterior.mean == pytest.approx(mean, abs=1e-4)
    assert posterior.std == pytest.approx(std, rel=1e-4)
    assert np.diag(posterior.covariance()) == pytest.approx(std**2, rel=1e-4)
    assert posterior.log_prob(values) > norm.logpdf(values, mean, std).sum() + 2
    order = np.random.default_rng(1).permutation(40)
    assert model.posterior(points[order]).log_prob(values[order]) == pytest.approx(posterior.log_prob(values), abs=1e-3)
    some = np.array([30, 2, 11])
    given = posterior.condition(some, values[some])
    total = posterior.marginal(some).log_prob(values[some]) + given.log_prob(np.delete(values, some))
    assert total == pytest.approx(posterior.log_prob(values), rel=1e-6)
    draws = posterior.sample(4000, key=jax.random.key(0))
    assert np.cov(draws.T) == pytest.approx(posterior.covariance(), abs=0.15 * np.max(std**2))
    assert np.array_equal(draws, posterior.sample(4000, key=jax.random.key(0)))


def test_hyperparameters_are_drawn_from_what_rows_leave_open():
    x, y = table(40, 1)
    process = fit_ard(x, y)
    few = draw_processes(fit_ard(x[:10], y[:10]), 64)
    many = draw_processes(process, 64)
    lengths = [np.std([own.log_lengths[0] for own in drawn]) for drawn in (few, many)]
    assert lengths[0] > lengths[1] > 0
    known = draw_processes(process, 4, noise=0.3)
    assert all(own.noise == pytest.approx(0.09) for own in known)
    rows = np.repeat(x, 7, axis=0)
    whole = ARDProcess(rows, np.repeat(y, 7), process.log_lengths, process.log_variances, process.shape)
    assert draw_processes(whole, 8) == (whole,)


def test_blocks_follow_from_each_other(monkeypatch):
    """Marginals, covariance, density, samples and conditioning agree with each other, and nearly with one block."""
    x, y = table(80, 2)
    process, points = fit_ard(x, y), np.random.default_rng(1).normal(size=(90, 2))
    mean, variance = process.predict(points)
    noise = np.full(90, process.noise)
    whole = joint.chain(process, points, mean, np.sqrt(variance), noise)
    monkeypatch.setattr(joint, "ONE_BLOCK", 50)
    monkeypatch.setattr(joint, "BLOCK", 30)
    parts = joint.chain(process, points, mean, np.sqrt(variance), noise)
    assert len(parts.blocks) == 4
    assert np.diag(parts.covariance()) == pytest.approx(variance, rel=1e-6)
    values = whole.sample(1, key=jax.random.key(0))[0]
    dense = multivariate_normal(mean, parts.covariance())
    assert parts.log_prob(values) == pytest.approx(dense.logpdf(values), rel=1e-6)
    assert parts.log_prob(values) / 90 == pytest.approx(whole.log_prob(values) / 90, abs=0.05)
    draws = parts.sample(4000, key=jax.random.key(1))
    assert np.cov(draws.T) == pytest.approx(parts.covariance(), abs=0.12 * variance.max())
    some = np.array([3, 70, 41])
    assert parts.marginal(some).covariance() == pytest.approx(parts.covariance()[np.ix_(some, some)])
    given = parts.condition(some, values[some])
    total = parts.marginal(some).log_prob(values[some]) + given.log_prob(np.delete(values, some))
    assert total == pytest.approx(parts.log_prob(values), rel=1e-6)
    with pytest.raises(ValueError, match="within 90 points"):
        parts.marginal(np.array([90]))
    with pytest.raises(ValueError, match="expected 90 values"):
        parts.log_prob(np.zeros(3))


def test_drawing_decomposes_nothing_anew_and_keeps_to_one_thread(monkeypatch):
    """One block has no parent that told something: its factor is all there is, and idle threads of BLAS would cost seconds."""
    chain, calls = joint.ChainGaussian.dense(np.zeros(3), np.eye(3) + 0.5), []

    def solve(*args, **settings):
        calls.append(joint.one_blas_thread.calls)
        return solve_triangular(*args, **settings)

    monkeypatch.setattr(joint, "cholesky", None)
    monkeypatch.setattr(joint, "solve_triangular", solve)
    dense = multivariate_normal(np.zeros(3), np.eye(3) + 0.5)
    assert chain.log_prob(np.ones(3)) == pytest.approx(dense.logpdf(np.ones(3)), rel=1e-6)
    assert calls == [1, 1]
    draws = chain.sample(20_000, key=jax.random.key(0))
    assert np.cov(draws.T) == pytest.approx(np.eye(3) + 0.5, abs=0.06)


def test_known_errors_of_rows_are_no_noise_of_new_values():
    """Neighbouring new values, with little noise of their own, are nearly the same whatever the errors of the rows were."""
    process, points = fit_ard(*table(60, 1, noise=0.5)), np.array([[0.5], [0.51]])
    mean, variance = process.predict(points)
    own = 0.01 * process.noise
    std = np.sqrt(variance - process.noise + own)
    correlations = []
    for kept in (1.0, 0.01):
        C = joint_mixture.join((process,), points, mean, std, np.full(2, own), kept).covariance()
        correlations.append(C[0, 1] / np.sqrt(C[0, 0] * C[1, 1]))
    assert correlations[1] > correlations[0] + 0.1
    assert correlations[1] == pytest.approx((1 - 0.175) * (1 - own / std[0] ** 2), abs=0.08)


def test_the_more_weight_the_process_has_the_more_values_follow_it_together():
    process, points = fit_ard(*table(40, 1)), np.linspace(-3, 3, 25)[:, None]
    mean, variance = process.predict(points)
    marginals = mean, np.sqrt(variance), np.full(25, process.noise)
    values = joint.chain(process, points, *marginals).sample(20, key=jax.random.key(0))
    scores = []
    for trust in (0.0, 0.5, 1.0):
        found = joint_mixture.join(draw_processes(process, 4), points, *marginals, trust=trust)
        assert np.sum(np.exp(found.log_weights)) == pytest.approx(1)
        assert (found.mean, found.variance) == (pytest.approx(mean, rel=1e-6), pytest.approx(variance, rel=1e-6))
        scores.append(np.mean([found.log_prob(value) for value in values]))
    assert scores[0] < scores[1] < scores[2]


def test_length_scales_that_are_tied_are_drawn_together():
    process = fit_ard(*table(30, 3), tied=True)
    assert np.ptp(process.log_lengths) < 1e-6
    draws = draw_processes(process, 6, tied=True)
    assert max(np.ptp(one.log_lengths) for one in draws) < 1e-6
    assert len({round(float(one.log_lengths[0]), 6) for one in draws}) > 1


def test_conditions_on_points_that_are_not_there_are_refused():
    chain = joint.ChainGaussian.dense(np.zeros(3), np.eye(3))
    with pytest.raises(ValueError, match="within 3 points"):
        chain.condition([7], [0.0])
    with pytest.raises(ValueError, match="one value"):
        chain.condition([0, 1], [0.0])


def test_relaxed_priors_let_inputs_drop_out():
    x, y = table(120, 6)
    likelihood = Likelihood(x, y, None)
    first = likelihood.climb("eq", likelihood.start(1.0, 0.1), 30)
    last = likelihood.relaxed().climb("eq", first.theta, 8, False, first.axes)
    assert last.theta[2:6].min() > first.theta[2:6].min()
    assert Likelihood(x, y, 0.5).relaxed().climb("eq", first.theta, 3).theta[-1] == pytest.approx(2 * np.log(0.5))
