"""The properties that make an operator one of sets, for all operators and all poolings."""

import dataclasses

import equinox as eqx
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given

from bieqno import (
    MLP,
    AttentionPool,
    CrossAttentionPool,
    ElementwiseOperator,
    EquivariantOperator,
    InvariantOperator,
    MeanPool,
    PosteriorOperator,
)
from bieqno.operators import sets as sets_module

P, R, Q, WIDTH = 3, 2, 4, 8
KEY = jax.random.key(0)
POOLS = {
    "mean": MeanPool(),
    "counted mean": MeanPool(count=True),
    "attention": AttentionPool(WIDTH, heads=2, queries=2, key=KEY),
}
NETWORK = {"width": WIDTH, "depth": 2, "activation": jax.nn.silu}

invariants = {name: InvariantOperator(R, Q, pool=pool, key=KEY, **NETWORK) for name, pool in POOLS.items()}
invariants["chunked attention"] = InvariantOperator(R, Q, pool=POOLS["attention"], chunk_size=3, key=KEY, **NETWORK)
invariants["lean, residual, Fourier"] = InvariantOperator(
    R, None, residual=True, fourier_features=3, key=KEY, width=WIDTH, depth=4
)
equivariants = {name: EquivariantOperator(P, Q, pool=pool, key=KEY, **NETWORK) for name, pool in POOLS.items()}
equivariants["chunked"] = EquivariantOperator(P, Q, chunk_size=4, key=KEY, **NETWORK)
equivariants["lean"] = EquivariantOperator(P, None, key=KEY, **NETWORK)
equivariants["elementwise"] = ElementwiseOperator(MLP(P, Q, key=KEY))
posteriors = {name: PosteriorOperator(P, R, Q, pool=pool, key=KEY, **NETWORK) for name, pool in POOLS.items()}
posteriors["cross-attention"] = PosteriorOperator(
    P, R, Q, pool=CrossAttentionPool(WIDTH, query_size=WIDTH, heads=2, key=KEY), key=KEY, **NETWORK
)
posteriors["lean cross-attention, chunked"] = PosteriorOperator(
    P,
    R,
    Q,
    lean=True,
    chunk_size=2,
    key=KEY,
    **NETWORK,
    pool=CrossAttentionPool(WIDTH, query_size=2 * WIDTH, heads=2, key=KEY),
)

# The posterior is made of the other operators: its tests alone are marked `numbers`, for they run a second time.
# Sets of every size in one shape: a fixed number of rows, of which a mask keeps some, so that nothing recompiles.
ROWS = 6
any_mask = st.lists(st.booleans(), min_size=ROWS, max_size=ROWS).map(np.array)
seeds = st.integers(0, 2**16)
dtypes = st.sampled_from(["float32", "float64"])
each_invariant = pytest.mark.parametrize("operator", invariants.values(), ids=invariants)
each_equivariant = pytest.mark.parametrize("operator", equivariants.values(), ids=equivariants)
each_posterior = pytest.mark.parametrize("operator", posteriors.values(), ids=posteriors)


@eqx.filter_jit
def apply(operator, *sets, **masks):
    return operator(*sets, **masks)


@eqx.filter_jit
def apply_and_differentiate(operator, *sets, **masks):
    """The result, and the gradients of a function of it to the weights and to the sets."""

    def summary(differentiated):
        operator, sets = differentiated
        result = operator(*sets, **masks)
        return jnp.sum(jnp.sin(result)), result

    gradients, result = eqx.filter_grad(summary, has_aux=True)((operator, sets))
    return result, *gradients


def with_static(module, **changes):
    """A copy of a module with some static fields changed."""
    copy = object.__new__(type(module))
    for field in dataclasses.fields(module):
        object.__setattr__(copy, field.name, changes.get(field.name, getattr(module, field.name)))
    return copy


def draw(seed, *shapes, dtype="float32"):
    """Arrays of normal numbers."""
    generator = np.random.default_rng(seed)
    return [jnp.asarray(generator.normal(size=shape), dtype) for shape in shapes]


def assert_close(a, b):
    """Equal up to rounding: sums over a set in another order differ by a few units in the last place."""
    tolerance = 1e-10 if a.dtype == jnp.float64 else 2e-5
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def as_type(module, dtype):
    """The same module with its numbers in another type."""
    return jax.tree.map(lambda x: x.astype(dtype) if eqx.is_inexact_array(x) else x, module)


