"""Training the local process on random functions: a prior over functions, learned once and shipped with the package."""

import os
from collections.abc import Callable
from functools import lru_cache

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from bieqno.gaussian import LowRankGaussian
from bieqno.lab.pretraining.functions import RandomTasks, Task
from bieqno.regression.pretrained.local_process import LocalProcess
from bieqno.training import FitResult, Progress, fit

JOINT_SHARE = 0.25
"""Weight of the joint density beside that of single values: the latter is what most predictions are used for."""


CHUNK_STEPS = 50
"""Steps between two checkpoints."""


def task_loss(process: LocalProcess, batch: Task, *, key: PRNGKeyArray) -> Float[Array, ""]:
    """Negative log-probability of the values to be predicted, each by itself and all together, per value."""

    def of_task(task: Task) -> Float[Array, ""]:
        gaussian = process.at_sites(task.points, task.data, task.dimension)
        there, values = task.mask.ravel(), task.values.ravel()
        number = jnp.maximum(jnp.sum(there), 1)
        single = jnp.sum(jnp.where(there, single_losses(gaussian, values), 0)) / number
        # Points that are not there are what they are expected to be, independent of all others.
        whole = LowRankGaussian(
            jnp.where(there, gaussian.mean, 0),
            jnp.where(there[:, None], gaussian.factor, 0),
            jnp.where(there, gaussian.log_diag, -jnp.log(2 * jnp.pi)),
        )
        joint = -whole.log_prob(jnp.where(there, values, 0)) / number
        return (single + JOINT_SHARE * joint) / (1 + JOINT_SHARE)

    return jnp.mean(jax.vmap(of_task)(batch))


def single_losses(gaussian: LowRankGaussian, values: Float[Array, "n"]) -> Float[Array, "n"]:
    """Negative log-density of each value by itself."""
    variance = gaussian.variance
    return 0.5 * (jnp.log(2 * jnp.pi * variance) + (values - gaussian.mean) ** 2 / variance)


def pretrain(
    *,
    steps: int,
    key: PRNGKeyArray,
    batch_size: int = 16,
    width: int = 64,
    learning_rate: float = 1e-3,
    checkpoint: str | os.PathLike[str] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> FitResult[LocalProcess]:
    """Train a local process on random functions, none of which it sees twice.

    Args:
        steps: number of optimizer steps.
        key: random key of weights and functions.
        batch_size: functions in a step.
        width: length of embeddings and hidden layers.
        learning_rate: at its highest; it rises during the first steps and falls to zero along a cosine.
        checkpoint: folder for the checkpoint; a training that finds its own there goes on from it.
        on_progress: as in `bieqno.fit`.
    """
    weight_key, fit_key = jax.random.split(key)
    return fit(
        LocalProcess(width=width, key=weight_key),
        task_loss,
        RandomTasks(batch_size),
        steps=steps,
        key=fit_key,
        optimizer=_optimizer(learning_rate, steps),
        chunk_steps=min(CHUNK_STEPS, steps),
        checkpoint=checkpoint,
        on_progress=on_progress,
    )


@lru_cache
def _optimizer(learning_rate: float, steps: int) -> optax.GradientTransformation:
    """One object for equal arguments, so that runs of equal shape share one compilation."""
    schedule = optax.warmup_cosine_decay_schedule(0.0, learning_rate, min(200, steps // 5 + 1), steps + 1)
    # Functions with jumps give rare losses in the thousands before their mean is trusted less.
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adam(schedule))
