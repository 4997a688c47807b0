"""Muon, beside the implementation of Optax."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bieqno.training import falling_muon, fit
from bieqno.training.muon import ROOT_MEAN_SQUARE, orthogonalised, scale_by_muon

pytestmark = pytest.mark.standard_promotion("the moments of Optax promote types")

KEY = jax.random.key(0)
SHAPES = {"square": (5, 5), "tall": (40, 3), "wide": (2, 17), "row": (1, 6), "vector": (7,), "number": ()}


def gradients(number: int) -> dict[str, jax.Array]:
    keys = jax.random.split(jax.random.fold_in(KEY, number), len(SHAPES))
    return {name: jax.random.normal(key, shape) for key, (name, shape) in zip(keys, SHAPES.items(), strict=True)}


def test_updates_are_those_of_optax() -> None:
    params = gradients(0)
    ours, theirs = scale_by_muon(b2=0.99), optax.contrib.muon(-1.0, adam_b2=0.99, consistent_rms=ROOT_MEAN_SQUARE)
    states = [ours.init(params), theirs.init(params)]
    for number in range(1, 6):
        found, states[0] = ours.update(gradients(number), states[0])
        expected, states[1] = theirs.update(gradients(number), states[1], params)
        for name in SHAPES:
            np.testing.assert_allclose(found[name], expected[name], rtol=2e-4, atol=2e-5, err_msg=name)


def test_orthogonal_matrices_keep_their_singular_vectors() -> None:
    matrix = jax.random.normal(KEY, (6, 9))
    left, _, right = jnp.linalg.svd(matrix, full_matrices=False)
    (found,) = orthogonalised([matrix])
    inside = left.T @ found @ right.T
    np.testing.assert_allclose(inside - jnp.diag(jnp.diag(inside)), 0, atol=1e-4)
    assert jnp.all((jnp.diag(inside) > 0.6) & (jnp.diag(inside) < 1.3))


def test_a_matrix_of_zeros_stays_zero() -> None:
    params = {"weight": jnp.zeros((3, 4)), "bias": jnp.zeros(3)}
    optimizer = scale_by_muon()
    found, _ = optimizer.update(params, optimizer.init(params))
    assert not jnp.any(found["weight"])
    assert not jnp.any(found["bias"])


def test_fit_finds_a_matrix_whose_directions_have_gradients_of_all_sizes() -> None:
    wanted = jax.random.normal(KEY, (4, 4))
    scale = jnp.array([1.0, 0.1, 0.01, 0.003])

    def loss(weight: jax.Array, batch: jax.Array, *, key: jax.Array) -> jax.Array:
        return jnp.mean(((weight - wanted) * scale) ** 2)

    result = fit(jnp.zeros((4, 4)), loss, lambda key: jnp.zeros(1), steps=400, optimizer=falling_muon(0.1), key=KEY)
    np.testing.assert_allclose(result.module, wanted, atol=0.15)
