"""The worlds that the pretrained filter learns from, and its training on them."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bieqno.assimilation import Observation, System, forecast
from bieqno.assimilation.filters.learned.pretrained import PretrainedEnNF
from bieqno.assimilation.filters.learned.surroundings import Surroundings
from bieqno.lab.filter_pretraining import training, worlds
from bieqno.lab.filter_pretraining.families import advection, lorenz96, turbulence, waves
from bieqno.lab.filter_pretraining.families.family import wrong
from bieqno.lab.studies.zero_shot import LEFT_OUT

KEY = jax.random.key(0)


@pytest.mark.parametrize("family", training.JUDGED, ids=lambda family: family.name)
def test_families_have_one_size_and_models_that_keep_it(family):
    rng = np.random.default_rng(0)
    model = family.draw(rng)
    assert len(family.places.positions) == worlds.SIZE
    assert family.places.kinds.max() < worlds.KINDS
    state = jnp.asarray(family.rest(rng), float)
    carried = eqx.filter_jit(forecast)(model, state[None], key=KEY)
    assert carried.shape == (1, worlds.SIZE)
    assert bool(jnp.all(jnp.isfinite(carried)))
    off = wrong(model, 0.1, rng)
    assert off.length == model.length
    changed = [float(b / a) for a, b in zip(jax.tree.leaves(model), jax.tree.leaves(off), strict=True)]
    assert {round(abs(x - 1), 3) for x in changed} == {0.0, 0.1}


def test_turbulence_is_carried_without_losing_energy_or_enstrophy():
    vorticity = jax.random.normal(KEY, (turbulence.ROWS, turbulence.COLUMNS))
    vorticity = vorticity - jnp.mean(vorticity)
    stream = turbulence._stream(vorticity)
    np.testing.assert_allclose(turbulence._laplacian(stream), vorticity, atol=1e-5)
    carried = turbulence._jacobian(stream, vorticity)
    assert float(jnp.max(jnp.abs(carried))) > 0.1
    for field in (stream, vorticity):
        assert abs(float(jnp.sum(field * carried))) < 1e-5


def test_dispersive_waves_are_those_of_the_equation():
    """Without damping a wave keeps its energy, and returns after its period."""
    speed, stiffness, number = 0.8, 1.1, 3
    period = 2 * np.pi / np.hypot(stiffness, speed * number)
    numbers = (speed, stiffness, 1e-7, 0.0, 30.0, period)  # noise has a steep spectrum: of waves there is none
    model = waves.DispersiveWaves(*(jnp.asarray(x, float) for x in numbers))
    place = np.arange(waves.SIZE) * 2 * np.pi / waves.SIZE
    state = jnp.asarray(np.concatenate([np.cos(number * place), 0.5 * np.sin(number * place)]), float)
    np.testing.assert_allclose(forecast(model, state[None], key=KEY)[0], state, atol=5e-3)
    quarter = eqx.tree_at(lambda m: m.length, model, jnp.asarray(period / 4, float))
    speeds = -np.hypot(stiffness, speed * number) * np.cos(number * place)
    np.testing.assert_allclose(forecast(quarter, state[None], key=KEY)[0, waves.SIZE :], speeds, atol=5e-3)


def test_networks_may_observe_one_kind_alone(monkeypatch):
    rng, kinds = np.random.default_rng(0), waves.FAMILY.places.kinds
    for share, most in ((1.0, 1), (0.0, 2)):
        monkeypatch.setattr(worlds, "ONE_KIND", share)
        drawn = [worlds._draw_network(kinds, rng)[0] for _ in range(20)]
        assert max(len(set(kinds[chosen])) for chosen in drawn) == most
        assert all(len(set(chosen)) == len(chosen) >= 2 for chosen in drawn)


def test_left_out_systems_are_left_out():
    rng = np.random.default_rng(0)
    drawn = [float(lorenz96.FAMILY.draw(rng).forcing) for _ in range(100)]
    assert not [forcing for forcing in drawn if 7 < forcing < 9]
    assert len(LEFT_OUT) == 5
    assert LEFT_OUT["Lorenz-96 sparse"].system().size == 40 != worlds.SIZE


def test_networks_are_seen_as_in_use():
    """What is near a variable is the same in training, padded, and where the filter is used."""
    family, some = lorenz96.FAMILY, np.arange(0, worlds.SIZE, 4)
    system = System(family.draw(np.random.default_rng(0)), Observation(some, 1.0), jnp.ones(worlds.SIZE), family.places)
    used = Surroundings.of(system)
    radius = worlds.near_radius(family.places, family.places.at(some))
    padded = worlds._around(family.places, family.places.at(some), radius, worlds.SIZE - len(some))
    count = used.near.indices.shape[1]
    there, here = (np.moveaxis(np.asarray(s.near.spread(s.near.offset[..., 0])), -1, 0) for s in (padded, used))
    np.testing.assert_allclose(there[:, :count], here)
    np.testing.assert_array_equal(np.asarray(padded.near.indices)[:, :count], used.near.indices)
    assert not np.asarray(padded.near.present)[:, count:].any()


def test_members_are_kept_within_the_climate_of_the_model_of_forecasts(monkeypatch):
    """As in use, where nothing else is known: also if it is not that of the truth."""
    monkeypatch.setattr(worlds, "WRONG", 1.0)
    family = lorenz96.FAMILY
    (world,) = worlds._of_family(family, 1, (3, 5), np.random.default_rng(0))
    assert float(world.model.forcing) != float(world.truth.forcing)
    low, high = world.around.extent
    assert float(jnp.ptp(low)) == float(jnp.ptp(high)) == 0  # one for all places
    system = System(world.model, Observation([0], 1.0), world.states[0], family.places)
    used = Surroundings.of(system).extent
    np.testing.assert_allclose(world.around.extent[:, 0], used[:, 0], atol=0.15 * float(used[1, 0] - used[0, 0]))


def test_places_of_one_and_of_two_dimensions_have_one_shape():
    drawn = worlds.draw_worlds((lorenz96.FAMILY, turbulence.FAMILY), 1, (3, 5), np.random.default_rng(0))
    offset = np.asarray(drawn.around.near.offset)
    assert offset.shape[-1] == 2
    assert not offset[0, ..., 1].any()
    assert offset[1, ..., 1].any()


@pytest.mark.long
def test_a_step_trains_on_worlds_of_several_families_and_continues_their_runs(monkeypatch):
    sizes = ((3, 5), (6, 8))
    drawn = training.draw_groups((lorenz96.FAMILY, advection.FAMILY), (2, 1), sizes, 0)
    assert [group.truth.number.tolist() for group in drawn] == [[0, 1, 0, 1], [0, 1]]
    loss, runs = training.WorldLoss(drawn, (3, 2), 2), training.begin_all(drawn, sizes, KEY)
    assert [run.ensemble.shape[1] for run in runs] == [5, 8]
    student = PretrainedEnNF.untrained(width=4, key=KEY)
    value = eqx.filter_jit(eqx.filter_value_and_grad(loss, has_aux=True))
    (first, after), gradient = value(student, (runs, KEY), key=KEY)
    assert bool(jnp.isfinite(first))
    for part in (gradient.log_radius, gradient.log_doubt, gradient.before.layers[-1].weight):
        assert 0 < float(jnp.abs(part).max()) < 100
    assert [int(jnp.sum(run.memory.weight.sum(axis=1) > 0)) for run in after] == [3, 2]
    errors = training.WorldErrors(drawn, KEY, sizes, windows=6, burn_in=2)
    found = eqx.filter_jit(errors.errors)(student)
    assert found.shape == (6, 2)
    assert bool(jnp.all(found < 3))
    monkeypatch.setattr(training, "JUDGED", (lorenz96.FAMILY, advection.FAMILY))
    assert [group.truth.number.tolist() for group in errors.of_family(1).worlds] == [[1, 1], [1]]
