"""The local filter: order, place and size do not matter where they should not, and it begins as an LETKF."""

import json
from functools import cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bieqno.assimilation import (
    Climate,
    LocalEnNF,
    Lorenz96,
    Neighbourhoods,
    Observation,
    Places,
    System,
    load_filter,
    save_filter,
)
from bieqno.assimilation.filters import transform
from bieqno.assimilation.filters.learned import local_update
from bieqno.assimilation.filters.wrappers import mirrored
from bieqno.assimilation.neighbourhoods import Stencil, near_radius, spacing
from bieqno.operators import Standardiser
from bieqno.persistence.tensorfile import read_tensors, write_tensors
from bieqno.training import trainable

N, SIZE = 4, 12
RING = Places.grid(SIZE, period=float(SIZE))
PRIOR = jax.random.normal(jax.random.key(0), (N, SIZE))
VALUE = jnp.array([1.0, -2.0, 0.5])
OBSERVED = (0, 3, 7)
WIDE = jnp.array([1e3])
SMALL = {"width": 8, "channels": 2, "key": jax.random.key(1)}
# Rounding of sums in another order, in 32 bits, through a few layers.
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


def around(observed_at, ring=RING, radius=4.0):
    return Neighbourhoods.of(ring, ring.at(observed_at), radius=radius, reach=2.0)


def trained(filter):
    """Return a filter with weights that matter, for the last layers begin at zero."""

    def random(layer):
        weight = 0.3 * jax.random.normal(jax.random.key(5), layer.weight.shape)
        return eqx.tree_at(lambda x: x.weight, layer, weight)

    for where in (lambda f: f.steering.last, lambda f: f.correction.last, lambda f: f.operator.fit.layers[-1]):
        filter = eqx.tree_at(where, filter, replace_fn=random)
    scales = [jax.random.normal(jax.random.key(6), scale.shape) for scale in all_scales(filter)]
    return eqx.tree_at(all_scales, filter, [0.3 * scale for scale in scales])


def all_scales(filter):
    return [*filter.steering.scales, *filter.correction.scales]


@pytest.fixture(autouse=True)
def _silence(monkeypatch):
    """No noise, which is not the same for members in another order."""
    monkeypatch.setattr(local_update, "NOISE", 0.0)


@cache
def make(with_weights=True):
    """Return a filter; not as a fixture, for Hypothesis would print it."""
    new = LocalEnNF.new(around(OBSERVED), Standardiser.unit(1), WIDE, width=8, channels=2, key=jax.random.key(2))
    return trained(new) if with_weights else new


@pytest.fixture
def filter():
    return make()


@pytest.fixture
def new():
    return make(with_weights=False)


def analyse(filter, prior, value, neighbourhoods, observed_at=(0, 3, 7), present=None):
    choose = jnp.eye(prior.shape[1])[jnp.array(observed_at, int)]
    return _analyse(filter.at(neighbourhoods), prior, value, choose, present)


@eqx.filter_jit
def _analyse(filter, prior, value, choose, present):
    # Places as a matrix: one compilation for all of them.
    observed = Observation(lambda z: choose @ z, 0.5).window(value)
    if present is not None:
        return filter.analyse(prior, observed, present, key=jax.random.key(1))
    return filter(prior, observed, key=jax.random.key(1))


@given(order=st.permutations(range(N)))
def test_equivariant_to_members(order):
    filter = make()
    order = np.array(order)
    expected = analyse(filter, PRIOR, VALUE, around(OBSERVED))[order]
    np.testing.assert_allclose(analyse(filter, PRIOR[order], VALUE, around(OBSERVED)), expected, **CLOSE)


@given(order=st.permutations(range(3)))
def test_invariant_to_the_order_of_observations(order):
    filter = make()
    observed_at = tuple(OBSERVED[k] for k in order)
    found = analyse(filter, PRIOR, VALUE[np.array(order)], around(observed_at), observed_at=observed_at)
    np.testing.assert_allclose(found, analyse(filter, PRIOR, VALUE, around(OBSERVED)), **CLOSE)


@given(shift=st.integers(1, SIZE - 1))
def test_equivariant_to_translations_of_a_ring(shift):
    filter = make()
    observed_at = tuple((s + shift) % SIZE for s in OBSERVED)
    moved = analyse(filter, jnp.roll(PRIOR, shift, 1), VALUE, around(observed_at), observed_at=observed_at)
    np.testing.assert_allclose(jnp.roll(moved, -shift, 1), analyse(filter, PRIOR, VALUE, around(OBSERVED)), **CLOSE)


