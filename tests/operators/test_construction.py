"""How operators are put together, and what happens when the parts do not fit."""

import subprocess
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bieqno import (
    MLP,
    AttentionPool,
    CrossAttentionPool,
    ElementwiseOperator,
    EquivariantOperator,
    FourierFeatures,
    InvariantOperator,
    MeanPool,
    PosteriorOperator,
)
from bieqno.operators import networks
from bieqno.training import trainable

KEY = jax.random.key(0)


@pytest.mark.numbers
def test_mlp_in_parts_is_the_mlp_of_the_concatenation():
    mlp = MLP(6, 3, fourier_features=2, residual=True, depth=4, key=KEY)
    plain = MLP(6, 3, key=KEY)
    a, b, c = jnp.arange(1.0), jnp.arange(3.0), jnp.arange(2.0)
    joined = jnp.concatenate([a, b, c])
    np.testing.assert_allclose(mlp(a, b, c), mlp(joined), rtol=1e-6)
    # The order of additions differs, hence not to the bit.
    np.testing.assert_allclose(plain(a, b, c), plain(joined), rtol=1e-5, atol=1e-5)


def test_residual_adds_the_hidden_layers():
    mlp = MLP(2, 2, width=4, depth=3, residual=True, activation=jnp.tanh, key=KEY)
    x = jnp.array([0.3, -1.2])
    first, second, last = mlp.layers
    hidden = first(x)
    hidden = hidden + second(jnp.tanh(hidden))
    np.testing.assert_allclose(mlp(x), last(jnp.tanh(hidden)), rtol=1e-5)


def test_fourier_features_stay_fixed_in_training():
    features = FourierFeatures(2, 5, scale=3.0, key=KEY)
    trained, fixed = trainable(features)
    assert trained.frequencies is None
    assert fixed.frequencies is features.frequencies
    assert features(jnp.ones(2)).shape == (12,)


def test_the_equations_of_the_paper():
    """F_I, F_E and the lean posterior map, spelled out."""
    x, d = jnp.linspace(-1, 1, 8).reshape(4, 2), jnp.linspace(-2, 2, 9).reshape(3, 3)
    f_i = InvariantOperator(3, 5, key=KEY)
    np.testing.assert_allclose(f_i(d), f_i.fit(jax.vmap(f_i.embed)(d).mean(0)), rtol=1e-5)

    f_e = EquivariantOperator(2, 5, context_size=1, key=KEY)
    pooled = jax.vmap(f_e.interaction.embed)(x).mean(0)
    joined = [jnp.concatenate([f_e.embed_self(x_i), pooled, jnp.ones(1)]) for x_i in x]
    expected = jnp.stack([f_e.fit(row) for row in joined])
    np.testing.assert_allclose(f_e(x, context=jnp.ones(1)), expected, rtol=1e-4, atol=1e-5)

    lean = PosteriorOperator(2, 3, 5, lean=True, key=KEY)
    phi_self, phi_int, phi_d = lean.inputs.embed_self, lean.inputs.interaction.embed, lean.observations.embed
    shared = [jax.vmap(phi_int)(x).mean(0), jax.vmap(phi_d)(d).mean(0)]
    expected = jnp.stack([lean.fit.network(jnp.concatenate([phi_self(x_i), *shared])) for x_i in x])
    np.testing.assert_allclose(lean(x, d), expected, rtol=1e-4, atol=1e-5)


def test_attention_is_softmax_weighting():
    """Both attention pools, spelled out for one head."""
    x = jnp.linspace(-1, 1, 20).reshape(5, 4)
    learned = AttentionPool(4, heads=1, key=KEY)
    keys, values = jax.vmap(learned.to_key)(x), jax.vmap(learned.to_value)(x)
    weights = jax.nn.softmax(keys @ learned.learned[0, 0] / 2)
    np.testing.assert_allclose(learned(x), weights @ values, rtol=1e-5)

    cross = CrossAttentionPool(4, query_size=3, heads=1, key=KEY)
    keys, values = jax.vmap(cross.to_key)(x), jax.vmap(cross.to_value)(x)
    for query in (jnp.arange(3.0), -jnp.arange(3.0)):
        weights = jax.nn.softmax(keys @ cross.to_query(query) / 2)
        np.testing.assert_allclose(cross(x, query=query), weights @ values, rtol=1e-5)
    assert not np.allclose(cross(x, query=jnp.arange(3.0)), cross(x, query=-jnp.arange(3.0)))


def test_a_plain_function_as_pool():
    def largest(embeddings, mask):
        return jnp.max(jnp.where(mask[:, None], embeddings, -jnp.inf), axis=0, initial=0)

    operator = InvariantOperator(3, 2, pool=largest, key=KEY)
    x = jnp.linspace(-1, 1, 12).reshape(4, 3)
    np.testing.assert_allclose(operator(x), operator.fit(jnp.maximum(jax.vmap(operator.embed)(x).max(0), 0)), rtol=1e-5)
    with pytest.raises(ValueError, match="cannot be used in chunks"):
        InvariantOperator(3, 2, pool=largest, chunk_size=2, key=KEY)(x)


