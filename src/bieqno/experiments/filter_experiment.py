"""One experiment of section 3.2: a teacher's runs, a filter trained on them, and all methods compared."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from bieqno.assimilation import EnKF, EnNF, Filter, Lessons, imitate, make_trials, teach, tune
from bieqno.assimilation.models.forecast import Model
from bieqno.assimilation.setups import Setup
from bieqno.experiments.filter_study import Method, compare_filters, no_assimilation, trial_makers
from bieqno.experiments.results import Progress, Result, Row
from bieqno.training import Progress as TrainingProgress


@dataclass(frozen=True)
class Settings:
    """What is run.

    Attributes:
        preset: name of the settings.
        sizes: ensemble sizes of the untuned filters.
        tuned_sizes: ensemble sizes of the tuned ones, each tuned for itself.
        teacher_runs: runs of the teacher, each from a first ensemble of its own.
        teacher_members: its ensemble size.
        training_windows: length of its runs; the test goes on beyond.
        windows: length of a test run.
        runs: test runs for each error, on the paper's record.
        truths: unseen truths.
        tuning: truths and windows that the opponents are tuned on.
        student: settings of the `EnNF`.
        training: settings of `imitate`.
        fine_tuning: settings of a second `imitate` with weights for each variable; empty for none.
        particles: size of the particle filter; 0 for none.
    """

    preset: str
    sizes: tuple[int, ...]
    tuned_sizes: tuple[int, ...]
    teacher_runs: int
    teacher_members: int
    training_windows: int = 150
    windows: int = 200
    runs: int = 5
    truths: int = 5
    tuning: tuple[int, int] = (4, 200)
    student: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)
    fine_tuning: Mapping[str, Any] = field(default_factory=dict)
    particles: int = 0


@dataclass(frozen=True)
class Tuned:
    """An opponent with settings to be found: what builds it, and the values to try."""

    name: str
    build: Callable[..., Filter]
    grid: Mapping[str, Sequence[float]]


def train(
    settings: Settings,
    lessons: Lessons,
    model: Model,
    *,
    key: jax.Array,
    on_progress: Callable[[str, TrainingProgress], None] | None = None,
) -> EnNF:
    """The filter that the lessons teach: one operator for all variables, then fine-tuned for each if asked for."""
    student_key, shared_key, own_key = jax.random.split(key, 3)
    student = lessons.standardise(EnNF(lessons.value.shape[1], **settings.student, key=student_key))

    def tell(part: str) -> Callable[[TrainingProgress], None] | None:
        return None if on_progress is None else lambda progress: on_progress(part, progress)

    student = imitate(
        student, lessons, model=model, **settings.training, key=shared_key, on_progress=tell("training")
    ).module
    if settings.fine_tuning:
        stacked = student.stacked(lessons.prior.shape[2])
        student = imitate(
            stacked, lessons, model=model, **settings.fine_tuning, key=own_key, on_progress=tell("fine-tuning")
        ).module
    return student


def run_experiment(
    name: str,
    setup: Setup,
    settings: Settings,
    opponents: Sequence[Tuned],
    limit: Filter | None,
    *,
    seed: int,
    on_progress: Callable[[Progress], None] | None = None,
) -> Result:
    """Teach, train, tune and compare.

    Args:
        name: of the experiment.
        setup: the twin experiment.
        settings: what to run.
        opponents: filters to be tuned.
        limit: a filter of `settings.particles` members that shows what is possible.
        seed: what everything random grows from.
        on_progress: called before each part.
    """
    s = settings
    record_key, truth_key, tune_key, train_key, run_key = jax.random.split(jax.random.key(seed), 5)
    started = time.perf_counter()

    def tell(part: str) -> None:
        if on_progress is not None:
            on_progress(Progress(part, 0, 1, time.perf_counter() - started))

    tell("teacher")
    trials = setup.trials(
        s.training_windows, runs=s.teacher_runs, members=s.teacher_members, one_record=True, key=record_key
    )
    teacher = EnKF(centred=False)
    lessons = teach(teacher, setup.model, setup.observation, trials, limit=setup.limit, key=run_key)
    begun = time.perf_counter()
    ennf = train(
        s, lessons, setup.model, key=train_key, on_progress=lambda part, p: tell(f"{part}, step {p.step} of {p.steps}")
    )
    seconds = time.perf_counter() - begun

    def tuned(opponent: Tuned) -> Callable[[int], Filter]:
        def build(size: int) -> Filter:
            truths, windows = s.tuning
            practice = make_trials(
                setup.model, setup.observation, windows, state=setup.state, truths=truths, members=size, key=tune_key
            )
            found = tune(
                opponent.build, opponent.grid, setup.model, setup.observation, practice,
                burn_in=windows // 10, limit=setup.limit, key=run_key,
            )  # fmt: skip
            # As arrays, so that filters of other settings share the compilation.
            return opponent.build(**{key: jnp.asarray(value) for key, value in found.best.items()})

        return build

    methods = [
        Method("baseline", lambda size: no_assimilation, (1,)),
        Method("EnKF", lambda size: teacher, s.sizes),
        Method("EnNF", lambda size: ennf, s.sizes),
        *(Method(opponent.name, tuned(opponent), s.tuned_sizes) for opponent in opponents),
    ]
    if limit is not None and s.particles:
        methods.append(Method("particle filter", lambda size: limit, (s.particles,)))
    makers = trial_makers(
        setup, windows=s.windows, runs=s.runs, first_run=s.teacher_runs, truths=s.truths,
        record_key=record_key, truth_key=truth_key,
    )  # fmt: skip
    rows, arrays = compare_filters(setup, methods, makers, key=run_key, on_progress=on_progress)
    rows += [
        Row.of("training", "EnNF", "seconds", [seconds]),
        Row.of("training", "teacher", "pairs", [float(lessons.pairs)]),
        Row.of("training", "teacher", "runs_left_out", [float(lessons.left_out)]),
    ]
    return Result(name, s.preset, seed, tuple(rows), arrays)