def test_a_missing_value_is_as_if_it_had_never_been(filter):
    found = analyse(filter, PRIOR, jnp.array([1.0, jnp.nan, 0.5]), around(OBSERVED))
    without = analyse(filter, PRIOR, jnp.array([1.0, 0.5]), around((0, 7)), observed_at=(0, 7))
    np.testing.assert_allclose(found, without, **CLOSE)


def test_nothing_observed_changes_nothing(filter):
    found = analyse(filter, PRIOR, jnp.full(3, jnp.nan), around(OBSERVED))
    np.testing.assert_array_equal(found, PRIOR)


@pytest.mark.parametrize("members", [1, 2, 30])
def test_any_ensemble_size_and_any_spread(filter, members):
    for spread in (1.0, 1e-8, 0.0):
        prior = spread * jax.random.normal(jax.random.key(3), (members, SIZE))
        found = analyse(filter, prior, VALUE, around(OBSERVED))
        assert jnp.all(jnp.isfinite(found))


def test_gradients_are_finite_where_all_members_agree(filter):
    def distance(prior):
        return jnp.sum(analyse(filter, prior, VALUE, around(OBSERVED)) ** 2)

    assert jnp.all(jnp.isfinite(jax.grad(distance)(jnp.zeros((N, SIZE)))))


def test_chunks_give_the_same(filter, monkeypatch):
    whole = analyse(filter, PRIOR, VALUE, around(OBSERVED))
    monkeypatch.setattr(transform, "CHUNK", 5 * N * 3)  # five variables at a time, so that the last chunk is padded
    observed = Observation(OBSERVED, 0.5).window(VALUE)
    cut = eqx.filter_jit(lambda f: f(PRIOR, observed, key=jax.random.key(1)))(filter)
    np.testing.assert_allclose(cut, whole, **CLOSE)


@pytest.mark.parametrize("members", [1, 2, 3])
def test_padding_changes_nothing(filter, members):
    """Whatever it holds: members that are not present leave the others as they are without it."""
    padded = PRIOR.at[members:].set(7.0)
    found = analyse(filter, padded, VALUE, around(OBSERVED), present=jnp.arange(N) < members)
    np.testing.assert_allclose(found[:members], analyse(filter, PRIOR[:members], VALUE, around(OBSERVED)), **CLOSE)
    assert jnp.all(jnp.isfinite(found))


def test_the_ensemble_size_scales_what_the_networks_say(filter):
    """Not at the size that scales are relative to."""
    plain = eqx.tree_at(all_scales, filter, replace_fn=jnp.zeros_like)
    for members, same in ((int(local_update.SIZE), True), (N, False), (1, False)):
        prior = jax.random.normal(jax.random.key(3), (members, SIZE))
        found, expected = (analyse(one, prior, VALUE, around(OBSERVED)) for one in (filter, plain))
        assert np.allclose(found, expected, **CLOSE) == same


def test_a_file_from_before_there_were_scales_is_the_same_filter(filter, tmp_path):
    plain = eqx.tree_at(all_scales, filter, replace_fn=jnp.zeros_like)
    save_filter(tmp_path / "filter.bieqno", plain)
    tensors, description = read_tensors(tmp_path / "filter.bieqno", kind="module")
    tree = json.loads(description)
    for name in ("steering", "correction"):
        del tree["fields"][name]["fields"]["scales"]
    write_tensors(tmp_path / "old.bieqno", tensors, kind="module", description=json.dumps(tree))
    old = load_filter(tmp_path / "old.bieqno")
    assert not all_scales(old)
    found, expected = (analyse(one, PRIOR, VALUE, around(OBSERVED)) for one in (old, plain))
    np.testing.assert_allclose(found, expected, **CLOSE)


def test_the_same_weights_serve_on_a_larger_ring(filter):
    """What is far away is not noticed: the ring cut open and made longer, with more observations far off."""
    longer = Places.grid(8 * SIZE, period=8.0 * SIZE)
    shift = 3 * SIZE
    observed_at = (*(s + shift for s in OBSERVED), shift + 40, shift + 43)
    prior = jnp.zeros((N, 8 * SIZE)).at[:, shift : shift + SIZE].set(PRIOR)
    value = jnp.concatenate([VALUE, jnp.array([9.0, 9.0])])
    found = analyse(filter, prior, value, around(observed_at, longer), observed_at=observed_at)
    # The same without what is 30 places off: beyond the radius and three reaches.
    near = analyse(filter, prior, VALUE, around(observed_at[:3], longer), observed_at=observed_at[:3])
    inside = slice(shift, shift + SIZE)
    np.testing.assert_allclose(found[:, inside], near[:, inside], **CLOSE)


