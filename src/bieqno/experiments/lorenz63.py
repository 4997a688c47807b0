"""Experiment ``lorenz63``: the ensemble neural filter on Lorenz's model of 1963 (section 3.2.1 of the paper)."""

from collections.abc import Callable
from dataclasses import replace

from jaxtyping import Array

from bieqno.assimilation import ETKF, EnKF, Filter, Floored, Inflated, ParticleFilter, Rotated
from bieqno.assimilation.setups import paper_lorenz63
from bieqno.experiments.filter_experiment import Settings, Tuned, run_experiment
from bieqno.experiments.results import Progress, Result

NAME = "lorenz63"
FLOOR = 0.05  # least error that the tuned filters believe in, for the law passes through zero
INFLATIONS = (1.0, 1.02, 1.05, 1.1, 1.2, 1.35, 1.5, 2.0)

_QUICK = Settings(
    "quick",
    sizes=(2, 4, 6, 8, 10, 12, 14, 16),
    tuned_sizes=(2, 4, 8, 16),
    teacher_runs=10,
    teacher_members=50,
    training={"steps": 8000, "shift": 0.03, "noise": 0.02},
    particles=100_000,
)
PRESETS = {
    "smoke": Settings(
        "smoke", (2, 4), (4,), 2, 20, training_windows=15, windows=20, runs=2, truths=2, tuning=(2, 20),
        student={"width": 8, "depth": 2}, training={"steps": 20, "members": 32}, particles=200,
    ),
    "quick": _QUICK,
    "paper": replace(
        _QUICK, preset="paper", tuned_sizes=_QUICK.sizes, tuning=(8, 400),
        training={"steps": 30_000, "shift": 0.03, "noise": 0.02},
    ),
}  # fmt: skip


def opponents() -> list[Tuned]:
    """The classical filters, with inflation to be found."""

    def enkf(inflation: float | Array) -> Filter:
        return Inflated(Floored(EnKF(), FLOOR), inflation)

    def etkf(inflation: float | Array) -> Filter:
        return Rotated(Inflated(Floored(ETKF(), FLOOR), inflation))

    grid = {"inflation": INFLATIONS}
    return [Tuned("EnKF tuned", enkf, grid), Tuned("ETKF tuned", etkf, grid)]


def run(
    settings: Settings | str = "quick", *, seed: int = 0, on_progress: Callable[[Progress], None] | None = None
) -> Result:
    """Run the experiment.

    Args:
        settings: what to run, or the name of a preset: smoke, quick or paper.
        seed: what everything random grows from.
        on_progress: called before each part.
    """
    if isinstance(settings, str):
        if settings not in PRESETS:
            raise ValueError(f"expected a preset of {', '.join(PRESETS)}, got {settings!r}")
        settings = PRESETS[settings]
    limit = ParticleFilter(0.2)
    return run_experiment(NAME, paper_lorenz63(), settings, opponents(), limit, seed=seed, on_progress=on_progress)
