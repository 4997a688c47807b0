"""The local form: what a test point makes of its nearest observations, with and without a learned correction."""

import dataclasses
import pickle
from functools import partial
from types import SimpleNamespace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.linalg import cho_solve, cholesky
from scipy.spatial import KDTree

from bieqno.lab.pretraining import training as pretraining
from bieqno.lab.pretraining.functions import RandomTasks
from bieqno.lab.pretraining.training import pretrain
from bieqno.lab.studies import step_1d, trig_2d
from bieqno.persistence.tensorfile import PersistenceError
from bieqno.regression import GGPRegressor, metrics
from bieqno.regression.pretrained import (
    LocalProcess,
    condition_prior,
    experts,
    fine_tune,
    fine_tuning,
    left_out,
    prior_named,
    zero_shot,
)
from bieqno.regression.pretrained.layouts import MAX_DIMENSION
from bieqno.regression.pretrained.left_out import leave_out
from bieqno.regression.pretrained.neighbourhood import (
    Neighbourhood,
    nearest_row,
    nearest_rows,
    search_rows,
    spread_rows,
)
from bieqno.regression.pretrained.trust import trust
from bieqno.regression.trained.splits import Data

OBSERVATIONS, POINTS = 40, 24


@pytest.fixture(scope="module")
def process():
    """A process whose corrections are not zero, as after training."""

    @eqx.filter_jit
    def made(key):
        plain = LocalProcess(width=16, key=key)
        noise = 0.1 * jax.random.normal(key, plain.operator.fit.network.layers[-1].weight.shape)
        return eqx.tree_at(lambda p: p.operator.fit.network.layers[-1].weight, plain, noise)

    return made(jax.random.key(0))


@pytest.fixture(scope="module")
def predict(process):
    @eqx.filter_jit
    def moments(points, inputs, targets, mask):
        gaussian = process(points, inputs, targets, observation_mask=mask)
        return gaussian.mean, gaussian.std

    def predict(points, inputs, targets, mask=None):
        there = jnp.ones(len(targets), bool) if mask is None else jnp.asarray(mask)
        mean, std = moments(*(jnp.asarray(a, jnp.float32) for a in (points, inputs, targets)), there)
        return SimpleNamespace(mean=np.asarray(mean), std=np.asarray(std))

    return predict


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
            np.asarray, jax.jit(experts.ask)(Neighbourhood(*map(jnp.asarray, (offsets, values, mask))), asked)
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
    plain, moved = predict(points, inputs, targets), predict(points, inputs, 300 + 70 * targets)
    assert moved.mean == pytest.approx(300 + 70 * plain.mean, rel=1e-3, abs=0.07)  # a thousandth of the scale
    assert moved.std == pytest.approx(70 * plain.std, rel=1e-2)


def test_mean_and_spread_do_not_depend_on_the_frame(predict):
    points, inputs, targets = surface()
    turn = np.linalg.qr(np.random.default_rng(1).normal(size=(2, 2)))[0]
    plain, moved = predict(points, inputs, targets), predict(3 * points @ turn + 2, 3 * inputs @ turn + 2, targets)
    # Rounding in 32 bits, through matrices with condition numbers of up to 1e4.
    assert moved.mean == pytest.approx(plain.mean, abs=5e-3)
    assert moved.std == pytest.approx(plain.std, rel=1e-2)


def test_order_of_observations_and_padding_do_not_matter(predict):
    points, inputs, targets = surface()
    order = np.random.default_rng(2).permutation(OBSERVATIONS)
    plain, mixed = predict(points, inputs, targets), predict(points, inputs[order], targets[order])
    assert mixed.mean == pytest.approx(plain.mean, abs=1e-3)
    assert mixed.std == pytest.approx(plain.std, rel=1e-2)
    mask = np.arange(OBSERVATIONS) < 30
    few = predict(points, inputs, targets, mask)
    wild = predict(points, np.where(mask[:, None], inputs, 0.5), np.where(mask, targets, 1e3), mask)
    assert wild.mean == pytest.approx(few.mean, abs=1e-4)


