"""The pretrained filter: no units, no dependence on padding, a memory that `cycle` carries, and weights in the package."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bieqno.assimilation import (
    AgainstTruth,
    Climate,
    HostModel,
    Inflated,
    LinearModel,
    LocalEnNF,
    Lorenz96,
    Observation,
    Places,
    System,
    Validation,
    cycle,
    cycle_chunks,
    filter_from_bytes,
    filter_to_bytes,
    make_trials,
    run_trials,
    simulate,
    train_filter,
)
from bieqno.assimilation.filters.learned import pretrained
from bieqno.assimilation.filters.learned.held_out import held_out
from bieqno.assimilation.filters.learned.memory import BINS, EACH, FACTORS, LAGS, RADII, SHARES, Memory, bounded_squares
from bieqno.assimilation.filters.learned.scale_free import Moments, hybrid_weights
from bieqno.assimilation.filters.learned.surroundings import Surroundings
from bieqno.assimilation.geometry import gaspari_cohn
from bieqno.assimilation.twin import window_keys
from bieqno.persistence import PersistenceError

KEY = jax.random.key(1)
SIZE = 12


def system(unit=1.0, length=1.0):
    """Rotates a ring and damps it a little; half of it is observed, in any unit of state and of space."""
    matrix = 0.98 * jnp.roll(jnp.eye(SIZE), 1, axis=0)
    places = Places(length * jnp.arange(float(SIZE))[:, None], period=length * SIZE)
    observation = Observation(range(0, SIZE, 2), 0.5 * unit, floor=1e-12)
    return System(LinearModel(matrix), observation, jnp.full(SIZE, unit), places, spread=unit)


@pytest.fixture(scope="module")
def weights():
    """Weights that were trained a little, as it were: the networks' outputs are not zero."""
    shipped = LocalEnNF.pretrained()
    ends = lambda f: [f.before.layers[-1].bias, f.after.layers[-1].bias]  # noqa: E731
    return eqx.tree_at(ends, shipped, [x + 0.05 for x in ends(shipped)])


@eqx.filter_jit
def step(filter, ensemble, observed, present, state=None, key=KEY):
    """One analysis of five members, compiled once for all tests."""
    return filter.step(filter.begin() if state is None else state, ensemble, observed, present, key=key)


def test_units_of_state_and_space_change_nothing(weights):
    ensemble, value = jax.random.normal(KEY, (5, SIZE)), jnp.arange(6.0) / 3
    everyone = jnp.ones(5, bool)
    found = []
    for unit, length in ((1.0, 1.0), (1e3, 7.0), (1e-6, 1.0)):
        here = system(unit, length)
        posterior, memory = step(weights.at(here), unit * ensemble, here.observation.window(unit * value), everyone)
        found.append((posterior / unit, memory.weight, memory.correlations))
    for one, large, small in zip(*found, strict=True):
        np.testing.assert_allclose(one, large, rtol=2e-3, atol=2e-3)
        np.testing.assert_allclose(one, small, rtol=2e-3, atol=2e-3)
    assert float(jnp.max(jnp.abs(found[0][0] - ensemble))) > 0.1


