"""Contributions of observations sum to the increment, and are the gain times the innovation where the update is linear.

A learned filter is explained in the tests of the command.
"""

import jax
import jax.numpy as jnp
import numpy as np

from bieqno.assimilation import ETKF, EnKF, Observation, ParticleFilter, explain

OBSERVATION = Observation([0, 2, 4], 0.5)
OBSERVED = OBSERVATION.window(jnp.array([1.0, jnp.nan, -2.0]))
PRIOR = jax.random.normal(jax.random.key(0), (6, 5)) @ jax.random.normal(jax.random.key(1), (5, 5))


def test_a_linear_update_is_its_gain_times_the_innovation():
    found = explain(ETKF(), PRIOR, OBSERVED)
    assert found.method == "linear"
    covariance = np.cov(np.asarray(PRIOR).T)
    H = np.eye(5)[[0, 4]]
    gain = covariance @ H.T @ np.linalg.inv(H @ covariance @ H.T + 0.25 * np.eye(2))
    np.testing.assert_allclose(found.gain[:, [0, 2]], gain, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(found.contribution[:, 1], 0, atol=1e-7)  # missing
    np.testing.assert_allclose(found.contribution.sum(axis=1), found.increment, atol=1e-5)


def test_the_analysis_with_the_same_key_is_explained():
    key = jax.random.key(7)
    moved = jnp.mean(EnKF(centred=False)(PRIOR, OBSERVED, key=key), axis=0) - jnp.mean(PRIOR, axis=0)
    found = explain(EnKF(centred=False), PRIOR, OBSERVED, key=key)
    np.testing.assert_allclose(found.increment, moved, atol=1e-6)
    np.testing.assert_allclose(found.contribution.sum(axis=1) + found.remainder, moved, atol=1e-5)


def test_a_learned_update_is_followed_along_its_path():
    def bent(ensemble, observed, *, key):
        innovation = jnp.where(observed.mask, observed.value - jnp.mean(observed.predict(ensemble), axis=0), 0)
        return ensemble + jnp.sum(jnp.arctan(innovation) * jnp.array([1.0, 1.0, 2.0])) + 0.1

    found = explain(bent, PRIOR, OBSERVED)
    assert found.method == "path"
    expected = jnp.arctan(found.innovation) * jnp.array([1.0, 1.0, 2.0])
    np.testing.assert_allclose(found.contribution, jnp.tile(expected, (5, 1)), atol=1e-3)
    np.testing.assert_allclose(found.remainder, 0.1, atol=2e-3)
    np.testing.assert_allclose(jnp.abs(found.share).sum(axis=1), 1, atol=1e-5)


def test_where_there_is_no_derivative_observations_are_left_out():
    found = explain(ParticleFilter(), PRIOR, OBSERVED, key=jax.random.key(3))
    assert found.method == "leave-one-out"
    np.testing.assert_allclose(found.contribution[:, 1], 0, atol=1e-6)
    without = OBSERVATION.window(jnp.array([1.0, jnp.nan, jnp.nan]))
    analyses = [jnp.mean(ParticleFilter()(PRIOR, seen, key=jax.random.key(3)), axis=0) for seen in (OBSERVED, without)]
    np.testing.assert_allclose(found.contribution[:, 2], analyses[0] - analyses[1], atol=1e-5)


def test_nothing_observed_moves_nothing():
    found = explain(ETKF(), PRIOR, OBSERVATION.window(jnp.full(3, jnp.nan)))
    assert not np.any(np.asarray(found.increment))
    assert not np.any(np.asarray(found.share))
