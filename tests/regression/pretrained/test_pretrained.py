"""The pretrained regressor: kriging experts near a point, with and without a learned correction."""

import dataclasses
import pickle
from types import SimpleNamespace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.linalg import cho_solve, cholesky
from scipy.spatial import KDTree

from bieqno import PersistenceError
from bieqno.regression import PretrainedGGPRegressor, metrics
from bieqno.regression.data import Scaling
from bieqno.regression.pretrained import correction as corrections
from bieqno.regression.pretrained import experts, fine_tuning, leave_one_out, process
from bieqno.regression.pretrained.correction import Correction, no_correction
from bieqno.regression.pretrained.fine_tuning import fine_tune
from bieqno.regression.pretrained.leave_one_out import correction_weight, leave_out
from bieqno.regression.pretrained.neighbours import Neighbourhood, search_rows
from bieqno.regression.pretrained.process import condition

OBSERVATIONS, POINTS = 40, 24


@pytest.fixture(scope="module")
def correction():
    """A correction that is not zero, as after training."""

    @eqx.filter_jit
    def made(key):
        plain = Correction(width=16, key=key)
        noise = 0.1 * jax.random.normal(key, plain.operator.fit.network.layers[-1].weight.shape)
        return eqx.tree_at(lambda c: c.operator.fit.network.layers[-1].weight, plain, noise)

    return made(jax.random.key(0))


@pytest.fixture(scope="module")
def predict(correction):
    """Mean and deviation as the correction states them, whatever rows that were left out say about it."""

    def predict(points, inputs, targets):
        scaling = Scaling.of(inputs, targets)
        common = np.full(inputs.shape[1], np.sqrt(np.mean(inputs.var(axis=0))))
        fitted = condition(correction, inputs, targets, dataclasses.replace(scaling, input_scale=common))
        trusted = dataclasses.replace(fitted, log_bayes_factor=np.full(len(targets), 3.0), variance_factor=1.0)
        return in_units(trusted, points)

    return predict


def in_units(local, points):
    """Mean and standard deviation of a local process in the units of the data."""
    mean, variance = local.moments(points)
    return local.scaling.values(mean), np.sqrt(variance) * local.scaling.target_scale


def surface(seed=0):
    rng = np.random.default_rng(seed)
    inputs = rng.uniform(size=(OBSERVATIONS, 2))
    targets = np.sin(5 * inputs[:, 0]) + (inputs[:, 1] > 0.5) + 0.05 * rng.standard_normal(OBSERVATIONS)
    return rng.uniform(size=(POINTS, 2)), inputs, targets


def test_experts_are_ordinary_kriging():
    """Against the textbook formulas in double precision: the mean is a Lagrange multiplier's, weights add up to one."""
    rng = np.random.default_rng(0)
    offsets, values = rng.normal(scale=2, size=(12, 2)), rng.normal(size=12)
    order = np.argsort(-np.linalg.norm(offsets, axis=1))
    offsets, values = offsets[order], values[order]
    mask = np.arange(12) >= 2  # two that are not there
    centre = np.array([0.3, -0.2])
    with jax.enable_x64(True):
        asked = jnp.asarray([np.zeros(2), centre])
        said = jax.tree.map(
            np.asarray, jax.jit(experts.krige)(Neighbourhood(*map(jnp.asarray, (offsets, values, mask))), asked)
        )
    x, y = offsets[mask], values[mask]
    distance = np.linalg.norm(x[:, None] - x[None], axis=2)
    shapes = {
        "smooth": lambda r: np.exp(-(r**2) / 2),
        "twice": lambda r: (1 + 5**0.5 * r + 5 * r**2 / 3) * np.exp(-(5**0.5) * r),
        "rough": lambda r: np.exp(-r),
    }
    for i, expert in enumerate(experts.EXPERTS):
        K = shapes[expert.smoothness](distance / expert.length) + expert.noise_ratio * np.eye(len(y))
        factor = (cholesky(K, lower=True), True)
        c, one = shapes[expert.smoothness](np.linalg.norm(x - centre, axis=1) / expert.length), np.ones(len(y))
        lack = (1 - one @ cho_solve(factor, c)) / (one @ cho_solve(factor, one))
        weights = cho_solve(factor, c + lack * one)
        assert weights.sum() == pytest.approx(1)
        assert said.mean[1, i] == pytest.approx(weights @ y, abs=1e-8)
        variance = 1 + expert.noise_ratio - 2 * weights @ c + weights @ K @ weights
        assert said.variance[1, i] == pytest.approx(variance, rel=1e-6)
        residual = y - (one @ cho_solve(factor, y)) / (one @ cho_solve(factor, one))
        assert said.squares[0, i] == pytest.approx(residual @ cho_solve(factor, residual), rel=1e-6)
        assert said.log_det[0, i] == pytest.approx(np.log(np.diag(factor[0])).sum(), abs=1e-8)
    assert said.number.tolist() == [10, experts.NEAREST]


