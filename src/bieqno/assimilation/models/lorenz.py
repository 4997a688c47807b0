"""Lorenz's models: convection (1963, eq. 18 of the paper) and waves round a circle of latitude (1996, eq. 21)."""

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
        """Return the time derivative of one state."""
        x, y, z = state
        return jnp.stack([self.sigma * (y - x), x * (self.rho - z) - y, x * y - self.beta * z])

    def __call__(self, state: Float[Array, "3"]) -> Float[Array, "3"]:
        """Return the state one window later."""
        if state.shape != (3,):
            raise ValueError(f"a Lorenz-63 state has 3 variables, got shape {state.shape}")
        steps = count_steps(self.window, self.step)
        return rk4(self.tendency, state, step=self.step, steps=steps)


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
        """Return the time derivative of one state."""
        ahead, behind, two_behind = (jnp.roll(state, shift) for shift in (-1, 1, 2))
        return (ahead - two_behind) * behind - state + self.forcing

    def __call__(self, state: Float[Array, "n"]) -> Float[Array, "n"]:
        """Return the state one window later."""
        if state.shape != (self.size,):
            raise ValueError(f"this model has {self.size} variables, got shape {state.shape}")
        steps = count_steps(self.window, self.step)
        return rk4(self.tendency, state, step=self.step, steps=steps)
