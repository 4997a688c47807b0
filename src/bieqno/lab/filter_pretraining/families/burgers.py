"""Viscous Burgers' equation stirred by random long waves: fronts that move."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from bieqno.assimilation import AbstractEnsembleModel, Places, rk4
from bieqno.lab.filter_pretraining.families.family import Family, log_uniform, uniform

SIZE, STEPS, WAVES = 48, 12, 3


class Burgers(AbstractEnsembleModel):
    """Velocity on a ring of circumference 2 pi; each window adds random waves of the longest lengths."""

    viscosity: Float[Array, ""]
    stirring: Float[Array, ""]
    wind: Float[Array, ""]
    length: Float[Array, ""]

    def tendency(self, state: Float[Array, "n"]) -> Float[Array, "n"]:
        """Return the time derivative of one state, in flux form on the grid, with a drag towards the mean wind."""
        width = 2 * np.pi / SIZE
        ahead, behind = jnp.roll(state, -1), jnp.roll(state, 1)
        flux = (ahead**2 - behind**2) / (4 * width)
        return -flux + self.viscosity * (ahead - 2 * state + behind) / width**2 - 0.2 * (state - self.wind)

    def forecast(self, ensemble: Float[Array, "N n"], *inputs: Any, key: PRNGKeyArray) -> Float[Array, "N n"]:
        """Return the ensemble one window later, each member stirred by waves of its own."""
        waves, place = np.arange(1, WAVES + 1), np.arange(SIZE) * 2 * np.pi / SIZE
        basis = np.concatenate([f(np.outer(waves, place)) for f in (np.cos, np.sin)])
        strength = self.stirring * jnp.sqrt(self.length)
        stirred = strength * jax.random.normal(key, (len(ensemble), 2 * WAVES), ensemble.dtype)
        carried = jax.vmap(lambda z: rk4(self.tendency, z, step=self.length / STEPS, steps=STEPS))(ensemble)
        return carried + stirred @ jnp.asarray(basis, ensemble.dtype)


def _draw(rng: np.random.Generator) -> Burgers:
    return Burgers(
        log_uniform(rng, 0.05, 0.2), log_uniform(rng, 0.1, 0.4), uniform(rng, -0.5, 0.5), log_uniform(rng, 0.1, 0.6)
    )


FAMILY = Family("Burgers", Places.grid(SIZE, period=float(SIZE)), _draw, lambda rng: 0.1 * rng.normal(size=SIZE))
