"""What setup.toml names beside the program: a state, what is observed of it, where, and the filter."""

import jax.numpy as jnp
import numpy as np

from bieqno.assimilation import LETKF, Inflated, Neighbours, Observation

SIZE = 40
state = jnp.full(SIZE, 8.0).at[0].add(0.5)
positions = np.arange(float(SIZE))[:, None]
observation = Observation(range(0, SIZE, 2), 1.0)

# Ten members, observations that act over six variables; `bieqno train-filter` makes a learned one instead.
near = Neighbours.within(6.0, positions, positions[::2], period=40.0)
filter = Inflated(LETKF(near, 6.0), 1.03)