def test_modules_of_the_user():
    """Any module from vector to vector serves: here Equinox's own."""
    embed = eqx.nn.MLP(3, 7, 8, 1, key=KEY)
    fit = eqx.nn.MLP(8, 2, 8, 1, key=KEY)
    operator = InvariantOperator(3, 2, embed=embed, fit=fit, pool=MeanPool(count=True), key=KEY)
    assert operator(jnp.ones((4, 3))).shape == (2,)
    equivariant = EquivariantOperator(
        3, 2, embed_self=embed, embed_interaction=embed, fit=eqx.nn.MLP(14, 2, 8, 1, key=KEY), key=KEY
    )
    assert equivariant(jnp.ones((4, 3))).shape == (4, 2)
    posterior = PosteriorOperator(3, 3, 2, inputs=ElementwiseOperator(embed), observations=operator, key=KEY)
    assert posterior(jnp.ones((4, 3)), jnp.ones((5, 3))).shape == (4, 2)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: MLP(0, 1, key=KEY), "in_size of at least 1"),
        (lambda: MLP(1, 1, depth=0, key=KEY), "depth of at least 1"),
        (lambda: InvariantOperator(3, 2, embed=eqx.nn.MLP(4, 2, 8, 1, key=KEY), key=KEY), "vector of 3 values"),
        (lambda: InvariantOperator(3, 2, fit=eqx.nn.MLP(64, 5, 8, 1, key=KEY), key=KEY), "must return 2 values, got 5"),
        (lambda: InvariantOperator(3, None, fit=eqx.nn.Identity(), key=KEY), "leaves the fitting net out"),
        (lambda: InvariantOperator(3, 2, pool=AttentionPool(32, key=KEY), key=KEY), "embeddings of 32 values, got 64"),
        (lambda: InvariantOperator(3, 2, chunk_size=0, key=KEY), "chunk_size must be at least 1"),
        (lambda: AttentionPool(10, heads=4, key=KEY), "must divide the width"),
        (lambda: AttentionPool(8, queries=0, key=KEY), "at least one query"),
        (lambda: MLP(1, 1, fourier_features=-1, key=KEY), "must not be negative"),
        (
            lambda: EquivariantOperator(3, 2, pool=CrossAttentionPool(64, query_size=3, key=KEY), key=KEY),
            "asks for a query",
        ),
        (
            lambda: PosteriorOperator(3, 2, 1, pool=CrossAttentionPool(64, query_size=3, key=KEY), key=KEY),
            "query of 3 values",
        ),
        (lambda: PosteriorOperator(3, 2, 1, fit=ElementwiseOperator(eqx.nn.Identity()), key=KEY), "not of"),
    ],
)
def test_parts_that_do_not_fit_are_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_inputs_that_do_not_fit_are_refused():
    operator = EquivariantOperator(3, 2, context_size=1, key=KEY)
    with pytest.raises(ValueError, match=r"shape \(any, 3\), got \(5, 4\)"):
        operator(jnp.ones((5, 4)), context=jnp.ones(1))
    with pytest.raises(ValueError, match="context of 1 values, got none"):
        operator(jnp.ones((5, 3)))
    with pytest.raises(ValueError, match="takes 3 values, got 1 \\+ 1 = 2"):
        MLP(3, 1, key=KEY)(jnp.ones(1), jnp.ones(1))
    pool = CrossAttentionPool(8, query_size=3, heads=2, key=KEY)
    with pytest.raises(ValueError, match="needs a query"):
        pool(jnp.ones((2, 8)))


def test_same_key_same_bits():
    first, second = (PosteriorOperator(1, 2, 3, key=jax.random.key(7)) for _ in range(2))
    assert eqx.tree_equal(first, second)
    assert not eqx.tree_equal(first, PosteriorOperator(1, 2, 3, key=jax.random.key(8)))


def test_what_has_the_shapes_of_another_is_not_traced_again_and_what_does_not_fit_is_still_refused():
    first = PosteriorOperator(1, 2, 3, key=jax.random.key(7))
    before = networks._traced_once.cache_info().misses
    second = PosteriorOperator(1, 2, 3, key=jax.random.key(8))
    assert networks._traced_once.cache_info().misses == before
    other = PosteriorOperator(1, 2, 4, key=jax.random.key(8)).fit
    with pytest.raises(ValueError, match=r"the parts give results of \(4,\)"):
        eqx.tree_at(lambda operator: operator.fit, second, other).__check_init__()
    first.__check_init__()


def test_wrong_calls_are_refused_without_type_checks_too():
    """Users run without the shape checks of the test suite; the boundary must hold by itself."""
    code = """
import jax, jax.numpy as jnp, bieqno
key = jax.random.key(0)
x = jnp.ones((5, 2))
invariant = bieqno.InvariantOperator(2, 1, key=key)
equivariant = bieqno.EquivariantOperator(2, 1, context_size=2, key=key)
calls = [
    lambda: invariant(x, mask=jnp.array([True])),
    lambda: invariant(x, mask=jnp.array([2, 2, 0, 0, 0])),
    lambda: invariant(x, mask=jnp.ones((5, 1), bool)),
    lambda: invariant(x[0]),
    lambda: equivariant(x, context=jnp.ones((2, 1))),
    lambda: equivariant(x, context=jnp.float32(1)),
    lambda: bieqno.MeanPool()(x, jnp.array([True])),
    lambda: bieqno.LowRankGaussian(jnp.zeros(3), jnp.zeros((2, 1)), jnp.zeros(3)),
    lambda: bieqno.LowRankGaussian(jnp.zeros(3), jnp.zeros(3), jnp.zeros(3)),
]
for i, call in enumerate(calls):
    try:
        call()
    except ValueError as error:
        print("refused:", error)
    else:
        raise SystemExit(f"call {i} was not refused")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("refused:") == 9
