"""Training on tasks: first the kernels of the bank, by their likelihood, then the operator that corrects them."""

import os
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from bieqno.regression.meta.bank import Bank
from bieqno.regression.meta.chain_process import ChainProcess
from bieqno.training import FitResult, Progress, fit


class Tasks(eqx.Module):
    """Values of functions in the order in which they are asked for, stacked along a first axis."""

    x: Float[Array, "b n"]
    y: Float[Array, "b n"]


def chain_loss(process: Bank | ChainProcess, tasks: Tasks, *, key: PRNGKeyArray) -> Float[Array, ""]:
    """Negative log-density per value, each given those before it: of all numbers of observations at once."""
    return -jnp.mean(jax.vmap(lambda x, y: process.along(x, y).log_prob(y))(tasks.x, tasks.y))


def learn_bank(
    source: Callable[[PRNGKeyArray], Tasks],
    *,
    steps: int,
    key: PRNGKeyArray,
    learning_rate: float = 0.03,
    checkpoint: str | os.PathLike[str] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> FitResult[Bank]:
    """Find the kernels that explain tasks, each task by one of them.

    Args:
        source: of tasks; short ones do.
        steps: number of optimizer steps.
        key: random key of the tasks.
        learning_rate: at its highest, in logarithms of lengths and variances; it falls to zero along a cosine.
        checkpoint: folder for the checkpoint; a training that finds its own there goes on from it.
        on_progress: as in `bieqno.fit`.
    """
    optimizer = optax.adam(optax.cosine_decay_schedule(learning_rate, steps))
    return fit(
        Bank(), chain_loss, source, steps=steps, key=key, optimizer=optimizer, chunk_steps=min(50, steps),
        checkpoint=checkpoint, on_progress=on_progress,
    )  # fmt: skip


def learn_process(
    bank: Bank,
    source: Callable[[PRNGKeyArray], Tasks],
    *,
    steps: int,
    key: PRNGKeyArray,
    pieces: bool = True,
    width: int = 64,
    learning_rate: float = 2e-3,
    checkpoint: str | os.PathLike[str] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> FitResult[ChainProcess]:
    """Train the operator, on tasks none of which it sees twice.

    Args:
        bank: the Gaussian processes, which stay as they are.
        source: of tasks as long as the longest to come.
        steps: number of optimizer steps.
        key: random key of weights and tasks.
        pieces: as in `ChainProcess`.
        width: length of embeddings and hidden layers.
        learning_rate: at its highest; it rises during the first steps and falls to zero along a cosine.
        checkpoint: folder for the checkpoint; a training that finds its own there goes on from it.
        on_progress: as in `bieqno.fit`.
    """
    weight_key, fit_key = jax.random.split(key)
    schedule = optax.warmup_cosine_decay_schedule(0.0, learning_rate, min(100, steps // 5 + 1), steps + 1)
    return fit(
        ChainProcess(bank, pieces=pieces, width=width, key=weight_key),
        chain_loss,
        source,
        steps=steps,
        key=fit_key,
        optimizer=optax.chain(optax.clip_by_global_norm(1.0), optax.adam(schedule)),
        chunk_steps=min(25, steps),
        checkpoint=checkpoint,
        on_progress=on_progress,
    )
