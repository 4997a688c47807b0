"""Pre-training of the correction on random functions: learned once, shipped with the package."""

from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from bieqno.lab.pretraining.designs import nearest_rows
from bieqno.lab.pretraining.functions import RandomTasks, Task
from bieqno.regression.metrics import log_losses
from bieqno.regression.pretrained.correction import Correction
from bieqno.regression.pretrained.mixture import Moments, learn_context
from bieqno.regression.pretrained.neighbours import gather, spread_rows
from bieqno.training import FitResult, fit

CHUNK_STEPS = 50  # steps between two checkpoints


def task_loss(correction: Correction, batch: Task, *, key: PRNGKeyArray) -> Float[Array, ""]:
    """Return the negative log-probability of the values to be predicted, each by itself, per value."""

    def of_task(task: Task) -> Float[Array, ""]:
        mean, variance = predict(correction, task)
        mask, values = task.mask.ravel(), task.values.ravel()
        losses = jnp.where(mask, log_losses(values - mean, variance), 0)
        return jnp.sum(losses) / jnp.maximum(jnp.sum(mask), 1)

    return jnp.mean(jax.vmap(of_task)(batch))


def predict(correction: Correction, task: Task) -> Moments:
    """Predict the points of a task, in one row, from the probes' neighbourhoods alone."""
    data, dimension = task.data, task.dimension
    probes = spread_rows(data.inputs, data.targets, data.mask)
    rows = jax.vmap(lambda x: nearest_rows(x, data))(data.inputs[probes])
    centres = gather(data.inputs, data.targets, probes, rows, task.points)
    count, mean, variance = jnp.sum(data.mask), *(f(data.targets, where=data.mask) for f in (jnp.mean, jnp.var))
    context, seen, predictions = learn_context(centres, probes >= 0, count, mean, variance, dimension)
    return correction.compare(seen, predictions, context).corrected


def pretrain(
    correction: Correction,
    *,
    steps: int,
    key: PRNGKeyArray,
    batch_size: int = 16,
    learning_rate: float = 1e-3,
    **options: Any,
) -> FitResult[Correction]:
    """Train a correction on random functions, `batch_size` in each step, none of which it sees twice.

    The learning rate rises during the first steps to `learning_rate` and falls to zero along a cosine. Further `options` are
    those of `fit`, such as `checkpoint`, from which a training that was stopped continues, and `on_progress`.
    """
    options |= {"optimizer": _optimizer(learning_rate, steps), "chunk_steps": min(CHUNK_STEPS, steps)}
    return fit(correction, task_loss, RandomTasks(batch_size), steps=steps, key=key, **options)


@lru_cache
def _optimizer(learning_rate: float, steps: int) -> optax.GradientTransformation:
    """One object for equal arguments, so that runs of equal shape share one compilation."""
    schedule = optax.warmup_cosine_decay_schedule(0.0, learning_rate, min(200, steps // 5 + 1), steps + 1)
    # Functions with jumps give rare losses in the thousands before their variance is larger.
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adam(schedule))
