"""The climate of a model, and first ensembles, in the model's own units and time."""

import jax
import jax.numpy as jnp
import pytest

from bieqno.assimilation import Climate, Lorenz96, NoisyModel, Observation, System, append_parameters, make_trials

KEY = jax.random.key(0)


def test_the_climate_does_not_depend_on_units():
    """A model in thousandths of its units has a climate, and first ensembles, in thousandths of theirs."""
    plain = System(Lorenz96(8, window=0.1), Observation([0], 1.0), jnp.full(8, 8.0))
    small = System(lambda z: 1e-3 * Lorenz96(8, window=0.1)(1e3 * z), Observation([0], 1e-3), jnp.full(8, 8e-3))
    usual, thousandths = (Climate.of(system, key=KEY).deviation for system in (plain, small))
    assert jnp.all((thousandths > 0.8e-3 * usual) & (thousandths < 1.2e-3 * usual))
    usual, thousandths = (make_trials(system, 2, truths=2, members=3, key=KEY).ensembles for system in (plain, small))
    assert 0.3e-3 < float(jnp.std(thousandths) / jnp.std(usual)) < 3e-3


def test_a_climate_takes_as_long_as_the_model_needs():
    """Relaxation over 500 windows from far off: the free runs go on until they no longer drift apart."""
    slow = NoisyModel(lambda z: (1 - 1 / 500) * z, 0.05)  # stationary: 0.05 * sqrt(250) = 0.79
    system = System(slow, Observation([0], 1.0), jnp.zeros(4), spread=0.01)
    assert float(jnp.mean(Climate.of(system, key=KEY).deviation)) > 0.5


def test_a_parameter_has_the_spread_of_its_first_values():
    parameters = 1e-4 * jax.random.normal(KEY, (5, 1))
    state = jax.random.normal(KEY, (5, 8))
    plain = System(Lorenz96(8), Observation(range(8), 1.0), jnp.full(8, 8.0))
    system, _ = append_parameters(lambda theta: Lorenz96(8, 8.0 + theta[0]), plain, state, parameters)
    assert float(system.first_spread(key=KEY)[-1]) == pytest.approx(float(jnp.std(parameters)))
    assert float(Climate.of(system, key=KEY).deviation[-1]) < 3e-4


@pytest.mark.parametrize("value", [0.1, 8.3, 273.15])
def test_rounding_of_a_constant_is_no_variation(value):
    still = System(lambda z: jnp.full(2, value), Observation([0], 1.0), jnp.full(2, value))
    assert jnp.all(Climate.of(still, key=KEY).deviation == 1)
    assert jnp.allclose(still.first_spread(key=KEY), 0.01 * value)


def test_a_small_variable_beside_a_large_one_keeps_its_units():
    def both(z):
        wave = Lorenz96(4, 8.0, window=0.1)
        return jnp.concatenate([wave(z[:4]), 1e5 * wave(z[4:] / 1e5)])

    state = jnp.concatenate([jnp.array([1.0, 2.0, 3.0, 4.0]), 1e5 * jnp.array([1.0, 2.0, 3.0, 4.0])])
    small, large = jnp.split(System(both, Observation([0], 1.0), state).first_spread(key=KEY), 2)
    assert jnp.all(small < 10)
    assert jnp.all(large > 1e3)
