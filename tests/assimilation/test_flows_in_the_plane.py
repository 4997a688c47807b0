"""Flows in the plane: what they conserve, how exactly they are solved and integrated, and that they can be differentiated."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bieqno.assimilation import Barotropic, QuasiGeostrophic, forecast
from bieqno.assimilation.models.quasi_geostrophic import jacobian

KEY = jax.random.key(0)
# Sums of a thousand products of numbers of order one cancel to this many digits in 64 bits.
ROUNDING = 1e-12


def smooth(side, scale):
    """A field of a few long waves between the walls of a basin, zero on the boundary."""
    x = np.arange(side) * np.pi / (side - 1)
    amplitudes = scale * np.random.default_rng(0).normal(size=(4, 4))
    waves = np.sin(np.outer(np.arange(1, 5), x))
    return jnp.asarray(waves.T @ amplitudes @ waves).reshape(-1)


@pytest.mark.usefixtures("x64")
def test_arakawas_jacobian_conserves_energy_and_enstrophy():
    first, second = (jax.random.normal(key, (31, 31)) for key in jax.random.split(KEY))
    found = jacobian(first, second, 1.0)
    size = float(jnp.sum(jnp.abs(found)))
    for weight in (first, second):
        assert abs(float(jnp.sum(weight * found))) < ROUNDING * size
    np.testing.assert_allclose(found, -jacobian(second, first, 1.0), atol=ROUNDING)


@pytest.mark.usefixtures("x64")
def test_arakawas_jacobian_is_of_second_order():
    errors = []
    for size in (16, 32, 64):
        x = jnp.arange(1, size) * jnp.pi / size
        first, second = jnp.outer(jnp.sin(x), jnp.sin(x)), jnp.outer(jnp.sin(2 * x), jnp.sin(x))
        # a_x b_y - a_y b_x, rows y and columns x.
        exact = jnp.outer(jnp.sin(x) * 2 * jnp.cos(2 * x), jnp.cos(x) * jnp.sin(x))
        exact = exact - jnp.outer(jnp.cos(x) * jnp.sin(2 * x), jnp.sin(x) * jnp.cos(x))
        errors.append(float(jnp.abs(jacobian(first, second, jnp.pi / size) - exact).max()))
    assert 3.8 < errors[0] / errors[1] < 4.2
    assert 3.8 < errors[1] / errors[2] < 4.2


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("side", [5, 18, 33])
def test_the_stream_function_is_that_of_its_vorticity(side):
    model = QuasiGeostrophic(side)
    stream = jax.random.normal(KEY, (side - 2, side - 2))
    np.testing.assert_allclose(model.invert(model.vorticity(stream)), stream, rtol=0, atol=ROUNDING)


def basin_energy(model, state):
    stream = state.reshape(model.side, model.side)[1:-1, 1:-1]
    return -float(jnp.sum(stream * model.vorticity(stream))) / 2


@pytest.mark.usefixtures("x64")
def test_a_basin_without_wind_and_friction_keeps_its_energy():
    """Up to the error of the integration: halving the step divides what is lost by 2^4."""
    start, lost = smooth(33, 5.0), []
    for step in (2.5, 1.25):
        model = QuasiGeostrophic(33, wind=0.0, viscosity=0.0, window=10.0, step=step)
        energy = basin_energy(model, start)
        lost.append(abs(basin_energy(model, model(start)) / energy - 1))
    assert lost[0] < 1e-11
    assert 14 < lost[0] / lost[1] < 20


@pytest.mark.usefixtures("x64")
def test_viscosity_takes_energy_away():
    model, start = QuasiGeostrophic(33, wind=0.0), smooth(33, 5.0)
    assert basin_energy(model, model(start)) < basin_energy(model, start)


@pytest.mark.usefixtures("x64")
def test_viscosity_damps_the_shortest_waves_alike_on_all_grids():
    def rate(side):
        x = np.arange(1, side - 1)
        wave = jnp.asarray(np.outer((-1.0) ** x, (-1.0) ** x)) * 1e-9
        calm = QuasiGeostrophic(side, rossby=0.0, wind=0.0)
        change = calm.tendency(wave) - QuasiGeostrophic(side, rossby=0.0, wind=0.0, viscosity=0.0).tendency(wave)
        return float(change[side // 2, side // 2] / wave[side // 2, side // 2])

    # The Froude number counts less on finer grids, where the shortest waves have more vorticity: up to a sixth here.
    assert rate(33) < 0
    assert rate(33) == pytest.approx(rate(65), rel=0.2)


def torus_state(side):
    x = np.arange(side) * 2 * np.pi / side
    rows, columns = np.meshgrid(x, x, indexing="ij")
    return jnp.asarray(3 * np.cos(2 * rows + columns) + 2 * np.sin(columns - rows) + np.cos(3 * columns)).reshape(-1)


def torus_budget(model, state):
    """Energy and enstrophy."""
    spectrum = jnp.fft.fft2(state.reshape(model.side, model.side))
    k = np.fft.fftfreq(model.side, 1 / model.side)
    square = np.add.outer(k**2, k**2)
    power = np.abs(np.asarray(spectrum)) ** 2
    return np.sum(power / np.where(square > 0, square, 1)), np.sum(power)


@pytest.mark.usefixtures("x64")
def test_advection_on_a_torus_conserves_energy_and_enstrophy():
    model = Barotropic(32)
    spectrum = jnp.fft.rfft2(jax.random.normal(KEY, (32, 32)))
    change = jnp.fft.irfft2(model.advection(spectrum))
    k = np.fft.fftfreq(32, 1 / 32)
    kept = (np.abs(k) < 32 / 3)[:, None] & (np.abs(k) < 32 / 3)
    full = jnp.fft.fft2(jnp.fft.irfft2(spectrum)) * kept
    square = np.where(np.add.outer(k**2, k**2) > 0, np.add.outer(k**2, k**2), 1)
    size = float(jnp.sum(jnp.abs(change)))
    for weight in (jnp.fft.ifft2(full).real, jnp.fft.ifft2(-full / square).real):
        assert abs(float(jnp.sum(weight * change))) < ROUNDING * size


@pytest.mark.usefixtures("x64")
def test_a_torus_without_forcing_and_friction_keeps_both():
    """Up to the error of the integration, which is of fourth order: a quarter of the step leaves less than a hundredth."""
    start = torus_state(32)
    for step, most in ((0.05, 1e-6), (0.0125, 1e-8)):
        model = Barotropic(32, 0.0, 0.0, viscosity=0.0, window=0.5, step=step)
        before, after = (np.array(torus_budget(model, state)) for state in (start, model(start)))
        np.testing.assert_allclose(after, before, rtol=most)


MODELS = {
    "quasi-geostrophic": (QuasiGeostrophic(17, 0.125, window=5.0, step=1.25), smooth(17, 5.0)),
    "barotropic": (Barotropic(16, window=0.2, step=0.05), torus_state(16)),
}
each_model = pytest.mark.parametrize(("model", "start"), MODELS.values(), ids=list(MODELS))


@pytest.mark.usefixtures("x64")
@each_model
def test_the_integration_is_of_fourth_order(model, start):
    start = jnp.asarray(np.asarray(start), float)
    fine = [dataclasses.replace(model, step=model.step / parts)(start) for parts in (1, 2, 4, 16)]
    errors = [float(jnp.abs(one - fine[-1]).max()) for one in fine[:3]]
    assert 13 < errors[0] / errors[1] < 20
    assert 13 < errors[1] / errors[2] < 20


@each_model
def test_compiled_mapped_and_plain_give_the_same(model, start):
    start = start.astype(jnp.float32)
    plain = model(start)
    assert plain.dtype == jnp.float32
    scale = float(jnp.abs(plain).max())
    np.testing.assert_allclose(jax.jit(model)(start), plain, atol=1e-5 * scale)
    pair = forecast(model, jnp.stack([start, 2 * start]), key=KEY)
    np.testing.assert_allclose(pair[0], plain, atol=1e-5 * scale)


@pytest.mark.usefixtures("x64")
@each_model
def test_derivatives_are_those_of_differences(model, start):
    start = jnp.asarray(np.asarray(start), float)
    way = jax.random.normal(KEY, start.shape)
    moved, along = jax.jvp(model, (start,), (way,))
    small = 1e-5
    difference = (model(start + small * way) - model(start - small * way)) / (2 * small)
    np.testing.assert_allclose(along, difference, atol=1e-6 * float(jnp.abs(difference).max()))
    (back,) = jax.vjp(model, start)[1](moved)
    assert float(back @ way) == pytest.approx(float(moved @ along), rel=1e-9)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: QuasiGeostrophic(3), "at least 4 points a side and a length, got 3"),
        (lambda: QuasiGeostrophic(9, -1.0), "got 9 and -1.0"),
        (lambda: QuasiGeostrophic(9)(jnp.zeros(49)), r"9 x 9 variables, got shape \(49,\)"),
        (lambda: QuasiGeostrophic(9, window=1.0), "whole number of steps"),
        (lambda: Barotropic(15), "even number of points a side"),
        (lambda: Barotropic(8), "less than a third as many waves; got 8 and 4"),
        (lambda: Barotropic(16)(jnp.zeros(16)), r"16 x 16 variables, got shape \(16,\)"),
    ],
)
def test_what_does_not_fit_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
