"""Places in the plane and on the sphere: distances and directions, and filters that see them."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bieqno.assimilation import (
    LETKF,
    Candidates,
    LocalEnNF,
    Neighbourhoods,
    Neighbours,
    Observation,
    Places,
    Stencil,
    System,
    distances,
    load_filter,
    save_filter,
)
from bieqno.assimilation.filters.learned import local_update
from bieqno.assimilation.places import EARTH
from bieqno.operators import Standardiser

degrees = st.tuples(st.floats(-180, 180), st.floats(-90, 90))
INF = float("inf")


def haversine(first, second):
    """Angle between two points by longitude and latitude."""
    (east, north), (other, further) = np.radians(first), np.radians(second)
    share = np.sin((further - north) / 2) ** 2
    return 2 * np.arcsin(np.sqrt(share + np.cos(north) * np.cos(further) * np.sin((other - east) / 2) ** 2))


@given(first=degrees, second=degrees)
def test_distances_on_the_sphere_are_chords_of_great_circles(first, second):
    here, there = (Places.sphere([point[0]], [point[1]]) for point in (first, second))
    with jax.enable_x64(True):
        chord = distances(here.positions, there.positions).item()
    # Near the antipode the arcsine of the reference loses half of the digits.
    assert chord == pytest.approx(2 * EARTH * np.sin(min(haversine(first, second), np.pi) / 2), abs=1e-6)


@given(here=degrees, east=st.floats(-3, 3), north=st.floats(-3, 3))
def test_offsets_are_to_the_east_and_north(here, east, north):
    """Away from the poles, where there is no east; and everywhere as long as the distance."""
    longitude, latitude = here[0], 0.9 * here[1]
    scale = np.cos(np.radians(latitude))
    first = Places.sphere([longitude], [latitude], radius=180 / np.pi)
    second = Places.sphere([longitude + east / scale], [latitude + north], radius=180 / np.pi)
    offset = first.offsets(second, np.array([[0]]))[0, 0]
    length = np.linalg.norm(first.positions - second.positions)
    assert np.linalg.norm(offset) == pytest.approx(length, abs=1e-9)
    # Meridians converge: within three degrees of a place at 81 degrees the frame has turned by a third.
    np.testing.assert_allclose(offset, (east, north), atol=0.35 * np.hypot(east, north) + 1e-9)


def test_offsets_near_a_pole_and_across_the_date_line():
    ring = Places.sphere([0.0, 90.0, 180.0, -90.0], np.full(4, 89.0), radius=180 / np.pi)
    pole = Places.sphere([0.0], [90.0], radius=180 / np.pi)
    offset = pole.offsets(ring, np.arange(4)[None])[0]
    # Seen from the pole along the meridian of Greenwich the four lie on a circle.
    np.testing.assert_allclose(offset, [[0, -1], [1, 0], [0, 1], [-1, 0]], atol=1e-3)
    line = Places.sphere([179.5, -179.5], [0.0, 0.0], radius=180 / np.pi)
    np.testing.assert_allclose(line.offsets(line, np.array([[1], [0]]))[:, 0], [[1, 0], [-1, 0]], atol=1e-3)


def test_a_filter_on_the_sphere_is_the_same_at_any_longitude():
    """LETKF and learned filter, with variables on both sides of the date line and beside the pole."""
    longitude, latitude = np.array([-20.0, 0.0, 15.0, 40.0, 0.0, 120.0]), np.array([0.0, 5.0, 10.0, -5.0, 85.0, 88.0])
    prior, value = jax.random.normal(jax.random.key(0), (5, 6)), jnp.array([1.0, -2.0])

    def analyses(turn):
        places = Places.sphere(longitude + turn, latitude)
        system = System(lambda z: z, Observation([0, 4], 0.5), jnp.zeros(6), places)
        around = system.neighbourhoods(4000.0, 3000.0)
        learned = LocalEnNF.new(
            around, Standardiser.unit(1), jnp.array([99.0]), width=4, channels=2, key=jax.random.key(1)
        )
        ones = eqx.tree_at(lambda f: f.steering.last.weight, learned, replace_fn=jnp.ones_like)
        observed = system.observation.window(value)
        filters = LETKF(system.neighbours(4000.0), 4000.0), ones
        return [eqx.filter_jit(one)(prior, observed, key=jax.random.key(2)) for one in filters]

    for first, second in zip(analyses(0.0), analyses(170.0), strict=True):
        np.testing.assert_allclose(first, second, rtol=2e-3, atol=2e-4)
        assert float(jnp.abs(first - prior).max()) > 0.1


@pytest.mark.parametrize("period", [None, (INF, 6.0), (6.0, 6.0)])
def test_a_plane_is_periodic_in_the_dimensions_that_are(period):
    plane = Places.grid(6, 6, period=period)
    there = plane.at([0])
    found = Neighbours.within(1.0, plane.positions, there.positions, period=plane.period)
    # The corner's own place and those beside it: two, and one more round each dimension that is periodic.
    expected = {0, 1, 6} | ({5} if period else set()) | ({30} if period == (6.0, 6.0) else set())
    assert set(np.flatnonzero(np.isfinite(found.distance[:, 0]))) == expected


def test_on_a_torus_with_two_fields_the_filters_are_equivariant_to_translations(monkeypatch):
    monkeypatch.setattr(local_update, "NOISE", 0.0)  # of which every place has its own
    torus = Places.grid(4, 6, fields=2, period=(4.0, 6.0))
    prior = jax.random.normal(jax.random.key(0), (3, 2, 4, 6))

    def analysis(shift):
        moved = np.flatnonzero(np.roll(np.isin(np.arange(48), (0, 9, 38)).reshape(2, 4, 6), shift, axis=(1, 2)))
        around = Neighbourhoods.of(torus, torus.at(moved), radius=2.0, reach=1.0)
        learned = LocalEnNF.new(
            around, Standardiser.unit(2), jnp.array([99.0, 99.0]), width=4, channels=2, key=jax.random.key(1)
        )
        learned = eqx.tree_at(lambda f: f.steering.last.weight, learned, replace_fn=jnp.ones_like)
        observed = Observation(moved, 0.5).window(jnp.ones(3))
        rolled = jnp.roll(prior, shift, axis=(2, 3)).reshape(3, 48)
        near = Neighbours.within(2.0, torus.positions, torus.at(moved).positions, period=torus.period)
        both = [eqx.filter_jit(one)(rolled, observed, key=jax.random.key(2)) for one in (LETKF(near, 2.0), learned)]
        return [jnp.roll(one.reshape(3, 2, 4, 6), (-shift[0], -shift[1]), axis=(2, 3)) for one in both]

    for first, second in zip(analysis((0, 0)), analysis((3, 2)), strict=True):
        np.testing.assert_allclose(first, second, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Places.sphere([0.0], [91.0]), "within 90 degrees"),
        (lambda: Places.sphere([0.0, 1.0], [0.0]), r"got shapes \(2,\) and \(1,\)"),
        (lambda: Places.sphere([0.0], [0.0], radius=0.0), "positive radius"),
        (lambda: Candidates.of(Places.grid(4), Places.grid(4), radius=1.0, most=0), "at least 1, got 1.0, 0"),
        (lambda: Places(np.zeros((2, 2)), on_sphere=True), "3 coordinates and no period, got 2"),
        (lambda: Stencil.within(1.0, Places.sphere([0.0], [0.0]), Places.grid(1, 1, 1)), "one space"),
    ],
)
def test_what_does_not_fit_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_an_average_over_a_region_of_the_sphere_is_at_its_centre():
    longitude, latitude = np.array([179.0, -179.0, 0.0, 90.0]), np.array([10.0, 10.0, 80.0, -60.0])
    places = Places.sphere(longitude, latitude)
    system = System(lambda z: z, Observation(lambda z: (z[:1] + z[1:2]) / 2, 1.0), jnp.ones(4), places)
    centre = Places.sphere([180.0], [10.0])
    # The mean of two points of a parallel lies on the great circle between them, a little nearer the pole.
    np.testing.assert_allclose(system.observation_places.positions, centre.positions, atol=0.001 * EARTH)
    assert system.observation_places.on_sphere


def test_a_sphere_is_equal_to_itself_and_not_to_space():
    sphere = Places.sphere([10.0, 20.0], [0.0, 5.0], [0, 1])
    assert sphere.at([1, 0]).at([1, 0]) == sphere
    assert Places(sphere.positions, sphere.kinds) != sphere


SPHERE = Places.sphere(np.linspace(-175, 180, 12), np.linspace(-60, 85, 12))


@pytest.mark.parametrize("places", [Places.grid(3, 4, period=(INF, 4.0)), SPHERE], ids=["cylinder", "sphere"])
def test_candidates_are_as_the_stencil_of_those_that_are_present(places, tmp_path):
    """LETKF and learned filter: with all candidates, and with those alone that a mask leaves."""
    radius, reach = (2.5, 1.5) if not places.on_sphere else (6000.0, 4000.0)
    chosen = [1, 6, 11]
    mask, values = jnp.isin(jnp.arange(12), jnp.array(chosen)), jnp.arange(12.0) / 4
    prior = jax.random.normal(jax.random.key(0), (5, 12))
    few = System(lambda z: z, Observation(chosen, 0.5), jnp.zeros(12), places)
    many = System(lambda z: z, Observation(range(12), 0.5), jnp.zeros(12), places, at_once=4)
    found = []
    for system, observed in (
        (few, few.observation.window(values[jnp.array(chosen)])),
        (many, many.observation.window(values, mask=mask)),
    ):
        learned = LocalEnNF.new(
            system.neighbourhoods(radius, reach),
            Standardiser.unit(1),
            jnp.array([99.0]),
            width=4,
            channels=2,
            key=jax.random.key(1),
        )
        learned = eqx.tree_at(lambda f: f.steering.last.weight, learned, replace_fn=jnp.ones_like)
        save_filter(tmp_path / "filter", learned)
        filters = LETKF(system.neighbours(radius), radius), load_filter(tmp_path / "filter"), learned.base(2.0, 1.1)
        found.append([eqx.filter_jit(one)(prior, observed, key=jax.random.key(2)) for one in filters])
    for first, second in zip(*found, strict=True):
        np.testing.assert_allclose(first, second, rtol=1e-3, atol=1e-4)
        assert float(jnp.abs(first - prior).max()) > 0.1


def test_of_candidates_the_nearest_that_are_present_count():
    line = Places.grid(9)
    near = Candidates.of(line, line, radius=20.0, most=3, nearest=2).now(jnp.arange(9) % 3 == 0)
    assert sorted(near.indices[8].tolist()) == [3, 6]
    assert near.distance[8].tolist() == [2.0, 5.0]
    with pytest.raises(ValueError, match="at most 3 values are expected at once, got 5"):
        Candidates.of(line, line, radius=2.0, most=3).now(jnp.arange(9) < 5)
    none = Candidates.of(line, line, radius=2.0, most=3).now(jnp.zeros(9, bool))
    assert not np.isfinite(none.distance).any()


def test_a_radius_of_candidates_has_enough_of_those_observed_at_once():
    grid = Places.grid(100, 100)
    inner = System(lambda z: z, Observation(range(10_000), 1.0), jnp.zeros(10_000), grid, at_once=1000)
    # Forty among a tenth of all are within the radius of a circle of 400 places, in a corner within twice that.
    assert np.sqrt(400 / np.pi) - 1 < inner.neighbourhoods(reach=1.0).radius < 2 * np.sqrt(400 / np.pi) + 1
