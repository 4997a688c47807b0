"""Lorenz's convection model of 1963 (section 3.2.1 of the paper)."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from bieqno.assimilation.models.integration import count_steps, rk4


class Lorenz63(eqx.Module):
    """Three variables, chaotic at the usual parameters; maps a state to the state one window later.

    Args:
        sigma: Prandtl number.
        rho: Rayleigh number over its critical value.
        beta: geometry of the convection cells.
        window: time between two observations.
        step: length of an integration step.

    Example:
        >>> import jax.numpy as jnp
        >>> model = Lorenz63()
        >>> [round(float(z), 2) for z in model(jnp.array([-8.5, -7.0, 27.0]))]
        [-8.95, -8.09, 28.63]
    """

    sigma: float | Float[Array, ""] = 10.0
    rho: float | Float[Array, ""] = 28.0
    beta: float | Float[Array, ""] = 8 / 3
    window: float = eqx.field(static=True, default=0.5, kw_only=True)
    step: float = eqx.field(static=True, default=0.01, kw_only=True)

    def __check_init__(self) -> None:
        count_steps(self.window, self.step)

    def tendency(self, state: Float[Array, "3"]) -> Float[Array, "3"]:
        """Time derivative of one state."""
        x, y, z = state
        return jnp.stack([self.sigma * (y - x), x * (self.rho - z) - y, x * y - self.beta * z])

    def __call__(self, state: Float[Array, "3"]) -> Float[Array, "3"]:
        """The state one window later."""
        if state.shape != (3,):
            raise ValueError(f"a Lorenz-63 state has 3 variables, got shape {state.shape}")
        steps = count_steps(self.window, self.step)
        return rk4(self.tendency, state, step=self.step, steps=steps)
