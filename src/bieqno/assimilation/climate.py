"""What a model does when left alone: a sample of its states."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from bieqno.assimilation.models.forecast import Model, forecast

RUNS, KEPT = 64, 32  # free runs, and the windows at the end of each that are kept


class Climate(eqx.Module):
    """States of free runs, with their mean and standard deviation.

    Args:
        states: a sample of the climatology.
        mean: of each variable.
        deviation: standard deviation of each variable; one where it never varies.
    """

    states: Float[Array, "r n"]
    mean: Float[Array, "n"]
    deviation: Float[Array, "n"]

    @classmethod
    def of(cls, model: Model, state: Float[Array, "n"], *, spin: int = 150, key: PRNGKeyArray) -> "Climate":
        """Run the model freely.

        Args:
            model: the dynamics.
            state: near the attractor; the runs begin about it with a standard deviation of one.
            spin: windows that do not count.
            key: for beginnings and model error.

        Raises:
            ValueError: if the runs do not stay finite.

        Example:
            >>> import jax, jax.numpy as jnp
            >>> from bieqno.assimilation import Lorenz96
            >>> climate = Climate.of(Lorenz96(8), jnp.full(8, 8.0), key=jax.random.key(0))
            >>> climate.states.shape, bool(jnp.all(jnp.abs(climate.deviation - 3.6) < 0.5))
            ((2048, 8), True)
        """
        start_key, model_key = jax.random.split(key)
        starts = state + jax.random.normal(start_key, (RUNS, *state.shape), state.dtype)

        @jax.jit
        def run(states: Float[Array, "r n"]) -> Float[Array, "t r n"]:
            def step(states: Float[Array, "r n"], k: PRNGKeyArray) -> tuple[Array, Array]:
                states = forecast(model, states, key=k)
                return states, states

            return jax.lax.scan(step, states, jax.random.split(model_key, spin + KEPT))[1][spin:]

        states = run(starts).reshape(-1, state.shape[0])
        if not bool(jnp.all(jnp.isfinite(states))):
            raise ValueError("free runs of the model did not stay finite; begin at a state nearer its attractor")
        deviation = jnp.std(states, axis=0)
        return cls(states, jnp.mean(states, axis=0), jnp.where(deviation > 0, deviation, 1))
