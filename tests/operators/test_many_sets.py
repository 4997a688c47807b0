"""Many sets at once: the same as one set after another."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bieqno.operators import MLP, EquivariantOperator, MeanPool, TrunkAndBranch
from bieqno.operators.many_sets import MANY, apply_to_sets, combined, total

pytestmark = pytest.mark.numbers
# Rounding of sums in another order, in 32 bits, through a few layers.
CLOSE = {"rtol": 1e-4, "atol": 1e-5}
KEYS = jax.random.split(jax.random.key(0), 6)


def other_biases(module):
    """Biases begin at zero, where a forgotten one would not be noticed."""
    return jax.tree.map(lambda x: x + 0.1 if eqx.is_inexact_array(x) and x.ndim == 1 else x, module)


def test_sets_at_once_are_as_one_after_another():
    fit = TrunkAndBranch(4, 4 + 2, 1, 3, width=8, link=5, key=KEYS[0])
    operator = other_biases(EquivariantOperator(5, 4, context_size=2, width=4, depth=3, fit=fit, key=KEYS[1]))
    elements, context = jax.random.normal(KEYS[2], (5, 7, 9)), jax.random.normal(KEYS[3], (2, 9))
    own, shared = jax.jit(apply_to_sets)(operator, (elements[:3], elements[3:]), context)
    one = jax.vmap(lambda x, c: operator(x.T, context=c), in_axes=(2, 1))(elements, context)
    np.testing.assert_allclose(jnp.moveaxis(own, 2, 0)[:, 0], one[..., 0], **CLOSE)
    np.testing.assert_allclose(shared.T, one[:, 0, 1:], **CLOSE)


def test_other_operators_are_refused():
    fit = TrunkAndBranch(4, 5, 1, 3, width=8, key=KEYS[0])
    counting = EquivariantOperator(5, 4, width=4, fit=fit, pool=MeanPool(count=True), key=KEYS[1])
    for operator in (EquivariantOperator(5, 4, width=4, key=KEYS[1]), counting):
        with pytest.raises(ValueError, match="plain mean and a TrunkAndBranch"):
            apply_to_sets(operator, (jnp.ones((5, 7, 9)),), jnp.ones((0, 9)))


@pytest.mark.parametrize("residual", [False, True])
def test_a_network_along_columns_is_the_network(residual):
    network = other_biases(MLP(3, 2, width=4, depth=4, residual=residual, key=KEYS[4]))
    x, y = jax.random.normal(KEYS[5], (2, 6, 5)), jnp.ones((1, 1, 5))
    both = jnp.concatenate([x, jnp.ones((1, 6, 5))])
    expected = jax.vmap(jax.vmap(network, 1, 1), 2, 2)(both)
    np.testing.assert_allclose(network(x, y), expected, **CLOSE)


@pytest.mark.parametrize("columns", [3, MANY])
@pytest.mark.parametrize("patterns", [1, None])
def test_combinations_are_sums_and_so_are_their_gradients(columns, patterns):
    weights = jax.random.normal(KEYS[0], (5, 2, patterns or columns))
    values = jax.random.normal(KEYS[1], (5, 4, columns))

    def plain(weights, values):
        return jnp.einsum("kcb,knb->cnb", jnp.broadcast_to(weights, (5, 2, columns)), values)

    np.testing.assert_allclose(combined(weights, values), plain(weights, values), **CLOSE)
    slopes = [
        jax.grad(lambda *x, f=f: jnp.sum(jnp.sin(f(*x))), argnums=(0, 1))(weights, values) for f in (combined, plain)
    ]
    for found, expected in zip(*slopes, strict=True):
        # The slope of weights that all columns share is a sum over them.
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_totals_are_sums():
    for count in range(6):
        terms = jax.random.normal(KEYS[0], (2, count, 3))
        np.testing.assert_allclose(total(terms, axis=1), jnp.sum(terms, axis=1), **CLOSE)
