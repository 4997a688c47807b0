"""Study ``neural-process``: the pretrained regressor on the functions that neural processes are trained and compared on.

The set-up is that of Bruinsma et al., *Autoregressive conditional neural processes* (ICLR 2023, ``wesselb/neuralprocesses``):
processes of variance 1 with a squared exponential and a Matern-5/2 kernel of length 0.25, a weakly periodic one (squared
exponential of length 0.5 times periodic of period 0.25), noise of variance 0.05; sawtooths without noise of frequency 2 to 4; and
the mixture of all. Up to 30 context points, 50 targets, 100 of sawtooths and in the mixture. Inside: all in [-2, 2];
shifted: all in [2, 6]; extrapolation: context in [-2, 2], targets in [2, 6]. The published models were trained on each family by
itself, in [-2, 2]; the regressor was trained on none of them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import product

import numpy as np
from jaxtyping import Float
from scipy.stats import multivariate_normal, norm

from bieqno.lab.compare import Case, Method, compare
from bieqno.lab.papers import NEURAL_PROCESSES
from bieqno.lab.results import Row
from bieqno.lab.study import Description, Experiment, Findings, Run
from bieqno.regression import PretrainedGGPRegressor

METRIC = "log_likelihood"
NOISE_VARIANCE = 0.05
MOST_OBSERVED = 30
LEAST_ROWS = 3  # for the regressor; given fewer, a standard normal law answers, as all families have about its scale
KERNELS: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "eq": lambda d: np.exp(-0.5 * (d / 0.25) ** 2),
    "matern": lambda d: (1 + (r := 5**0.5 * np.abs(d) / 0.25) + r**2 / 3) * np.exp(-r),
    "weakly periodic": lambda d: np.exp(-0.5 * (d / 0.5) ** 2 - 2 * np.sin(np.pi * d / 0.25) ** 2),
}
"""Of the differences of inputs, without the noise."""
FAMILIES = (*KERNELS, "sawtooth")
TARGETS = {**dict.fromkeys(KERNELS, 50), "sawtooth": 100, "mixture": 100}
RANGES = {"inside": ((-2, 2), (-2, 2)), "shifted": ((2, 6), (2, 6)), "extrapolation": ((-2, 2), (2, 6))}
"""Where context and targets are."""
DESCRIPTION = Description(
    title="Functions of neural processes",
    question="Neural processes are trained on thousands of functions of one family: smooth, rough, periodic, sawtooths. What "
    "density does the pretrained regressor, which never saw the family, give to 50 or 100 values from up to 30 others?",
    claim="None; the paper does not go there. Bruinsma et al. (2023) report neural processes, each trained on the family that "
    "it is tested on (GNP pools by the mean, as the paper does).",
    minutes={"smoke": 0.5, "quick": 8.0, "paper": 120.0},
    methods=("ggp", "gp-true", *(f"{name} (published)" for name in NEURAL_PROCESSES["mixture, inside"])),
)


@dataclass(frozen=True)
class Settings:
    """What is run: so many `tasks`, each a function, in every case."""

    preset: str = "quick"
    tasks: int = 48
    families: tuple[str, ...] = (*FAMILIES, "mixture")
    ranges: tuple[str, ...] = tuple(RANGES)


PRESETS = {
    "smoke": Settings("smoke", 2, ("eq", "sawtooth"), ("inside",)),
    "quick": Settings(),
    "paper": Settings("paper", 1024),
}


@dataclass(frozen=True)
class Task:
    """One function: its family, some values that are known, and others that are to be predicted."""

    family: str
    x: Float[np.ndarray, "m"]
    y: Float[np.ndarray, "m"]
    targets: Float[np.ndarray, "n"]
    values: Float[np.ndarray, "n"]


def draw(rng: np.random.Generator, family: str, where: str) -> Task:
    """Draw a task of a family.

    Example:
        >>> draw(np.random.default_rng(0), "eq", "shifted").values.shape
        (50,)
    """
    count, asked = int(rng.integers(MOST_OBSERVED + 1)), TARGETS[family]
    family = FAMILIES[rng.integers(len(FAMILIES))] if family == "mixture" else family
    context, target = (rng.uniform(*ends, size) for ends, size in zip(RANGES[where], (count, asked), strict=True))
    x = np.concatenate([context, target])
    if family == "sawtooth":
        frequency, direction, phase = rng.uniform(2, 4), rng.choice([-1, 1]), rng.uniform()
        y = (frequency * direction * x + phase) % 1
    else:
        y = np.linalg.cholesky(covariance(family, x)) @ rng.standard_normal(len(x))
    return Task(family, context, y[:count], target, y[count:])


def covariance(family: str, x: Float[np.ndarray, "n"]) -> Float[np.ndarray, "n n"]:
    """Return the covariance of noisy values under the process of a family."""
    return KERNELS[family](x[:, None] - x) + NOISE_VARIANCE * np.eye(len(x))


def pretrained(task: Task) -> float:
    """Return the log-likelihood per target of the regressor as it ships."""
    if len(task.x) < LEAST_ROWS:
        return float(np.mean(norm.logpdf(task.values)))
    fitted = PretrainedGGPRegressor().fit(task.x[:, None], task.y)
    return float(fitted.log_predictive_density(task.targets[:, None], task.values)) / len(task.values)


def oracle(task: Task) -> float:
    """Return the log-likelihood per target of the Gaussian process that the task was drawn from.

    Example:
        >>> empty = np.zeros(0)
        >>> alone = oracle(Task("eq", empty, empty, np.zeros(1), np.zeros(1)))
        >>> bool(np.isclose(alone, norm.logpdf(0, scale=1.05**0.5)))
        True
    """
    count, K = len(task.x), covariance(task.family, np.concatenate([task.x, task.targets]))
    gain = np.linalg.solve(K[:count, :count], K[:count, count:]).T
    law = multivariate_normal(gain @ task.y, K[count:, count:] - gain @ K[:count, count:])
    return float(law.logpdf(task.values)) / len(task.values)


def study(s: Settings, run: Run) -> Findings:
    """Score the regressor and the oracle on the same tasks of every family and range, beside what was published."""

    def tasks(place: int, family: str, where: str, repetition: int) -> Sequence[Task]:
        return [draw(np.random.default_rng([run.seed, place, number]), family, where) for number in range(s.tasks)]

    def method(name: str, score: Callable[[Task], float]) -> Method[Sequence[Task]]:
        return Method(name, lambda tasks: {METRIC: np.array([score(task) for task in tasks])})

    plan, ggp, oracle_gp = [], method("ggp", pretrained), method("gp-true", oracle)
    for place, (family, where) in enumerate(product(s.families, s.ranges)):
        own = Case(f"{family}, {where}", cache(partial(tasks, place, family, where)))
        plan += [(own, one) for one in ((ggp, oracle_gp) if family in KERNELS else (ggp,))]
    rows = [row for outcome in compare(run, plan, lambda _, found: {METRIC: found[METRIC]}) for row in outcome.rows()]
    for name in dict.fromkeys(case.name for case, _ in plan):
        published = NEURAL_PROCESSES.get(name, {}).items()
        rows += [Row(name, f"{model} (published)", METRIC, value, None, 1) for model, value in published]
    return [row for row in rows if run.wants(row.method)], {}


EXPERIMENT = Experiment("neural-process", DESCRIPTION, PRESETS, study)