def test_padding_means_nothing(weights):
    here = system()
    ensemble, observed = jax.random.normal(KEY, (5, SIZE)), here.observation.window(jnp.arange(6.0))
    present = jnp.arange(5) < 3
    one, other = (
        step(weights.at(here), jnp.where(present[:, None], ensemble, filled), observed, present)
        for filled in (0.0, 9.0)
    )
    np.testing.assert_allclose(one[0][:3], other[0][:3], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(one[1].correlations, other[1].correlations, rtol=1e-5)


def test_the_memory_finds_the_radius_and_the_variance_ratio(weights):
    memory = Memory.new(SIZE, 1)
    assert memory.variance_ratio(jnp.array(0.3))[0].tolist() == pytest.approx([0.0] * SIZE, abs=0.05)
    # Errors four times the variance that the ensemble has, which observation errors of one do not hide.
    seen = memory.with_innovations(jnp.full(SIZE, 500.0), jnp.full(SIZE, 500.0 * 41), jnp.full(SIZE, 500.0 * 10))
    ratio = seen.variance_ratio(jnp.array(0.3))[0]
    np.testing.assert_allclose(ratio, np.log(4), atol=0.15)
    # Of independent variables a few members tell nothing beyond the place itself; the same correlations of many would.
    ensemble, observed = jax.random.normal(KEY, (5, SIZE)), system().observation.window(jnp.zeros(6))
    _, after = step(weights.at(system()), ensemble, observed, jnp.ones(5, bool))
    assert float(after.reach(jnp.array(5.0))[0]) < 0.5 * float(after.reach(jnp.array(500.0))[0])


def test_all_innovations_together_tell_one_variance_ratio():
    """Also where errors of observations hide those of forecasts in every window; missing observations tell nothing."""
    rng, truth = np.random.default_rng(0), 3.0
    expected, there = jnp.asarray(rng.uniform(0.02, 0.2, 40)), jnp.arange(40) < 30
    memory, one_window = Memory.new(SIZE, 1), None
    for _ in range(200):
        squares = jnp.asarray(rng.normal(size=40) ** 2) * (1 + truth * expected)
        memory = memory.with_pooled(jnp.where(there, squares, jnp.nan), expected, there)
        one_window = memory if one_window is None else one_window
    assert float(one_window.pooled_ratio()) == 0  # one window is not certain enough
    assert 0.6 * np.log(truth) < float(memory.pooled_ratio()) < np.log(truth) + 0.1
    # Where nothing was seen near a variable, its ratio is that of all.
    ratio, deviation = memory.variance_ratio(jnp.array(0.2))
    np.testing.assert_allclose(ratio, memory.pooled_ratio(), atol=0.02)
    np.testing.assert_allclose(deviation, 0.2, atol=0.01)
    gross = memory.with_pooled(bounded_squares(jnp.sqrt(squares).at[0].set(1e6), expected), expected, there)
    assert float(gross.pooled_ratio()) == pytest.approx(float(memory.pooled_ratio()), abs=0.2)
    nothing = memory.with_pooled(squares, expected, jnp.zeros(40, bool))
    np.testing.assert_array_equal(nothing.pooled, memory.pooled)


def related(radius, number=2000):
    """Return a memory of 5 members: the first pair of kinds is related most at distance zero, the second not at all."""
    centres = (np.arange(BINS) + 0.5) / BINS
    real = np.stack([np.exp(-((centres / radius) ** 2)), np.sin(np.pi * centres) ** 2 * np.exp(-((centres / 2) ** 2))])
    noise = 1 / 4
    mean = noise + (1 - noise) * real
    memory = Memory.new(SIZE, 2)
    found = jnp.asarray(number * mean), jnp.full((2, BINS), float(number))
    return eqx.tree_at(lambda m: (m.correlations, m.number), memory, found)


def test_the_radius_has_the_least_expected_error_of_covariances():
    """Also where nothing is related at distance zero, as height and velocity of waves; checked by sampling."""
    reach = np.asarray(related(0.3).reach(jnp.array(5.0)))
    assert 0.2 < reach[0] < 1.5
    assert reach[1] > 0.5
    assert float(related(0.1).reach(jnp.array(5.0))[0]) < reach[0] < float(related(0.3).reach(jnp.array(50.0))[0])
    # Members with correlations of a known law, tapered by several radii: that of the least error is the one found.
    rng, place = np.random.default_rng(0), np.arange(BINS) / BINS
    true = np.exp(-((place / 0.25) ** 2))
    shared = rng.normal(size=(4000, 5, 1))
    rows = true * shared + np.sqrt(1 - true**2) * rng.normal(size=(4000, 5, BINS))
    shared, rows = (x - x.mean(axis=1, keepdims=True) for x in (shared, rows))
    sample = np.sum(shared * rows, axis=1) / np.sqrt(np.sum(shared**2, axis=1) * np.sum(rows**2, axis=1))
    found = jnp.asarray(np.sum(sample**2, axis=0)[None]), jnp.full((1, BINS), 4000.0)
    memory = eqx.tree_at(lambda m: (m.correlations, m.number), Memory.new(SIZE, 1), found)
    errors = [
        np.mean((np.asarray(gaspari_cohn(jnp.asarray(place + 0.5 / BINS), r)) * sample - true) ** 2) for r in RADII
    ]
    best = float(memory.reach(jnp.array(5.0))[0])
    assert np.interp(best, RADII, errors) < 1.06 * min(errors)


def test_what_is_held_out_is_predicted_as_without_it(weights):
    """The sums are those of analyses that never had the observation, by the Kalman filter's own formulas."""
    here = system()
    filter, ensemble = weights.at(here), jax.random.normal(KEY, (5, SIZE))
    observed = here.observation.window(jnp.arange(6.0) / 2, mask=jnp.arange(6) != 4)
    close = filter.around.near.among(observed.mask)
    own = Moments.of(ensemble, jnp.ones(5, bool), observed)
    known = own.known(close, observed.mask)
    member_weights = hybrid_weights(jnp.array([0.0, 0.4]), 5, 2)
    prior = own.joined(jax.random.normal(jax.random.key(3), (2, SIZE)) / 2, observed, member_weights[1])
    kinds, inflation = (filter.around.variables, filter.around.observations), jnp.linspace(1, 1.5, SIZE)
    log_radius = jnp.broadcast_to(jnp.linspace(-1, 0.5, SIZE), known.shape)
    found = held_out(prior, member_weights, close, known, kinds, log_radius, inflation, key=KEY)
    offset = np.asarray(close.spread(jnp.abs(close.offset[..., 0]))) * np.ones(known.shape)
    wanted = np.zeros((3, 2, len(FACTORS)))
    for i in range(SIZE):
        near, there = np.asarray(close.indices)[i], np.asarray(known)[:, i]
        j = near[there][np.argmin(offset[there, i])]
        others = there & (near != j)
        for k, c in np.ndindex(2, len(FACTORS)):
            radius = FACTORS[c] * np.exp(float(log_radius[0, i]))
            root = np.sqrt(np.asarray(gaspari_cohn(jnp.asarray(offset[others, i]), radius)))
            S = np.asarray(inflation)[i] * np.asarray(prior.weighted(member_weights[k]).S)
            known_S = S[:, near[others]] * root
            rest = np.linalg.inv(np.eye(7) + known_S @ known_S.T)
            mean = S[:, j] @ rest @ known_S @ (root * np.asarray(prior.innovation)[near[others]])
            variance = 1 + S[:, j] @ rest @ S[:, j]
            square = (float(prior.innovation[j]) - mean) ** 2 / variance
            wanted[:, k, c] += np.log(variance), square, 1
    np.testing.assert_allclose(found, wanted.reshape(3, -1), rtol=1e-3)


def test_held_out_observations_choose_share_and_radius():
    """Factors that predict better are taken, ones that only have larger variances throughout are not."""
    memory, shape = Memory.new(SIZE, 1), (len(SHARES), len(FACTORS))
    assert np.allclose(memory.log_factors(), 0, atol=0.05)
    number, none = jnp.full(shape, 500.0), jnp.zeros(shape)

    def factors(variances, squares):
        return memory.with_held_out(jnp.stack([variances, squares, number]).reshape(3, -1)).log_factors()

    narrow = 500 * jnp.array([[1.0, 0.8, 1.0, 1.2, 1.4]])
    often = jnp.array([[1.2], [1.0], [0.8]])
    np.testing.assert_allclose(factors(none, narrow * often), np.log([SHARES[2], FACTORS[1]]), atol=0.12)
    wider = jnp.arange(15.0).reshape(shape) / 5
    np.testing.assert_allclose(factors(500 * wider, 500 * jnp.exp(-wider)), memory.log_factors(), atol=1e-3)


def test_the_last_forecasts_are_remembered():
    """A few members of each, whose squares sum to its variance on average; not those of padding or of windows without data."""
    present, there = jnp.arange(9) < 7, jnp.ones(1, bool)
    A = jax.random.normal(KEY, (9, SIZE)) * present[:, None]
    new = Memory.new(SIZE, 1)
    found = jax.vmap(lambda k: new.with_forecast(A, present, there, key=k).lagged)(jax.random.split(KEY, 4000))
    np.testing.assert_allclose(jnp.mean(jnp.sum(found**2, axis=1), axis=0), jnp.sum(A**2, axis=0), rtol=0.05)
    assert not np.any(found[:, EACH:])
    assert np.all(jnp.any(found[:, :EACH] != 0, axis=2))
    memory = new
    for window in range(LAGS + 2):
        memory = memory.with_forecast((window + 1.0) * A, present, there, key=KEY)
    sizes = jnp.max(jnp.abs(memory.lagged), axis=1)
    np.testing.assert_allclose(sizes[::EACH] / sizes[0], np.arange(LAGS + 2, 2, -1) / (LAGS + 2), rtol=1e-5)
    same = memory.with_forecast(A, present, jnp.zeros(1, bool), key=KEY)
    np.testing.assert_array_equal(same.lagged, memory.lagged)
    few = new.with_forecast(A[:2], present[:2], there, key=KEY).lagged
    np.testing.assert_allclose(jnp.sum(few**2, axis=0), jnp.sum(A[:2] ** 2, axis=0), rtol=1e-5)


def test_earlier_forecasts_have_their_share_of_the_covariances():
    here = system()
    ensemble, observed = jax.random.normal(KEY, (5, SIZE)), here.observation.window(jnp.arange(6.0))
    own = Moments.of(ensemble, jnp.ones(5, bool), observed)
    lagged = jax.random.normal(jax.random.key(3), (8, SIZE))
    member_weights = hybrid_weights(jnp.array(0.3), 5, 8)
    blended = own.joined(lagged, observed, member_weights).weighted(member_weights)
    covariance = 0.7 * jnp.cov(ensemble.T) + 0.3 * lagged.T @ lagged
    np.testing.assert_allclose(blended.A.T @ blended.A, covariance, atol=1e-5)
    np.testing.assert_allclose(blended.S.T @ blended.S, covariance[::2, ::2] / 0.25, atol=1e-4)
    np.testing.assert_allclose(blended.expected, jnp.diag(blended.S.T @ blended.S), rtol=1e-5)


def test_accurate_observations_count_as_much_with_a_memory():
    """Without a share the memory of forecasts changes nothing, also where errors are lost in the rounding of the spread."""
    here = System(lambda z: z, Observation(range(SIZE), 1e-3), jnp.zeros(SIZE), Places.grid(SIZE, period=float(SIZE)))
    base = pretrained.PretrainedEnNF.untrained(key=KEY).at(here)
    ensemble, observed = jax.random.normal(KEY, (10, SIZE)), here.observation.window(jnp.zeros(SIZE))
    memory = base.begin().with_forecast(jnp.eye(4, SIZE), jnp.ones(4, bool), jnp.ones(1, bool), key=KEY)
    memory = eqx.tree_at(lambda m: m.windows, memory, jnp.array(1.0))
    none = eqx.tree_at(lambda f: f.log_share, base, jnp.array([-60.0, 0.0]))
    new, with_memory, with_share = (
        jnp.sqrt(jnp.mean(f.step(m, ensemble, observed, key=KEY)[0].mean(axis=0) ** 2))
        for f, m in ((none, none.begin()), (none, memory), (base, memory))
    )
    assert float(with_memory) == pytest.approx(float(new), rel=1e-3)
    assert float(with_share) < 1.5 * float(new)


def test_an_operator_that_is_not_defined_everywhere_stays_finite():
    here = System(lambda z: z, Observation(jnp.log, 0.1), jnp.ones(SIZE), Places.grid(SIZE, period=float(SIZE)))
    filter = LocalEnNF.pretrained().at(here, Climate(jnp.ones((2, SIZE)), jnp.ones(SIZE), jnp.ones(SIZE)))
    ensemble, observed = jnp.exp(jax.random.normal(KEY, (5, SIZE))), here.observation.window(jnp.zeros(SIZE))
    memory = filter.begin().with_forecast(9 * jnp.eye(4, SIZE), jnp.ones(4, bool), jnp.ones(1, bool), key=KEY)
    memory = eqx.tree_at(lambda m: m.windows, memory, jnp.array(1.0))
    posterior, memory = filter.step(memory, ensemble, observed, key=KEY)
    assert np.isfinite(posterior).all()
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(memory))


