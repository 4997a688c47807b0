"""Models: accuracy of the integration, own models, host models, parameters."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bieqno.assimilation import (
    ETKF,
    Flow,
    HostModel,
    Inflated,
    LinearModel,
    Lorenz63,
    Lorenz96,
    NoisyModel,
    Observation,
    System,
    append_parameters,
    cycle,
    forecast,
    rk4,
    simulate,
)

KEY = jax.random.key(0)


def test_rk4_is_of_fourth_order():
    with jax.enable_x64(True):
        start = jnp.array([1.0, 0.0])
        turn = lambda z: jnp.array([z[1], -z[0]])  # noqa: E731
        errors = [
            float(jnp.abs(rk4(turn, start, step=1 / steps, steps=steps)[0] - jnp.cos(1.0))) for steps in (10, 20, 40)
        ]
    # Halving the step divides the error by 2^4, up to the next order.
    assert 14 < errors[0] / errors[1] < 18
    assert 14 < errors[1] / errors[2] < 18


def test_lorenz_models_have_the_papers_settings():
    assert (Lorenz63().window, Lorenz63().step) == (0.5, 0.01)
    assert (Lorenz96().window, Lorenz96().step, Lorenz96().size) == (0.2, 0.01, 24)


def test_lorenz96_is_invariant_under_rotation_of_the_ring():
    model, state = Lorenz96(7), jax.random.normal(KEY, (7,))
    assert jnp.allclose(model(jnp.roll(state, 2)), jnp.roll(model(state), 2), atol=1e-6)


def test_lorenz63_has_its_equilibria():
    wing = jnp.sqrt(8 / 3 * 27)
    state = jnp.array([wing, wing, 27.0])
    assert jnp.allclose(Lorenz63().tendency(state), 0, atol=1e-4)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Lorenz63(window=0.5, step=0.3), "whole number of steps; got window 0.5 and step 0.3"),
        (lambda: Flow(lambda z: z, window=0.5, step=-1.0), "step -1.0"),
        (lambda: Lorenz96(3), "at least 4 variables, got 3"),
        (lambda: Lorenz96(8)(jnp.zeros(5)), r"8 variables, got shape \(5,\)"),
        (lambda: LinearModel(jnp.zeros((2, 2)))(jnp.zeros(3)), r"2 variables, got shape \(3,\)"),
        (lambda: forecast(lambda z: z[:1], jnp.zeros((2, 2)), key=KEY), r"given \(2, 2\) and returned \(2, 1\)"),
    ],
)
def test_what_does_not_fit_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_host_model_runs_within_the_compiled_loop_and_gives_the_same():
    matrix = np.array([[0.9, 0.1], [-0.1, 0.9]], np.float32)
    inside, outside = LinearModel(jnp.array(matrix)), HostModel(lambda ensemble: ensemble @ matrix.T)
    observation = Observation([0], 0.5)
    twin = simulate(System(inside, observation, jnp.ones(2)), 5, key=KEY)
    ensemble = jax.random.normal(KEY, (4, 2))

    def means(model):
        system = System(model, observation, jnp.ones(2))
        run = lambda e: cycle(ETKF(), system, e, twin.observations, key=KEY).kept["mean"]  # noqa: E731
        return jax.vmap(run)(jnp.stack([ensemble, 2 * ensemble]))

    assert jnp.allclose(means(inside), means(outside), atol=1e-5)


def test_model_error_has_the_covariance_it_was_given():
    covariance = jnp.array([[1.0, 0.6], [0.6, 0.5]])
    moved = NoisyModel(lambda z: z, covariance).forecast(jnp.zeros((20000, 2)), key=KEY)
    # Sampling error of a covariance from 20,000 draws is below 1 %; four times that.
    assert jnp.allclose(jnp.cov(moved.T), covariance, atol=0.04)


def test_a_parameter_is_found_along_with_the_state():
    """The forcing of Lorenz-96, guessed at 6 +- 2, true 8."""
    system = System(Lorenz96(8, 8.0), Observation(range(8), 0.3), 3 + jax.random.normal(KEY, (8,)))
    truth = simulate(system, 100, key=KEY)
    states = 3 + jax.random.normal(KEY, (30, 8))
    guesses = 6 + 2 * jax.random.normal(jax.random.key(1), (30, 1))
    appended, ensemble = append_parameters(lambda p: Lorenz96(8, p[0]), system, states, guesses)
    run = cycle(Inflated(ETKF(), 1.01), appended, ensemble, truth.observations, key=KEY)
    # A hundred windows of eight accurate values pin one number down; a tenth of the initial error is ample.
    assert abs(float(run.kept["mean"][-1, 8]) - 8) < 0.2
    with pytest.raises(ValueError, match=r"each of 30 members, got shape \(3, 1\)"):
        append_parameters(lambda p: Lorenz96(8, p[0]), system, states, guesses[:3])


def test_a_parameter_of_a_model_with_error_can_be_estimated_too():
    walk = lambda p: NoisyModel(lambda z: z + p, 0.1)  # noqa: E731
    system = System(walk(0.0), Observation([0], 1.0), jnp.zeros(1), limit=[1e3])
    appended, ensemble = append_parameters(walk, system, jnp.zeros((500, 1)), jnp.full((500, 1), 2.0))
    moved = forecast(appended.model, ensemble, key=KEY)
    assert jnp.array_equal(moved[:, 1], ensemble[:, 1])
    # Every member has an error of its own: 500 draws give the deviation to 3 %; four times that.
    assert float(moved[:, 0].std()) == pytest.approx(0.1, rel=0.13)


def test_what_a_host_model_raises_reaches_the_user():
    def expired(ensemble):
        raise RuntimeError("no licence for this model")

    still = System(lambda z: z, Observation([0], 1.0), jnp.ones(2))
    observed = simulate(still, 2, key=KEY).observations
    broken = System(HostModel(expired), still.observation, still.state)
    with pytest.raises(Exception, match="no licence for this model"):
        cycle(ETKF(), broken, jnp.ones((3, 2)), observed, key=KEY).diverged.item()
