"""Weekly measles cases of 20 towns, 1950 to 1963, and the stochastic SEIR model of He, Ionides and King (2010).

A day is a step. Susceptibles S, exposed E and infectious I leave their class at random (Euler-multinomial steps), the force of
infection has gamma noise, schools are closed in holidays, and a part of the year's children enters on one day. A share of
those who recover in a week, C, is reported. Population and births are smoothing splines of yearly numbers.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jaxtyping import Array, Float, PRNGKeyArray
from scipy.interpolate import make_smoothing_spline

from bieqno.assimilation import Observation, RoundedCounts, Scenarios, StochasticModel, System
from bieqno.assimilation.models.random_counts import LEVELS, binomial, gamma_noise, poisson, rounded_down

DATA = Path(__file__).parent / "data"
FIRST, LAST = "1950-01-06", "1963-12-27"  # weeks end on Fridays
DAYS, YEAR = 7, 365.25
ENTRY_DAY = 251.0  # of the school year, when a part of the year's children enters at once
TERMS = ((7, 100), (115, 199), (252, 300), (308, 356))  # days of the year on which schools are open
TERM_SHARE = 0.7589  # of the year
DELAY = 4.0  # years from birth until a child is among those who may be infected
NAMES = ("S", "E", "I", "C")
DRIVERS = ("population", "births", "school", "entry")
# How far scenarios to train on are drawn from the published parameters of a town: standard deviations of their logarithms.
PRIOR = {"R0": 0.1, "amplitude": 0.1, "sigma": 0.1, "gamma": 0.1, "alpha": 0.005}
PRIOR |= {"iota": 0.3, "cohort": 0.1, "sigmaSE": 0.1, "rho": 0.05, "psi": 0.15}
FIRST_STATES = {"S_0": 0.1, "E_0": 0.7, "I_0": 0.7}  # the same of first states
ABOUT = np.array([0.05, 0.3, 0.3, 0.0])  # of first members about the first state
SHARES = ("rho", "cohort", "amplitude")  # below one
STATES = 64  # of each scenario, from which truth and first members are drawn


@dataclass(frozen=True)
class Town:
    """The record of a town: cases of each week, what drives the model, and what is published about it."""

    name: str
    dates: tuple[str, ...]
    cases: Float[np.ndarray, "T"]
    before: Float[np.ndarray, "2"]  # cases of the two weeks before the first
    inputs: Mapping[str, Float[np.ndarray, "T 7"]]
    parameters: Mapping[str, float]
    published: float  # log-likelihood of the parameters


@functools.cache
def _table(name: str) -> pd.DataFrame:
    return pd.read_csv(DATA / f"measles_{name}.csv.gz", index_col=0)


def towns() -> list[str]:
    """Return the names of all towns.

    Example:
        >>> len(towns()), towns()[13]
        (20, 'London')
    """
    return list(_table("cases").columns)


def town(name: str) -> Town:
    """Return the record of a town.

    Example:
        >>> london = town("London")
        >>> len(london.cases), london.cases[:3].tolist(), london.inputs["population"].shape, london.published
        (730, [43.0, 54.0, 36.0], (730, 7), -3804.9)
    """
    every = _table("cases")[name]
    cases = every.loc[FIRST:LAST]
    ends = pd.to_datetime(cases.index)
    # Years and their parts as in the model's publication: 1950 begins at 1950.0 and all years have 365.25 days.
    begin = 1950 + (ends - pd.Timestamp("1950-01-01")).days.to_numpy(float) / YEAR - DAYS / YEAR
    times = begin[:, None] + np.arange(DAYS) / YEAR
    part = times - np.floor(times)
    day = part * YEAR
    demography = _table("demography")
    own = demography[demography["unit"] == name]
    years = own.index.to_numpy(float)
    population = make_smoothing_spline(years, own["pop"].to_numpy(float))
    births = make_smoothing_spline(years + 0.5, own["births"].to_numpy(float))
    inputs = {
        "population": population(times),
        "births": births(times - DELAY),
        "school": np.any([(day >= low) & (day <= high) for low, high in TERMS], axis=0).astype(float),
        "entry": (np.abs(part - ENTRY_DAY / 365) < 0.5 / YEAR).astype(float),
    }
    found = _table("parameters").loc[name].to_dict()
    published = float(found.pop("loglik"))
    before = every.loc[:FIRST].iloc[-3:-1].to_numpy(float)
    return Town(name, tuple(cases.index), cases.to_numpy(float), before, inputs, found, published)


class SEIR(eqx.Module):
    """A week of the epidemic in a town, for `StochasticModel`; rates are per year."""

    R0: Any
    amplitude: Any
    sigma: Any  # 1 / latent period
    gamma: Any  # 1 / infectious period
    alpha: Any  # mixing
    iota: Any  # infectious visitors
    cohort: Any  # share of the year's children that enters at once
    noise: Any  # standard deviation of the force of infection over a year
    mu: Any = 0.02  # death rate

    def __call__(
        self, state: Float[Array, "4"], inputs: Mapping[str, Float[Array, "7"]], *, key: PRNGKeyArray
    ) -> Float[Array, "4"]:
        """Return the state a week later; what is not a whole number is rounded up or down at random."""
        # All random numbers of a week at once: a program that draws once compiles soonest.
        drawn = jax.random.uniform(key, (DAYS + LEVELS + 1, DAYS), minval=1e-7)
        levels, noise = drawn[:DAYS], gamma_noise(drawn[DAYS:-1], 1 / (YEAR * self.noise**2))
        people = rounded_down(jnp.maximum(state[:3], 0) + drawn[-1, :3])
        begin = (*people, jnp.zeros((), people.dtype))

        def day(
            carry: tuple[Array, ...], today: tuple[Array, Array, Mapping[str, Array]]
        ) -> tuple[tuple[Array, ...], None]:
            S, E, I, C = carry  # noqa: E741
            u, luck, now = today
            in_term, holidays = 1 + self.amplitude * (1 - TERM_SHARE) / TERM_SHARE, 1 - self.amplitude
            season = jnp.where(now["school"] > 0, in_term, holidays)
            beta = self.R0 * season * -jnp.expm1(-(self.gamma + self.mu) / YEAR) * YEAR
            force = beta * (I + self.iota) ** self.alpha / now["population"] * luck
            entering = now["births"] * ((1 - self.cohort) / YEAR + self.cohort * now["entry"])
            rates = jnp.stack([force, self.sigma * jnp.ones(()), self.gamma * jnp.ones(())]).astype(S.dtype)
            left = binomial(u[:3], jnp.stack([S, E, I]), -jnp.expm1(-(rates + self.mu) / YEAR))
            dead = binomial(u[3:6], left, self.mu / (rates + self.mu))
            infected, ill, recovered = left - dead
            people = jnp.stack([S, E, I]) - left + jnp.stack([poisson(u[6], entering), infected, ill])
            return (*people, C + recovered), None

        driven = {name: inputs[name] for name in DRIVERS}
        return jnp.stack(jax.lax.scan(day, begin, (levels, noise, driven))[0])


class Reported(eqx.Module):
    """Predicts the reported cases of a week."""

    share: Any

    def __call__(self, state: Float[Array, "4"]) -> Float[Array, "1"]:
        """Return a share of those who recovered."""
        return self.share * state[3:]


def epidemic(record: Town) -> System:
    """Return the model with the published parameters, its reporting, and the first state of the record.

    Example:
        >>> epidemic(town("Mold")).state.tolist()
        [412.0, 0.0, 0.0, 0.0]
    """
    p = record.parameters
    names = {name: name for name in SEIR.__dataclass_fields__} | {"noise": "sigmaSE"}
    model = StochasticModel(SEIR(**{name: jnp.asarray(p[theirs]) for name, theirs in names.items()}))
    people = float(record.inputs["population"][0, 0]) / sum(p[f"{name}_0"] for name in ("S", "E", "I", "R"))
    state = jnp.array([round(people * p[f"{name}_0"]) for name in ("S", "E", "I")] + [0.0])
    law = RoundedCounts(jnp.asarray(p["rho"]), jnp.asarray(p["psi"]))
    return System(model, Observation(Reported(jnp.asarray(p["rho"])), law), state, limit=1e8, spread=1.0)


def inputs_of(record: Town, parameters: Mapping[str, float]) -> dict[str, Float[Array, "T ..."]]:
    """Return the inputs of the model, and the context of a learned filter: town and week."""
    weeks = record.inputs
    of_town = np.tile([np.log(parameters[name]) for name in PRIOR], (len(record.cases), 1))
    of_week = [np.log(weeks["population"][:, 0]), np.log(weeks["births"][:, 0])]
    of_week += [weeks["school"].mean(axis=1), weeks["entry"].sum(axis=1)]
    driven = {**weeks, "context": np.column_stack([of_town, *of_week])}
    return {name: jnp.asarray(series, float) for name, series in driven.items()}


def draw(record: Town, random: np.random.Generator) -> tuple[System, Any, Float[Array, "s 4"]]:
    """Draw a scenario of a town."""
    p = dict(record.parameters)
    for name, spread in (PRIOR | FIRST_STATES).items():
        p[name] *= np.exp(spread * random.normal())
    p |= {name: min(p[name], 0.95) for name in SHARES}
    system = epidemic(replace(record, parameters=p))
    noise = np.exp(ABOUT * random.normal(size=(STATES, len(NAMES))))
    return system, inputs_of(record, p), jnp.round(system.state * jnp.asarray(noise, float))


def scenarios(each: int, seed: int, names: list[str] | None = None) -> Scenarios:
    """Draw some scenarios of each town, all if none are named."""
    random = np.random.default_rng(seed)
    return Scenarios.of([draw(town(name), random) for name in names or towns() for _ in range(each)])
