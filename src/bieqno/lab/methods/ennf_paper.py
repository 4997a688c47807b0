"""The ensemble neural filter in the paper's form: equation 13 as it stands, and its training (section 3.2).

Values, not increments, from values: ``z_ij``, ``H(z_i)`` and ``d_i``, standardised. It sees whole ensembles of the teacher and
no other priors, in mini-batches over the stored lessons for a number of epochs, by one operator for all variables; on the ring
each variable then has a copy of its own, trained further. Nothing is validated: the last weights count. Where the paper is
silent: Adam, whose rate falls along a cosine, and mini-batches that hold all variables of a window.
"""

import time
from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

import bieqno.assimilation as da
from bieqno.assimilation.lessons import ARRAYS
from bieqno.assimilation.objectives.imitation import Example, ImitationLoss
from bieqno.lab.study import Run
from bieqno.training import EpochLoss, Epochs, FitResult, StoredData, falling_adam, fit

PAPER_FORM = "EnNF, paper"
BATCH = 8  # windows in a mini-batch, each with all its variables
_OPTIONS = {"increment": False, "anomalies": False, "innovation": False}


class LessonLoss(eqx.Module):
    """Mean squared distance to the teacher's posterior, in units of its increments."""

    loss: ImitationLoss

    def __call__(self, student: da.EnNF, batch: Example, *, key: PRNGKeyArray) -> Float[Array, ""]:
        """Return the loss of a mini-batch."""
        return self.loss(student, (batch,), key=key)


def train_paper_form(
    run: Run,
    system: da.System,
    lessons: da.Lessons,
    *,
    epochs: int,
    fine_tuning: int = 0,
    student: Mapping[str, Any],
    key: PRNGKeyArray,
) -> tuple[da.EnNF, dict[str, float]]:
    """Train the filter for some epochs, and then for `fine_tuning` ones with weights of its own for each variable.

    Also returns numbers of epochs, seconds, and the root of the loss of the last epoch.
    """
    student_key, shared_key, own_key = jax.random.split(key, 3)
    begun = time.perf_counter()
    made = lessons.standardise(da.EnNF(lessons.value.shape[1], **{**student, **_OPTIONS}, key=student_key))
    both = 1.0 if not fine_tuning else epochs / (epochs + fine_tuning)
    result = _train(run.between(0.0, both), "the paper's form, training", made, lessons, epochs, key=shared_key)
    if fine_tuning:
        own = result.module.stacked(system.size)
        part = run.between(both, 1.0)
        result = _train(part, "the paper's form, fine-tuning", own, lessons, fine_tuning, key=own_key)
    last = result.losses[-_source(lessons).batches :]
    facts = {
        "epochs": float(epochs),
        "fine_tuning_epochs": float(fine_tuning),
        "seconds": time.perf_counter() - begun,
        "distance_to_teacher": float(np.sqrt(np.mean(last))),
    }
    return result.module, facts


def _source(lessons: da.Lessons) -> Epochs:
    stored = Example(*(getattr(lessons, name) for name in ARRAYS))
    return Epochs(StoredData(stored, min(BATCH, len(lessons.value))))


def _train(
    run: Run, name: str, student: da.EnNF, lessons: da.Lessons, epochs: int, *, key: PRNGKeyArray
) -> FitResult[da.EnNF]:
    source = _source(lessons)
    moved = jnp.std(lessons.posterior - lessons.prior)
    return fit(
        student,
        EpochLoss(LessonLoss(ImitationLoss(lessons.observation, moved))),
        source,
        steps=epochs * source.batches,
        chunk_steps=max(1, epochs // 200) * source.batches,
        optimizer=falling_adam(1e-3),
        source_state=source.start,
        checkpoint=run.cases.checkpoint(name),
        identity="equation 13 over epochs",
        on_progress=run.training(name),
        key=key,
    )