def test_a_large_ring_is_as_many_small_ones(filter):
    times = 100
    ring = Places.grid(times * SIZE, period=float(times * SIZE))
    observed_at = np.add.outer(SIZE * np.arange(times), np.array(OBSERVED)).ravel()
    places = Neighbourhoods.of(ring, ring.at(observed_at), radius=4.0, reach=2.0)
    chosen = jnp.array(observed_at)
    observed = Observation(lambda z: z[chosen], 0.5).window(jnp.tile(VALUE, times))
    prior = jnp.tile(PRIOR, times)
    found = eqx.filter_jit(lambda f: f(prior, observed, key=jax.random.key(1)))(filter.at(places))
    np.testing.assert_allclose(found, jnp.tile(analyse(filter, PRIOR, VALUE, around(OBSERVED)), times), **CLOSE)


def test_the_same_weights_serve_another_system_in_its_own_units(filter):
    ring, key = Places.grid(2 * SIZE, period=2.0 * SIZE), jax.random.key(0)
    state = 10 * jnp.tile(PRIOR[0], 2)
    system = System(lambda z: jnp.roll(z, 1), Observation([0, 5, 9, 20], 3.0), state, ring)
    climate = Climate.of(system, key=key)
    moved, states = filter.on(system, climate), climate.states
    np.testing.assert_allclose(moved.climate.scale, [states.std()], rtol=1e-4)
    # A quarter beyond the farthest state.
    farthest = jnp.abs(states - moved.climate.mean).max() / moved.climate.scale
    np.testing.assert_allclose(moved.extent, 1.25 * farthest, rtol=1e-4)
    assert moved.neighbourhoods.variables.shape == (2 * SIZE,)
    assert eqx.tree_equal(moved.correction, filter.correction)


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
    extent = jnp.array([9.0, 9.0])
    filter = trained(
        LocalEnNF.new(neighbourhoods, Standardiser.unit(2), extent, width=8, channels=2, key=jax.random.key(0))
    )
    prior = jax.random.normal(jax.random.key(1), (3, 24))
    observed = Observation([0, 13, 20], 1.0).window(jnp.ones(3))
    save_filter(tmp_path / "f.bieqno", filter)
    run = eqx.filter_jit(lambda f: f(prior, observed, key=jax.random.key(2)))
    found = [run(f) for f in (filter, load_filter(tmp_path / "f.bieqno"))]
    np.testing.assert_array_equal(*found)
    assert not jnp.array_equal(found[0], prior)


def test_what_does_not_fit_is_refused(filter):
    with pytest.raises(ValueError, match="12 variables and 3 observations, the state has 5 and 3"):
        filter(jnp.ones((2, 5)), Observation(OBSERVED[:1] * 3, 1.0).window(VALUE), key=jax.random.key(0))
    with pytest.raises(ValueError, match="radius of 4 and a reach of 2, the neighbourhoods have 3 and 2"):
        filter.at(around(OBSERVED, radius=3.0))
    pair = Places.grid(6, fields=2)
    with pytest.raises(ValueError, match="know 1 kinds of variables, the neighbourhoods have 2"):
        filter.at(Neighbourhoods.of(pair, pair, radius=4.0, reach=2.0))
    plane = Places.grid(2, 2)
    with pytest.raises(ValueError, match="another space than the 2 dimensions"):
        filter.at(Neighbourhoods.of(plane, plane, radius=4.0, reach=2.0))
    with pytest.raises(ValueError, match="at least one member"):
        filter(jnp.ones((0, SIZE)), Observation(OBSERVED, 1.0).window(VALUE), key=jax.random.key(0))
    with pytest.raises(ValueError, match="width of at least 1, got 0"):
        LocalEnNF.new(around(OBSERVED), Standardiser.unit(1), WIDE, width=0, key=jax.random.key(0))
    with pytest.raises(ValueError, match="one space"):
        Stencil.within(1.0, RING, Places.grid(4))
    with pytest.raises(ValueError, match="positive and finite"):
        Stencil.within(np.inf, RING, RING)
    with pytest.raises(ValueError, match="as many kinds"):
        Places(np.zeros((2, 1)), [0])