def test_predictions_follow_shifts_and_scales_of_the_targets(predict):
    points, inputs, targets = surface()
    (mean, std), moved = predict(points, inputs, targets), predict(points, inputs, 300 + 70 * targets)
    assert moved[0] == pytest.approx(300 + 70 * mean, rel=1e-3, abs=0.07)  # a thousandth of the scale
    assert moved[1] == pytest.approx(70 * std, rel=1e-2)


def test_mean_and_spread_do_not_depend_on_the_frame(predict):
    points, inputs, targets = surface()
    turn = np.linalg.qr(np.random.default_rng(1).normal(size=(2, 2)))[0]
    (mean, std), moved = (
        predict(points, inputs, targets),
        predict(3 * points @ turn + 2, 3 * inputs @ turn + 2, targets),
    )
    # Rounding in 32 bits, through matrices with condition numbers of up to 1e4.
    assert moved[0] == pytest.approx(mean, abs=5e-3)
    assert moved[1] == pytest.approx(std, rel=1e-2)


def test_order_of_observations_does_not_matter(predict):
    points, inputs, targets = surface()
    order = np.random.default_rng(2).permutation(OBSERVATIONS)
    (mean, std), mixed = predict(points, inputs, targets), predict(points, inputs[order], targets[order])
    assert mixed[0] == pytest.approx(mean, abs=1e-3)
    assert mixed[1] == pytest.approx(std, rel=1e-2)


def test_a_subset_of_the_points_gets_the_subset_of_the_predictions():
    points, inputs, targets = surface()
    model = PretrainedGGPRegressor(correction=False).fit(inputs, targets)
    mean, std = model.predict(points, return_std=True)
    part_mean, part_std = model.predict(points[5:12], return_std=True)
    assert part_mean == pytest.approx(mean[5:12], rel=1e-4, abs=1e-4)
    assert part_std == pytest.approx(std[5:12], rel=1e-3)
    assert np.sqrt(np.diag(model.predict(points, return_cov=True)[1])) == pytest.approx(std, rel=1e-3)
    assert model.sample_y(points, 3).shape == (POINTS, 3)


def test_points_that_share_a_centre_are_predicted_as_each_by_itself(correction):
    """Whatever else is asked for: one point at a time, and so many that groups of twelve are full."""
    points, inputs, targets = surface()
    model = condition(correction, inputs, targets)
    many = np.concatenate([points, np.random.default_rng(3).uniform(size=(1100, 2))])
    together, alone = model.moments(many), model.moments(points)
    for a, b in zip(together, alone, strict=True):
        assert a[:POINTS] == pytest.approx(b, rel=1e-3, abs=1e-4)  # rounding in 32 bits


