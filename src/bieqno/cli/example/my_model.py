"""The parts of a set-up: a model, what is observed of it, and where. Change them to your own."""

import jax.numpy as jnp
import numpy as np

from bieqno.assimilation import EnKF, Lorenz96, Observation

# The dynamics: any function from one state to the state one window later, written with jax.numpy.
# A time derivative becomes one by `bieqno.assimilation.Flow(tendency, window=0.05, step=0.01)`;
# a model outside JAX by `bieqno.assimilation.HostModel(function_of_an_ensemble)`.
model = Lorenz96(12, 8.0, window=0.05, step=0.01)

# A state somewhere in its climate; its length is the number of variables.
state = jnp.full(12, 8.0).at[3].add(0.5)

# All variables but every fourth are observed, with errors of standard deviation 1. Instead of numbers of variables a
# matrix or a function of the state will do; instead of one deviation one for each value, or a covariance matrix.
observed_variables = np.flatnonzero(np.arange(12) % 4 != 3)
observation = Observation(observed_variables, 1.0)

# Where variables and observed values are: lets local filters (the LETKF) take part in `bieqno compare`.
positions = np.arange(12.0)[:, None]
stations = positions[observed_variables]

# The filter that the neural filter learns from: any filter, with as many members as you can afford in training.
teacher = EnKF()
