"""Two-scale Lorenz-96: slow waves, each with fast ones riding on it; two kinds of variables."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bieqno.assimilation import Places, rk4
from bieqno.lab.filter_pretraining.families.family import Family, log_uniform, uniform

SLOW, EACH, STEPS = 12, 3, 16  # slow variables, fast ones of each


class TwoScales(eqx.Module):
    """The model of Lorenz (1996, section 3): the waves that ride on others are by these factors `faster` and `smaller`."""

    forcing: Float[Array, ""]
    coupling: Float[Array, ""]
    faster: Float[Array, ""]
    smaller: Float[Array, ""]
    length: Float[Array, ""]

    def tendency(self, state: Float[Array, "n"]) -> Float[Array, "n"]:
        """Return the time derivative of one state."""
        x, y = state[:SLOW], state[SLOW:]
        share = self.coupling * self.faster / self.smaller
        slow = (jnp.roll(x, -1) - jnp.roll(x, 2)) * jnp.roll(x, 1) - x + self.forcing
        slow = slow - share * jnp.sum(y.reshape(SLOW, EACH), axis=1)
        fast = self.faster * (self.smaller * (jnp.roll(y, 1) - jnp.roll(y, -2)) * jnp.roll(y, -1) - y)
        return jnp.concatenate([slow, fast + share * jnp.repeat(x, EACH)])

    def __call__(self, state: Float[Array, "n"]) -> Float[Array, "n"]:
        """Return the state one window later."""
        return rk4(self.tendency, state, step=self.length / STEPS, steps=STEPS)


def _draw(rng: np.random.Generator) -> TwoScales:
    numbers = uniform(rng, 9.0, 16.0), uniform(rng, 0.5, 1.0), uniform(rng, 2.0, 4.0), uniform(rng, 3.0, 8.0)
    return TwoScales(*numbers, log_uniform(rng, 0.05, 0.25))


def _rest(rng: np.random.Generator) -> Float[np.ndarray, "n"]:
    return np.concatenate([4 + 2 * rng.normal(size=SLOW), 0.1 * rng.normal(size=SLOW * EACH)])


_POSITIONS = np.concatenate([np.arange(SLOW) * float(EACH) + (EACH - 1) / 2, np.arange(float(SLOW * EACH))])
_KINDS = np.repeat([0, 1], [SLOW, SLOW * EACH])
FAMILY = Family("two scales", Places(_POSITIONS[:, None], _KINDS, period=float(SLOW * EACH)), _draw, _rest)
