"""The three constraints of section 2.2 of the paper, and the pieces that training stands on."""

import equinox as eqx
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given

from bieqno.regression.data import MIN_NOISE, Data
from bieqno.regression.trained.loss import (
    HeldOutLoss,
    RandomSplits,
    ensemble_errors,
    held_out,
    recalibration,
    split_loss,
)
from bieqno.regression.trained.process import GeneralizedGaussianProcess, combine

KEY = jax.random.key(0)
PROCESSES = {
    "set form": GeneralizedGaussianProcess(2, rank=3, width=8, set_interaction=True, key=KEY),
    "pointwise": GeneralizedGaussianProcess(2, rank=3, width=8, noise=0.1, key=KEY),
}
each = pytest.mark.parametrize("process", PROCESSES.values(), ids=PROCESSES)


@eqx.filter_jit
def apply(process, *arguments):
    return process(*arguments)


@eqx.filter_jit
def make_members(keys):
    return eqx.filter_vmap(lambda key: GeneralizedGaussianProcess(1, rank=2, width=8, key=key))(keys)


def draw(seed, *shapes):
    generator = np.random.default_rng(seed)
    return [jnp.asarray(generator.normal(size=shape), jnp.float32) for shape in shapes]


@each
@given(seed=st.integers(0, 2**16))
def test_constraints_of_the_paper(process, seed):
    """Sizes follow N; invariant to the observations' order, equivariant to the points'; symmetric positive definite."""
    points, inputs, targets = draw(seed, (7, 2), (5, 2), (5,))
    generator = np.random.default_rng(seed)
    i, k = generator.permutation(7), generator.permutation(5)
    gaussian = apply(process, points, inputs, targets)
    moved = apply(process, points[i], inputs[k], targets[k])
    covariance = np.asarray(gaussian.covariance())
    assert gaussian.mean.shape == (7,)
    assert covariance.shape == (7, 7)
    np.testing.assert_allclose(moved.mean, gaussian.mean[i], atol=1e-5)
    np.testing.assert_allclose(moved.covariance(), covariance[np.ix_(i, i)], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(covariance, covariance.T, rtol=1e-6)
    assert np.linalg.eigvalsh(covariance.astype(float)).min() > 0


def test_only_the_set_form_depends_on_the_other_points():
    points, inputs, targets = draw(1, (7, 2), (5, 2), (5,))
    for name, process in PROCESSES.items():
        same = np.allclose(
            apply(process, points[:3], inputs, targets).mean,
            apply(process, points, inputs, targets).mean[:3],
            atol=1e-6,
        )
        assert same == (name == "pointwise")


def test_the_noise_is_a_floor():
    points, inputs, targets = draw(2, (4, 2), (5, 2), (5,))
    assert (apply(PROCESSES["pointwise"], points, inputs, targets).std >= 0.1).all()
    tiny = GeneralizedGaussianProcess(2, rank=1, width=8, noise=1e-9, key=KEY)
    assert (apply(tiny, points, inputs, targets).std >= MIN_NOISE).all()


def test_combining_is_the_moments_of_the_mixture():
    keys = jax.random.split(KEY, 3)
    members = make_members(keys)
    points, inputs, targets = draw(3, (4, 1), (5, 1), (5,))
    stacked = eqx.filter_jit(eqx.filter_vmap(lambda process: process(points, inputs, targets)))(members)
    joint = combine(stacked)
    means = np.asarray(stacked.mean)
    covariances = np.asarray(jax.vmap(lambda g: g.covariance())(stacked))
    np.testing.assert_allclose(joint.mean, means.mean(0), rtol=1e-5)
    expected = covariances.mean(0) + np.cov(means.T, bias=True)
    np.testing.assert_allclose(joint.covariance(), expected, rtol=1e-4, atol=1e-5)


def test_splits_keep_targets_observations_folds_and_padding_apart():
    """Each row carries its own number, so that every split can be checked for what it contains."""
    rows = jnp.arange(16.0)
    data = Data(rows[:, None], rows, jnp.zeros(16), rows < 12)
    folds = jnp.where(rows < 12, jnp.arange(16) % 3, -1)
    splits = eqx.filter_jit(RandomSplits(data, folds, 3, None, 256, 40))(KEY)
    sizes = set()
    for member in range(3):
        for i in range(40):
            split = jax.tree.map(lambda x, at=(member, i): np.asarray(x[at]), splits)
            targets = set(split.points.targets[split.points.mask])
            observed = set(split.observed.targets[split.observed.mask])
            assert targets
            assert observed
            assert not targets & observed
            assert targets | observed == {row for row in range(12) if row % 3 != member}
            sizes.add(len(targets))
    assert len(sizes) > 3
    fixed = eqx.filter_jit(RandomSplits(data, folds, 3, 5, None, 4))(KEY)
    assert (fixed.points.mask.sum(-1) == 5).all()


def test_held_out_loss_is_the_best_scaled_likelihood():
    rows = jnp.linspace(-1, 1, 16)
    data = Data(rows[:, None], jnp.sin(rows), jnp.zeros(16), jnp.arange(16) < 11)
    folds = jnp.where(data.mask, jnp.arange(16) % 2, -1)
    members = make_members(jax.random.split(KEY))
    split = held_out(data, folds, 2)
    value = eqx.filter_jit(HeldOutLoss(split))(members)
    errors, stds = [], []
    for k in range(2):
        own = np.asarray((folds == k) & data.mask)
        process = jax.tree.map(lambda x, k=k: x[k], members)
        rest = np.asarray(data.mask) & ~own
        gaussian = apply(process, data.inputs[own], data.inputs[rest], data.targets[rest])
        errors += list(np.asarray(data.targets[own] - gaussian.mean))
        stds += list(np.asarray(gaussian.std))
    z = np.array(errors) / np.array(stds)
    factor = (np.sum(z**2) + 5) / (11 + 5)
    variance = factor * np.array(stds) ** 2
    expected = np.mean(0.5 * np.log(2 * np.pi * variance) + 0.5 * np.array(errors) ** 2 / variance)
    np.testing.assert_allclose(value, expected, rtol=1e-4)
    # The recalibration is for the variance of both members together, given the rest.
    square, both = np.array(errors) ** 2, []
    for k in range(2):
        own = np.asarray((folds == k) & data.mask)
        rest = np.asarray(data.mask) & ~own
        each = [
            apply(jax.tree.map(lambda x, i=i: x[i], members), data.inputs[own], data.inputs[rest], data.targets[rest])
            for i in range(2)
        ]
        both += list(combine(jax.tree.map(lambda *x: jnp.stack(x), *each)).variance)
    factor = (np.sum(square / np.array(both)) + 5) / (11 + 5)
    error, variance = eqx.filter_jit(ensemble_errors)(members, split)
    np.testing.assert_allclose(error[split.points.mask], errors, atol=1e-5)
    np.testing.assert_allclose(
        recalibration(error, variance, jnp.zeros_like(error), split.points.mask), factor, rtol=1e-4
    )


def test_masked_points_cost_nothing():
    points, inputs, targets, values = draw(4, (5, 2), (6, 2), (6,), (5,))
    data = Data(
        jnp.concatenate([points, inputs]), jnp.concatenate([values, targets]), jnp.zeros(11), jnp.ones(11, bool)
    )
    process = PROCESSES["set form"]
    source = RandomSplits(data, jnp.full(11, -1), 1, 4, None, 3)
    batch = eqx.filter_jit(source)(KEY)
    members = jax.tree.map(lambda x: x[None], process)
    expected = []
    for i in range(3):
        split = jax.tree.map(lambda x, i=i: x[0, i], batch)
        kept, seen = np.asarray(split.points.mask), np.asarray(split.observed.mask)
        given = split.observed.inputs[seen], split.observed.targets[seen]
        gaussian = apply(process, split.points.inputs[kept], *given)
        expected.append(-gaussian.log_prob(split.points.targets[kept]) / float(kept.sum()))
    loss = eqx.filter_jit(split_loss)(members, batch, key=KEY)
    np.testing.assert_allclose(loss, np.mean(expected), rtol=1e-4)


def test_recalibration_knows_the_noise_of_each_row():
    """A calibrated process of variance 0.01 under a noise of 1 per row needs no factor; one that is too sure needs it."""
    rng = np.random.default_rng(0)
    variance, noise = np.full(400, 0.01), np.where(np.arange(400) % 2, 1.0, 0.02)
    error = rng.normal(size=400) * np.sqrt(variance + noise)
    everything = jnp.ones(400, bool)
    factor = eqx.filter_jit(recalibration)
    floats = [jnp.asarray(values, jnp.float32) for values in (error, variance, noise)]
    assert 0.5 < float(factor(*floats, everything)) < 2
    noisy = [jnp.asarray(values, jnp.float32) for values in (rng.normal(size=400) * 1.01**0.5, variance, np.ones(400))]
    assert 0.1 < float(factor(*noisy, everything)) < 5  # the rows tell little, and it stays near one
    wide = jnp.asarray(rng.normal(size=400) * np.sqrt(9 * variance + noise), jnp.float32)
    assert 5 < float(factor(wide, *floats[1:], everything)) < 14
    # Rows that the mask leaves out do not count.
    half = jnp.arange(400) % 2 == 0
    spoilt = jnp.where(half, floats[0], 1e3)
    assert factor(spoilt, *floats[1:], half) == pytest.approx(float(factor(floats[0], *floats[1:], half)))
