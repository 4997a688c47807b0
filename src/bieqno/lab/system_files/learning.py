"""The neural filter of a set-up: taught on truths of its own model, with the observing system that it will have."""

from collections.abc import Callable
from pathlib import Path

import jax
from jaxtyping import PRNGKeyArray

from bieqno.assimilation.filters.learned.ennf import EnNF
from bieqno.assimilation.imitation import imitate
from bieqno.assimilation.lessons import Lessons, teach
from bieqno.lab.system_files.reading import OwnSetup
from bieqno.training import Progress


def lessons_of(setup: OwnSetup, *, key: PRNGKeyArray) -> Lessons:
    """What the teacher of a set-up does on truths of its model.

    Raises:
        ValueError: if it loses all of them.
    """
    training = setup.tables.training
    truth_key, run_key = jax.random.split(key)
    trials = setup.trials(training.windows, truths=training.truths, members=training.teacher_members, key=truth_key)
    return teach(setup.teacher, setup.model, setup.observation, trials, limit=setup.tables.model.limit, key=run_key)


def learn(
    setup: OwnSetup,
    lessons: Lessons,
    *,
    key: PRNGKeyArray,
    checkpoint: Path | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> EnNF:
    """Train the filter of a set-up on lessons: one operator for all variables, then weights for each if asked for.

    Args:
        setup: the set-up.
        lessons: what its teacher did.
        key: random key of the training.
        checkpoint: folder for the checkpoints of both parts; a training that finds its own there goes on from them.
        on_progress: see `fit`.
    """
    settings, training = setup.tables.filter, setup.tables.training
    student_key, shared_key, own_key = jax.random.split(key, 3)
    try:
        student = setup.build(setup.observed, width=settings.width, depth=settings.depth, key=student_key)
    except Exception as error:  # whatever the user's own code may raise
        raise ValueError(f"{setup.path}: 'object' in [filter] fails: {type(error).__name__}: {error}") from error
    if not isinstance(student, EnNF):
        raise ValueError(f"{setup.path}: 'object' in [filter] should build an EnNF, got {type(student).__name__}")
    total = training.steps + (training.own_steps if settings.own_weights else 0)

    def train(part: str, filter: EnNF, steps: int, before: int, key: PRNGKeyArray) -> EnNF:
        def tell(progress: Progress) -> None:
            if on_progress is not None:
                on_progress(progress._replace(step=before + progress.step, steps=total))

        return imitate(
            filter, lessons, steps=steps, model=setup.model, sizes=tuple(training.sizes), members=training.batch,
            shift=training.shift, noise=training.noise, learning_rate=training.learning_rate,
            checkpoint=None if checkpoint is None else checkpoint / part, on_progress=tell, key=key,
        ).module  # fmt: skip

    student = train("shared", lessons.standardise(student), training.steps, 0, shared_key)
    if not settings.own_weights:
        return student
    return train("own", student.stacked(len(setup.state)), training.own_steps, training.steps, own_key)