def test_what_members_do_not_span_is_in_their_spread(weights):
    """Where earlier forecasts say that a variable is uncertain, members are pulled apart, no more than threefold."""
    here = system()
    base = pretrained.PretrainedEnNF.untrained(key=KEY).at(here)
    ensemble, observed = jax.random.normal(KEY, (2, SIZE)), here.observation.window(jnp.zeros(6))
    memory = base.begin().with_forecast(jnp.eye(4, SIZE), jnp.ones(4, bool), jnp.ones(1, bool), key=KEY)
    memory = eqx.tree_at(lambda m: m.windows, memory, jnp.array(1.0))
    plain, blended = (base.step(m, ensemble, observed, key=KEY)[0] for m in (base.begin(), memory))
    growth = jnp.std(blended, axis=0) / jnp.std(plain, axis=0)
    assert np.all(growth[:4] > 1.01)
    assert np.all(growth < pretrained.MOST_RAISED)


def test_cycle_carries_the_memory_also_in_parts(weights):
    here, filter = system(), weights.at(system())
    twin = simulate(here, 4, key=KEY)
    start = here.state + jax.random.normal(KEY, (5, SIZE))
    parts = [jax.tree.map(lambda x, k=k: x[k : k + 2], twin.observations) for k in (0, 2)]
    first = cycle(filter, here, start, parts[0], key=KEY)
    second = cycle(filter, here, first.ensemble, parts[1], state=first.state, first_window=2, key=KEY)
    ensemble, state = start, filter.begin()
    for window in range(4):
        observed = here.observation.window(twin.observations.value[window])
        prior, key = ensemble @ here.model.matrix.T, window_keys(KEY, window)[1]
        ensemble, state = step(filter, prior, observed, jnp.ones(5, bool), state, key)
    np.testing.assert_allclose(second.ensemble, ensemble, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(second.state.weight, state.weight, rtol=1e-3)
    *_, last = cycle_chunks(filter, here, start, parts, key=KEY)
    np.testing.assert_array_equal(last.ensemble, second.ensemble)
    assert float(second.state.weight.sum()) > 1.5 * float(first.state.weight.sum()) > 0


def test_members_that_agree_and_a_single_one_stay_finite(weights):
    own = system()
    filter = weights.at(own)
    for members in (1, 3):
        start = jnp.ones((members, SIZE))
        run = cycle(filter, own, start, simulate(own, 2, key=KEY).observations, key=KEY)
        assert np.isfinite(run.ensemble).all()


def test_what_would_lose_the_memory_is_refused(weights):
    with pytest.raises(TypeError, match="Inflated would lose the memory of a PretrainedEnNF"):
        Inflated(weights, 1.1)


def test_what_was_not_met_in_training_is_said_and_left_to_the_base(weights):
    here = system()
    ensemble, observed = jax.random.normal(KEY, (5, SIZE)), here.observation.window(jnp.arange(6.0))
    strange = eqx.tree_at(lambda f: f.units.scale, weights, jnp.full_like(weights.units.scale, 1e-4)).at(here)
    base = pretrained.PretrainedEnNF.untrained(key=KEY).at(here)
    laws = lambda f: (f.log_radius, f.log_relaxation, f.log_doubt, f.log_share)  # noqa: E731
    base = eqx.tree_at(laws, base, laws(weights))
    everyone = jnp.ones(5, bool)
    posterior, memory = step(strange, ensemble, observed, everyone)
    assert float(memory.unfamiliar) > 10
    np.testing.assert_allclose(posterior, step(base, ensemble, observed, everyone)[0], rtol=1e-4, atol=1e-4)


def test_weights_that_train_on_doubt_nothing(weights):
    here = system()
    strange = eqx.tree_at(lambda f: f.units.scale, weights, jnp.full_like(weights.units.scale, 0.1)).at(here)
    ensemble, observed = jax.random.normal(KEY, (5, SIZE)), here.observation.window(jnp.arange(6.0))
    found = [step(f, ensemble, observed, jnp.ones(5, bool))[1].unfamiliar for f in (strange, strange.trusting())]
    assert float(found[0]) > 0 == float(found[1])
    assert strange.trusting().before is strange.before


def test_the_first_window_says_already_what_it_saw(weights):
    here = system()
    ensemble, observed = jax.random.normal(KEY, (5, SIZE)), here.observation.window(jnp.arange(6.0))
    nothing = here.observation.window(jnp.arange(6.0), mask=jnp.zeros(6, bool))
    strange = eqx.tree_at(lambda f: f.units.scale, weights, jnp.full_like(weights.units.scale, 0.1)).at(here)
    everyone, memory, found = jnp.ones(5, bool), None, []
    for seen in (observed, observed, nothing):
        memory = step(strange, ensemble, seen, everyone, memory)[1]
        found.append(float(memory.unfamiliar))
    assert found[0] > 0.3 * found[1] > 0
    assert found[2] == found[1]
    assert float(memory.windows) == 2


def maps(size=30):
    """A ring of coupled maps, each of which goes to infinity from beyond 1.1."""

    def carried(state):
        moved = 1 - 1.75 * state**2
        return 0.8 * moved + 0.1 * (jnp.roll(moved, 1) + jnp.roll(moved, -1))

    places = Places.grid(size, period=float(size))
    return System(carried, Observation(range(0, size, 3), 0.2), jnp.full(size, 0.1), places)


@pytest.mark.long
def test_members_stay_where_the_model_can_be():
    """A model that blows up outside its attractor loses no run."""
    ring = maps()
    trials = make_trials(ring, 40, truths=4, members=5, key=KEY)
    run = run_trials(LocalEnNF.pretrained().at(ring), ring, trials, key=KEY)
    assert run.diverged.tolist() == [-1] * 4


def test_the_climate_is_that_of_free_runs_or_a_given_one():
    ring = maps()
    low, high = Surroundings.of(ring).extent
    assert float(jnp.ptp(low)) == float(jnp.ptp(high)) == 0  # one for all places
    assert -0.9 < float(low[0]) < -0.5
    assert 0.9 < float(high[0]) < 1.1
    given = LocalEnNF.pretrained().at(ring, Climate(jnp.eye(30), jnp.zeros(30), jnp.ones(30)))
    np.testing.assert_array_equal(given.around.extent, jnp.stack([jnp.zeros(30), jnp.ones(30)]))
    outside = HostModel(lambda ensemble: ensemble)
    driven = lambda z, rain: z + rain  # noqa: E731
    for model in (outside, driven, lambda z: 1e9 * z):
        assert Surroundings.of(eqx.tree_at(lambda s: s.model, ring, model)).extent is None


def test_a_climate_that_drifts_is_followed():
    around = Surroundings.of(system(), jnp.stack([jnp.zeros(SIZE), jnp.ones(SIZE)]))
    forecast, wanted = jnp.arange(5.0)[:, None] * jnp.ones(SIZE), jnp.full((5, SIZE), 10.0)
    everyone, few = jnp.ones(5, bool), jnp.arange(5) < 1
    np.testing.assert_allclose(around.within(wanted, forecast, everyone), 2.25)  # the third of five is at 2
    np.testing.assert_allclose(around.within(wanted, forecast, few), 1.125)
    np.testing.assert_allclose(around.within(-wanted, forecast, few), -0.125)


def test_weights_are_stored_with_a_checksum(weights, tmp_path, monkeypatch):
    path = tmp_path / "pretrained.bieqno"
    pretrained.store(path, dataclasses.replace(weights, around=None))
    monkeypatch.setattr(pretrained, "SHIPPED", path)
    again = pretrained.shipped_filter.__wrapped__()
    assert eqx.tree_equal(again, weights)
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(PersistenceError, match="damaged"):
        pretrained.shipped_filter.__wrapped__()
    placed = weights.at(system())
    assert eqx.tree_equal(filter_from_bytes(filter_to_bytes(placed)), placed)
    assert pretrained.Path(pretrained.__file__).with_name("pretrained.bieqno").stat().st_size < 2e6


def test_weights_without_a_place_say_so(weights):
    with pytest.raises(ValueError, match="used at a system"):
        weights(jnp.ones((3, SIZE)), system().observation.window(jnp.zeros(6)), key=KEY)


@pytest.mark.long
def test_it_is_trained_further_for_one_system_with_its_memory(weights):
    here = eqx.tree_at(lambda s: s.model, system(), Lorenz96(SIZE, window=0.1, step=0.05))
    objective = AgainstTruth(sizes={3: 2, 5: 2}, unroll=2)
    validation = Validation(truths=2, windows=6, burn_in=2)
    result = train_filter(weights.at(here), here, objective, steps=4, validate=validation, key=KEY)
    (runs,) = result.source_state
    assert runs.ensemble.shape == (4, 5, SIZE)
    assert bool(jnp.all(runs.state.weight.sum(axis=1) > 0))
    assert len(result.validations) == 4
    assert not np.array_equal(result.module.log_radius, weights.log_radius)
