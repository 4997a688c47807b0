"""Cells of Lorenz-63 on a ring, coupled by diffusion: three variables at each place. Left out of training: validation alone."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bieqno.assimilation import Places, rk4
from bieqno.lab.filter_pretraining.families.family import Family, log_uniform, uniform

CELLS, STEPS = 16, 12


class Cells(eqx.Module):
    """Convection in cells, each of which warms its neighbours; variables come field after field."""

    sigma: Float[Array, ""]
    rho: Float[Array, ""]
    beta: Float[Array, ""]
    coupling: Float[Array, ""]
    length: Float[Array, ""]

    def tendency(self, state: Float[Array, "n"]) -> Float[Array, "n"]:
        """Return the time derivative of one state."""
        x, y, z = state.reshape(3, CELLS)
        beside = self.coupling * (jnp.roll(x, 1) - 2 * x + jnp.roll(x, -1))
        return jnp.concatenate([self.sigma * (y - x) + beside, x * (self.rho - z) - y, x * y - self.beta * z])

    def __call__(self, state: Float[Array, "n"]) -> Float[Array, "n"]:
        """Return the state one window later."""
        return rk4(self.tendency, state, step=self.length / STEPS, steps=STEPS)


def _draw(rng: np.random.Generator) -> Cells:
    numbers = uniform(rng, 8.0, 12.0), uniform(rng, 26.0, 34.0), uniform(rng, 2.3, 3.0), uniform(rng, 0.5, 4.0)
    return Cells(*numbers, log_uniform(rng, 0.04, 0.2))


def _rest(rng: np.random.Generator) -> Float[np.ndarray, "n"]:
    return np.repeat([0.0, 0.0, 25.0], CELLS) + 5 * rng.normal(size=3 * CELLS)


FAMILY = Family("Lorenz-63 cells", Places.grid(CELLS, fields=3, period=float(CELLS)), _draw, _rest)
