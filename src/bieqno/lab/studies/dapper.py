"""Study ``dapper``: the set-ups of papers that the DAPPER package records scores for (Raanes et al. 2024, JOSS).

Each has the name that it has there. They are systems of our own here, and DAPPER is not needed. Its scores are those in the
comments of its set-ups (commit ae89b30), of single runs of mostly 1,000 windows.

- sakov2012: Sakov, Oliver and Bertino (2012), Mon. Wea. Rev. 140.
- bocquet2012: Bocquet and Sakov (2012), Nonlin. Processes Geophys. 19.
- anderson2010rhf: Anderson (2010), Mon. Wea. Rev. 138.
- wiljes2017: de Wiljes, Acevedo and Reich (2016), arXiv 1608.08179.
- ramgraber2022: Ramgraber, Baptista, McLaughlin and Marzouk (2022), on transport smoothers.
- sakov2008: Sakov and Oke (2008), Tellus 60A; with windows of 0.6 Sakov, Oliver and Bertino (2012).
- bocquet2010_m40: Bocquet, Pires and Wu (2010), Mon. Wea. Rev. 138.
- bocquet2015loc: Bocquet (2016), Q. J. R. Meteorol. Soc. 142.
- spantini2019: Spantini, Baptista and Marzouk (2019), on couplings.
- todter2015: Tödter and Ahrens (2015), Mon. Wea. Rev. 143.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

import bieqno.assimilation as da
from bieqno.lab.methods import filters
from bieqno.lab.methods.ennf_truth import published_rows, truth_studies, truth_study
from bieqno.lab.methods.filters import FilterSettings, classical_filters
from bieqno.lab.papers import LIMIT
from bieqno.lab.studies import mnmef
from bieqno.lab.study import Description, Experiment, Findings, Run


class Laplace(da.AbstractDensity):
    """Errors with a double exponential density and a standard deviation."""

    deviation: float

    def log_prob(self, value: Float[Array, "..."], predicted: Float[Array, "..."]) -> Float[Array, "..."]:
        """Return the log density."""
        scale = self.deviation / math.sqrt(2)
        return -jnp.abs(value - predicted) / scale - math.log(2 * scale)

    def sample(self, predicted: Float[Array, "*s"], *, key: PRNGKeyArray) -> Float[Array, "*s"]:
        """Draw values."""
        return predicted + self.deviation / math.sqrt(2) * jax.random.laplace(key, predicted.shape, predicted.dtype)

    def cdf(self, value: Float[Array, "..."], predicted: Float[Array, "..."]) -> Float[Array, "..."]:
        """Return the distribution function."""
        distance = (value - predicted) / (self.deviation / math.sqrt(2))
        tail = 0.5 * jnp.exp(-jnp.abs(distance))
        return jnp.where(distance > 0, 1 - tail, tail)

    def variance(self, predicted: Float[Array, "*s"]) -> Float[Array, "*s"]:
        """Return the variance, the same at all predictions."""
        return jnp.full(predicted.shape, self.deviation**2, predicted.dtype)


@dataclass(frozen=True)
class SetUp:
    """A set-up: what makes its system, the ensemble sizes to learn with truths of each, and scores by method and size."""

    system: Callable[[], da.System]
    learned: Mapping[int, int]
    scores: Mapping[str, Mapping[int, float]]

    @property
    def sizes(self) -> tuple[int, ...]:
        """The ensemble sizes to be tested: those that are learned, and all that there are scores for."""
        return tuple(sorted({*self.learned, *(size for values in self.scores.values() for size in values)}))


def _lorenz63(window: float, variance: float, observed: tuple[int, ...] = (0, 1, 2), step: float = 0.01) -> da.System:
    model, observation = da.Lorenz63(window=window, step=step), da.Observation(observed, math.sqrt(variance))
    return da.System(model, observation, jnp.array([1.5, -1.5, 25.5]), limit=LIMIT, spread=1.0)


def _lorenz96(window: float, error: Any = 1.0, *, size: int = 40, every: int = 1, step: float = 0.05) -> da.System:
    model, observation = da.Lorenz96(size, 8.0, window=window, step=step), da.Observation(range(0, size, every), error)
    places = da.Places.grid(size, period=float(size))
    return da.System(model, observation, jnp.full(size, 8.0), places, LIMIT, spread=1.0)


ETKF, LETKF, ADAPTIVE, ITERATED = "ETKF", "LETKF", "EnKF-N", "iterative EnKS"
_THREE, _FORTY = {3: 32, 10: 32}, {10: 3, 40: 1}  # variables and members: small sizes teach most for their time
SETUPS = {
    "sakov2012": SetUp(
        lambda: _lorenz63(0.25, 2.0),
        _THREE,
        {ETKF: {3: 0.80, 10: 0.60}, ADAPTIVE: {3: 0.60, 10: 0.54}, ITERATED: {10: 0.31}},
    ),
    "bocquet2012": SetUp(lambda: _lorenz63(0.25, 1.0), _THREE, {ITERATED: {3: 0.22, 10: 0.22}}),
    "anderson2010rhf": SetUp(
        lambda: _lorenz63(0.12, 8.0),
        {5: 32, 20: 32},
        {ADAPTIVE: {20: 0.87}, "serial EAKF": {20: 0.87}, "RHF": {20: 1.07}},
    ),
    "wiljes2017": SetUp(lambda: _lorenz63(0.12, 8.0, (0,)), {5: 32, 30: 32}, {ADAPTIVE: {5: 2.68, 30: 2.52}}),
    "ramgraber2022": SetUp(
        lambda: _lorenz63(0.1, 4.0, step=0.05), _THREE, {ADAPTIVE: {3: 0.50, 10: 0.43}, ITERATED: {10: 0.32}}
    ),
    "sakov2008": SetUp(
        lambda: _lorenz96(0.05), {7: 4, 24: 2}, {ETKF: {24: 0.18}, LETKF: {7: 0.22}, ADAPTIVE: {24: 0.18}}
    ),
    "sakov2008, window 0.6": SetUp(lambda: _lorenz96(0.6), {10: 3, 25: 2}, {ITERATED: {25: 0.46}}),
    "bocquet2010_m40": SetUp(
        lambda: _lorenz96(0.05, 1.5, every=2), {10: 3, 24: 2}, {ADAPTIVE: {24: 0.58}, ITERATED: {19: 0.45}}
    ),
    "bocquet2015loc, window 0.4": SetUp(
        lambda: _lorenz96(0.4), {10: 3, 20: 2}, {ITERATED: {20: 0.40}, "local iterative EnKS": {10: 0.42}}
    ),
    "spantini2019": SetUp(
        lambda: _lorenz96(0.4, math.sqrt(0.5), every=2, step=0.02),
        _FORTY,
        {
            ETKF: {40: 2.2, 60: 1.3, 100: 0.97},
            LETKF: {40: 1.0, 60: 0.89, 100: 0.84},
            ITERATED: {40: 0.52, 60: 0.47, 100: 0.43},
        },
    ),
    "todter2015": SetUp(
        lambda: _lorenz96(0.1, Laplace(1.0), size=80, every=2),
        _FORTY,
        {LETKF: {40: 0.44, 80: 0.43}, "LNETF": {40: 0.57, 80: 0.45}},
    ),
}
TUNED = ("ETKF tuned", "LETKF tuned", "iterative EnKF tuned")
_PUBLISHED = tuple(f"{method} (published)" for method in dict.fromkeys(m for s in SETUPS.values() for m in s.scores))
DESCRIPTION = Description(
    title="The set-ups of the DAPPER package",
    question="Eleven twin experiments of papers, on Lorenz's models of 1963 and 1996, each with the scores of methods that "
    "DAPPER's authors tuned. Do our classical filters reach them, and what does a filter add that is trained for each set-up?",
    claim="None; the paper does not go there. Scores of DAPPER are of one run, and given to two digits.",
    minutes={"smoke": 2.0, "quick": 60.0, "paper": 240.0},
    methods=("EnNF", *TUNED, *_PUBLISHED),
)
INFLATIONS = (1.0, 1.01, 1.02, 1.04, 1.07, 1.12, 1.2, 1.35)
RADII = (4.0, 7.0, 11.0, 15.0, 20.0)  # of the support, 3.64 times the length that DAPPER gives


@dataclass(frozen=True)
class Settings(FilterSettings):
    """Settings of a study of filters, of which each set-up named has its own sizes; none larger than `most`."""

    setups: tuple[str, ...] = tuple(SETUPS)
    most: int = 100


PRESETS = {
    "smoke": Settings(
        "smoke", (), (), 2, 12, 2, (1, 12), mnmef.SMOKE.student, {"steps": 2, "unroll": 1}, {},
        filters.SMOKE_VALIDATION, setups=("todter2015",), most=10,
    ),
    "quick": Settings("quick", (), (), 8, 400, 100, (8, 300), training={"steps": 400}, rungs=2, most=40),
    "paper": Settings("paper", (), (), 16, 1100, 100, (12, 600), training={"steps": 2000}, rungs=2),
}  # fmt: skip


def study(s: Settings, run: Run) -> Findings:
    """Train a filter for each set-up, tune the classical ones, and compare with the scores of DAPPER."""

    def one(name: str, part: Run) -> Findings:
        setup = SETUPS[name]
        system, sizes = setup.system(), tuple(size for size in setup.sizes if size <= s.most)
        training = {**s.training, "sizes": {n: truths for n, truths in setup.learned.items() if n <= s.most}}
        own = replace(s, sizes=sizes, tuned_sizes=sizes, training=training)
        known = classical_filters(system, inflation=INFLATIONS, radius=RADII)
        opponents = [known[tuned] for tuned in TUNED if tuned in known]
        published = [row for row in published_rows(setup.scores, name) if row.ensemble_size in sizes]
        return truth_study(own, part, system, opponents, networks={name: None}, published=published)

    return truth_studies(run, {name: partial(one, name) for name in s.setups})


EXPERIMENT = Experiment("dapper", DESCRIPTION, PRESETS, study)
