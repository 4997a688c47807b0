"""The learned gain: Kalman filters are special cases of it, in any units and with missing values."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from catalogue import analyse

from bieqno.assimilation import (
    ETKF,
    EnKF,
    Imitation,
    LearnedGain,
    Lorenz63,
    Observation,
    System,
    make_trials,
    teach,
    train_filter,
)

OBSERVATION = Observation([0, 2], np.array([[1.0, 0.3], [0.3, 0.5]]))


class KalmanGain(eqx.Module):
    """In place of the operator: what the stochastic EnKF answers, from the context's correlations alone."""

    in_size: int = 5
    out_size: int = 6
    context_size: int = 5

    def __call__(self, elements, *, context):
        count = len(elements[0])
        gain = context[-2:] * count / max(count - 1, 1)
        return jnp.tile(jnp.concatenate([gain, -gain, gain]), (count, 1))


@pytest.fixture
def kalman():
    return eqx.tree_at(lambda f: f.operator, LearnedGain(2, key=jax.random.key(0)), KalmanGain())


@pytest.mark.parametrize("value", [[1.0, -2.0], [1.0, np.nan], [np.nan, np.nan]])
@pytest.mark.parametrize("members", [1, 2, 20])
def test_the_enkf_is_a_special_case(kalman, value, members, x64):
    prior = 3 * jax.random.normal(jax.random.key(1), (members, 3))
    observed = OBSERVATION.window(jnp.array(value))
    key = jax.random.key(2)
    expected = analyse(EnKF(centred=False), prior, observed, key)
    np.testing.assert_allclose(analyse(kalman, prior, observed, key), expected, rtol=1e-9, atol=1e-9)


def test_units_do_not_matter():
    """Multiplying a variable and what is observed of it by a thousand multiplies the analysis."""
    filter = LearnedGain(1, width=8, depth=2, key=jax.random.key(0))
    prior = jax.random.normal(jax.random.key(1), (6, 2))
    small = analyse(filter, prior, Observation([0], 0.5).window(jnp.ones(1)), jax.random.key(2))
    large = analyse(filter, 1e3 * prior, Observation([0], 500.0).window(jnp.full(1, 1e3)), jax.random.key(2))
    np.testing.assert_allclose(large, 1e3 * small, rtol=1e-4, atol=1e-2)


@pytest.mark.long
def test_it_tells_its_teachers_apart():
    observation = Observation([0, 2], 1.0)
    system = System(Lorenz63(), observation, jnp.ones(3))
    trials = make_trials(system, 30, truths=2, members=8, key=jax.random.key(0))
    shown = [teach(f, system, trials, key=jax.random.key(1)) for f in (EnKF(), ETKF())]
    lessons = type(shown[0]).together(*shown)
    student = LearnedGain(2, teachers=2, width=16, key=jax.random.key(2))
    objective = Imitation(lessons, sizes=(8,), members=128, rerun=False, shift=0.0, noise=0.0)
    trained = train_filter(student, system, objective, steps=150, validate=None, key=jax.random.key(3))
    assert trained.losses[-1] < 0.5 * trained.losses[0]

    @jax.jit
    @jax.vmap
    def acted(prior, value, perturbed):
        observed = observation.window(value, perturbed=perturbed)
        return jnp.stack([trained.module.acting_as(k)(prior, observed, key=jax.random.key(0)) for k in (0, 1)])

    # On the priors of the first teacher the role of that teacher comes nearer to what it did than the other role.
    given = shown[0]
    gap = jnp.mean((acted(given.prior, given.value, given.perturbed) - given.posterior[:, None]) ** 2, axis=(0, 2, 3))
    assert gap[0] < gap[1]


@pytest.mark.parametrize("value", [[1.0, -2.0, 0.5], [np.nan] * 3])
def test_gradients_of_the_weights_are_finite_where_eigenvalues_coincide(value):
    """Two members give one direction, missing values none: nothing is differentiated through the decomposition."""
    filter = LearnedGain(3, width=4, depth=1, key=jax.random.key(0))
    prior = jax.random.normal(jax.random.key(1), (2, 4))
    observed = Observation([0, 1, 2], 0.5).window(jnp.array(value))

    @eqx.filter_jit
    @eqx.filter_grad
    def gradients(operator):
        moved = eqx.tree_at(lambda f: f.operator, filter, operator)(prior, observed, key=jax.random.key(2))
        return jnp.sum(moved**2)

    gradient = gradients(filter.operator)
    assert all(jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(gradient))


def test_wrong_sizes_are_refused():
    filter = LearnedGain(2, key=jax.random.key(0))
    with pytest.raises(ValueError, match="takes 2 observed values, got 1"):
        filter(jnp.ones((4, 3)), Observation([0], 1.0).window(jnp.ones(1)), key=jax.random.key(1))
    with pytest.raises(ValueError, match="0 teachers"):
        filter.acting_as(0)
