"""Lorenz's model of 1996: waves that travel round a circle of latitude (section 3.2.2 of the paper)."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from bieqno.assimilation.models.integration import count_steps, rk4


class Lorenz96(eqx.Module):
    """A ring of variables, chaotic at a forcing of 8; maps a state to the state one window later.

    Args:
        size: number of variables, at least 4.
        forcing: constant forcing F.
        window: time between two observations.
        step: length of an integration step.

    Example:
        >>> import jax.numpy as jnp
        >>> model = Lorenz96(24)
        >>> rest = jnp.full(24, 8.0)  # an (unstable) equilibrium
        >>> bool(jnp.all(model(rest) == rest))
        True
    """

    size: int = eqx.field(static=True, default=24)
    forcing: float | Float[Array, ""] = 8.0
    window: float = eqx.field(static=True, default=0.2, kw_only=True)
    step: float = eqx.field(static=True, default=0.01, kw_only=True)

    def __check_init__(self) -> None:
        count_steps(self.window, self.step)
        if self.size < 4:
            raise ValueError(f"Lorenz-96 has at least 4 variables, got {self.size}")

    @property
    def positions(self) -> Float[Array, "n 1"]:
        """Where the variables sit on the ring of circumference `size`."""
        return jnp.arange(self.size, dtype=float)[:, None]

    def tendency(self, state: Float[Array, "n"]) -> Float[Array, "n"]:
        """Time derivative of one state."""
        ahead, behind, two_behind = (jnp.roll(state, shift) for shift in (-1, 1, 2))
        return (ahead - two_behind) * behind - state + self.forcing

    def __call__(self, state: Float[Array, "n"]) -> Float[Array, "n"]:
        """The state one window later."""
        if state.shape != (self.size,):
            raise ValueError(f"this model has {self.size} variables, got shape {state.shape}")
        steps = count_steps(self.window, self.step)
        return rk4(self.tendency, state, step=self.step, steps=steps)