def test_before_training_it_is_an_inflated_letkf(new):
    """With settings that follow the ensemble size as those found for two sizes say."""
    found = {2: {"radius": 0.5, "inflation": 1.1}, 8: {"radius": 0.9, "inflation": 1.02}}
    begun = new.begin_with(found)
    assert begun.settled
    assert not new.settled
    observed = Observation(OBSERVED, 0.5).window(VALUE)
    for size, settings in ({**found, N: {"radius": 0.45**0.5, "inflation": (1.1 * 1.02) ** 0.5}}).items():
        prior = jax.random.normal(jax.random.key(size), (size, SIZE))
        expected = eqx.filter_jit(new.base(**settings))(prior, observed, key=jax.random.key(1))
        np.testing.assert_allclose(analyse(begun, prior, VALUE, around(OBSERVED)), expected, rtol=1e-3, atol=1e-4)


def test_observations_that_reach_a_variable_are_enough_by_default():
    ring = Places.grid(400, period=400.0)
    assert near_radius(ring, ring) == 20.0
    assert near_radius(ring, ring.at([3])) == 200.0  # all that there are
    assert near_radius(ring, ring.at([])) == 1.0
    system = System(Lorenz96(8), Observation(range(8), 1.0), jnp.full(8, 8.0), Places.grid(8, period=8.0))
    assert system.neighbourhoods().near.indices.shape == (8, 8)


def test_no_observations_at_all(filter):
    nowhere = Neighbourhoods.of(RING, RING.at([]), radius=4.0, reach=2.0)
    found = analyse(filter, PRIOR, jnp.zeros(0), nowhere, observed_at=())
    np.testing.assert_array_equal(found, PRIOR)


def test_no_analysis_leaves_the_extent_of_the_climate(filter):
    bounded = eqx.tree_at(lambda f: f.extent, filter, jnp.array([2.5]))
    assert jnp.abs(analyse(filter, 3 * PRIOR, VALUE, around(OBSERVED))).max() > 2.5
    assert jnp.abs(analyse(bounded, 3 * PRIOR, VALUE, around(OBSERVED))).max() == 2.5


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


def test_it_cannot_read_the_truth_off_an_error_law(filter):
    """Where the error depends on the value, the value that it is evaluated at is the observed one."""
    law = Observation(OBSERVED, lambda d: 0.1 * d + 0.5)
    run = eqx.filter_jit(lambda reference: filter(PRIOR, law.window(VALUE, reference=reference), key=jax.random.key(1)))
    np.testing.assert_array_equal(run(VALUE), run(VALUE + 1))


MAPS = {
    "x^2": lambda z: z[::4] ** 2,
    "arctan": lambda z: jnp.arctan(z[::4]),
    "exp": lambda z: jnp.exp(z[::4]),
    "|x|": lambda z: jnp.abs(z[::4]),
    "averages": lambda z: z.reshape(3, 4).mean(axis=1),
    "two kinds": lambda z: jnp.stack([z[0], z[4] ** 2, z[8] * z[9]]),
}


@pytest.mark.parametrize(("name", "correlated"), [*((name, False) for name in MAPS), ("averages", True)])
def test_every_observation_map_has_places_and_finite_derivatives(name, correlated):
    """Also where a derivative vanishes or is not defined: at a member that is zero."""
    R = 0.5 * jnp.eye(3) + 0.3 if correlated else 1.0
    system = System(Lorenz96(SIZE), Observation(MAPS[name], R), jnp.full(SIZE, 8.0), RING)
    assert len(system.observation_places.positions) == 3
    weights = trained(LocalEnNF.new(system.neighbourhoods(4.0, 2.0), Standardiser.unit(1), WIDE, **SMALL))
    prior = jnp.concatenate([jnp.zeros((1, SIZE)), 3 * PRIOR])
    observed = system.observation.window(system.observation.operator(prior[2]))

    learned, fixed = trainable(weights)

    @jax.jit
    @jax.value_and_grad
    def total(parts):
        return jnp.sum(eqx.combine(parts[0], fixed)(parts[1], observed, key=jax.random.key(2)) ** 2)

    value, slopes = total((learned, prior))
    assert all(jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves((value, slopes)))
    assert float(value) != pytest.approx(float(jnp.sum(prior**2)))
