"""Study ``leaf-river``: the flow of a river one day ahead, by a model of five stores that is driven by rain."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.optimize import minimize

from bieqno.assimilation import ETKF, Dressed, EnKF, Filter, LogNormal, ParticleFilter, Scenarios, System, Transformed
from bieqno.lab.compare import SETTING, Arrays, Case, Method, compare
from bieqno.lab.methods.records import KEPT, MOMENTS, RecordTest, on_record, predicting, rows_of, score, series_of
from bieqno.lab.records import leaf_river as basins
from bieqno.lab.records.baselines import FlowFeatures, Prediction, fit, flow_baselines, with_error_model
from bieqno.lab.records.leaf_river import COORDINATES, PRIOR, STRUCTURE, HyMOD, River
from bieqno.lab.records.training import kept_or_trained
from bieqno.lab.results import Row
from bieqno.lab.study import Description, Experiment, Findings, Run

BASELINES = ("persistence", "persistence by rain", "autoregression", "climatology")
LOOP, CORRECTED, AUGMENTED, LEARNED = "open loop", "EnKF, error model", "EnKF, parameters", "EnNF"
NOISES = {"rain_noise": -0.75, "lasting_noise": -2.5, "store_noise": -1.6, "deviation": -2.3}  # where the search begins
WALK = {"walk": -5.5}  # log of the change of every parameter in a day, where parameters are in the state
SCENARIOS = 32  # that the learned filter is trained on
SPIN = 60  # days until the stores have forgotten their first content
DESCRIPTION = Description(
    title="Flow of the Leaf River",
    question="The daily flow of a river and the rain that feeds it were measured for ten years. After a calibration on the first "
    "five, which filter predicts the next day's flow best, and does it beat predictions without a model?",
    claim="None; the paper has no such data.",
    minutes={"smoke": 1.0, "quick": 9.0, "paper": 30.0},
    methods=("EnKF tuned", CORRECTED, AUGMENTED, LEARNED, "ETKF tuned", "particle filter tuned", LOOP, *BASELINES),
)


@dataclass(frozen=True)
class Settings:
    """What is run: members, runs of each filter, evaluations of a calibration, and how many days of its years and of the test.

    The learned filter is trained for some `steps`, with so many `truths` of each ensemble size.
    """

    preset: str = "quick"
    sizes: tuple[int, ...] = (20, 100)
    runs: int = 3
    evaluations: int = 50
    days: tuple[int | None, int | None] = (None, None)
    steps: int = 3000
    truths: tuple[int, ...] = (32, 8)


PRESETS = {
    "smoke": Settings("smoke", (20,), 1, 6, (200, 60), 20, (4,)),
    "quick": Settings(),
    "paper": Settings("paper", (20, 50, 100, 500), 5, 150, steps=10000, truths=(32, 16, 8, 2)),
}


def cut(found: River, s: Settings) -> River:
    """Return the last days of the calibration and the first of the test."""
    before, after = s.days
    begin = 0 if before is None else found.calibrated - before
    end = len(found.flow) if after is None else found.calibrated + after
    part = slice(begin, end)
    inputs = {name: jnp.asarray(series[part], float) for name, series in found.inputs.items()}
    return River(found.dates[part], found.flow[part], inputs, found.calibrated - begin)


def calibrate_structure(record: River) -> dict[str, float]:
    """Return the parameters whose run without noise is nearest to the square root of the flow, in the first years."""
    part = slice(min(SPIN, record.calibrated // 3), record.calibrated)
    begin = HyMOD()
    root = jnp.sqrt(jnp.asarray(record.flow, float))

    @jax.jit
    @jax.value_and_grad
    def loss(p: Float[Array, "p"]) -> Float[Array, ""]:
        model = HyMOD(**dict(zip(STRUCTURE, p, strict=True)))
        predicted = basins.open_loop(model, record.inputs, float(record.flow[0]))
        return jnp.mean((jnp.sqrt(predicted) - root)[part] ** 2)

    def of_numpy(p: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = loss(jnp.asarray(p, float))
        return float(value), np.asarray(gradient, float)

    start = np.array([getattr(begin, name) for name in STRUCTURE])
    found = minimize(of_numpy, start, jac=True, method="L-BFGS-B", bounds=[(x - 4, x + 4) for x in start])
    return dict(zip(STRUCTURE, found.x.tolist(), strict=True))


def build_system(record: River, structure: dict[str, float], noises: dict[str, float]) -> System:
    """Return the basin with some parameters."""
    values = {name: jnp.asarray(value, float) for name, value in (structure | noises).items()}
    deviation = jnp.exp(values.pop("deviation"))
    return basins.basin(HyMOD(**values), deviation, float(record.flow[0]))


def with_noises(record: River, structure: dict[str, float], test: RecordTest, p: dict[str, float]) -> RecordTest:
    """Return the test with other noises."""
    return replace(test, system=build_system(record, structure, p))


def augmented(record: River, structure: dict[str, float], test: RecordTest, p: dict[str, float]) -> RecordTest:
    """Return the test with other noises, and with the parameters of the stores in the state."""
    system = build_system(record, structure, {name: p[name] for name in NOISES})
    about = {name: (structure[name], PRIOR[name]) for name in STRUCTURE}
    walk = jnp.exp(jnp.asarray(p["walk"], float))
    appended, start = basins.with_parameters(system, test.start, about, walk, key=jax.random.key(test.seed))
    return replace(test, system=appended, start=start)


def calibrated(
    name: str,
    filter: Filter,
    build: Callable[[RecordTest, dict[str, float]], RecordTest],
    begin: dict[str, float],
    evaluations: int,
) -> Method[RecordTest]:
    """Return a filter with the noises of the largest likelihood in the first years, which the log score estimates.

    The search begins at some noises, of which `build` makes the test. In these years it is decided, too, whether the filter is
    scored by the mixture of the laws at its members or by their moments.
    """

    def run(test: RecordTest) -> Arrays:
        first = replace(test, values=test.values[: test.first], seeds=1, first=min(SPIN, test.first // 3))
        first = replace(first, inputs={key: series[: test.first] for key, series in test.inputs.items()})

        def loss(p: np.ndarray) -> float:
            found = on_record(filter, build(first, dict(zip(begin, p.tolist(), strict=True))))
            lost = found["diverged"][0] >= 0
            return 1e3 if lost else -float(np.mean(found["log_score"][0, first.first :]))

        start = np.array(list(begin.values()))
        simplex = np.concatenate([start[None], start + 0.5 * np.eye(len(start))])
        options = {"maxfev": evaluations, "initial_simplex": simplex, "xatol": 0.02, "fatol": 1e-3}
        best = dict(zip(begin, minimize(loss, start, method="Nelder-Mead", options=options).x.tolist(), strict=True))
        dressed = [Dressed(filter, "log", jnp.asarray(moments)) for moments in MOMENTS]
        early = [on_record(one, build(first, best))["log_score"][0, first.first :].mean() for one in dressed]
        chosen = int(np.nanargmax(early))
        found = on_record(dressed[chosen], build(test, best))
        best["moments"] = MOMENTS[chosen]
        return found | {SETTING + name: np.array(value) for name, value in best.items()}

    return Method(name, run)


def score_flow(test: RecordTest, found: Arrays) -> dict[str, Any]:
    """Score the days after the calibration, and those with and without rain by themselves."""
    scores: dict[str, Any] = score(test, found)
    log_score = np.asarray(found["log_score"], float)[:, test.first :]
    mean, values = np.asarray(found["predicted_mean"], float)[:, test.first :], test.values[test.first :]
    wet = np.asarray(test.inputs["rain"]).sum(axis=1)[test.first :] > 1
    del scores["log_score"]
    chosen = {"nll": slice(None), "nll_wet": wet, "nll_dry": ~wet}
    parts = {name: -log_score[:, which].mean(axis=1) for name, which in chosen.items()}
    return parts | {"efficiency": np.array([basins.efficiency(values, each) for each in mean])} | scores


def _open_loop(record: River, structure: dict[str, float]) -> Callable[[RecordTest], Prediction]:
    """Return the calibrated run without observations, with a log-normal law that is fitted, too."""
    median = basins.open_loop(HyMOD(**structure), record.inputs, float(record.flow[0]))
    part = slice(min(SPIN, record.calibrated // 3), record.calibrated)

    def about(p: Float[Array, "2"]) -> Prediction:
        return Prediction(median * jnp.exp(p[0]), LogNormal(jnp.exp(p[1])))

    return lambda test: fit(about, record.flow, np.array([0.0, -1.0]), part)


def learned(
    s: Settings, run: Run, record: River, structure: dict[str, float], noises: dict[str, float]
) -> Method[RecordTest]:
    """Return the filter that is trained on floods of the model, with the noises that were found for the EnKF."""

    def build(parameters: dict[str, float]) -> System:
        own = {name: parameters[name] for name in STRUCTURE}
        return build_system(record, own, {name: parameters[name] for name in NOISES})

    @functools.cache
    def filter() -> Filter:
        def known() -> Scenarios:
            return basins.scenarios(record, structure | noises, build, SCENARIOS, run.seed + 1)

        sizes = dict(zip(s.sizes, s.truths, strict=True))
        return kept_or_trained(run, known, COORDINATES, "log", sizes, s.steps)

    def of(test: RecordTest) -> Arrays:
        inputs = basins.with_context(test.inputs)
        return on_record(filter(), replace(test, system=build(structure | noises), inputs=inputs))

    return Method(LEARNED, of)


def study(s: Settings, run: Run) -> Findings:
    """Calibrate the model, then each filter on it, and compare them on the years after."""
    record = cut(basins.river(), s)
    structure = calibrate_structure(record)
    rain = np.asarray(record.inputs["rain"])
    part = slice(min(SPIN, record.calibrated // 3), record.calibrated)

    def test_of(members: int) -> RecordTest:
        system = build_system(record, structure, NOISES)
        start = jnp.tile(system.state, (members, 1))
        first = record.calibrated
        return RecordTest(system, record.flow, record.inputs, start, s.runs, (0, 0), run.seed, first)

    def case_of(size: int) -> Case[RecordTest]:
        return Case("test years", lambda _: test_of(size), about={"ensemble_size": size}, label=f"N={size}")

    one = Case("test years", lambda _: test_of(1))
    plan = [(one, predicting(LOOP, _open_loop(record, structure)))]
    features = functools.cache(lambda: FlowFeatures.of(record.flow, rain, record.dates, part))
    baselines = functools.cache(lambda: flow_baselines(features(), part))
    plan += [(one, predicting(name, lambda test, name=name: baselines()[name])) for name in BASELINES]  # type: ignore[misc]
    plain, varied = (partial(build, record, structure) for build in (with_noises, augmented))
    for size in s.sizes:
        filters: dict[str, Filter] = {
            "EnKF tuned": Transformed.by(EnKF(), COORDINATES, "log"),
            "ETKF tuned": Transformed.by(ETKF(), COORDINATES, "log"),
            "particle filter tuned": Transformed.by(ParticleFilter(0.2), COORDINATES),
        }
        plan += [(case_of(size), calibrated(name, one, plain, NOISES, s.evaluations)) for name, one in filters.items()]
        wider = Transformed.by(EnKF(), (*COORDINATES, *["same"] * len(STRUCTURE)), "log")
        plan.append((case_of(size), calibrated(AUGMENTED, wider, varied, NOISES | WALK, s.evaluations)))
    if run.wants("EnNF") and not run.wants("EnKF tuned"):
        raise ValueError("the noises that the EnNF is trained with are the tuned EnKF's; add --only 'EnKF tuned'")
    outcomes = compare(run, plan, score_flow, keep=KEPT)
    plan = []  # the error model on top of each EnKF, from the prediction of its first run, and the learned filter beside
    own = [outcome for outcome in outcomes if outcome.method == "EnKF tuned"]
    noises = {name: own[-1].settings[name] for name in NOISES} if own else NOISES  # without an EnKF nothing is trained
    learner = learned(s, run, record, structure, noises)
    plan += [(case_of(size), learner) for size in s.sizes]
    for found in own:
        mean = np.asarray(found.kept[0]["predicted_mean"])[0]
        correct = partial(with_error_model, mean, features(), part)
        plan.append((found.case, predicting(CORRECTED, lambda test, correct=correct: correct())))  # type: ignore[misc]
    outcomes += compare(run, plan, score_flow, keep=KEPT)
    rows = [*rows_of(outcomes), *(Row.of("test years", "HyMOD", name, [value]) for name, value in structure.items())]
    return rows, {"test years": series_of(outcomes, record.dates, flow=record.flow)}


EXPERIMENT = Experiment("leaf-river", DESCRIPTION, PRESETS, study)
