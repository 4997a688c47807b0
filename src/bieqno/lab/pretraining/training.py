"""Pre-training of the correction on random functions: learned once, shipped with the package."""

from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from bieqno.gaussian import LowRankGaussian
from bieqno.lab.pretraining.functions import RandomTasks, Task, nearest_rows
from bieqno.regression.metrics import joint_loss, log_losses
from bieqno.regression.pretrained.correction import Correction, wave_vectors
from bieqno.regression.pretrained.mixture import learn_context
from bieqno.regression.pretrained.neighbours import gather, spread_rows
from bieqno.training import FitResult, fit

JOINT_SHARE = 0.25  # weight of the joint density beside that of single values, which most predictions are used for
CHUNK_STEPS = 50  # steps between two checkpoints


def task_loss(correction: Correction, batch: Task, *, key: PRNGKeyArray) -> Float[Array, ""]:
    """Return the negative log-probability of the values to be predicted, each by itself and all together, per value."""

    def of_task(task: Task) -> Float[Array, ""]:
        gaussian = posterior(correction, task)
        mask, values = task.mask.ravel(), task.values.ravel()
        losses = jnp.where(mask, log_losses(values - gaussian.mean, gaussian.variance), 0)
        single = jnp.sum(losses) / jnp.maximum(jnp.sum(mask), 1)
        return (single + JOINT_SHARE * joint_loss(gaussian, values, mask)) / (1 + JOINT_SHARE)

    return jnp.mean(jax.vmap(of_task)(batch))


def posterior(correction: Correction, task: Task) -> LowRankGaussian:
    """Return the posterior at the points of a task, in one row, from the probes' neighbourhoods alone."""
    data, dimension = task.data, task.dimension
    probes = spread_rows(data.inputs, data.targets, data.mask)
    rows = jax.vmap(lambda x: nearest_rows(x, data))(data.inputs[probes])
    centres = gather(data.inputs, data.targets, probes, rows, task.points)
    count, mean, variance = jnp.sum(data.mask), *(f(data.targets, where=data.mask) for f in (jnp.mean, jnp.var))
    context, seen, predictions = learn_context(centres, probes >= 0, count, mean, variance, dimension)
    waves = wave_vectors(correction.waves, task.points.shape[2], dimension)
    return correction.joint(task.points / context.units.spacing @ waves.T, seen, predictions, context)


def pretrain(
    *, steps: int, key: PRNGKeyArray, batch_size: int = 16, width: int = 64, learning_rate: float = 1e-3, **options: Any
) -> FitResult[Correction]:
    """Train a correction on random functions, `batch_size` in each step, none of which it sees twice.

    The learning rate rises during the first steps to `learning_rate` and falls to zero along a cosine. Further `options` are
    those of `fit`, such as `checkpoint`, from which a training continues, and `on_progress`.
    """
    weight_key, fit_key = jax.random.split(key)
    correction, source = Correction(width=width, key=weight_key), RandomTasks(batch_size)
    options |= {"optimizer": _optimizer(learning_rate, steps), "chunk_steps": min(CHUNK_STEPS, steps)}
    return fit(correction, task_loss, source, steps=steps, key=fit_key, **options)


@lru_cache
def _optimizer(learning_rate: float, steps: int) -> optax.GradientTransformation:
    """One object for equal arguments, so that runs of equal shape share one compilation."""
    schedule = optax.warmup_cosine_decay_schedule(0.0, learning_rate, min(200, steps // 5 + 1), steps + 1)
    # Functions with jumps give rare losses in the thousands before their variance is larger.
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adam(schedule))