def test_calm_regions_tell_short_waves_from_noise():
    """At 16 x 16 the finest wave is a chequered pattern; who takes it for noise has an RMSE of at least 1/8."""

    def grid(axis):
        return np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)

    def function(x):
        """The paper's waves (eq. 16): the shorter ones each in a square of its own."""
        squares = {4: (1 / 4, 3 / 4), 8: (1 / 2, 3 / 4), 16: (1 / 4, 1 / 2)}
        parts = [
            np.prod(np.sin(k * np.pi * x), axis=1) * np.all((x >= low) & (x <= high), axis=1)
            for k, (low, high) in squares.items()
        ]
        return np.prod(np.cos(2 * np.pi * x), axis=1) + sum(parts)

    rng = np.random.default_rng(0)
    x, points = grid((np.arange(16) + 0.5) / 16), grid(np.linspace(0, 1, 24))
    model = PretrainedGGPRegressor(correction=False).fit(x, function(x) + 0.01 * rng.standard_normal(len(x)))
    mean, std = model.predict(points, return_std=True)
    assert np.sqrt(np.mean((mean - function(points)) ** 2)) < 0.1
    assert np.mean(np.abs(mean - function(points) - 0.01 * rng.standard_normal(len(points))) < 2 * std) > 0.9


def test_estimator_keeps_its_contract(tmp_path):
    points, inputs, targets = surface()
    model = PretrainedGGPRegressor(correction=False).fit(inputs, np.stack([targets, -targets], axis=1))
    mean = model.predict(points)
    # The neighbourhoods that stand for all are chosen along the order of the targets, which is the reverse one here.
    assert mean[:, 1] == pytest.approx(-mean[:, 0], abs=0.02)
    model.save(tmp_path / "model.bieqno")
    assert np.array_equal(PretrainedGGPRegressor.load(tmp_path / "model.bieqno").predict(points), mean)
    assert ((model.calibration_ >= 0.6) & (model.calibration_ < 2)).all()  # it is not far from honest by itself
    assert PretrainedGGPRegressor.load(tmp_path / "model.bieqno").summary() == model.summary()
    with pytest.raises(ValueError, match="a factor of the variance is positive"):
        dataclasses.replace(model.processes_[0], variance_factor=-1.0)
    with pytest.raises(ValueError, match="weights that add up to one"):
        dataclasses.replace(model.processes_[0], weights=np.ones(2))
    with pytest.raises(ValueError, match=r"at most 3.0 either way"):
        dataclasses.replace(model.processes_[0].local, log_bayes_factor=np.full(OBSERVATIONS, 1e30))
    with pytest.raises(ValueError, match="a minimum of 3 is required"):
        model.condition(inputs[:1], np.zeros((1, 2)))
    constant = PretrainedGGPRegressor(correction=False).fit(inputs, np.full(OBSERVATIONS, 7.0))
    assert constant.predict(points) == pytest.approx(7.0)
    for settings, name in (({"correction": "experts"}, "correction"), ({"alpha": np.full(OBSERVATIONS, 0.1)}, "alpha")):
        with pytest.raises(ValueError, match=f"'{name}' parameter of PretrainedGGPRegressor"):
            PretrainedGGPRegressor().set_params(**settings).fit(inputs, targets)


def too_high(correction):
    """The same, but that it raises all predictions by three deviations."""
    shift = len(experts.EXPERTS)  # the output after those that weigh the experts
    return eqx.tree_at(
        lambda c: c.operator.fit.network.layers[-1].bias, correction, replace_fn=lambda b: b.at[shift].add(3)
    )


def test_a_correction_that_does_harm_is_not_used(correction):
    points, inputs, targets = surface()
    wrong, plain = (condition(one, inputs, targets) for one in (too_high(correction), no_correction()))
    # Most rows are predicted three deviations off, which costs more than the most that a row may count for.
    assert np.median(wrong.log_bayes_factor) == -3
    for found, expected in zip(wrong.moments(points), plain.moments(points), strict=True):
        assert found == pytest.approx(expected, rel=1e-3)
    assert wrong.held_out.error == pytest.approx(plain.held_out.error, abs=1e-3)
    # Without a correction there is nothing to gain or to lose.
    assert np.allclose(plain.log_bayes_factor, 0, atol=1e-3)


def test_posterior_odds_follow_the_rows_near_a_centre_and_those_alone():
    factors = np.array([3.0, 3.0, 3.0, -3.0, -3.0, -3.0, 0.0])
    here, there, nothing = correction_weight(factors, np.array([[0, 1, 2], [5, 3, 4], [6, -1, -1]]))
    assert here > 0.999 > 0.001 > there
    assert nothing == pytest.approx(1 / (1 + np.exp(-2)))  # the prior odds