def test_a_subset_of_the_points_gets_the_subset_of_the_predictions():
    points, inputs, targets = surface()
    model = GGPRegressor(prior="experts").fit(inputs, targets)
    mean, std = model.predict(points, return_std=True)
    part_mean, part_std = model.predict(points[5:12], return_std=True)
    assert part_mean == pytest.approx(mean[5:12], rel=1e-4, abs=1e-4)
    assert part_std == pytest.approx(std[5:12], rel=1e-3)
    assert np.sqrt(np.diag(model.predict(points, return_cov=True)[1])) == pytest.approx(std, rel=1e-3)
    assert model.sample_y(points, 3).shape == (POINTS, 3)


def test_points_that_share_a_station_are_predicted_as_each_by_itself(process):
    """Whatever else is asked for: one point at a time, and so many that groups of twelve are full."""
    points, inputs, targets = surface()
    model = condition_prior(process, inputs, targets)
    many = np.concatenate([points, np.random.default_rng(3).uniform(size=(1100, 2))])
    together, alone = model.moments(many), model.moments(points)
    for a, b in zip(together, alone, strict=True):
        assert a[:POINTS] == pytest.approx(b, rel=1e-3, abs=1e-4)  # rounding in 32 bits


def test_both_searches_find_the_same_neighbours():
    points, inputs, _ = surface()
    mask = jnp.arange(OBSERVATIONS) < 30
    data = Data(jnp.asarray(inputs, jnp.float32), jnp.zeros(OBSERVATIONS), jnp.zeros(OBSERVATIONS), mask)
    compared = jax.vmap(lambda point: nearest_rows(point, data))(jnp.asarray(points, jnp.float32))
    assert np.array_equal(compared, search_rows(KDTree(inputs[:30]), points))


def test_calm_regions_tell_short_waves_from_noise():
    """At 16 x 16 the finest wave is a chequered pattern; who takes it for noise has an RMSE of at least 1/8."""
    problem = trig_2d.draw(np.random.default_rng(0), side=16, points=24)
    mean, std = GGPRegressor(prior="experts").fit(problem.x, problem.y).predict(problem.points, return_std=True)
    assert np.sqrt(np.mean((mean - problem.truth) ** 2)) < 0.1
    assert np.mean(np.abs(mean - problem.values) < 2 * std) > 0.9


def test_estimator_keeps_its_contract_with_a_prior(tmp_path):
    points, inputs, targets = surface()
    model = GGPRegressor(prior="experts").fit(inputs, np.stack([targets, -targets], axis=1))
    mean = model.predict(points)
    # The neighbourhoods that stand for all are chosen along the order of the targets, which is the reverse one here.
    assert mean[:, 1] == pytest.approx(-mean[:, 0], abs=0.02)
    model.save(tmp_path / "model.bieqno")
    assert np.array_equal(GGPRegressor.load(tmp_path / "model.bieqno").predict(points), mean)
    assert ((model.calibration_ >= 1) & (model.calibration_ < 2)).all()  # it is not far from honest by itself
    assert GGPRegressor.load(tmp_path / "model.bieqno").summary() == model.summary()
    with pytest.raises(ValueError, match="one positive number, got -1"):
        dataclasses.replace(model.processes_[0], variance_factor=-jnp.ones(()))
    for gain, said in ((1e30, "at most 3"), (1.0, "padding has no gain")):
        with pytest.raises(ValueError, match=said):
            dataclasses.replace(model.processes_[0], gain=jnp.full_like(model.processes_[0].gain, gain))
    with pytest.raises(ValueError, match="a minimum of 3 is required"):
        model.condition(inputs[:1], np.zeros((1, 2)))
    correlations = GGPRegressor(prior="experts").fit(inputs, targets).predict(points, return_cov=True)[1]
    assert np.abs(correlations - np.diag(np.diag(correlations))).max() < 1e-6  # it states none
    constant = GGPRegressor(prior="experts").fit(inputs, np.full(OBSERVATIONS, 7.0))
    assert constant.predict(points) == pytest.approx(7.0)
    with pytest.raises(ValueError, match="expected a prior of experts, functions, got 'expert'"):
        GGPRegressor(prior="expert").fit(inputs, targets)
    with pytest.raises(ValueError, match="does not weigh observations by one alpha each"):
        GGPRegressor(prior="experts", alpha=np.full(OBSERVATIONS, 0.1)).fit(inputs, targets)


