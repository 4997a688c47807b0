"""Fixed-step integration, shared by all models that are written as a tendency."""

from collections.abc import Callable
from typing import TypeAlias

import equinox as eqx
import jax
from jaxtyping import Array, Float

Tendency: TypeAlias = Callable[[Float[Array, "n"]], Float[Array, "n"]]


def rk4(tendency: Tendency, state: Float[Array, "n"], *, step: float, steps: int) -> Float[Array, "n"]:
    """Integrate ``dz/dt = tendency(z)`` by the classical fourth-order Runge-Kutta method.

    Example:
        >>> import jax.numpy as jnp
        >>> decayed = rk4(lambda z: -z, jnp.ones(1), step=0.1, steps=10)
        >>> round(float(decayed[0]), 4)  # exp(-1)
        0.3679
    """

    def advance(z: Float[Array, "n"], _: None) -> tuple[Float[Array, "n"], None]:
        k1 = tendency(z)
        k2 = tendency(z + step / 2 * k1)
        k3 = tendency(z + step / 2 * k2)
        k4 = tendency(z + step * k3)
        return z + step / 6 * (k1 + 2 * k2 + 2 * k3 + k4), None

    return jax.lax.scan(advance, state, None, length=steps)[0]


def count_steps(window: float, step: float) -> int:
    """Return the number of steps of length `step` in a `window`; a ValueError if it is not a whole number."""
    steps = round(window / step) if step > 0 else 0
    if steps < 1 or abs(steps * step - window) > 1e-6 * window:
        raise ValueError(f"a window is a positive whole number of steps; got window {window} and step {step}")
    return steps


class Flow(eqx.Module):
    """A model of one's own from its tendency: maps a state to the state one window later.

    Args:
        tendency: time derivative of one state, in JAX.
        window: time between two observations.
        step: length of an integration step; divides the window.

    Example:
        >>> import jax.numpy as jnp
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
        steps = count_steps(self.window, self.step)
        return rk4(self.tendency, state, step=self.step, steps=steps)
