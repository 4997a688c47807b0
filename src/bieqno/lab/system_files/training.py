"""Train the filter of a system file: the student of its ``[filter]`` by the objective of its ``[training]``."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import jax
from jaxtyping import PRNGKeyArray

from bieqno.assimilation import AgainstTruth, EnNF, Imitation, LearnedGain, LocalEnNF, Validation, teach, train_filter
from bieqno.assimilation.training import FilterResult
from bieqno.lab.system_files.objects import find_object
from bieqno.lab.system_files.reading import SystemFile
from bieqno.lab.system_files.schema import EnNFTable, ImitationTable, LocalTable
from bieqno.training import Progress

Warn: TypeAlias = Callable[[str], None]


def train_student(
    file: SystemFile,
    *,
    checkpoint: Path | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    warn: Warn = lambda text: None,
    key: PRNGKeyArray,
) -> FilterResult[Any]:
    """Train the filter of a system file as its tables say; continue from checkpoints of the same training, if any."""
    training, own_steps = file.settings.training, getattr(file.settings.filter, "own_steps", 0)
    given = {name: value for name, value in file.settings.validation._asdict().items() if value is not None}
    validate = Validation(**given) if training.validate else None
    objective_key, student_key, shared_key, own_key = jax.random.split(key, 4)
    if isinstance(training, ImitationTable):
        objective: Any = _imitation(file, training, warn, objective_key)
    else:
        truths, (low, high) = training.truths, training.missing
        sizes = dict(zip(training.sizes, truths, strict=True)) if truths else training.sizes
        objective = AgainstTruth(sizes, (low, high), training.unroll, training.learning_rate)
    student = _untrained(file, objective, student_key)

    def train(student: Any, part: str, steps: int, before: int, key: PRNGKeyArray) -> FilterResult[Any]:
        def report(progress: Progress) -> None:
            if on_progress is not None:
                later = own_steps if part == "shared" else 0
                on_progress(progress._replace(step=before + progress.step, steps=before + progress.steps + later))

        budget = getattr(training, "budget", None) if part == "shared" else None
        how: dict[str, Any] = {"steps": None if budget else steps, "budget": budget}
        how |= {"validate": validate, "on_progress": report, "checkpoint": checkpoint and checkpoint / part}
        return train_filter(student, file.system, objective, **how, key=key)

    result = train(student, "shared", training.steps, 0, shared_key)
    if not own_steps:
        return result
    return train(result.module.stacked(file.system.size), "own", own_steps, len(result.losses), own_key)


def _untrained(file: SystemFile, objective: Any, key: PRNGKeyArray) -> Any:
    settings, m = file.settings.filter, file.system.observed
    if isinstance(settings, LocalTable):
        return LocalEnNF.untrained(file.system, **settings._asdict(), key=key)
    if not isinstance(settings, EnNFTable):
        return LearnedGain(m, **settings._asdict(), key=key)
    try:
        student = find_object(settings.object, file.path.parent)(m, width=settings.width, depth=settings.depth, key=key)
    except Exception as error:  # whatever the user's own code may raise
        raise ValueError(f"{file.path}: 'object' in [filter] fails: {type(error).__name__}: {error}") from error
    if not isinstance(student, EnNF):
        raise ValueError(f"{file.path}: 'object' in [filter] should build an EnNF, got {type(student).__name__}")
    return objective.lessons.standardise(student) if isinstance(objective, Imitation) else student


def _imitation(file: SystemFile, training: ImitationTable, warn: Warn, key: PRNGKeyArray) -> Imitation:
    """Run the teacher on truths of its own and return the objective that imitates it."""
    truth_key, run_key = jax.random.split(key)
    trials = file.trials(training.windows, truths=training.truths, members=training.teacher_members, key=truth_key)
    lessons = teach(file.teacher, file.system, trials, key=run_key)
    if lessons.discarded:
        warn(
            f"{lessons.discarded} of {training.truths} runs of the teacher, which diverged or lost the truth, are left out"
        )
    same = ("sizes", "rerun", "shift", "noise", "translation", "learning_rate")
    return Imitation(lessons, members=training.batch, **{name: getattr(training, name) for name in same})