def too_high(process):
    """The same, but that its correction raises all predictions by three deviations."""
    shift = len(experts.EXPERTS)  # the output after those that weigh the experts
    return eqx.tree_at(
        lambda p: p.operator.fit.network.layers[-1].bias, process, replace_fn=lambda b: b.at[shift].add(3)
    )


def test_a_correction_that_does_harm_is_not_trusted(process):
    points, inputs, targets = surface()
    wrong, plain = (condition_prior(one, inputs, targets) for one in (too_high(process), prior_named("experts")))
    # Most rows are predicted three deviations off, which costs more than the most that a row may count for.
    there = np.asarray(wrong.data.mask)
    assert np.median(wrong.gain[there]) == -3
    assert np.isnan(wrong.gain[~there]).all()
    for found, expected in zip(wrong.moments(points), plain.moments(points), strict=True):
        assert found == pytest.approx(expected, rel=1e-3)
    assert wrong.held_out.error == pytest.approx(plain.held_out.error, abs=1e-3)
    # Nor is what it says of how predictions hang together: the experts take them to be independent.
    joint = wrong.covariance(points)
    assert np.abs(joint - np.diag(np.diag(joint))).max() < 1e-6 * joint.max()
    # The experts' own form corrects nothing, so that there is nothing to gain or to lose.
    assert np.allclose(plain.gain[there], 0, atol=1e-3)


def test_trust_goes_by_the_rows_round_a_point_and_those_alone():
    gain = jnp.array([3.0, 3.0, 3.0, -3.0, -3.0, -3.0, 0.0])
    here, there, nobody = trust(gain, jnp.array([[0, 1, 2], [5, 3, 4], [6, -1, -1]]))
    assert float(here) > 0.999 > 0.001 > float(there)
    assert float(nobody) == pytest.approx(1 / (1 + np.exp(-2)))  # as far as the network is trusted beforehand


def test_of_many_rows_some_are_left_out_and_all_points_judged_by_them(process, monkeypatch):
    """A correction that does harm is not trusted between rows that were not left out either."""
    monkeypatch.setattr(left_out, "MOST", 12)
    points, inputs, targets = surface()
    wrong, plain = (condition_prior(one, inputs, targets) for one in (too_high(process), prior_named("experts")))
    assert np.isfinite(wrong.gain).sum() == 12
    assert wrong.moments(points)[0] == pytest.approx(plain.moments(points)[0], abs=0.01)


def test_fine_tuning_mends_what_is_wrong_and_leaves_alone_what_few_rows_say(process, monkeypatch):
    """Of predictions that are three deviations too high, those at new points become better; in larger steps than usual."""
    monkeypatch.setattr(fine_tuning, "_OPTIMIZER", optax.adam(1e-2))
    _, inputs, targets = surface()
    few, wrong = (condition_prior(too_high(process), inputs[:n], targets[:n]) for n in (20, OBSERVATIONS))
    assert fine_tune(few) is few
    told = []
    with monkeypatch.context() as patched:
        # Trusted whatever it does: otherwise there would be nothing to mend.
        patched.setattr(zero_shot, "trust", lambda gain, rows: jnp.ones(len(rows)))
        tuned = fine_tune(wrong, on_progress=lambda p: told.append(p.step))
    assert told
    wrong, tuned = (dataclasses.replace(one, gain=jnp.where(one.data.mask, 3.0, jnp.nan)) for one in (wrong, tuned))
    rng = np.random.default_rng(5)
    new = rng.uniform(size=(200, 2))
    values = np.sin(5 * new[:, 0]) + (new[:, 1] > 0.5) + 0.05 * rng.standard_normal(200)
    assert metrics.nlpd(*tuned.moments(new), values) < metrics.nlpd(*wrong.moments(new), values)
    assert tuned.steps > 0
    # Judged by members that had not learned from a row: no better than at new points, but for the chance of 40 rows.
    held_out = tuned.held_out.scores(float(tuned.scaling.target_scale))
    assert held_out["nlpd"] > metrics.nlpd(*tuned.moments(new), values) - 0.5


