"""Lorenz-96 on a ring of 48; forcings near 8 and rings of 40 are left for the test."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bieqno.assimilation import Lorenz96, Places, rk4
from bieqno.lab.filter_pretraining.families.family import Family, log_uniform

SIZE, STEPS = 48, 8
LEFT_OUT = (7.0, 9.0)  # forcings


class Waves(eqx.Module):
    """Lorenz-96 with a window that is a number and not a part of the program."""

    forcing: Float[Array, ""]
    length: Float[Array, ""]

    def __call__(self, state: Float[Array, "n"]) -> Float[Array, "n"]:
        """Return the state one window later."""
        return rk4(Lorenz96(SIZE, self.forcing).tendency, state, step=self.length / STEPS, steps=STEPS)


def _draw(rng: np.random.Generator) -> Waves:
    forcing = rng.uniform(5.0, 16.0)
    while LEFT_OUT[0] < forcing < LEFT_OUT[1]:
        forcing = rng.uniform(5.0, 16.0)
    return Waves(jnp.asarray(forcing, float), log_uniform(rng, 0.05, 0.4))


FAMILY = Family("Lorenz-96", Places.grid(SIZE, period=float(SIZE)), _draw, lambda rng: 5 + rng.normal(size=SIZE))
