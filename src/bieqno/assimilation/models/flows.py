"""Models written as a tendency: one's own, Lorenz's convection (1963, eq. 18 of the paper) and waves (1996, eq. 21)."""

import math
from collections.abc import Callable
from numbers import Integral
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Inexact, Int, PyTree

Tendency: TypeAlias = Callable[[Inexact[Array, "*s"]], Inexact[Array, "*s"]]


def rk4(
    tendency: Tendency, state: Inexact[Array, "*s"], *, step: float | Float[Array, ""], steps: int
) -> Inexact[Array, "*s"]:
    """Integrate ``dz/dt = tendency(z)`` by the classical fourth-order Runge-Kutta method; z has any shape, and may be complex.

    Example:
        >>> decayed = rk4(lambda z: -z, jnp.ones(1), step=0.1, steps=10)
        >>> round(float(decayed[0]), 4)  # exp(-1)
        0.3679
    """
    if not isinstance(steps, Integral) or not 0 <= steps < 2**31:
        raise ValueError(f"steps is a whole number from 0, of at most 32 bits; got {steps!r}")

    def advance(z: Inexact[Array, "*s"], _: None) -> tuple[Inexact[Array, "*s"], None]:
        k1 = tendency(z)
        k2 = tendency(z + step / 2 * k1)
        k3 = tendency(z + step / 2 * k2)
        k4 = tendency(z + step * k3)
        return z + step / 6 * (k1 + 2 * k2 + 2 * k3 + k4), None

    return jax.lax.scan(advance, state, None, length=steps)[0]


def count_steps(window: float, step: float) -> int:
    """Return the number of steps of length `step` in a `window`; a ValueError if it is not a whole number."""
    steps = round(window / step) if step > 0 and window / step < 2**31 else 0
    if steps < 1 or abs(steps * step - window) > 1e-6 * window:
        raise ValueError(f"a window is a positive whole number of steps; got window {window} and step {step}")
    return steps


class Flow(eqx.Module):
    """A model of one's own from its tendency, the time derivative of one state: maps a state to that one window later.

    The `window` is the time between two observations, and `step`, which divides it, the length of an integration step.

    Example:
        >>> pendulum = Flow(lambda z: jnp.array([z[1], -jnp.sin(z[0])]), window=1.0, step=0.01)
        >>> pendulum(jnp.array([0.0, 0.0])).tolist()
        [0.0, 0.0]
    """

    tendency: Tendency
    window: float = eqx.field(static=True)
    step: float = eqx.field(static=True)

    def __check_init__(self) -> None:
        count_steps(self.window, self.step)

    def __call__(self, state: Float[Array, "n"]) -> Float[Array, "n"]:
        """Return the state one window later."""
        return rk4(self.tendency, state, step=self.step, steps=count_steps(self.window, self.step))


class UnevenFlow(eqx.Module):
    """A model of one's own from its tendency, for windows of unequal length and with inputs.

    The inputs of a window are its length and whatever else the tendency takes as its second argument, None for nothing:
    ``(length, others)``. A window is cut into equal steps of at most `step`, and none is longer than `longest`; as many steps
    are computed in each, those beyond its end of no length, so that one program serves all.

    Example:
        >>> decay = UnevenFlow(lambda z: -z, step=0.1, longest=2.0)
        >>> [round(float(decay(jnp.ones(1), (jnp.array(length), None))[0]), 4) for length in (1.0, 0.25)]
        [0.3679, 0.7788]
    """

    tendency: Callable[..., Inexact[Array, "*s"]]
    step: float = eqx.field(static=True)
    longest: float = eqx.field(static=True)

    def __check_init__(self) -> None:
        if not (0 < self.step <= self.longest and self.longest / self.step < 2**31):
            raise ValueError(f"steps are positive and within a window, got step={self.step}, longest={self.longest}")

    def __call__(self, state: Float[Array, "n"], inputs: tuple[Float[Array, ""], PyTree[Any]]) -> Float[Array, "n"]:
        """Return the state at the end of the window; NaN where that is longer than the longest."""
        length, others = inputs
        given = () if others is None else (others,)
        most = math.ceil(self.longest / self.step - 1e-6)
        count = jnp.ceil(length / self.step - 1e-3)
        size = length / jnp.maximum(count, 1)

        def advance(z: Float[Array, "n"], number: Int[Array, ""]) -> tuple[Float[Array, "n"], None]:
            taken = jnp.where(number < count, size, 0).astype(z.dtype)
            return rk4(lambda x: self.tendency(x, *given), z, step=taken, steps=1), None

        end = jax.lax.scan(advance, state, jnp.arange(most))[0]
        return jnp.where(count <= most, end, jnp.nan)


class Lorenz63(eqx.Module):
    """Three variables, chaotic at the usual parameters; maps a state to the state one window later.

    Sigma is the Prandtl number, rho the Rayleigh number over its critical value, beta the geometry of the convection cells;
    `window` and `step` are as in `Flow`.

    Example:
        >>> [round(float(z), 2) for z in Lorenz63()(jnp.array([-8.5, -7.0, 27.0]))]
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
        return rk4(self.tendency, state, step=self.step, steps=count_steps(self.window, self.step))


class Lorenz96(eqx.Module):
    """Waves round a circle of latitude, chaotic at a forcing of 8; maps a state to the state one window later.

    It has at least 4 variables; `window` and `step` are as in `Flow`.

    Example:
        >>> rest = jnp.full(24, 8.0)  # an (unstable) equilibrium
        >>> bool(jnp.all(Lorenz96(24)(rest) == rest))
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
        return rk4(self.tendency, state, step=self.step, steps=count_steps(self.window, self.step))
