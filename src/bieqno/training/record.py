"""What a training run carries from chunk to chunk, and what is told of it on the way and at the end."""

import math
import time
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

from bieqno.training.result import FitResult, Progress
from bieqno.training.step import State, is_key, trainable


class Record(NamedTuple):
    """What lives between chunks."""

    state: State
    best: Any
    best_value: Float[Array, ""]
    best_step: Int[Array, ""]
    stale: Int[Array, ""]


def start(module: Any, optimizer: optax.GradientTransformation, source_state: Any) -> Record:
    """The state before the first step."""
    zero = jnp.zeros((), jnp.int32)
    state = State(
        module,
        optimizer.init(trainable(module)[0]),
        jax.tree.map(lambda x: jnp.asarray(x) if eqx.is_array_like(x) else x, source_state),
        step=zero,
        streak=zero,
        longest_streak=zero,
        skipped=zero,
    )
    # Arrays of weak type (made from plain numbers) would change their type on the way through a checkpoint.
    state = jax.tree.map(
        lambda x: jax.lax.convert_element_type(x, x.dtype) if eqx.is_array(x) and not is_key(x) else x, state
    )
    return Record(state, state.module, jnp.float32(jnp.inf), zero, zero)


def judge(record: Record, validation: float) -> Record:
    """Keep the best module, and count how long it has been the best."""
    if validation < float(record.best_value):
        return record._replace(
            best=record.state.module,
            best_value=jnp.float32(validation),
            best_step=record.state.step,
            stale=jnp.zeros((), jnp.int32),
        )
    return record._replace(stale=record.stale + 1)


def out_of_patience(record: Record, patience: int | None) -> bool:
    """Whether the validation has not improved for too long."""
    return patience is not None and int(record.stale) >= patience


def progress(
    state: State, steps: int, values: Float[Array, "length"], validation: float | None, started: float, first: int
) -> Progress:
    """Where the run stands after a chunk that gave the losses `values`; it began in this process at step `first`."""
    seconds = time.monotonic() - started
    step = int(state.step)
    finite = np.asarray(values)[np.isfinite(values)]
    return Progress(
        step,
        steps,
        float(finite.mean()) if finite.size else math.nan,
        validation,
        int(state.skipped),
        seconds,
        seconds / (step - first) * (steps - step),
    )


def story(
    record: Record, losses: np.ndarray, validations: np.ndarray, *, validated: bool, stopped: bool
) -> FitResult[Any]:
    """What the run has come to."""
    state = record.state
    use_best = validated and bool(jnp.isfinite(record.best_value))
    return FitResult(
        module=record.best if use_best else state.module,
        losses=losses,
        validations=validations,
        best_step=int(record.best_step if use_best else state.step),
        skipped=int(state.skipped),
        stopped_early=stopped,
        source_state=state.source_state,
    )
