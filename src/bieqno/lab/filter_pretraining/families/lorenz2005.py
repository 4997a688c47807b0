"""Lorenz-2005, model II: waves that are smooth on the grid (J. Atmos. Sci. 62, 1574-1587, eq. 8)."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bieqno.assimilation import Places, rk4
from bieqno.lab.filter_pretraining.families.family import Family, log_uniform, uniform

SIZE, SMOOTH, STEPS = 48, 2, 8  # smooth over so many variables, an even number


class SmoothWaves(eqx.Module):
    """Model II of Lorenz (2005) on a ring."""

    forcing: Float[Array, ""]
    length: Float[Array, ""]

    def tendency(self, state: Float[Array, "n"]) -> Float[Array, "n"]:
        """Return the time derivative of one state."""
        mean = _smoothed(state)
        behind, far_behind = jnp.roll(mean, SMOOTH), jnp.roll(mean, 2 * SMOOTH)
        ends, half = (0.5, *[1.0] * (SMOOTH - 1), 0.5), SMOOTH // 2
        products = (
            share * jnp.roll(mean, SMOOTH - j) * jnp.roll(state, -SMOOTH - j)
            for share, j in zip(ends, range(-half, half + 1), strict=True)
        )
        return -far_behind * behind + sum(products) / SMOOTH - state + self.forcing

    def __call__(self, state: Float[Array, "n"]) -> Float[Array, "n"]:
        """Return the state one window later."""
        return rk4(self.tendency, state, step=self.length / STEPS, steps=STEPS)


def _smoothed(state: Float[Array, "n"]) -> Float[Array, "n"]:
    """Return means over neighbours, the outermost of which count half."""
    half = SMOOTH // 2
    total = sum(jnp.roll(state, j) for j in range(-half, half + 1))
    return (total - 0.5 * (jnp.roll(state, half) + jnp.roll(state, -half))) / SMOOTH


def _draw(rng: np.random.Generator) -> SmoothWaves:
    return SmoothWaves(uniform(rng, 9.0, 20.0), log_uniform(rng, 0.05, 0.4))


FAMILY = Family(
    "Lorenz-2005 II", Places.grid(SIZE, period=float(SIZE)), _draw, lambda rng: 5 + 2 * rng.normal(size=SIZE)
)