def test_of_many_rows_some_are_left_out_and_all_points_judged_by_them(correction, monkeypatch):
    """A correction that does harm is not used between rows that were not left out either; `seed` chooses the rows."""
    monkeypatch.setattr(leave_one_out, "MOST_ROWS", 12)
    points, inputs, targets = surface()
    wrong, plain = (condition(one, inputs, targets) for one in (too_high(correction), no_correction()))
    assert np.isfinite(wrong.log_bayes_factor).sum() == 12
    assert wrong.moments(points)[0] == pytest.approx(plain.moments(points)[0], abs=0.01)
    first, again, other = (
        PretrainedGGPRegressor(correction=False, random_state=seed).fit(inputs, targets).processes_[0].local
        for seed in (1, 1, 2)
    )
    chosen = [np.flatnonzero(np.isfinite(one.log_bayes_factor)).tolist() for one in (first, again, other)]
    assert chosen[0] == chosen[1] != chosen[2]


def test_fine_tuning_mends_what_is_wrong_and_leaves_alone_what_few_rows_say(correction, monkeypatch):
    """Of predictions that are three deviations too high, those at new points become better; in larger steps than usual."""
    monkeypatch.setattr(fine_tuning, "_OPTIMIZER", optax.adam(1e-2))
    _, inputs, targets = surface()
    few, wrong = (condition(too_high(correction), inputs[:n], targets[:n]) for n in (20, OBSERVATIONS))
    assert fine_tune(few) is few
    steps = []
    with monkeypatch.context() as patched:
        # Used whatever it does: otherwise there would be nothing to mend.
        patched.setattr(process, "correction_weight", lambda factors, rows: np.ones(len(rows)))
        tuned = fine_tune(wrong, on_progress=lambda p: steps.append(p.step))
    assert steps
    wrong, tuned = (dataclasses.replace(one, log_bayes_factor=np.full(OBSERVATIONS, 3.0)) for one in (wrong, tuned))
    rng = np.random.default_rng(5)
    new = rng.uniform(size=(200, 2))
    values = np.sin(5 * new[:, 0]) + (new[:, 1] > 0.5) + 0.05 * rng.standard_normal(200)
    assert metrics.nlpd(*in_units(tuned, new), values) < metrics.nlpd(*in_units(wrong, new), values)
    assert tuned.steps > 0
    # Validated by members that had not learned from a row: no better than at new points, but for the chance of 40 rows.
    scores = tuned.held_out.scores(float(tuned.scaling.target_scale))
    assert scores["nlpd"] > metrics.nlpd(*in_units(tuned, new), values) - 0.5


def test_fine_tuning_is_accepted_by_rows_that_neither_trained_nor_stopped_it(correction):
    """Whatever the values of the last fold are, stopping and the members that are judged do not see them."""
    _, inputs, targets = surface()
    start = condition(correction, inputs, targets)
    around, _ = start.leave_out(np.arange(OBSERVATIONS))
    folds = jnp.arange(OBSERVATIONS) % fine_tuning.FOLDS
    found = fine_tuning._predict_by_experts(process.widened(around), start.context.units)
    values = jnp.asarray(targets, jnp.float32)
    rows = fine_tuning.LeaveOneOutRows(*found, start.context, values, folds)
    changed = dataclasses.replace(rows, values=jnp.where(folds == fine_tuning.FOLDS - 1, 99.0, values))
    members = jax.tree.map(lambda x: jnp.broadcast_to(x, (5, *x.shape)) if eqx.is_array(x) else x, correction)

    @eqx.filter_jit
    def seen(rows):
        gradient = eqx.filter_grad(lambda own: fine_tuning.member_loss(own, rows, key=jax.random.key(0)))(members)
        return fine_tuning.StoppingLoss(rows)(members), gradient.operator.fit.network.layers[-1].bias

    (stop, before), (stop_changed, after) = seen(rows), seen(changed)
    assert stop == stop_changed
    assert np.array_equal(before[:-1], after[:-1])
    assert not np.array_equal(before[-1], after[-1])  # the one whose weights are used trains on all rows


