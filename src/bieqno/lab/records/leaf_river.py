"""Daily flow of the Leaf River, 1952 to 1962, and HyMOD, a model of five stores (Boyle 2001; Moradkhani et al. 2005).

Soil that holds water to different depths, a slow store and three quick ones in a row. Rain of each quarter of a day fills the
soil; what it cannot hold goes to the stores, and from there to the river. At random are the rain that fell on the whole basin, a
multiplier that lasts for days, and the content of the stores.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jaxtyping import Array, Float, PRNGKeyArray

import bieqno.assimilation as da
from bieqno.lab.records.baselines import before

DATA = Path(__file__).parent / "data" / "leaf_river.csv.gz"
AREA = 1944.0  # km2
FLOW = AREA / 86.4  # m3/s for a millimetre per day
QUARTERS = 4
NAMES = ("soil", "slow", "quick 1", "quick 2", "quick 3", "multiplier", "flow")
COORDINATES = ("logit", "log", "sqrt", "sqrt", "sqrt", "same", "log")
STRUCTURE = ("depth", "shape", "quick", "slow_rate", "quick_rate")  # parameters of the stores, as HyMOD has them
SMALL = 1e-3
# Of scenarios to train on: deviations of the parameters, those of logarithms of first states, and the number of these.
PRIOR = dict.fromkeys(STRUCTURE, 0.1)
PRIOR |= {"rain_noise": 0.2, "lasting_noise": 0.2, "store_noise": 0.2, "deviation": 0.2}
ABOUT = np.array([0.3, 0.3, 0.5, 0.5, 0.5, 0.0, 0.3])
STATES = 64


@dataclass(frozen=True)
class River:
    """The record: flow in m3/s, and what drives the model; the years of the calibration come first."""

    dates: pd.DatetimeIndex
    flow: Float[np.ndarray, "T"]
    inputs: Mapping[str, Any]  # of each day: four quarters of rain, and potential evapotranspiration, in mm
    calibrated: int  # days of the first five years, after which the test begins


@functools.cache
def river() -> River:
    """Return the record.

    Example:
        >>> found = river()
        >>> len(found.flow), str(found.dates[found.calibrated])[:10], found.inputs["rain"].shape
        (3717, '1957-10-01', (3717, 4))
    """
    table = pd.read_csv(DATA, parse_dates=["date"])
    rain = table[[f"rain_{quarter}_mm" for quarter in range(1, QUARTERS + 1)]].to_numpy(float)
    evaporation = table["potential_evapotranspiration_mm"].to_numpy(float)
    dates = pd.DatetimeIndex(table["date"])
    first = int(np.flatnonzero(dates == "1957-10-01")[0])
    return River(dates, table["flow_m3_s"].to_numpy(float), {"rain": rain, "evaporation": evaporation}, first)


class HyMOD(eqx.Module):
    """A day of the river, for `StochasticModel`; numbers without bounds are logarithms or logits of the parameters."""

    depth: Any = 5.5  # log of the largest depth of the soil, mm
    shape: Any = -1.0  # log of how unequal depths are
    quick: Any = 0.0  # logit of the share that goes to the quick stores
    slow_rate: Any = -4.0  # logit of the share that leaves the slow store in a day
    quick_rate: Any = 0.0  # of a quick one
    rain_noise: Any = -1.5  # log of the deviation of the log of each day's rain
    lasting_noise: Any = -2.5  # log of the change of the lasting multiplier in a day
    store_noise: Any = -3.0  # log of the deviation of the log of each store

    def __call__(
        self, state: Float[Array, "7"], inputs: Mapping[str, Float[Array, "..."]], *, key: PRNGKeyArray
    ) -> Float[Array, "7"]:
        """Return the state a day later."""
        luck = jax.random.normal(key, (7,))
        noise = jnp.exp(jnp.asarray(self.store_noise)) * luck[:5]
        multiplier = 0.95 * state[5] + jnp.exp(jnp.asarray(self.lasting_noise)) * luck[5]
        spread = jnp.exp(jnp.asarray(self.rain_noise))
        factor = jnp.exp(multiplier + spread * luck[6] - 0.5 * spread**2)
        return self.day(state.at[5].set(multiplier), inputs["rain"] * factor, inputs["evaporation"], noise)

    def day(
        self, state: Float[Array, "7"], rain: Float[Array, "4"], evaporation: Float[Array, ""], noise: Float[Array, "5"]
    ) -> Float[Array, "7"]:
        """Return the state a day later, with given rain; the noise is that of the logarithm of each store."""
        depth, b = jnp.exp(jnp.asarray(self.depth)), jnp.exp(jnp.asarray(self.shape))
        most = depth / (1 + b)
        share = jax.nn.sigmoid(jnp.asarray(self.quick))
        rates = (jax.nn.sigmoid(jnp.asarray(rate)) for rate in (self.slow_rate, self.quick_rate))
        slow_rate, quick_rate = (1 - (1 - rate) ** (1 / QUARTERS) for rate in rates)

        def quarter(carry: tuple[Array, ...], rained: Array) -> tuple[tuple[Array, ...], Array]:
            soil, slow, *quick = carry
            # Moore's soil: the depth below which all is full, before and after the rain.
            full = depth * (1 - (1 - soil) ** (1 / (1 + b)))
            over = jnp.maximum(full + rained - depth, 0)
            filled = jnp.minimum(full + rained - over, depth * (1 - SMALL))
            after = 1 - (1 - filled / depth) ** (1 + b)
            excess = jnp.maximum(rained - over - most * (after - soil), 0)
            soil = jnp.clip(after - after * evaporation / QUARTERS / most, SMALL, 1 - SMALL)
            slow = slow + (1 - share) * excess
            left = slow_rate * slow
            running = over + share * excess
            moved = []
            for store in quick:
                content = store + running
                running = quick_rate * content
                moved.append(content - running)
            return (soil, slow - left, *moved), left + running

        begin = tuple(state[:5])
        (soil, *stores), flows = jax.lax.scan(quarter, begin, rain)
        odds = jnp.log(soil / (1 - soil)) + noise[0]
        wet = [store * jnp.exp(e) for store, e in zip(stores, noise[1:], strict=True)]
        flow = FLOW * jnp.sum(flows)
        return jnp.stack([jax.nn.sigmoid(odds), *wet, state[5], jnp.maximum(flow, SMALL)])


def first_state(flow: float) -> Float[np.ndarray, "7"]:
    """Return a state that a dry summer may have left, with a given flow."""
    return np.array([0.3, 20.0, 0.05, 0.05, 0.05, 0.0, flow])


def basin(model: HyMOD, deviation: Any, flow: float) -> da.System:
    """Return the system: flow is observed with errors of its logarithm.

    Example:
        >>> system = basin(HyMOD(), 0.1, 3.0)
        >>> system.size, system.observed
        (7, 1)
    """
    observation = da.Observation([len(NAMES) - 1], da.LogNormal(deviation))
    return da.System(da.StochasticModel(model), observation, jnp.asarray(first_state(flow)), limit=1e5, spread=SMALL)


def with_structure(model: HyMOD, parameters: Float[Array, "5"]) -> da.StochasticModel:
    """Return the model with other parameters of the stores, in the order of `STRUCTURE`."""
    return da.StochasticModel(replace(model, **dict(zip(STRUCTURE, parameters, strict=True))))


def with_parameters(
    system: da.System,
    ensemble: Float[Array, "N 7"],
    about: Mapping[str, tuple[float, float]],
    walk: float | Float[Array, ""],
    *,
    key: PRNGKeyArray,
) -> tuple[da.System, Float[Array, "N 12"]]:
    """Return a basin and its ensemble with the parameters of the stores appended, in the coordinates without bounds.

    Each begins at random, with the mean and the deviation that are given `about` it, and changes by `walk` in a day.

    Example:
        >>> about = {name: (0.0, 0.1) for name in STRUCTURE}
        >>> system, ensemble = with_parameters(basin(HyMOD(), 0.1, 3.0), jnp.ones((4, 7)), about, 0.01, key=jax.random.key(0))
        >>> system.size, ensemble.shape
        (12, (4, 12))
    """
    assert isinstance(system.model, da.StochasticModel), "a basin"
    mean, deviation = (jnp.asarray([about[name][k] for name in STRUCTURE], float) for k in (0, 1))
    drawn = mean + deviation * jax.random.normal(key, (len(ensemble), len(STRUCTURE)))
    # A Partial, whose numbers are arrays: a closure would be compiled anew for every set of noises.
    build = jax.tree_util.Partial(with_structure, system.model.function)
    appended, both = da.append_parameters(build, system, ensemble, drawn)
    steps = jnp.concatenate([jnp.zeros(len(NAMES)), jnp.full(len(STRUCTURE), walk)])
    return eqx.tree_at(lambda s: s.model, appended, da.NoisyModel(appended.model, steps)), both


def open_loop(model: HyMOD, inputs: Mapping[str, Float[Array, "T ..."]], flow: float) -> Float[Array, "T"]:
    """Return the flow of a run without noise and without observations."""

    def step(state: Float[Array, "7"], today: Mapping[str, Array]) -> tuple[Array, Array]:
        state = model.day(state, today["rain"], today["evaporation"], jnp.zeros(5))
        return state, state[6]

    return jax.lax.scan(step, jnp.asarray(first_state(flow), float), dict(inputs))[1]


def efficiency(observed: Float[np.ndarray, "T"], predicted: Float[np.ndarray, "T"]) -> float:
    """Return the efficiency of Nash and Sutcliffe: one for a perfect prediction, zero for that of the mean.

    Example:
        >>> efficiency(np.array([1.0, 3.0]), np.array([1.0, 3.0])), efficiency(np.array([1.0, 3.0]), np.array([2.0, 2.0]))
        (1.0, 0.0)
    """
    return float(1 - np.sum((observed - predicted) ** 2) / np.sum((observed - observed.mean()) ** 2))


def with_context(inputs: Mapping[str, Any]) -> dict[str, Float[Array, "T ..."]]:
    """Return the inputs of the model, and the context of a learned filter: rain of the halves of a day and of the day before."""
    rain = np.asarray(inputs["rain"], float)
    early, late = rain[:, :2].sum(axis=1), rain[:, 2:].sum(axis=1)
    rains = [np.log1p(x) for x in (early, late, before(early, 1), before(late, 1))]
    driven = {**inputs, "context": np.stack([*rains, np.asarray(inputs["evaporation"], float)], axis=1)}
    return {name: jnp.asarray(series, float) for name, series in driven.items()}


def scenarios(
    record: River,
    parameters: Mapping[str, float],
    build: Callable[[dict[str, float]], da.System],
    count: int,
    seed: int,
) -> da.Scenarios:
    """Draw parameters about calibrated ones; all scenarios have the rain of the years of the calibration."""
    random = np.random.default_rng(seed)
    inputs = with_context({name: series[: record.calibrated] for name, series in record.inputs.items()})
    drawn = []
    for _ in range(count):
        system = build({name: parameters[name] + PRIOR[name] * random.normal() for name in PRIOR})
        noise = np.exp(ABOUT * random.normal(size=(STATES, len(ABOUT))))
        states = jnp.asarray(np.asarray(system.state) * noise, float).at[:, 0].min(0.95)
        drawn.append((system, inputs, states))
    return da.Scenarios.of(drawn)
