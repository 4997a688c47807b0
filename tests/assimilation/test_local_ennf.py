"""The local filter: order, place and size do not matter where they should not, and it begins as a Kalman filter."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bieqno.assimilation import (
    LocalEnNF,
    LocalUpdate,
    Neighbourhoods,
    Observation,
    Places,
    gaspari_cohn,
    load_filter,
    save_filter,
)
from bieqno.assimilation.filters.learned import local_update
from bieqno.assimilation.filters.learned.local_features import tapered_weights
from bieqno.assimilation.filters.wrappers import mirrored
from bieqno.assimilation.geometry import Stencil, spacing
from bieqno.operators import Standardiser

N, SIZE = 4, 12
RING = Places.grid(SIZE, period=float(SIZE))
PRIOR = jax.random.normal(jax.random.key(0), (N, SIZE))
NOISE = jax.random.normal(jax.random.key(1), (N, SIZE))
PLAIN = Standardiser.unit(1)
# Rounding of sums in another order, in 32 bits, through a few layers.
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


def around(observed_at, ring=RING, radius=4.0):
    return Neighbourhoods.of(ring, ring.at(observed_at), radius=radius, reach=2.0)


@pytest.fixture(scope="module")
def update():
    """Weights that matter: those of the last layers are small in the beginning."""
    small = LocalUpdate(
        1, state=PLAIN, predicted=PLAIN, radius=4.0, reach=2.0, width=8, small=4, channels=2, key=jax.random.key(2)
    )
    return eqx.tree_at(lambda u: u.operator.fit.trunk.layers[-1].weight, small, replace_fn=lambda w: 10 * w)


def analyse(update, prior, value, neighbourhoods, noise, observed_at=(0, 3, 7)):
    return _analyse(update, prior, value, neighbourhoods, noise, jnp.eye(prior.shape[1])[jnp.array(observed_at, int)])


@eqx.filter_jit
def _analyse(update, prior, value, neighbourhoods, noise, choose):
    # Places as a matrix: one compilation for all of them.
    observed = Observation(lambda z: choose @ z, 0.5).window(value)
    return update(prior, observed, neighbourhoods, noise)


VALUE = jnp.array([1.0, -2.0, 0.5])
OBSERVED = (0, 3, 7)


@given(order=st.permutations(range(N)))
def test_equivariant_to_members(update, order):
    order = np.array(order)
    expected = analyse(update, PRIOR, VALUE, around(OBSERVED), NOISE)[order]
    np.testing.assert_allclose(analyse(update, PRIOR[order], VALUE, around(OBSERVED), NOISE[order]), expected, **CLOSE)


@given(order=st.permutations(range(3)))
def test_invariant_to_the_order_of_observations(update, order):
    observed_at = tuple(OBSERVED[k] for k in order)
    found = analyse(update, PRIOR, VALUE[np.array(order)], around(observed_at), NOISE, observed_at=observed_at)
    np.testing.assert_allclose(found, analyse(update, PRIOR, VALUE, around(OBSERVED), NOISE), **CLOSE)


@given(shift=st.integers(1, SIZE - 1))
def test_equivariant_to_translations_of_a_ring(update, shift):
    observed_at = tuple((s + shift) % SIZE for s in OBSERVED)
    moved = analyse(
        update,
        jnp.roll(PRIOR, shift, 1),
        VALUE,
        around(observed_at),
        jnp.roll(NOISE, shift, 1),
        observed_at=observed_at,
    )
    np.testing.assert_allclose(
        jnp.roll(moved, -shift, 1), analyse(update, PRIOR, VALUE, around(OBSERVED), NOISE), **CLOSE
    )


def test_a_missing_value_is_as_if_it_had_never_been(update):
    found = analyse(update, PRIOR, jnp.array([1.0, jnp.nan, 0.5]), around(OBSERVED), NOISE)
    without = analyse(update, PRIOR, jnp.array([1.0, 0.5]), around((0, 7)), NOISE, observed_at=(0, 7))
    np.testing.assert_allclose(found, without, **CLOSE)


def test_nothing_observed_changes_nothing(update):
    found = analyse(update, PRIOR, jnp.full(3, jnp.nan), around(OBSERVED), NOISE)
    np.testing.assert_array_equal(found, PRIOR)


@pytest.mark.parametrize("members", [1, 2, 30])
def test_any_ensemble_size_and_any_spread(update, members):
    for spread in (1.0, 1e-8, 0.0):
        prior = spread * jax.random.normal(jax.random.key(3), (members, SIZE))
        found = analyse(update, prior, VALUE, around(OBSERVED), jnp.ones_like(prior))
        assert jnp.all(jnp.isfinite(found))


def test_gradients_are_finite_where_all_members_agree(update):
    def distance(prior):
        return jnp.sum(analyse(update, prior, VALUE, around(OBSERVED), NOISE) ** 2)

    assert jnp.all(jnp.isfinite(jax.grad(distance)(jnp.zeros((N, SIZE)))))


def test_chunks_give_the_same(update, monkeypatch):
    whole = analyse(update, PRIOR, VALUE, around(OBSERVED), NOISE)
    monkeypatch.setattr(local_update, "CHUNK", 5 * N * 4)  # five variables at a time, so that the last chunk is padded
    observed = Observation(OBSERVED, 0.5).window(VALUE)
    cut = eqx.filter_jit(lambda *given: update(*given))(PRIOR, observed, around(OBSERVED), NOISE)
    np.testing.assert_allclose(cut, whole, **CLOSE)


def test_the_same_weights_serve_on_a_larger_ring(update):
    """What is far away is not noticed: the ring cut open and made longer, with more observations far off."""
    longer = Places.grid(4 * SIZE, period=4.0 * SIZE)
    observed_at = (*OBSERVED, 30, 33)
    prior = jnp.concatenate([PRIOR, jnp.ones((N, 3 * SIZE))], axis=1)
    noise = jnp.concatenate([NOISE, jnp.ones((N, 3 * SIZE))], axis=1)
    large = LocalEnNF(update, around(OBSERVED)).at(around(observed_at, longer))
    value = jnp.concatenate([VALUE, jnp.array([9.0, 9.0])])
    found = analyse(large.update, prior, value, large.neighbourhoods, noise, observed_at=observed_at)
    # Variable 5 sees the observed_at 3 and 7, in both; these are beyond the radius of all others but 0, which is in both.
    np.testing.assert_allclose(found[:, 5], analyse(update, PRIOR, VALUE, around(OBSERVED), NOISE)[:, 5], **CLOSE)


def test_a_large_ring_is_as_many_small_ones(update):
    """Beyond some hundreds of variables neighbours are looked at in loops, and in chunks: with the same result."""
    times = 100
    ring = Places.grid(times * SIZE, period=float(times * SIZE))
    observed_at = np.add.outer(SIZE * np.arange(times), np.array(OBSERVED)).ravel()
    places = Neighbourhoods.of(ring, ring.at(observed_at), radius=4.0, reach=2.0)
    prior, noise = jnp.tile(PRIOR, times), jnp.tile(NOISE, times)
    chosen = jnp.array(observed_at)
    observed = Observation(lambda z: z[chosen], 0.5).window(jnp.tile(VALUE, times))
    found = eqx.filter_jit(lambda *given: update(*given))(prior, observed, places, noise)
    # The gain's conjugate gradients take steps for all together, of the same length where all are the same.
    np.testing.assert_allclose(found, jnp.tile(analyse(update, PRIOR, VALUE, around(OBSERVED), NOISE), times), **CLOSE)


def irregular(count, seed):
    return Places(SIZE * np.random.default_rng(seed).random((count, 1)), period=float(SIZE))


@pytest.mark.parametrize(("here", "patterns"), [(RING, 1), (irregular(8, 0), 8), (irregular(50, 0), 50)])
def test_what_is_made_for_each_pattern_is_what_each_place_sees(here, patterns):
    """One pattern, a few and many, which are told to places in three ways."""
    stencil = Stencil.within(3.0, here, here)
    assert len(stencil.offset) == patterns
    offset = np.broadcast_to(stencil.spread(stencil.offset), (*stencil.offset.shape[1:], len(here.positions)))
    offset = np.moveaxis(offset, -1, 0) * 3.0
    present = np.broadcast_to(stencil.spread(stencil.present), stencil.indices.shape[::-1]).T
    direct = here.positions[np.asarray(stencil.indices)] - here.positions[:, None]
    direct = (direct + SIZE / 2) % SIZE - SIZE / 2
    # Relative positions are kept to a millionth of the radius.
    np.testing.assert_allclose(present[..., None] * (offset - direct), 0, atol=1e-5)
    gaps = np.abs(here.positions - here.positions.T)
    np.testing.assert_array_equal(present.sum(axis=1), (np.minimum(gaps, SIZE - gaps) <= 3.0).sum(axis=1))


def test_two_dimensions_and_two_fields(tmp_path):
    grid = Places.grid(3, 4, fields=2, period=(np.inf, 4.0))
    neighbourhoods = Neighbourhoods.of(grid, grid.at([0, 13, 20]), radius=2.0, reach=1.0)
    pair = Standardiser.unit(2)
    filter = LocalEnNF(
        LocalUpdate(
            2, state=pair, predicted=pair, radius=2.0, reach=1.0, width=8, small=4, channels=2, key=jax.random.key(0)
        ),
        neighbourhoods,
    )
    prior = jax.random.normal(jax.random.key(1), (3, 24))
    observed = Observation([0, 13, 20], 1.0).window(jnp.ones(3))
    save_filter(tmp_path / "f.bieqno", filter)
    run = eqx.filter_jit(lambda f: f(prior, observed, key=jax.random.key(2)))
    found = [run(f) for f in (filter, load_filter(tmp_path / "f.bieqno"))]
    np.testing.assert_array_equal(*found)
    assert not jnp.array_equal(found[0], prior)


def test_what_does_not_fit_is_refused(update):
    filter = LocalEnNF(update, around(OBSERVED))
    with pytest.raises(ValueError, match="12 variables and 3 observations, the state has 5 and 3"):
        filter(jnp.ones((2, 5)), Observation(OBSERVED[:1] * 3, 1.0).window(VALUE), key=jax.random.key(0))
    with pytest.raises(ValueError, match="radius of 4 and a reach of 2, the neighbourhoods have 3 and 2"):
        filter.at(around(OBSERVED, radius=3.0))
    pair = Places.grid(6, fields=2)
    both = Neighbourhoods.of(pair, pair, radius=4.0, reach=2.0)
    with pytest.raises(ValueError, match="know 1 kinds of variables, the neighbourhoods have 2"):
        filter.at(both)
    with pytest.raises(ValueError, match="at most half the period, here 6"):
        around(OBSERVED, radius=7.0)
    plane = Places.grid(2, 2)
    with pytest.raises(ValueError, match="for 1 dimensions, the neighbourhoods have 2"):
        filter.at(Neighbourhoods.of(plane, plane, radius=1.0, reach=1.0))
    with pytest.raises(ValueError, match="one space"):
        Stencil.within(1.0, RING, Places.grid(4))
    with pytest.raises(ValueError, match="positive and finite"):
        Stencil.within(np.inf, RING, RING)
    with pytest.raises(ValueError, match="as many kinds"):
        Places(np.zeros((2, 1)), [0])


def test_the_weights_solve_the_tapered_system(x64):
    """As many steps of conjugate gradients as unknowns are exact."""
    places = Places(jnp.arange(5.0)[:, None])
    stencil = Stencil.within(9.0, places, places)
    S, d = jax.random.normal(jax.random.key(0), (3, 5)), jnp.arange(5.0)
    gap = jnp.abs(jnp.arange(5.0)[:, None] - jnp.arange(5.0)) / 9
    matrix = gaspari_cohn(gap, 0.4) * (S.T @ S) + jnp.eye(5)
    # The 1e-8 that keeps the last steps from dividing by nothing, over residuals that are a thousandth by then.
    np.testing.assert_allclose(jax.jit(tapered_weights)(S, d, stencil, 0.4), jnp.linalg.solve(matrix, d), rtol=1e-4)


def test_before_it_is_corrected_the_mean_moves_as_a_kalman_filters_with_tapered_covariances(update):
    def silent(net):
        return eqx.tree_at(lambda n: n.layers[-1].weight, net, replace_fn=jnp.zeros_like)

    still = eqx.tree_at(lambda u: u.operator.fit.trunk, update, replace_fn=silent)
    found = analyse(still, PRIOR, VALUE, around(OBSERVED), NOISE).mean(axis=0) - PRIOR.mean(axis=0)
    gap = jnp.abs(jnp.arange(float(SIZE))[:, None] - jnp.array(OBSERVED))
    gap = jnp.minimum(gap, SIZE - gap)
    rho = gaspari_cohn(gap, 4.0 * jax.nn.sigmoid(1.0))
    A = (PRIOR - PRIOR.mean(axis=0)) / jnp.sqrt(N - 1)
    S = A[:, jnp.array(OBSERVED)]
    # The error of 0.5, with the least one that the filter believes in.
    R = (0.5**2 + 0.01**2) * jnp.eye(3)
    d = VALUE - PRIOR.mean(axis=0)[jnp.array(OBSERVED)]
    expected = (rho * (A.T @ S)) @ jnp.linalg.solve(rho[jnp.array(OBSERVED)] * (S.T @ S) + R, d)
    # In 32 bits, through six steps of conjugate gradients.
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-5)


def test_no_observations_at_all(update):
    nowhere = Neighbourhoods.of(RING, RING.at([]), radius=4.0, reach=2.0)
    found = analyse(update, PRIOR, jnp.zeros(0), nowhere, NOISE, observed_at=())
    np.testing.assert_array_equal(found, PRIOR)


def test_no_analysis_leaves_the_extent_of_the_climate(update):
    bounded = eqx.tree_at(lambda u: u.extent, update, jnp.array([2.5]))
    assert jnp.abs(analyse(update, 3 * PRIOR, VALUE, around(OBSERVED), NOISE)).max() > 2.5
    assert jnp.abs(analyse(bounded, 3 * PRIOR, VALUE, around(OBSERVED), NOISE)).max() == 2.5


@given(members=st.integers(1, 6), seed=st.integers(0, 100))
def test_mirrored_members_have_the_same_mean_and_covariance(members, seed):
    first, second = jax.random.split(jax.random.key(seed))
    ensemble = jax.random.normal(first, (members, 3))
    found = mirrored(ensemble, jax.random.normal(second, (members,)))
    np.testing.assert_allclose(found.mean(axis=0), ensemble.mean(axis=0), **CLOSE)
    deviations = (found - found.mean(axis=0), ensemble - ensemble.mean(axis=0))
    np.testing.assert_allclose(*(d.T @ d for d in deviations), **CLOSE)
    assert members < 3 or not np.allclose(found, ensemble)


def test_offsets_go_the_shorter_way():
    stencil = Stencil.within(2.0, RING, RING)
    signed = np.asarray(stencil.offset[stencil.pattern[0], :, 0] * 2)
    assert dict(zip(np.asarray(stencil.indices[0]).tolist(), signed.tolist(), strict=True)) == {
        0: 0.0,
        1: 1.0,
        11: -1.0,
        2: 2.0,
        10: -2.0,
    }
    assert spacing(RING.at([0, 4, 8])) == 4.0
    assert spacing(Places.apart(3)) == 1.0
    assert spacing(Places(np.array([[-1e-17], [0.0], [4.0], [8.0]]), period=8.0)) == 4.0


def test_it_cannot_read_the_truth_off_an_error_law(update):
    """Where the error depends on the value, the value that it is evaluated at is the observed one."""
    law = Observation(OBSERVED, lambda d: 0.1 * d + 0.5)
    places = around(OBSERVED)
    run = eqx.filter_jit(lambda reference: update(PRIOR, law.window(VALUE, reference=reference), places, NOISE))
    np.testing.assert_array_equal(run(VALUE), run(VALUE + 1))