@pytest.mark.parametrize("accepted", [True, False])
def test_the_last_fold_alone_accepts(correction, monkeypatch, accepted):
    """A training that mends what predicts the last fold and nothing else is kept; one that mends all else is not."""
    _, inputs, targets = surface()
    wrong = condition(too_high(correction), inputs, targets)
    mended = (jnp.arange(fine_tuning.FOLDS + 1) == fine_tuning.FOLDS - 1) == accepted

    def fit(members, *_, **__):
        arrays, rest = eqx.partition(members, eqx.is_array)
        good = eqx.filter(correction, eqx.is_array)
        chosen = jax.tree.map(lambda m, g: jax.vmap(lambda own, yes: jnp.where(yes, g, own))(m, mended), arrays, good)
        return SimpleNamespace(module=eqx.combine(chosen, rest), best_step=7)

    monkeypatch.setattr(fine_tuning, "fit", fit)
    monkeypatch.setattr(process, "correction_weight", lambda factors, rows: np.ones(len(rows)))
    assert (fine_tune(wrong) is not wrong) == accepted


def test_rows_of_the_last_fold_do_not_recalibrate_what_they_judge(correction):
    _, inputs, targets = surface()
    start = condition(correction, inputs, targets)
    folds = np.arange(OBSERVATIONS) % fine_tuning.FOLDS
    first, *others = np.flatnonzero(folds == fine_tuning.FOLDS - 1)
    errors = start.held_out.error / start.held_out.std
    losses = []
    for error in (0.0, 50.0):
        errors[first] = error
        found = metrics.HeldOut(errors.copy(), np.ones(OBSERVATIONS))
        factor = found.recalibration()
        found = metrics.HeldOut(found.error, np.sqrt(factor) * found.std)
        losses.append(
            fine_tuning.accepting_losses(dataclasses.replace(start, held_out=found, variance_factor=factor), folds)
        )
    assert losses[1][0] > losses[0][0] + 100
    np.testing.assert_allclose(losses[0][1:], losses[1][1:], rtol=1e-12)
    assert len(losses[0]) == 1 + len(others)


def test_observations_are_left_out_one_by_one(correction):
    """As if the data set had never had the row, but for what the whole data set tells."""
    _, inputs, targets = surface()
    model = condition(correction, inputs, targets)
    assert model.held_out.error.shape == model.held_out.std.shape == (OBSERVATIONS,)
    centres, rows = leave_out(model.tree, np.array([7]))
    rest = np.delete(model.inputs, 7, axis=0)
    nearest = np.argmin(np.sum((rest - model.inputs[7]) ** 2, axis=1))
    assert np.array_equal(model.inputs[centres[0]], rest[nearest])
    around = search_rows(KDTree(rest), rest[[nearest]])[0]
    assert np.array_equal(rows[0], np.where(around >= 7, around + 1, around))


def test_what_predictions_share_is_made_once_at_fit_and_at_load(tmp_path, monkeypatch):
    points, inputs, targets = surface()
    model = PretrainedGGPRegressor(correction=False).fit(inputs, targets)
    model.save(tmp_path / "model.bieqno")
    loaded = PretrainedGGPRegressor.load(tmp_path / "model.bieqno")
    mean = model.predict(points)

    def never(*_):
        raise AssertionError("a prediction has built what the fit should have")

    for name in ("KDTree", "learn"):
        monkeypatch.setattr(process, name, never)
    for one in (model, loaded):
        assert np.array_equal(one.predict(points), mean)


def test_bursts_a_year_apart_are_resolved():
    """Two bursts of 500 readings within one second: in single precision they are four distinct inputs."""
    rng = np.random.default_rng(0)
    second = rng.uniform(size=(2, 500))
    start = np.array([[1.7e9], [1.7e9 + 365.25 * 86400]])
    values = np.sin(9 * second) + np.array([[0.0], [3.0]])
    model = PretrainedGGPRegressor(correction=False).fit((start + second).reshape(-1, 1), values.ravel())
    new = rng.uniform(0.05, 0.95, size=(2, 50))
    mean, std = model.predict((start + new).reshape(-1, 1), return_std=True)
    expected = (np.sin(9 * new) + np.array([[0.0], [3.0]])).ravel()
    assert np.abs(mean - expected).max() < 0.02  # a mean of each burst would be wrong by one
    assert std.max() < 0.05
    middle = model.predict(start.mean(axis=0, keepdims=True), return_std=True)
    assert np.isfinite(middle).all()


