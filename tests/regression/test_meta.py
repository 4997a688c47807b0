"""The process along the chain rule: Gaussian processes, straight pieces, and what the operator makes of them."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

from bieqno import persistence
from bieqno.experiments.meta_tasks import KERNELS, NOISE_VARIANCE, TaskSource, sawtooths, true_chain
from bieqno.regression.meta import Bank, ChainProcess, Mixture
from bieqno.regression.meta.learning import Tasks, chain_loss
from bieqno.regression.meta.lines import draw_lines

N = 12


@pytest.fixture(scope="module")
def values():
    x_key, y_key = jax.random.split(jax.random.key(0))
    x = jax.random.uniform(x_key, (N,), minval=-2.0, maxval=2.0)
    return x, jax.random.normal(y_key, (N,))


@pytest.fixture(scope="module")
def process():
    """One whose operator says something everywhere, as after training."""
    return eqx.tree_at(
        lambda p: p.operator.fit.network.layers[-1].weight,
        fresh(),
        replace_fn=lambda weight: 0.1 * jax.random.normal(jax.random.key(2), weight.shape),
    )


@eqx.filter_jit
def fresh():
    return ChainProcess(Bank(), width=8, heads=2, key=jax.random.key(1))


along = eqx.filter_jit(lambda process, x, y: process.along(x, y))
at = eqx.filter_jit(lambda process, points, x, y, mask: process.at(points, x, y, mask))


def test_chain_of_the_bank_is_the_joint_density_of_its_mixture(values):
    x, y = values
    bank = eqx.tree_at(lambda b: (b.mean, b.logit), Bank(), (jnp.linspace(-0.5, 0.5, 9), jnp.linspace(0, 2, 9)))
    covariance = np.asarray(jax.jit(lambda x: bank.covariance(x[:, None] - x))(x), np.float64)
    noise, mean = np.exp(bank.log_noise) + 1e-4, np.asarray(bank.mean)
    each = [
        multivariate_normal(np.full(N, m), K + v * np.eye(N)).logpdf(y)
        for m, K, v in zip(mean, covariance, noise, strict=True)
    ]
    joint = logsumexp(np.asarray(bank.logit) + each) - logsumexp(np.asarray(bank.logit))
    # Single precision, a dozen terms of order one.
    assert float(jnp.sum(along(bank, x, y).log_prob(y))) == pytest.approx(joint, abs=1e-3)


@pytest.mark.parametrize("seen", [0, 1, 7, N - 1])
def test_chain_is_the_prediction_from_the_values_before(process, values, seen):
    """So that the chain rule is the sum by hand of predictions one after the other."""
    x, y = values
    chained = jax.tree.map(lambda a: a[seen], along(process, x, y))
    single = at(process, x, x, y, jnp.arange(N) < seen)
    assert float(chained.log_prob(y[seen])) == pytest.approx(float(single.log_prob(y)[seen]), abs=1e-3)
    assert float(chained.mean) == pytest.approx(float(single.mean[seen]), abs=1e-3)


def test_predictions_know_nothing_of_later_values(process, values):
    x, y = values
    other = along(process, x.at[8:].add(0.3), y.at[8:].add(1.0))
    assert jnp.allclose(other.mean[:8], along(process, x, y).mean[:8], atol=1e-5)


def test_predictions_do_not_depend_on_the_order_of_what_was_observed(process, values):
    x, y = values
    mask = jnp.arange(N) < 9
    order = jax.random.permutation(jax.random.key(3), N)
    first, second = at(process, x, x, y, mask), at(process, x, x[order], y[order], mask[order])
    assert jnp.allclose(first.log_prob(y), second.log_prob(y), atol=1e-3)


def test_process_begins_as_its_bank(values):
    """But for what it leaves to straight pieces, and they are believed e^-5 as much together at most four times."""
    x, y = values
    difference = along(fresh(), x, y).log_prob(y) - along(Bank(), x, y).log_prob(y)
    assert float(jnp.min(difference)) > -np.log(1 + 4 * np.exp(-5)) - 1e-4


def test_densities_integrate_to_one(process, values):
    x, y = values
    mixture = at(process, x, x, y, jnp.arange(N) < 7)
    levels = jnp.linspace(-12, 12, 24_001)
    summed = jnp.cumsum(jax.jit(jax.vmap(lambda level: jnp.exp(mixture.log_prob(jnp.full(N, level)))))(levels), axis=0)
    below = mixture.cdf(jnp.full(N, 0.5))
    # Steps of a thousandth, as wide as the sharpest component may be; here none is.
    assert jnp.allclose(1e-3 * summed[-1], 1, atol=2e-3)
    assert jnp.allclose(1e-3 * summed[12_500], below, atol=2e-3)


def test_no_gradient_reaches_the_bank(process, values):
    x, y = values
    gradient = eqx.filter_jit(eqx.filter_grad(chain_loss))(process, Tasks(x[None], y[None]), key=jax.random.key(0))
    assert all(not jnp.any(leaf) for leaf in jax.tree.leaves(gradient.bank))
    assert any(jnp.any(leaf) for leaf in jax.tree.leaves(gradient.operator))


def test_samples_have_the_moments_of_the_mixture():
    coin = Mixture(jnp.log(jnp.array([0.3, 0.7])), jnp.array([-1.0, 1.0]), jnp.array([0.04, 0.25]))
    drawn = jax.jit(jax.vmap(coin.sample))(jax.random.split(jax.random.key(4), 4000))
    # Four standard errors of a mean; the fourth moment of this mixture is below three times its variance squared.
    variance = float(coin.variance)
    assert float(drawn.mean()) == pytest.approx(float(coin.mean), abs=4 * (variance / 4000) ** 0.5)
    assert float(drawn.var()) == pytest.approx(variance, rel=4 * (2 / 4000) ** 0.5)


def test_joint_samples_hang_together(values):
    """A smooth function cannot differ between two places that are next to each other by more than its noise."""
    x, y = values
    bank = eqx.tree_at(lambda b: (b.log_noise, b.logit), Bank(), (jnp.full(9, -9.0), jnp.full(9, -99.0).at[1].set(0)))
    smooth = eqx.tree_at(lambda p: p.bank, fresh(), bank)
    near = jnp.array([1.0, 1.001])
    keys = jax.random.split(jax.random.key(5), 4)
    drawn = eqx.filter_jit(jax.vmap(lambda key: smooth.sample(near, x[:2], y[:2], key=key)))(keys)
    # The noise of both is the root of exp(-9) and the least one, 0.015; and they vary by 0.3 at least from draw to draw.
    assert float(jnp.max(jnp.abs(drawn[:, 0] - drawn[:, 1]))) < 0.1
    assert float(jnp.std(drawn[:, 0])) > 0.1


def test_process_can_be_stored(process):
    stored = persistence.to_bytes(process, known=[Bank, ChainProcess])
    assert eqx.tree_equal(process, persistence.from_bytes(stored, known=[Bank, ChainProcess]))


@pytest.mark.parametrize("seed", range(3))
def test_lines_find_slope_and_jump_of_a_sawtooth(seed):
    x = jnp.sort(jax.random.uniform(jax.random.key(seed), (64,), minval=-2.0, maxval=2.0))
    y = sawtooths(jax.random.key(seed + 10), x[None])[0]
    mask = jnp.arange(64) % 8 != 3
    found = jax.jit(jax.vmap(lambda point: draw_lines(point, x, y, mask)))(x[~mask])
    # 56 of 64 places on an interval of 16 pieces at most: some neighbours have no jump between them.
    assert 2 <= abs(float(found.slope[0])) <= 4
    assert float(found.jump[0]) == pytest.approx(-float(jnp.sign(found.slope[0])), abs=1e-3)
    error = jnp.min(jnp.where(found.there, jnp.abs(found.values - y[~mask][:, None]), jnp.inf), axis=1)
    assert float(jnp.max(error)) < 1e-3


def test_lines_of_too_few_values_are_not_there():
    found = draw_lines(jnp.array(0.0), jnp.arange(4.0) - 2, jnp.ones(4), jnp.array([True, True, True, False]))
    assert not found.there.any()  # two pairs have no slope that recurs three times


@pytest.mark.parametrize("family", KERNELS)
def test_true_chain_is_the_conditional_density(family):
    rng = np.random.default_rng(0)
    x, y = rng.uniform(-2, 2, 20), rng.standard_normal(20)
    K = np.asarray(KERNELS[family](jnp.asarray(x[:, None] - x)), np.float64) + NOISE_VARIANCE * np.eye(20)
    gain = K[12:, :12] @ np.linalg.inv(K[:12, :12])
    given = multivariate_normal(gain @ y[:12], K[12:, 12:] - gain @ K[:12, 12:])
    assert true_chain(family, x, y)[12:].sum() == pytest.approx(given.logpdf(y[12:]), rel=1e-4)


def test_tasks_have_the_moments_and_ranges_of_their_families():
    tasks = eqx.filter_jit(TaskSource(200, 16))(jax.random.key(0))
    x, y = (np.asarray(a).reshape(4, 200, 16) for a in (tasks.x, tasks.y))
    assert x.min() >= -2
    assert x.max() <= 2
    for own in y[:3]:
        # Of values with a variance of 1.05, 200 of 16 are independent at least: four standard errors.
        assert np.mean(own**2) == pytest.approx(1.05, abs=4 * 1.05 * np.sqrt(2 / 200))
    assert y[3].min() >= 0
    assert y[3].max() <= 1
    assert np.mean(y[3]) == pytest.approx(0.5, abs=4 * np.sqrt(1 / 12 / 200))


def test_sawtooths_repeat_two_to_four_times_in_a_unit():
    x = jnp.linspace(-2, 2, 4001)
    rises = []
    for y in np.asarray(sawtooths(jax.random.key(0), jnp.broadcast_to(x, (50, 4001)))):
        steps = np.diff(y)
        slope = np.median(steps) * 1000
        assert 2 <= abs(slope) <= 4
        # As many jumps as periods on an interval of length four, give or take one.
        assert np.sum(np.abs(steps) > 0.5) == pytest.approx(4 * abs(slope), abs=1)
        rises.append(slope > 0)
    assert 10 < sum(rises) < 40  # both directions: outside with a probability below 1e-5


def test_weakly_periodic_kernel_repeats_and_fades():
    kernel = KERNELS["weakly periodic"]
    d = jnp.array([0.0, 0.125, 0.25, 0.5])
    assert np.asarray(kernel(d)) == pytest.approx(np.exp([0.0, -0.03125 - 2, -0.125, -0.5]), rel=1e-5)


def test_a_mixture_of_one_is_normal():
    one = Mixture(jnp.zeros(1), jnp.array([2.0]), jnp.array([4.0]))
    assert float(one.log_prob(jnp.array(4.0))) == pytest.approx(-0.5 * np.log(2 * np.pi * 4) - 0.5)
    assert float(one.mean) == 2
    assert float(one.variance) == 4