def test_observations_are_left_out_one_by_one(process):
    """As if the data set had never had the row, but for what the whole data set tells."""
    _, inputs, targets = surface()
    model = condition_prior(process, inputs, targets)
    assert model.held_out.error.shape == model.held_out.std.shape == (OBSERVATIONS,)
    stations = leave_out(model.tree(), np.array([7]))
    rest = np.delete(model.tree().data, 7, axis=0)
    nearest = np.argmin(np.sum((rest - model.tree().data[7]) ** 2, axis=1))
    centre = int(stations.centres[0])
    assert np.array_equal(model.tree().data[centre], rest[nearest])
    around = search_rows(KDTree(rest), rest[[nearest]])[0]
    assert np.array_equal(stations.rows[0], np.where(around >= 7, around + 1, around))


def test_tasks_are_what_they_say():
    tasks = jax.jit(RandomTasks(64, observations=64, candidates=64))(jax.random.key(0))
    assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(tasks))
    counts = tasks.data.mask.sum(axis=1)
    assert int(counts.min()) >= 8
    assert len(set(tasks.dimension.tolist())) == MAX_DIMENSION
    beyond = jnp.arange(MAX_DIMENSION) >= tasks.dimension[:, None]
    for places in (tasks.data.inputs, tasks.points.reshape(64, -1, MAX_DIMENSION)):
        assert not bool(jnp.any(places * beyond[:, None] != 0))
    # A point that is asked for is next to its site.
    task = jax.tree.map(lambda x: x[0], tasks)
    stations = jax.vmap(lambda x: nearest_row(x, task.data))(task.points.reshape(-1, MAX_DIMENSION))
    sites = jnp.repeat(spread_rows(task.data), task.mask.shape[1])
    assert np.array_equal(stations[task.mask.ravel()], sites[task.mask.ravel()])
    assert bool(task.mask.any())
    # Functions are standardised, and the noise adds at most 0.6 squared.
    spread = jnp.std(tasks.data.targets, axis=1, where=tasks.data.mask)
    assert 0.7 < float(jnp.median(spread)) < 1.3


