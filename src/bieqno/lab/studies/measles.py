"""Study ``measles``: weekly cases of 20 towns, one week ahead, by the stochastic SEIR model of He, Ionides and King (2010)."""

import functools
from dataclasses import dataclass

import jax.numpy as jnp
import pandas as pd
from jaxtyping import Array, Float

from bieqno.assimilation import ETKF, EnKF, Filter, Inflated, ParticleFilter, Transformed
from bieqno.lab.compare import Case, Method, compare
from bieqno.lab.methods import records
from bieqno.lab.methods.records import KEPT, RecordTest, on_record, predicting
from bieqno.lab.records.baselines import count_baselines
from bieqno.lab.records.measles import NAMES, Town, epidemic, inputs_of, scenarios, town, towns
from bieqno.lab.records.training import kept_or_trained
from bieqno.lab.results import Row
from bieqno.lab.study import Description, Experiment, Findings, Run

PUBLISHED, MANY, ALL = "particle filter (published)", "particle filter, many", "all towns"
LEARNED = "EnNF"
COORDINATES = ["log1p"] * len(NAMES)
BASELINES = ("autoregression", "persistence", "climatology")
INFLATIONS, JITTERS = (1.0, 1.02, 1.05, 1.1), (0.0, 0.1, 0.2, 0.4)
DESCRIPTION = Description(
    title="Measles in 20 towns",
    question="Cases of measles were counted every week of 1950 to 1963, and what is known of the epidemic is a stochastic model. "
    "How well do filters of few members predict the next week, beside the published likelihood and statistics without a model?",
    claim="None; the paper has no such data.",
    minutes={"smoke": 0.7, "quick": 10.0, "paper": 120.0},
    methods=(PUBLISHED, MANY, LEARNED, "particle filter tuned", "EnKF tuned", "ETKF tuned", *BASELINES),
)


@dataclass(frozen=True)
class Settings:
    """What is run: towns, members, particles of the reference, runs of each, weeks, and truths and weeks of the tuning.

    The learned filter has one set of weights for all towns. Its training, which sees no record, has some `scenarios` of each
    town, `steps`, and so many `truths` of each ensemble size.
    """

    preset: str = "quick"
    towns: tuple[str, ...] = ("London", "Hastings", "Mold")
    sizes: tuple[int, ...] = (20, 100)
    particles: int = 1000
    runs: int = 2
    weeks: int | None = None
    tuning: tuple[int, int] = (2, 156)
    scenarios: int = 10
    steps: int = 2500
    truths: tuple[int, ...] = (48, 8)


PRESETS = {
    "smoke": Settings("smoke", ("Mold",), (20,), 40, 1, 30, (1, 20), 1, 20, (8,)),
    "quick": Settings(),
    "paper": Settings("paper", tuple(towns()), particles=5000, runs=3, tuning=(4, 208), scenarios=20, steps=12000),
}


def enkf(inflation: float | Float[Array, ""]) -> Filter:
    """Return an EnKF of logarithms of the state and square roots of the cases."""
    return Transformed.by(Inflated(EnKF(), inflation), COORDINATES, "sqrt")


def etkf(inflation: float | Float[Array, ""]) -> Filter:
    """Return the same without perturbed observations."""
    return Transformed.by(Inflated(ETKF(), inflation), COORDINATES, "sqrt")


def particles(jitter: float | Float[Array, ""]) -> Filter:
    """Return a particle filter with a jitter of logarithms of the state."""
    return Transformed.by(ParticleFilter(jitter), COORDINATES)


FILTERS = {
    "particle filter tuned": (particles, {"jitter": JITTERS}),
    "EnKF tuned": (enkf, {"inflation": INFLATIONS}),
    "ETKF tuned": (etkf, {"inflation": INFLATIONS}),
}


def test_of(record: Town, members: int, s: Settings, runs: int, seed: int) -> RecordTest:
    """Return the record of a town, as filters of so many members are tested on it: all begin at the published state."""
    system = epidemic(record)
    inputs = {name: series[: s.weeks] for name, series in inputs_of(record, record.parameters).items()}
    tuning = s.tuning[0], min(s.tuning[1], len(record.cases))
    start = jnp.tile(system.state, (members, 1))
    return RecordTest(system, record.cases[: s.weeks], inputs, start, runs, tuning, seed)


def _baselines(record: Town, s: Settings) -> list[Method[RecordTest]]:
    dates = pd.to_datetime(list(record.dates))[: s.weeks]
    found = functools.cache(lambda: count_baselines(record.cases[: s.weeks], record.before, dates))
    return [predicting(name, lambda test, name=name: found()[name]) for name in BASELINES]  # type: ignore[misc]


def study(s: Settings, run: Run) -> Findings:
    """Run the filters on every town, tuned on simulated epidemics of the town, and add up the towns."""
    plan, rows = [], []

    @functools.cache
    def learned() -> Filter:
        sizes = dict(zip(s.sizes, s.truths, strict=True))
        known = functools.partial(scenarios, s.scenarios, run.seed + 1)
        return kept_or_trained(run, known, COORDINATES, "sqrt", sizes, s.steps)

    for name in s.towns:
        record = town(name)
        if run.wants(PUBLISHED) and s.weeks is None:
            rows.append(Row.of(name, PUBLISHED, "log_score", [record.published]))
        many = test_of(record, s.particles, s, 1, run.seed)
        about = {"ensemble_size": s.particles}
        case = Case(name, lambda _, test=many: test, about=about, label=f"{name}, N={s.particles}")  # type: ignore[misc]
        plan.append((case, records.fixed(MANY, ParticleFilter(0.0))))
        one = Case(name, lambda _, test=many: test, label=name)  # type: ignore[misc]
        plan += [(one, method) for method in _baselines(record, s)]
        for size in s.sizes:
            test = test_of(record, size, s, s.runs, run.seed)
            about = {"ensemble_size": size}
            case = Case(name, lambda _, test=test: test, about=about, label=f"{name}, N={size}")  # type: ignore[misc]
            plan += [(case, records.tuned(method, *about, "sqrt")) for method, about in FILTERS.items()]
            plan.append((case, Method(LEARNED, lambda test: on_record(learned(), test))))
    outcomes = compare(run, plan, records.score, keep=KEPT)
    rows += records.rows_of(outcomes)
    arrays = {}
    for name in s.towns if outcomes else ():
        own, record = [outcome for outcome in outcomes if outcome.case.name == name], town(name)
        dates = pd.to_datetime(list(record.dates))[: s.weeks]
        arrays[name] = records.series_of(own, dates, cases=record.cases[: s.weeks])
    return rows + (records.totals(rows, ALL) if len(s.towns) > 1 else []), arrays


EXPERIMENT = Experiment("measles", DESCRIPTION, PRESETS, study)
