"""Models that are driven from outside, at random, and over windows of unequal length."""

import catalogue
import jax
import jax.numpy as jnp
import pytest

from bieqno.assimilation import (
    ETKF,
    EnKF,
    HostModel,
    Inflated,
    IterativeEnKF,
    NoisyModel,
    Observation,
    StochasticModel,
    System,
    UnevenFlow,
    append_parameters,
    cycle,
    forecast,
    keep_mean,
    make_trials,
    run_trials,
    simulate,
    tune,
)
from bieqno.assimilation.twin import Observations

KEY = jax.random.key(0)
RAIN = jnp.array([1.0, 0.0, 2.0, 5.0])


def store(state, rain):
    return 0.5 * state + rain


def bucket(model=store, **more):
    return System(model, Observation([0], 0.1), jnp.ones(1), **more)


def test_inputs_reach_the_truth_and_every_member():
    twin = simulate(bucket(), 4, inputs=RAIN, key=KEY)
    assert twin.truth[:, 0].tolist() == [1.5, 0.75, 2.375, 6.1875]
    nothing = Observations.of(jnp.full((4, 1), jnp.nan))
    run = cycle(ETKF(), bucket(), jnp.ones((3, 1)), nothing, inputs=RAIN, record=keep_mean, key=KEY)
    assert jnp.array_equal(run.kept, twin.truth)


def test_models_of_every_kind_take_inputs():
    ensemble, inputs = jnp.ones((2, 1)), {"rain": jnp.array(3.0)}
    own = {
        "noisy": NoisyModel(lambda z, x: z + x["rain"], 0.0),
        "at random": StochasticModel(lambda z, x, *, key: z + x["rain"]),
        "host": HostModel(lambda z, x: z + x["rain"]),
    }
    for model in own.values():
        assert forecast(model, ensemble, inputs, key=KEY).tolist() == [[4.0], [4.0]]
    system, appended = append_parameters(
        lambda theta: lambda z, x: z + theta[0] * x["rain"], bucket(), ensemble, jnp.array([[1.0], [2.0]])
    )
    assert forecast(system.model, appended, inputs, key=KEY).tolist() == [[4.0, 1.0], [7.0, 2.0]]


def test_trials_and_tuning_thread_inputs():
    system = bucket(spread=0.5)
    trials = make_trials(system, 4, truths=2, members=3, inputs=RAIN, key=KEY)
    run = run_trials(ETKF(), system, trials, record=keep_mean, key=KEY)
    assert float(jnp.abs(run.kept - trials.twins.truth).max()) < 0.5
    found = tune(
        lambda inflation: Inflated(ETKF(), inflation), {"inflation": [1.0]}, system, trials, burn_in=1, key=KEY
    )
    assert found.score < 0.2
    with pytest.raises(ValueError, match=r"System\(\.\.\., spread=\.\.\.\)"):
        make_trials(bucket(), 4, truths=2, members=3, inputs=RAIN, key=KEY)


def test_a_filter_that_runs_the_model_itself_is_given_the_inputs():
    start = jnp.array([[0.0], [1.0], [2.0]])
    observed = Observation([0], 1.0).window(jnp.array([6.0]), start=start, inputs=jnp.array(5.0))
    prior = forecast(store, start, jnp.array(5.0), key=KEY)
    posterior = IterativeEnKF(store)(prior, observed, key=KEY)
    assert jnp.allclose(posterior, ETKF()(prior, observed, key=KEY), atol=1e-3)


def test_inputs_have_a_row_for_each_window():
    with pytest.raises(ValueError, match="one row for each of 3 windows"):
        simulate(bucket(), 3, inputs=RAIN, key=KEY)
    with pytest.raises(ValueError, match="one row for each of 2 windows"):
        cycle(ETKF(), bucket(), jnp.ones((3, 1)), Observations.of(jnp.ones((2, 1))), inputs=RAIN, key=KEY)


def test_random_models_draw_anew_for_each_member_and_window():
    walk = System(
        StochasticModel(lambda z, *, key: z + jax.random.normal(key, (1,))), Observation([0], 1.0), jnp.zeros(1)
    )
    nothing = Observations.of(jnp.full((3, 1), jnp.nan))
    kept = cycle(EnKF(), walk, jnp.zeros((4, 1)), nothing, key=KEY)
    assert len(set(kept.ensemble[:, 0].tolist())) == 4
    assert float(kept.kept["spread"][2, 0]) != float(kept.kept["spread"][0, 0])


def test_windows_of_unequal_length_are_one_program():
    decay = UnevenFlow(lambda z, forcing: forcing - z, step=0.1, longest=2.0)
    lengths = jnp.array([0.5, 2.0, 0.03, 1.3])
    system = System(decay, Observation([0], 0.1), jnp.ones(1))
    truth = simulate(system, 4, inputs=(lengths, jnp.zeros(4)), key=KEY).truth[:, 0]
    assert jnp.allclose(truth, jnp.exp(-jnp.cumsum(lengths)), rtol=1e-4)
    slope = jax.grad(lambda z: decay(z, (lengths[0], jnp.array(0.0)))[0])(jnp.ones(1))
    assert jnp.allclose(slope, jnp.exp(-0.5), rtol=1e-4)
    assert jnp.isnan(decay(jnp.ones(1), (jnp.array(2.5), jnp.array(0.0))))
    with pytest.raises(ValueError, match="steps are positive and within a window"):
        UnevenFlow(store, step=3.0, longest=2.0)


def test_catalogue_models_without_inputs_are_called_without():
    assert forecast(catalogue.model(), jnp.ones((2, catalogue.SIZE)), key=KEY).shape == (2, catalogue.SIZE)