def with_garbage(array, mask, seed):
    """The array with anything at all, NaN included, where the mask is false."""
    garbage = np.random.default_rng(seed).choice([1e6, -3.0, np.nan], size=array.shape)
    return jnp.where(mask[:, None], array, jnp.asarray(garbage, array.dtype))


@each_invariant
@given(mask=any_mask, seed=seeds, dtype=dtypes)
def test_invariance(operator, mask, seed, dtype):
    with jax.enable_x64(True):
        (x,) = draw(seed, (ROWS, R), dtype=dtype)
        order = np.random.default_rng(seed).permutation(ROWS)
        operator = as_type(operator, dtype)
        result = apply(operator, x, mask=jnp.asarray(mask))
        assert result.dtype == dtype
        assert_close(apply(operator, x[order], mask=jnp.asarray(mask[order])), result)


@each_equivariant
@given(mask=any_mask, seed=seeds, dtype=dtypes)
def test_equivariance(operator, mask, seed, dtype):
    with jax.enable_x64(True):
        (x,) = draw(seed, (ROWS, P), dtype=dtype)
        order = np.random.default_rng(seed).permutation(ROWS)
        operator = as_type(operator, dtype)
        result = apply(operator, x, mask=jnp.asarray(mask))
        assert_close(apply(operator, x[order], mask=jnp.asarray(mask[order])), result[order])


@pytest.mark.numbers
@each_posterior
@given(input_mask=any_mask, observation_mask=any_mask, seed=seeds, dtype=dtypes)
def test_posterior_symmetries(operator, input_mask, observation_mask, seed, dtype):
    with jax.enable_x64(True):
        x, d = draw(seed, (ROWS, P), (ROWS, R), dtype=dtype)
        generator = np.random.default_rng(seed)
        i, k = generator.permutation(ROWS), generator.permutation(ROWS)
        operator = as_type(operator, dtype)
        masks = {"input_mask": jnp.asarray(input_mask), "observation_mask": jnp.asarray(observation_mask)}
        result = apply(operator, x, d, **masks)
        masks = {"input_mask": jnp.asarray(input_mask[i]), "observation_mask": jnp.asarray(observation_mask[k])}
        assert_close(apply(operator, x[i], d[k], **masks), result[i])


@each_invariant
@given(mask=any_mask, seed=seeds)
def test_padding_has_no_effect_on_invariant(operator, mask, seed):
    (x,) = draw(seed, (ROWS, R))
    clean = apply_and_differentiate(operator, x, mask=jnp.asarray(mask))
    dirty = apply_and_differentiate(operator, with_garbage(x, mask, seed), mask=jnp.asarray(mask))
    jax.tree.map(assert_close, dirty, clean)
    assert not dirty[2][0][~mask].any()


@each_equivariant
@given(mask=any_mask, seed=seeds)
def test_padding_has_no_effect_on_equivariant(operator, mask, seed):
    (x,) = draw(seed, (ROWS, P))
    clean = apply_and_differentiate(operator, x, mask=jnp.asarray(mask))
    dirty = apply_and_differentiate(operator, with_garbage(x, mask, seed), mask=jnp.asarray(mask))
    jax.tree.map(assert_close, dirty, clean)
    assert not dirty[0][~mask].any()


@pytest.mark.numbers
@each_posterior
@given(input_mask=any_mask, observation_mask=any_mask, seed=seeds)
def test_padding_has_no_effect_on_posterior(operator, input_mask, observation_mask, seed):
    x, d = draw(seed, (ROWS, P), (ROWS, R))
    masks = {"input_mask": jnp.asarray(input_mask), "observation_mask": jnp.asarray(observation_mask)}
    clean = apply_and_differentiate(operator, x, d, **masks)
    dirty = apply_and_differentiate(
        operator, with_garbage(x, input_mask, seed), with_garbage(d, observation_mask, seed), **masks
    )
    jax.tree.map(assert_close, dirty, clean)
    assert not dirty[0][~input_mask].any()