def test_training_goes_on_where_it_was_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr(pretraining, "CHUNK_STEPS", 1)
    monkeypatch.setattr(pretraining, "RandomTasks", partial(RandomTasks, observations=32, candidates=32))
    settings = {"steps": 2, "batch_size": 2, "width": 8, "key": jax.random.key(0)}
    whole = pretrain(**settings)
    assert np.isfinite(whole.losses).all()

    def stop(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pretrain(checkpoint=tmp_path, on_progress=stop, **settings)
    told = []
    again = pretrain(checkpoint=tmp_path, on_progress=lambda p: told.append(p.step), **settings)
    assert told == [2]  # the first step was not made again
    assert eqx.tree_equal(whole.module, again.module)
    assert np.abs(whole.module.operator.fit.network.layers[-1].weight).max() > 0


def test_the_shipped_prior_knows_jumps():
    """On the paper's step function with 30 points, where the mixture of experts alone is far too sure of itself."""
    found = {}
    problem = step_1d.draw(np.random.default_rng(0), layout="random", count=30, points=200)
    for prior in ("experts", "functions"):
        mean, std = GGPRegressor(prior=prior).fit(problem.x, problem.y).predict(problem.points, return_std=True)
        found[prior] = metrics.nlpd(mean, std, problem.values)
    assert found["functions"] < min(found["experts"], 0)


def test_of_many_inputs_a_trend_is_seen():
    """Six inputs, of which one matters: among sixty points there is hardly one near, but the slope is well known."""
    rng = np.random.default_rng(0)
    inputs, new = rng.uniform(size=(60, 6)), rng.uniform(size=(50, 6))
    model = GGPRegressor().fit(inputs, 100 + 5 * inputs[:, 0])  # the learned prior knows of four inputs at most
    assert model.predict(new) == pytest.approx(100 + 5 * new[:, 0], abs=0.2)  # the values' range is 5
    turned = GGPRegressor(prior="experts", same_units=True).fit(inputs[:, ::-1], 100 + 5 * inputs[:, 0])
    assert turned.predict(new[:, ::-1]) == pytest.approx(100 + 5 * new[:, 0], abs=0.2)


def test_constant_inputs_are_no_dimension_and_known_noise_is_the_least_variance():
    points, inputs, targets = surface()
    plain = GGPRegressor(prior="experts").fit(inputs, targets)
    wider = GGPRegressor(prior="experts").fit(np.insert(inputs, 0, 3.0, axis=1), targets)
    assert wider.predict(np.insert(points, 0, 3.0, axis=1)) == pytest.approx(plain.predict(points), abs=1e-4)
    noise = np.random.default_rng(0).normal(size=60)
    known = GGPRegressor(prior="experts", noise=1.0).fit(np.linspace(0, 1, 60)[:, None], noise)
    std = known.predict(np.linspace(0, 1, 9)[:, None], return_std=True)[1]
    # With as much again that new values will not have, the observations are twice as noisy, and the least is the same.
    more = GGPRegressor(prior="experts", noise=0.5**0.5, alpha=0.5).fit(np.linspace(0, 1, 60)[:, None], noise)
    assert more.predict(np.linspace(0, 1, 9)[:, None], return_std=True)[1] ** 2 == pytest.approx(std**2 - 0.5, rel=1e-3)
    # At least the noise; that of an unknown mean of 60 values and of short kernels that are still believed comes on top.
    assert (std >= 0.999).all()
    assert (std < 1.3).all()


def test_in_one_unit_the_frame_does_not_matter():
    points, inputs, targets = surface()
    stretch, turn = np.array([10.0, 1.0]), np.linalg.qr(np.random.default_rng(1).normal(size=(2, 2)))[0]
    model = GGPRegressor(prior="experts", same_units=True)
    plain = model.fit(inputs * stretch, targets).predict(points * stretch)
    turned = model.fit(inputs * stretch @ turn + 5, targets).predict(points * stretch @ turn + 5)
    assert turned == pytest.approx(plain, abs=5e-3)  # rounding in 32 bits


def test_conditioning_is_fitting_where_nothing_is_trained():
    points, inputs, targets = surface()
    other = pickle.loads(pickle.dumps(GGPRegressor(prior="experts").fit(inputs, targets)))
    moved = other.condition(1e4 + inputs, 50 + targets)
    again = GGPRegressor(prior="experts").fit(1e4 + inputs, 50 + targets)
    assert np.array_equal(moved.predict(1e4 + points), again.predict(1e4 + points))
    assert moved.summary() == again.summary()
    # A square grid has equal scales without being of one unit, and a noise of zero is raised in the units of the data.
    grid = np.stack(np.meshgrid(np.arange(7.0), np.arange(6.0)), axis=-1).reshape(-1, 2)[:OBSERVATIONS]
    model = GGPRegressor(prior="experts", noise=0.0).fit(grid, 1e6 * targets).condition(inputs * [1, 1000], targets)
    new = GGPRegressor(prior="experts", noise=0.0).fit(inputs * [1, 1000], targets)
    assert model.predict(points * [1, 1000]) == pytest.approx(new.predict(points * [1, 1000]))


def test_many_rows_at_few_places_are_warned_about():
    with pytest.warns(UserWarning, match="average the rows of each place"):
        GGPRegressor(prior="experts").fit(np.repeat(np.arange(4.0), 20)[:, None], np.arange(80.0))


def test_missing_weights_say_how_to_make_them(monkeypatch, tmp_path):
    from bieqno.regression.pretrained import weights

    monkeypatch.setattr(weights, "LEARNED", tmp_path / "none.bieqno")
    weights.prior_named.cache_clear()
    with pytest.raises(PersistenceError, match="make prior"):
        weights.prior_named("functions")


def test_noise_may_differ_from_place_to_place():
    """Nothing is told about it: the experts near a point see how strong it is there."""
    rng = np.random.default_rng(0)
    x, new = rng.uniform(size=(2, 300, 1))
    values, targets = (
        np.sin(9 * at[:, 0]) + (0.02 + 0.5 * at[:, 0] ** 2) * rng.standard_normal(300) for at in (new, x)
    )
    mean, std = GGPRegressor().fit(x, targets).predict(new, return_std=True)
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
    plain, wild = (GGPRegressor().fit(x, own).predict(points, return_std=True)[1] for own in changed)
    far = np.abs(points - x[30])[:, 0] > 0.15
    # By the mean square of all errors the spread would be ten times as large. What is left is that the noise seems stronger.
    assert np.median(wild[far] / plain[far]) < 4
