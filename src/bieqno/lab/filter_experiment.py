"""One experiment of section 3.2: a teacher's runs, a filter trained on them, and all methods compared."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np
from jaxtyping import UInt8

from bieqno.assimilation import EnKF, EnNF, Filter, Lessons, imitate, make_trials, teach, tune
from bieqno.assimilation.models.forecast import Model
from bieqno.assimilation.storage import filter_from_bytes, filter_to_bytes
from bieqno.lab.filter_study import Method, compare_filters, no_assimilation, trial_makers
from bieqno.lab.papers import Setup
from bieqno.lab.results import Row
from bieqno.lab.study import Findings, Run
from bieqno.training import Progress as TrainingProgress

TRAINING_SHARE = 0.5  # of the time that a study takes, for the progress to tell; about half was measured


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


def run_experiment(s: Settings, run: Run, setup: Setup, opponents: Sequence[Tuned], limit: Filter | None) -> Findings:
    """Teach, train, tune and compare in a twin experiment, with opponents to be tuned.

    The limit is a filter of `s.particles` members that shows what is possible.
    """
    record_key, truth_key, tune_key, train_key, run_key = jax.random.split(jax.random.key(run.seed), 5)
    teacher = EnKF(centred=False)

    def learn() -> dict[str, np.ndarray]:
        run.tell("teacher", 0.0)
        trials = setup.trials(
            s.training_windows, runs=s.teacher_runs, members=s.teacher_members, one_record=True, key=record_key
        )
        lessons = teach(teacher, setup.model, setup.observation, trials, limit=setup.limit, key=run_key)
        begun = time.perf_counter()
        ennf = train(
            s, lessons, setup.model, key=train_key,
            on_progress=lambda part, p: run.tell(part, TRAINING_SHARE * p.step / p.steps, training=p),
        )  # fmt: skip
        facts = {"seconds": time.perf_counter() - begun, "pairs": lessons.pairs, "runs_left_out": lessons.left_out}
        return {"filter": as_array(ennf), **{name: np.array(float(value)) for name, value in facts.items()}}

    def tuned(opponent: Tuned) -> Method:
        def search(size: int) -> dict[str, float]:
            truths, windows = s.tuning
            practice = make_trials(
                setup.model, setup.observation, windows, state=setup.state, truths=truths, members=size, key=tune_key
            )
            return tune(
                opponent.build, opponent.grid, setup.model, setup.observation, practice,
                burn_in=windows // 10, limit=setup.limit, key=run_key,
            ).best  # fmt: skip

        return Method(opponent.name, lambda size, **found: opponent.build(**found), s.tuned_sizes, search)

    learned = run.cases.take("training", learn) if run.wants("EnNF") else {}
    methods = [
        Method("baseline", lambda size: no_assimilation, (1,)),
        Method("EnKF", lambda size: teacher, s.sizes),
        Method("EnNF", lambda size: as_filter(learned["filter"]), s.sizes),
        *map(tuned, opponents),
    ]
    if limit is not None and s.particles:
        methods.append(Method("particle filter", lambda size: limit, (s.particles,)))
    makers = trial_makers(
        setup, windows=s.windows, runs=s.runs, first_run=s.teacher_runs, truths=s.truths,
        record_key=record_key, truth_key=truth_key,
    )  # fmt: skip
    rest = replace(
        run, on_progress=lambda p: run.tell(p.part, TRAINING_SHARE + (1 - TRAINING_SHARE) * p.done / p.total)
    )
    rows, arrays = compare_filters(rest, setup, methods, makers, key=run_key)
    rows += [
        Row.of("training", "EnNF" if name == "seconds" else "teacher", name, [float(learned[name])])
        for name in ("seconds", "pairs", "runs_left_out") if name in learned
    ]  # fmt: skip
    return rows, arrays


def as_array(filter: Filter) -> UInt8[np.ndarray, "bytes"]:
    """A filter as a case can keep it."""
    return np.frombuffer(filter_to_bytes(filter), np.uint8)


def as_filter(content: UInt8[np.ndarray, "bytes"]) -> Any:
    """The filter that `as_array` was given."""
    return filter_from_bytes(content.tobytes())
