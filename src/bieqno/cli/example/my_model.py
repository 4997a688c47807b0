"""The objects that setup.toml names: a model, what is observed of it, and where. Change them to your own."""

import jax.numpy as jnp
import numpy as np

from bieqno.assimilation import Flow, Observation

SIZE = 40


def tendency(z: jnp.ndarray) -> jnp.ndarray:
    """Return the time derivative of one state (Lorenz-96), written with jax.numpy."""
    return (jnp.roll(z, -1) - jnp.roll(z, 2)) * jnp.roll(z, 1) - z + 8.0


# The dynamics: any function from one state to the state one window later. `Flow` makes one of a tendency,
# `bieqno.assimilation.HostModel(function_of_an_ensemble)` one of a model outside JAX.
model = Flow(tendency, window=0.15, step=0.05)

# A state near the attractor; its length is the number of variables.
state = jnp.full(SIZE, 8.0).at[0].add(0.5)

# Every fourth variable is observed, with errors of standard deviation 1. Instead of the numbers of variables, a matrix or a
# function of the state will do; instead of one deviation, one for each value, or a covariance matrix.
observation = Observation(range(0, SIZE, 4), 1.0)

# Where the variables are, one row each: local filters need it.
positions = np.arange(float(SIZE))[:, None]
