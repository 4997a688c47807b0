"""Two-dimensional turbulence on a small torus: the barotropic vorticity equation, stirred at random."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from bieqno.assimilation import AbstractEnsembleModel, Places, rk4
from bieqno.lab.filter_pretraining.families.family import Family, log_uniform, uniform

ROWS, COLUMNS, STEPS = 8, 6, 12
WAVES = ((1, 0), (0, 1), (1, 1), (1, -1), (2, 0), (2, 1), (2, -1))  # that are stirred


class Turbulence(AbstractEnsembleModel):
    """Vorticity at points of distance one, row by row, carried by its own flow and by the waves of a changing Coriolis force."""

    drag: Float[Array, ""]
    viscosity: Float[Array, ""]
    beta: Float[Array, ""]
    stirring: Float[Array, ""]
    length: Float[Array, ""]

    def tendency(self, state: Float[Array, "n"]) -> Float[Array, "n"]:
        """Return the time derivative of one state; energy and enstrophy are conserved by advection."""
        w = state.reshape(ROWS, COLUMNS)
        psi = _stream(w)
        changed = -_jacobian(psi, w) - self.beta * _slope(psi, 1) - self.drag * w + self.viscosity * _laplacian(w)
        return changed.reshape(-1)

    def forecast(self, ensemble: Float[Array, "N n"], *inputs: Any, key: PRNGKeyArray) -> Float[Array, "N n"]:
        """Return the ensemble one window later, each member stirred by waves of its own."""
        y, x = (axis.reshape(-1) for axis in np.indices((ROWS, COLUMNS)))
        phase = 2 * np.pi * np.stack([k * y / ROWS + m * x / COLUMNS for k, m in WAVES])
        basis = jnp.asarray(np.concatenate([np.cos(phase), np.sin(phase)]), ensemble.dtype)
        strength = self.stirring * jnp.sqrt(self.length)
        stirred = strength * jax.random.normal(key, (len(ensemble), len(basis)), ensemble.dtype)
        carried = jax.vmap(lambda z: rk4(self.tendency, z, step=self.length / STEPS, steps=STEPS))(ensemble)
        return carried + stirred @ basis


def _stream(w: Float[Array, "r c"]) -> Float[Array, "r c"]:
    """Return the stream function, whose five-point Laplacian the vorticity is."""
    waves = [2 * np.cos(2 * np.pi * np.arange(n) / n) - 2 for n in (ROWS, COLUMNS)]
    symbol = waves[0][:, None] + waves[1][None, : COLUMNS // 2 + 1]
    symbol[0, 0] = -np.inf
    return jnp.fft.irfft2(jnp.fft.rfft2(w) / jnp.asarray(symbol, w.dtype), s=w.shape)


def _slope(x: Float[Array, "r c"], axis: int) -> Float[Array, "r c"]:
    return (jnp.roll(x, -1, axis) - jnp.roll(x, 1, axis)) / 2


def _laplacian(x: Float[Array, "r c"]) -> Float[Array, "r c"]:
    return sum(jnp.roll(x, by, axis) for by in (-1, 1) for axis in (0, 1)) - 4 * x


def _jacobian(p: Float[Array, "r c"], w: Float[Array, "r c"]) -> Float[Array, "r c"]:
    """Return ``p_x w_y - p_y w_x`` as Arakawa (1966) does: the mean of three forms that agree in the limit."""
    plain = _slope(p, 1) * _slope(w, 0) - _slope(p, 0) * _slope(w, 1)
    moved = _slope(p * _slope(w, 0), 1) - _slope(p * _slope(w, 1), 0)
    carried = _slope(w * _slope(p, 1), 0) - _slope(w * _slope(p, 0), 1)
    return (plain + moved + carried) / 3


def _draw(rng: np.random.Generator) -> Turbulence:
    return Turbulence(
        drag=log_uniform(rng, 0.03, 0.2),
        viscosity=log_uniform(rng, 0.01, 0.1),
        beta=uniform(rng, 0.0, 1.0),
        stirring=log_uniform(rng, 0.1, 0.5),
        length=log_uniform(rng, 0.2, 1.5),
    )


_PLACES = Places.grid(ROWS, COLUMNS, period=(float(ROWS), float(COLUMNS)))
FAMILY = Family("turbulence", _PLACES, _draw, lambda rng: 0.5 * rng.normal(size=ROWS * COLUMNS))