def test_the_shipped_correction_knows_jumps():
    """On the paper's step function with 30 points, where the mixture of experts alone is far too sure of itself."""
    found = {}
    rng = np.random.default_rng(0)
    x, points = np.sort(rng.uniform(size=30)), np.linspace(0, 1, 200)
    y, values = (((at >= 0.3) & (at < 0.7)) + 0.01 * rng.standard_normal(len(at)) for at in (x, points))
    for corrected in (False, True):
        model = PretrainedGGPRegressor(correction=corrected).fit(x[:, None], y)
        found[corrected] = metrics.nlpd(*model.predict(points[:, None], return_std=True), values)
    assert found[True] < min(found[False], 0)


def test_of_many_inputs_a_trend_is_seen():
    """Six inputs, of which one matters: among sixty points there is hardly one near, but the slope is well known."""
    rng = np.random.default_rng(0)
    inputs, new = rng.uniform(size=(60, 6)), rng.uniform(size=(50, 6))
    model = PretrainedGGPRegressor().fit(inputs, 100 + 5 * inputs[:, 0])
    assert model.predict(new) == pytest.approx(100 + 5 * new[:, 0], abs=0.2)  # the values' range is 5
    turned = PretrainedGGPRegressor(correction=False, same_units=True).fit(inputs[:, ::-1], 100 + 5 * inputs[:, 0])
    assert turned.predict(new[:, ::-1]) == pytest.approx(100 + 5 * new[:, 0], abs=0.2)


def test_constant_inputs_are_no_dimension_and_known_noise_is_the_least_variance():
    points, inputs, targets = surface()
    plain = PretrainedGGPRegressor(correction=False).fit(inputs, targets)
    wider = PretrainedGGPRegressor(correction=False).fit(np.insert(inputs, 0, 3.0, axis=1), targets)
    assert wider.predict(np.insert(points, 0, 3.0, axis=1)) == pytest.approx(plain.predict(points), abs=1e-4)
    noise = np.random.default_rng(0).normal(size=60)
    known = PretrainedGGPRegressor(correction=False, noise=1.0).fit(np.linspace(0, 1, 60)[:, None], noise)
    std = known.predict(np.linspace(0, 1, 9)[:, None], return_std=True)[1]
    # With as much again that new values will not have, the observations are twice as noisy, and the least is the same.
    more = PretrainedGGPRegressor(correction=False, noise=0.5**0.5, alpha=0.5).fit(
        np.linspace(0, 1, 60)[:, None], noise
    )
    assert more.predict(np.linspace(0, 1, 9)[:, None], return_std=True)[1] ** 2 == pytest.approx(std**2 - 0.5, rel=1e-3)
    # At least the noise; that of an unknown mean of 60 values and of short kernels that are still believed comes on top.
    assert (std >= 0.999).all()
    assert (std < 1.3).all()


def test_in_one_unit_the_frame_does_not_matter():
    points, inputs, targets = surface()
    stretch, turn = np.array([10.0, 1.0]), np.linalg.qr(np.random.default_rng(1).normal(size=(2, 2)))[0]
    model = PretrainedGGPRegressor(correction=False, same_units=True)
    plain = model.fit(inputs * stretch, targets).predict(points * stretch)
    turned = model.fit(inputs * stretch @ turn + 5, targets).predict(points * stretch @ turn + 5)
    assert turned == pytest.approx(plain, abs=5e-3)  # rounding in 32 bits


