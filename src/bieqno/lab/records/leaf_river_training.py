"""Training for the river: floods that the model makes of the rain of the first years, with other parameters."""

from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bieqno.assimilation import Scenarios, System
from bieqno.lab.records.baselines import before
from bieqno.lab.records.leaf_river import River

PRIOR = {"depth": 0.1, "shape": 0.1, "quick": 0.1, "slow_rate": 0.1, "quick_rate": 0.1}  # deviations of the parameters
PRIOR |= {"rain_noise": 0.2, "lasting_noise": 0.2, "store_noise": 0.2, "deviation": 0.2}
ABOUT = np.array([0.3, 0.3, 0.5, 0.5, 0.5, 0.0, 0.3])  # of logarithms of first states
STATES = 64  # of each scenario


def with_context(inputs: Mapping[str, Any]) -> dict[str, Float[Array, "T ..."]]:
    """Return what drives the model, and what a learned filter is told of a day: rain of its halves and of the day before."""
    rain = np.asarray(inputs["rain"], float)
    early, late = rain[:, :2].sum(axis=1), rain[:, 2:].sum(axis=1)
    told = [np.log1p(x) for x in (early, late, before(early, 1), before(late, 1))]
    context = np.stack([*told, np.asarray(inputs["evaporation"], float)], axis=1)
    return {name: jnp.asarray(series, float) for name, series in inputs.items()} | {
        "context": jnp.asarray(context, float)
    }


def scenarios(
    record: River, parameters: Mapping[str, float], build: Callable[[dict[str, float]], System], count: int, seed: int
) -> Scenarios:
    """Draw parameters about calibrated ones; all scenarios have the rain of the years of the calibration."""
    random = np.random.default_rng(seed)
    inputs = with_context({name: series[: record.calibrated] for name, series in record.inputs.items()})
    drawn = []
    for _ in range(count):
        system = build({name: parameters[name] + PRIOR[name] * random.normal() for name in PRIOR})
        noise = np.exp(ABOUT * random.normal(size=(STATES, len(ABOUT))))
        states = jnp.asarray(np.asarray(system.state) * noise, float).at[:, 0].min(0.95)
        drawn.append((system, inputs, states))
    return Scenarios.of(drawn)
