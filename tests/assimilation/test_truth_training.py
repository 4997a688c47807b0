"""Training against the truth: it learns, repeats itself to the bit, goes on after a stop, and survives blow-ups."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from bieqno.assimilation.climate import Climate

from bieqno.assimilation import Lorenz63, Observation, Places, cycle, make_trials, train_filter
from bieqno.assimilation.geometry import find_surroundings
from bieqno.scores import relative_rmse

MODEL, OBSERVATION = Lorenz63(window=0.25), Observation([0, 2], 1.0)
STATE = jnp.array([-8.5, -7.0, 27.0])
# As in the example of `train_filter`, which then shares its compiled program.
SMALL = {"settings": {"width": 16, "small": 8, "channels": 2}, "sizes": {4: 16}, "state": STATE}
STEPS = 300


@pytest.fixture(scope="module")
def trained():
    return train_filter(MODEL, OBSERVATION, steps=STEPS, **SMALL, key=jax.random.key(0))


def relative_error(filter):
    """On truths that no training saw."""
    trials = make_trials(MODEL, OBSERVATION, 100, state=STATE, truths=4, members=4, key=jax.random.key(9))
    errors, diverged = _runs(filter, trials)
    assert jnp.all(diverged < 0)
    return float(jnp.mean(errors))


@eqx.filter_jit
def _runs(filter, trials):
    def run(trial):
        found = cycle(filter, MODEL, OBSERVATION, trial.ensembles, trial.twins.observations, key=jax.random.key(1))
        return relative_rmse(trial.twins.truth, found.kept["mean"]), found.diverged

    return jax.vmap(run)(trials)


def test_it_learns(trained):
    """Against the same filter with its corrections taken away, which moves the mean as a Kalman filter does."""
    last = [
        lambda f: f.update.operator.fit.trunk.layers[-1].weight,
        lambda f: f.update.operator.fit.branch.layers[-1].weight,
    ]
    plain = trained.module
    for layer in last:
        plain = eqx.tree_at(layer, plain, replace_fn=jnp.zeros_like)
    error = relative_error(trained.module)
    # Without observations the relative error is about 0.7 here; a filter that lost the truth is not far below.
    assert error < 0.2
    assert error < relative_error(plain)
    assert trained.skipped == 0


def test_the_same_key_gives_the_same_bits_and_a_checkpoint_goes_on(tmp_path):
    def train(**more):
        return train_filter(MODEL, OBSERVATION, steps=STEPS, **SMALL, key=jax.random.key(3), **more)

    def stop(progress):
        raise KeyboardInterrupt

    whole = train()
    with pytest.raises(KeyboardInterrupt):
        train(checkpoint=tmp_path, on_progress=stop)
    again = train(checkpoint=tmp_path)
    np.testing.assert_array_equal(whole.losses, again.losses)
    for a, b in zip(jax.tree.leaves(whole.module), jax.tree.leaves(again.module), strict=True):
        np.testing.assert_array_equal(a, b)


def test_ensembles_that_blow_up_begin_anew_and_are_counted(monkeypatch):
    def explosive(z):
        """Chaotic within one, and off to infinity for a member that strays beyond."""
        return jnp.where(jnp.abs(z) <= 1, jnp.cos(3 * z), 1e3 * z)

    # Free runs begin beyond one, too.
    climate = Climate(jnp.linspace(-1, 1, 100)[:, None] * jnp.ones(2), jnp.zeros(2), jnp.full(2, 0.6))
    monkeypatch.setattr(Climate, "of", lambda *_, **__: climate)
    result = train_filter(
        explosive, Observation([0], 0.1), **{**SMALL, "state": jnp.zeros(2)}, steps=20, key=jax.random.key(0)
    )
    assert int(result.source_state[0].blown_up) > 0
    assert np.all(np.isfinite(result.losses))
    assert jnp.all(jnp.abs(result.source_state[0].truth) <= 1)


def test_missing_values_and_windows_to_differentiate_through():
    result = train_filter(MODEL, OBSERVATION, steps=2, missing=(0.2, 1.0), unroll=2, **SMALL, key=jax.random.key(0))
    assert np.all(np.isfinite(result.losses))
    assert result.skipped == 0


def test_what_does_not_fit_is_refused(trained):
    def train(**wrong):
        train_filter(MODEL, OBSERVATION, **{"steps": 1, **SMALL, **wrong}, key=jax.random.key(0))

    with pytest.raises(ValueError, match="at least one ensemble size"):
        train(sizes={})
    with pytest.raises(ValueError, match="from low to high"):
        train(missing=(0.5, 0.2))
    with pytest.raises(ValueError, match="have their settings"):
        train(begin=trained.module.update)
    with pytest.raises(ValueError, match="unroll=0"):
        train(unroll=0)
    with pytest.raises(ValueError, match="places are known of 5 variables, the state has 3"):
        train(variables=Places.grid(5))
    with pytest.raises(ValueError, match="give `observations"):
        find_surroundings(Observation(lambda z: z[:1] ** 2, 1.0), 3)
    with pytest.raises(ValueError, match="1 observations, 2 are observed"):
        train(observations=Places.apart(1))
    with pytest.raises(ValueError, match="did not stay finite"):
        Climate.of(lambda z: 3 * z, jnp.ones(2), key=jax.random.key(0))
