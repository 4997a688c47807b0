"""Study ``tables``: four tables of the UCI repository in standard splits, beside tuned and published methods.

The splits are the first five of the twenty random ones (nine tenths to learn from) of Hernandez-Lobato and Adams (2015), which
Gal and Ghahramani (2016) and all later authors use. Published scores are means over all twenty.
"""

import gzip
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from jaxtyping import Float

from bieqno.lab.compare import Case, compare
from bieqno.lab.methods import boosting, regression
from bieqno.lab.methods import classical_regressors as baselines
from bieqno.lab.methods.regression import Fit, Prediction, Problem
from bieqno.lab.results import Row
from bieqno.lab.study import Description, Experiment, Findings, Run
from bieqno.regression import PretrainedGGPRegressor

_DATA = Path(__file__).parent / "data" / "uci"
TABLES = ("concrete", "wine", "kin8nm", "power")
# NLPD and RMSE of tuned MC-dropout (Gal and Ghahramani 2016), deep ensembles (Lakshminarayanan et al. 2017), NGBoost (Duan et al.
# 2020), and the best that we have found in print, each score by itself.
_MODELS = ("MC-dropout", "deep ensembles", "NGBoost", "best")
_SCORES = {
    "concrete": ((2.94, 4.83), (3.06, 6.03), (3.04, 5.06), (2.83, 4.15)),
    "kin8nm": ((-1.14, 0.079), (-1.20, 0.09), (-0.49, 0.16), (-1.24, 0.07)),
    "power": ((2.81, 4.01), (2.79, 4.11), (2.79, 3.79), (2.6, 3.19)),
    "wine": ((0.93, 0.62), (0.94, 0.64), (0.91, 0.63), (0.89, 0.61)),
}
PUBLISHED = {table: dict(zip(_MODELS, scores, strict=True)) for table, scores in _SCORES.items()}
# Rows by which the opponent's kernel is chosen, and its hyperparameters, as ours are by a thousand; it then sees all rows.
_KERNEL_ROWS, _TUNING_ROWS = 300, 800


def _gp(problem: Problem, seed: int) -> Prediction:
    """Return a Gaussian process with a length scale for each input and the kernel of the highest likelihood."""
    shift, scale = problem.x.mean(axis=0), np.maximum(problem.x.std(axis=0), 1e-12)
    x, points = (problem.x - shift) / scale, (problem.points - shift) / scale
    order = np.random.default_rng(seed).permutation(len(x))

    def tuned(kernel: str, rows: int) -> baselines.TunedGP:
        own = order[:rows]
        return baselines.tune(x[own], problem.y[own], kernel=kernel, noise=None, lengths=4, climbs=1)

    kernels = ("se", "matern32", "matern52")
    kernel = max(kernels, key=lambda one: tuned(one, _KERNEL_ROWS).log_marginal_likelihood)
    best = tuned(kernel, _TUNING_ROWS)
    mean, std = baselines.given_all(best, x, problem.y, points)
    return Prediction(mean, std, np.diag(std[:1] ** 2), best.log_marginal_likelihood)


METHODS: Mapping[str, Fit] = {
    "ggp": lambda problem, seed: regression.of_ggp(PretrainedGGPRegressor(random_state=0), problem),
    "gp-ard": _gp,
    "trees": regression.of_trees,
    **boosting.METHODS,
}
DESCRIPTION = Description(
    title="Tables",
    question="The strength of concrete from its recipe, of wine its grade, the reach of a robot's arm, the output of a power "
    "plant: 8, 11, 8 and 4 inputs. Which method predicts best, and knows how well?",
    claim="None; the paper has no such data.",
    minutes={"smoke": 1.0, "quick": 15.0, "paper": 90.0},
    methods=(*METHODS, *(f"{name} (published)" for name in _MODELS)),
)


@dataclass(frozen=True)
class Settings:
    """What is run: so many standard `splits` of some tables, with at most so many rows to learn from."""

    preset: str = "quick"
    splits: int = 2
    rows: int = 2000
    tables: tuple[str, ...] = TABLES


PRESETS = {"smoke": Settings("smoke", 1, 100, ("concrete",)), "quick": Settings(), "paper": Settings("paper", 5, 10**6)}


@cache
def load_table(name: str) -> Float[np.ndarray, "n d"]:
    """Return a table; the last column is the target."""
    return np.loadtxt(gzip.open(_DATA / f"{name}.csv.gz"), delimiter=",", skiprows=1)


def draw(name: str, split: int, rows: int) -> Problem:
    """Return a standard split, with at most so many rows to learn from.

    Example:
        >>> problem = draw("concrete", 0, 10**6)
        >>> problem.x.shape, problem.points.shape
        ((927, 8), (103, 8))
    """
    table = load_table(name)
    test = np.array(json.loads(gzip.decompress((_DATA / "test_rows.json.gz").read_bytes()))[name][split])
    train = np.random.default_rng(split).permutation(np.setdiff1d(np.arange(len(table)), test))[:rows]
    (x, y), (points, values) = ((part[:, :-1], part[:, -1]) for part in (table[train], table[test]))
    return Problem(x, y, points, values, values, None, np.arange(1))


def study(s: Settings, run: Run) -> Findings:
    """Run all methods that are installed on the standard splits of every table, beside what was published."""
    there = {name: fit for name, fit in METHODS.items() if name not in boosting.METHODS} | boosting.installed()

    def trial(name: str) -> Callable[[int], regression.Trial]:
        return cache(lambda split: (draw(name, split, s.rows), split))

    cases = [Case(name, trial(name), s.splits) for name in s.tables]
    plan = [(case, regression.as_method(*named)) for case in cases for named in there.items()]
    rows = [row for outcome in compare(run, plan, regression.score_prediction) for row in outcome.rows()]
    for name in s.tables:
        for model, (density, error) in PUBLISHED[name].items():
            rows.append(Row(name, f"{model} (published)", "nlpd", density, None, 20))
            rows.append(Row(name, f"{model} (published)", "rmse", error, None, 20))
    return [row for row in rows if run.wants(row.method)], {}


EXPERIMENT = Experiment("tables", DESCRIPTION, PRESETS, study)
