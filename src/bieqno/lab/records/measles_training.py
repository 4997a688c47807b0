"""Training for all towns at once: epidemics of the towns' populations, with parameters about the published ones."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bieqno.assimilation import Scenarios, System
from bieqno.lab.records.measles import NAMES, Town, epidemic, town, towns

# How far parameters are drawn from the published ones of a town: standard deviations of their logarithms.
PRIOR = {"R0": 0.1, "amplitude": 0.1, "sigma": 0.1, "gamma": 0.1, "alpha": 0.005}
PRIOR |= {"iota": 0.3, "cohort": 0.1, "sigmaSE": 0.1, "rho": 0.05, "psi": 0.15}
FIRST = {"S_0": 0.1, "E_0": 0.7, "I_0": 0.7}  # the same of first states
ABOUT = np.array([0.05, 0.3, 0.3, 0.0])  # of first members about the first state
SHARES = ("rho", "cohort", "amplitude")  # below one
STATES = 64  # of each scenario, from which truth and first members are drawn


def inputs_of(record: Town, parameters: Mapping[str, float]) -> dict[str, Float[Array, "T ..."]]:
    """Return what drives the model, and what a learned filter is told of town and week."""
    weeks = record.inputs
    told = np.concatenate([[np.log(parameters[name]) for name in PRIOR], [0.0] * 4])
    context = np.tile(told, (len(record.cases), 1))
    context[:, -4:] = np.stack(
        [
            np.log(weeks["population"][:, 0]),
            np.log(weeks["births"][:, 0]),
            weeks["school"].mean(axis=1),
            weeks["entry"].sum(axis=1),
        ],
        axis=1,
    )
    return {name: jnp.asarray(series, float) for name, series in weeks.items()} | {
        "context": jnp.asarray(context, float)
    }


def draw(record: Town, random: np.random.Generator) -> tuple[System, Any, Float[Array, "s 4"]]:
    """Draw a scenario of a town."""
    p = dict(record.parameters)
    for name, spread in (PRIOR | FIRST).items():
        p[name] *= np.exp(spread * random.normal())
    p |= {name: min(p[name], 0.95) for name in SHARES}
    system = epidemic(dataclasses.replace(record, parameters=p))
    noise = np.exp(ABOUT * random.normal(size=(STATES, len(NAMES))))
    return system, inputs_of(record, p), jnp.round(system.state * jnp.asarray(noise, float))


def scenarios(each: int, seed: int, names: list[str] | None = None) -> Scenarios:
    """Draw some scenarios of each town, all if none are named."""
    random = np.random.default_rng(seed)
    return Scenarios.of([draw(town(name), random) for name in names or towns() for _ in range(each)])