@each_posterior
@pytest.mark.parametrize(("n", "m"), [(0, 0), (1, 0), (0, 3), (4, 1), (2, 5)])
def test_padded_sets_equal_sets_of_that_size(operator, n, m):
    x, d = draw(n + m, (ROWS, P), (ROWS, R))
    rows = jnp.arange(ROWS)
    result, weights, _ = apply_and_differentiate(operator, x, d, input_mask=rows < n, observation_mask=rows < m)
    expected, expected_weights, _ = apply_and_differentiate(operator, x[:n], d[:m])
    assert_close(result[:n], expected)
    jax.tree.map(assert_close, weights, expected_weights)


@each_posterior
def test_gradients_at_the_empty_set_are_finite(operator):
    x, d = draw(1, (4, P), (3, R))
    for sets, masks in [((x, d[:0]), {}), ((x, d), {"observation_mask": jnp.zeros(3, bool)})]:
        for leaf in jax.tree.leaves(apply_and_differentiate(operator, *sets, **masks)):
            assert jnp.isfinite(leaf).all()


@pytest.mark.numbers
@each_posterior
def test_chunks_of_the_posterior_give_the_same_result(operator):
    x, d = draw(5, (6, P), (7, R))
    chunked = eqx.tree_at(lambda o: o.observations, operator, with_static(operator.observations, chunk_size=3))
    jax.tree.map(
        assert_close,
        jax.tree.leaves(apply_and_differentiate(chunked, x, d)),
        jax.tree.leaves(apply_and_differentiate(operator, x, d)),
    )


@each_posterior
def test_jit_equals_eager_and_vmap_equals_loop(operator):
    xs, ds = draw(2, (5, 6, P), (5, 4, R))
    looped = jnp.stack([operator(x, d) for x, d in zip(xs, ds, strict=True)])
    assert_close(apply(operator, xs[0], ds[0]), looped[0])
    assert_close(eqx.filter_jit(eqx.filter_vmap(operator))(xs, ds), looped)


@pytest.mark.parametrize("together", [1, 2 * ROWS, 100 * ROWS])
@pytest.mark.parametrize("pool", [*POOLS.values(), None], ids=[*POOLS, "lean"])
def test_many_sets_at_once_equal_one_after_another(pool, together, monkeypatch):
    """In blocks, of which the last is padded, or all together; whether layers can be joined or not."""
    monkeypatch.setattr(sets_module, "TOGETHER", together)
    size = Q if pool is not None else None
    operator = EquivariantOperator(P, size, context_size=2, pool=pool, key=KEY, **NETWORK)
    elements, context = draw(0, (P, ROWS, 5), (2, 5))
    for mask in (jnp.ones(ROWS, bool), jnp.arange(ROWS) % 2 == 0, jnp.zeros(ROWS, bool)):
        found = operator.many(elements, context, mask)
        each = [operator(elements[..., k].T, context=context[:, k], mask=mask).T for k in range(5)]
        assert_close(found, jnp.stack(each, axis=-1))
    alone = EquivariantOperator(P, size, pool=pool, key=KEY, **NETWORK)
    found = alone.many(elements, jnp.zeros((0, 5)), mask)
    assert_close(found[..., 2], alone(elements[..., 2].T, mask=mask).T)


@pytest.mark.parametrize("pool", POOLS.values(), ids=POOLS)
@pytest.mark.parametrize(("size", "chunk"), [(0, 2), (1, 1), (7, 3), (8, 4), (5, 9)])
def test_chunks_give_the_same_result(pool, size, chunk):
    (x,) = draw(size, (size, R))
    whole = InvariantOperator(R, Q, pool=pool, key=KEY, **NETWORK)
    chunked = InvariantOperator(R, Q, pool=pool, chunk_size=chunk, key=KEY, **NETWORK)
    results = [jax.tree.leaves(apply_and_differentiate(operator, x)) for operator in (chunked, whole)]
    jax.tree.map(assert_close, *results)


@pytest.mark.numbers
def test_chunks_bound_the_memory():
    """A million elements in chunks of a thousand need little more than the elements themselves."""
    size = 10**6
    x = jax.ShapeDtypeStruct((size, R), jnp.float32)

    def memory(operator):
        gradient = jax.jit(jax.grad(lambda x: jnp.sum(operator(x))))
        return gradient.lower(x).compile().memory_analysis().temp_size_in_bytes

    whole = memory(InvariantOperator(R, Q, key=KEY))
    chunked = memory(InvariantOperator(R, Q, chunk_size=1000, key=KEY))
    embeddings = size * 64 * 4  # one layer's activations of all elements, in bytes
    assert whole > embeddings > 4 * chunked
