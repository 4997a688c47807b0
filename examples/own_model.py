"""My own model in 30 lines: two species, one of them counted, and a growth rate nobody knows.

Run it with ``python examples/own_model.py`` (some seconds).
"""

# %% The model is a tendency
from pathlib import Path

import jax
import jax.numpy as jnp

from bieqno.assimilation import (
    ETKF,
    Flow,
    Inflated,
    Observation,
    System,
    append_parameters,
    cycle,
    keep_ensembles,
    save_dataset,
    simulate,
    to_dataset,
)
from bieqno.lab.report import plot_run
from bieqno.scores import rmse


def community(growth):
    """Hares and lynx, in logarithms so that they stay positive."""
    return Flow(lambda z: jnp.array([growth - jnp.exp(z[1]), jnp.exp(z[0]) - 0.8]), window=0.5, step=0.05)


# %% The truth, and what is counted of it: hares only, with an error of 20 per cent.
counted = Observation([0], 0.2)
system = System(community(1.1), counted, jnp.array([0.5, -0.5]))
twin = simulate(system, 100, key=jax.random.key(0))

# %% What we believe: a rough state, and a growth rate between 0.7 and 1.9, appended to the state by one call.
state_key, rate_key, run_key = jax.random.split(jax.random.key(1), 3)
states = 0.5 * jax.random.normal(state_key, (40, 2))
rates = jax.random.uniform(rate_key, (40, 1), minval=0.7, maxval=1.9)
unknown, ensemble = append_parameters(lambda p: community(p[0]), system, states, rates)

# %% The filter takes the state with its parameter as one state
filter = Inflated(ETKF(), 1.01)
run = cycle(filter, unknown, ensemble, twin.observations, record=keep_ensembles, key=run_key)

mean = run.kept["posterior"].mean(axis=1)
error = rmse(twin.truth, mean[:, :2])
print(f"error of the state, first ten windows {error[:10].mean():.3f}, last fifty {error[50:].mean():.3f}")
spread = run.kept["posterior"][-1, :, 2].std()
print(f"growth rate: true 1.100, believed at first {rates.mean():.3f} +- {rates.std():.3f}, ", end="")
print(f"at last {mean[-1, 2]:.3f} +- {spread:.3f}")
print("diverged: never" if run.diverged < 0 else f"diverged in window {run.diverged}")

# %% Results as a netCDF file and as a picture
out = Path("own_model")
truth = jnp.concatenate([twin.truth, jnp.full((100, 1), 1.1)], axis=1)
data = to_dataset(run, window=0.5, attributes={"filter": "ETKF", "inflation": 1.01})
data = data.assign(truth=(("time", "state"), truth), observed=(("time", "observation"), twin.observations.value))
save_dataset(data, out / "run.nc")
plot_run(data, variables=[0, 1, 2], observed=[0]).savefig("own_model.png", dpi=100)
print(f"written to {out / 'run.nc'} and own_model.png")