def test_conditioning_is_fitting_where_nothing_is_trained():
    points, inputs, targets = surface()
    other = pickle.loads(pickle.dumps(PretrainedGGPRegressor(correction=False).fit(inputs, targets)))
    moved = other.condition(1e4 + inputs, 50 + targets)
    again = PretrainedGGPRegressor(correction=False).fit(1e4 + inputs, 50 + targets)
    assert np.array_equal(moved.predict(1e4 + points), again.predict(1e4 + points))
    assert moved.summary() == again.summary()
    # A square grid has equal scales without being of one unit, and a noise of zero is raised in the units of the data.
    grid = np.stack(np.meshgrid(np.arange(7.0), np.arange(6.0)), axis=-1).reshape(-1, 2)[:OBSERVATIONS]
    model = (
        PretrainedGGPRegressor(correction=False, noise=0.0)
        .fit(grid, 1e6 * targets)
        .condition(inputs * [1, 1000], targets)
    )
    new = PretrainedGGPRegressor(correction=False, noise=0.0).fit(inputs * [1, 1000], targets)
    assert model.predict(points * [1, 1000]) == pytest.approx(new.predict(points * [1, 1000]))


def test_missing_weights_say_how_to_make_them(monkeypatch, tmp_path):
    monkeypatch.setattr(corrections, "SHIPPED", (tmp_path / "none.bieqno",) * 2)
    with pytest.raises(PersistenceError, match="make prior"):
        corrections.shipped_correction()


def test_of_many_inputs_other_weights_correct():
    few, many, none = corrections.shipped_correction(4), corrections.shipped_correction(5), no_correction()
    copied, tuned = (jax.tree.map(lambda x, by=by: by * x, few) for by in (1.0, 1.01))
    assert not eqx.tree_equal(few, many)
    for given in (few, many, copied):
        found = [corrections.suited(given, inputs) for inputs in (5, 12, 13)]
        assert all(map(eqx.tree_equal, found, (many, many, none)))
        assert eqx.tree_equal(corrections.suited(given, 4), few)
    assert all(corrections.suited(own, inputs) is own for own in (tuned, none) for inputs in (4, 5))


def test_noise_may_differ_from_place_to_place():
    """Nothing is told about it: the experts near a point see how strong it is there."""
    rng = np.random.default_rng(0)
    x, new = rng.uniform(size=(2, 300, 1))
    values, targets = (
        np.sin(9 * at[:, 0]) + (0.02 + 0.5 * at[:, 0] ** 2) * rng.standard_normal(300) for at in (new, x)
    )
    mean, std = PretrainedGGPRegressor().fit(x, targets).predict(new, return_std=True)
    calm, loud = new[:, 0] < 0.3, new[:, 0] > 0.8
    # The noise is 0.02 to 0.065 in the one part and 0.34 to 0.52 in the other.
    assert np.mean(std[calm]) < 0.12
    assert 0.3 < np.mean(std[loud]) < 0.65
    # Of a part's values 95 % are within the interval: of 50 or more, hardly fewer than 85 %.
    for part in (calm, loud):
        assert np.mean(np.abs(values - mean)[part] < 1.96 * std[part]) > 0.85


def test_one_wild_value_among_many_does_not_blur_all_predictions():
    rng = np.random.default_rng(0)
    x, points = rng.uniform(size=(60, 1)), np.linspace(0, 1, 50)[:, None]
    y = np.sin(6 * x[:, 0]) + 0.05 * rng.standard_normal(60)
    changed = [y + by * (np.arange(60) == 30) for by in (0, 10)]
    plain, wild = (PretrainedGGPRegressor().fit(x, own).predict(points, return_std=True)[1] for own in changed)
    far = np.abs(points - x[30])[:, 0] > 0.15
    # By the mean square of all errors the spread would be ten times as large. What is left is that the noise seems stronger.
    assert np.median(wild[far] / plain[far]) < 4


@pytest.mark.long
def test_fifty_thousand_rows():
    rng = np.random.default_rng(0)

    def function(x):
        return np.sin(5 * x[:, 0]) + x[:, 1] ** 2

    x, new = rng.uniform(size=(50_000, 3)), rng.uniform(size=(100, 3))
    model = PretrainedGGPRegressor().fit(x, function(x) + 0.1 * rng.normal(size=50_000))
    mean, std = model.predict(new, return_std=True)
    # The noise is 0.1; of the function hardly anything is unknown with so many rows.
    assert np.sqrt(np.mean((mean - function(new)) ** 2)) < 0.03
    assert 0.09 < np.mean(std) < 0.12
