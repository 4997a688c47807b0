"""The learned filter for records, its predictive law, and its training on scenarios."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bieqno.assimilation import (
    ETKF,
    Censored,
    Dressed,
    KeepScores,
    LogNormal,
    Observation,
    OnScenarios,
    Poisson,
    RecordEnNF,
    Scenarios,
    StochasticModel,
    System,
    Transformed,
    cycle,
    keep_scores,
    simulate,
    train_filter,
)
from bieqno.assimilation.filters.dressed import TransformedNormals

KEY = jax.random.key(0)
NAMES = ["log1p", "log"]


class Growth(eqx.Module):
    """Cells that grow as they are fed, and what is left of the food."""

    rate: jax.Array

    def __call__(self, state, inputs, *, key):
        noise = 0.2 * jax.random.normal(key, (2,))
        cells, food = state
        return jnp.stack([cells * jnp.exp(self.rate * food / (1 + food) - 0.3), inputs["food"] + 0.5 * food]) * jnp.exp(
            noise
        )


def system_of(rate=0.5):
    law = Observation([0], Poisson())
    return System(StochasticModel(Growth(jnp.asarray(rate))), law, jnp.array([20.0, 1.0]), spread=1.0)


def scenarios():
    year = jnp.linspace(0.2, 1.0, 12)
    food = {"food": jnp.tile(year, 3), "context": jnp.tile(year, 3)[:, None]}
    states = jnp.array([[20.0, 1.0], [30.0, 0.5]])
    return Scenarios.of([(system_of(rate), food, states) for rate in (0.4, 0.5, 0.6)])


def student(width=8):
    states, contexts = jnp.array([[10.0, 0.5], [40.0, 2.0]]), jnp.array([[0.0], [1.0]])
    return RecordEnNF(NAMES, "sqrt", states, contexts=contexts, width=width, key=KEY)


def random_student():
    """Weights at random, so that nothing that it learns is zero."""
    arrays, rest = eqx.partition(student(), eqx.is_inexact_array)
    keys = jax.random.split(KEY, len(jax.tree.leaves(arrays.analysis)))
    leaves, structure = jax.tree.flatten(arrays.analysis)
    moved = [leaf + 0.1 * jax.random.normal(k, leaf.shape) for leaf, k in zip(leaves, keys, strict=True)]
    return eqx.combine(eqx.tree_at(lambda f: f.analysis, arrays, jax.tree.unflatten(structure, moved)), rest)


def window():
    inputs = {"food": jnp.array(0.5), "context": jnp.array([0.3])}
    return jnp.abs(jax.random.normal(KEY, (6, 2))) * jnp.array([20.0, 1.0]) + 1, system_of().observation.window(
        jnp.array([17.0]), inputs=inputs
    )


def test_it_begins_as_its_base():
    prior, observed = window()
    quiet = student().correct(prior, prior, observed, jnp.zeros_like(prior))
    assert jnp.allclose(quiet, prior, rtol=1e-5)
    guess = Transformed.by(ETKF(), NAMES, "sqrt")(prior, observed, key=KEY)
    assert jnp.allclose(student().correct(prior, guess, observed, jnp.zeros_like(prior)), guess, rtol=1e-4)


def test_members_and_their_noise_may_come_in_any_order():
    prior, observed = window()
    order, noise = jnp.array([3, 0, 5, 4, 1, 2]), jax.random.normal(KEY, prior.shape)
    filter, guess = random_student(), prior * 1.1
    straight = filter.correct(prior, guess, observed, noise)
    assert not jnp.allclose(straight, guess, rtol=0.01)
    permuted = filter.correct(prior[order], guess[order], observed, noise[order])
    assert jnp.allclose(permuted, straight[order], rtol=1e-4)
    there = filter.predictive(prior, observed)[1]
    assert jnp.allclose(filter.predictive(prior[order], observed)[1].centre, there.centre, rtol=1e-5)


@pytest.mark.parametrize(("seen", "whole"), [("sqrt", True), ("log", False)])
def test_the_predictive_law_is_a_law(seen, whole):
    law = TransformedNormals(
        jnp.log(jnp.array([[0.3], [0.7]])), jnp.array([[1.0], [1.5]]), jnp.array([[0.2], [0.4]]), seen, whole
    )
    values = jnp.arange(60.0)[:, None] if whole else jnp.linspace(1e-3, 60.0, 20001)[:, None]
    step = 1.0 if whole else 60.0 / 20000
    density = np.exp(law.log_prob(values, values))[:, 0]
    assert np.isclose(density.sum() * step, 1, atol=2e-3)
    assert np.allclose(np.cumsum(density) * step, law.cdf(values, values)[:, 0], atol=3e-3)
    drawn = law.sample(jnp.zeros((4000, 1)), key=KEY)
    mean, variance = (float(x[0, 0]) for x in law.moments(jnp.zeros((1, 1))))
    assert abs(drawn.mean() - mean) < 0.15 * mean
    assert abs(drawn.std() / np.sqrt(variance) - 1) < 0.15


def test_values_below_zero_have_a_distribution_function_too():
    law = TransformedNormals(jnp.zeros((1, 1)), jnp.zeros((1, 1)), jnp.ones((1, 1)), "same", False)
    assert float(law.cdf(jnp.array([[-1.0]]), jnp.zeros((1, 1)))[0, 0]) == pytest.approx(0.1587, abs=1e-3)


def test_what_has_no_smooth_law_is_not_dressed():
    values = jnp.array([1.0])
    for law, name in ((Censored(0.5, 1.0), "Censored"), (0.5, "Gaussian|Error|Law")):
        observed = Observation([0], law).window(values)
        with pytest.raises(TypeError, match=f"such as Poisson.*({name})"):
            Dressed(ETKF(), "sqrt").predictive(jnp.ones((3, 1)), observed)


def test_a_filter_with_a_law_of_its_own_is_scored_by_it():
    prior, observed = window()
    filter = random_student()
    found = KeepScores(filter)(prior, prior, observed, key=KEY)
    law = filter.predictive(prior, observed)[1]
    assert jnp.allclose(found["log_score"], law.log_prob(observed.value, observed.value)[0], rtol=1e-5)
    plain = KeepScores(ETKF())(prior, prior, observed, key=KEY)
    assert jnp.array_equal(plain["log_score"], keep_scores(prior, prior, observed, key=KEY)["log_score"])


@pytest.mark.long
def test_training_on_scenarios_improves_the_prediction():
    """Of two members, whose spread says little."""
    known, system = scenarios(), system_of()
    objective = OnScenarios(known, {2: 16}, learning_rate=5e-3)
    trained = train_filter(student(), system, objective, steps=300, validate=None, key=jax.random.key(3)).module
    inputs, start = jax.tree.map(lambda leaf: leaf[0], known.inputs), jnp.tile(system.state, (2, 1))
    twins = [simulate(system, known.windows, inputs=inputs, key=jax.random.key(seed)) for seed in range(4)]

    def score(filter):
        how = {"inputs": inputs, "record": KeepScores(filter), "key": KEY}
        return sum(float(cycle(filter, system, start, twin.observations, **how).log_score) for twin in twins)

    assert score(trained) > score(student()) + 2


def test_what_cannot_be_scenarios_is_refused():
    system, states = system_of(), jnp.ones((2, 2))
    food = {"food": jnp.ones(3)}
    with pytest.raises(ValueError, match="one number of windows"):
        Scenarios.of([(system, food, states), (system, {"food": jnp.ones(4)}, states)])
    with pytest.raises(ValueError, match="at least one"):
        Scenarios.of([])
    other = System(system.model, Observation([0], LogNormal(0.1)), system.state)
    with pytest.raises(ValueError, match="nothing but arrays"):
        Scenarios.of([(system, food, states), (other, food, states)])
    with pytest.raises(ValueError, match="unroll=0"):
        OnScenarios(scenarios(), {5: 1}, unroll=0)
