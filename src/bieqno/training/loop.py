"""`fit`: the one training loop of the project.

Steps run in compiled chunks; between chunks there is time for progress, validation and a checkpoint. The randomness of
step k is derived from the key and k alone, so a run that was killed and goes on ends with the same bits.
"""

import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from bieqno.training.checkpoint import (
    fingerprint,
    prepare_folder,
    read_checkpoint,
    write_checkpoint,
)
from bieqno.training.result import FitResult, Progress, TrainingError
from bieqno.training.step import State, Step, run_chunk

M = TypeVar("M")

ADAM = optax.adam(1e-3)
"""The default optimizer; one object, so that runs of equal shape share one compilation."""


class _Record(NamedTuple):
    """What lives between chunks."""

    state: State
    best: Any
    best_value: Float[Array, ""]
    best_step: Int[Array, ""]
    stale: Int[Array, ""]
    stopped: Bool[Array, ""]


def fit(
    module: M,
    loss: Callable[..., Any],
    sample_batch: Callable[..., Any],
    *,
    steps: int,
    key: PRNGKeyArray,
    optimizer: optax.GradientTransformation = ADAM,
    source_state: PyTree | None = None,
    validate: Callable[[M], Float[Array, ""]] | None = None,
    patience: int | None = None,
    chunk_steps: int = 100,
    microbatches: int = 1,
    max_bad_steps: int = 20,
    mesh: Mesh | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_seconds: float = 30.0,
    on_progress: Callable[[Progress], None] | None = None,
) -> FitResult[M]:
    """Train a module by stochastic gradient descent.

    Args:
        module: what is trained: all its floating-point arrays.
        loss: ``loss(module, batch, key=key)``, the mean loss over a batch.
        sample_batch: the batch source, ``sample_batch(key)``: stored arrays (`StoredData`) and fresh simulations alike.
        steps: number of optimizer steps.
        key: random key of the whole run.
        optimizer: any Optax optimizer.
        source_state: makes the source a living one: ``sample_batch(key, state)`` is given the state, and
            ``loss`` returns ``(value, new_state)``, for example the module's own analyses to go on from.
        validate: held-out loss of a module; evaluated after every chunk, and the best module is returned.
        patience: stop after that many validations without improvement.
        chunk_steps: steps per compiled chunk.
        microbatches: split each batch along its first axis into so many parts whose gradients are averaged; keeps
            large batches in the processor's cache and bounds the memory.
        max_bad_steps: stop with an error after so many steps in a row without a finite loss and gradient.
        mesh: devices over which the first axis of each batch is spread (data-parallel).
        checkpoint: folder for the checkpoint; a run that finds its own there goes on from it.
        checkpoint_seconds: time between checkpoints at least; 0 writes one after every chunk.
        on_progress: called after every chunk.

    Returns:
        The trained module and the story of its training.

    Raises:
        ValueError: if the arguments do not fit together, or the checkpoint is another run's.
        TrainingError: after `max_bad_steps` bad steps in a row; the last good state is in its `result`.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from bieqno.operators import MLP
        >>> def sample_batch(key):
        ...     x = jax.random.uniform(key, (32, 1))
        ...     return x, x**2
        >>> def loss(mlp, batch, *, key):
        ...     x, y = batch
        ...     return jnp.mean((jax.vmap(mlp)(x) - y) ** 2)
        >>> result = fit(MLP(1, 1, key=jax.random.key(0)), loss, sample_batch, steps=200, key=jax.random.key(1))
        >>> bool(result.losses[-1] < 0.1 * result.losses[0])
        True
    """
    _check_counts(steps=steps, chunk_steps=chunk_steps, microbatches=microbatches, max_bad_steps=max_bad_steps)
    if patience is not None and validate is None:
        raise ValueError("patience counts validations without improvement, but validate is None")
    if microbatches > 1 and source_state is not None:
        raise ValueError("a living batch source does not go with microbatches")
    step = Step(loss, sample_batch, optimizer, source_state is not None, microbatches, mesh)
    record = _start(module, optimizer, source_state)
    _check_batch(step, record.state, key, mesh)

    folder = None if checkpoint is None else Path(checkpoint)
    run, losses, validations = "", np.zeros(0, np.float32), np.zeros(0, np.float32)
    if folder is not None:
        run = fingerprint(key, record, np.array([chunk_steps, microbatches]))
        prepare_folder(folder)
        found = read_checkpoint(folder, record, run=run)
        if found is not None:
            record, history = found
            losses, validations = history["losses"], history["validations"]
    if mesh is not None:
        record, step, key = _replicate((record, step, key), mesh)

    def save() -> None:
        if folder is not None:
            write_checkpoint(folder, record, {"losses": losses, "validations": validations}, run=run)

    started = saved = time.monotonic()
    first = int(record.state.step)
    try:
        while (done := int(record.state.step)) < steps and not bool(record.stopped):
            length = min(chunk_steps - done % chunk_steps, steps - done)
            state, values = run_chunk(step, record.state, key, length)
            record = record._replace(state=state)
            losses = np.append(losses, np.asarray(values, np.float32))
            validation = None
            if validate is not None:
                validation = float(_evaluate(validate, state.module))
                validations = np.append(validations, np.float32(validation))
                record = _judge(record, validation, patience)
            if time.monotonic() - saved >= checkpoint_seconds:
                save()
                saved = time.monotonic()
            if on_progress is not None:
                on_progress(_progress(record.state, steps, values, validation, started, first))
            if int(state.streak) >= max_bad_steps:
                raise TrainingError(
                    f"loss or gradient was not finite in {int(state.streak)} steps in a row before step "
                    f"{int(state.step)} (a smaller learning rate, clipped gradients or scaled inputs may help); "
                    "the last good state is in the error's `result`",
                    _result(record, losses, validations, validate is not None),
                )
    finally:
        # Also when interrupted: what was reached is kept.
        save()
    return _result(record, losses, validations, validate is not None)


@eqx.filter_jit
def _evaluate(validate: Callable[[Any], Float[Array, ""]], module: Any) -> Float[Array, ""]:
    return validate(module)


def _start(module: Any, optimizer: optax.GradientTransformation, source_state: Any) -> _Record:
    zero = jnp.zeros((), jnp.int32)
    state = State(
        module,
        optimizer.init(eqx.filter(module, eqx.is_inexact_array)),
        jax.tree.map(lambda x: jnp.asarray(x) if eqx.is_array_like(x) else x, source_state),
        step=zero,
        streak=zero,
        skipped=zero,
    )
    return _Record(state, module, jnp.float32(jnp.inf), zero, zero, jnp.asarray(False))


def _judge(record: _Record, validation: float, patience: int | None) -> _Record:
    """Keep the best module, and stop when the patience has run out."""
    if validation < float(record.best_value):
        return record._replace(
            best=record.state.module,
            best_value=jnp.float32(validation),
            best_step=record.state.step,
            stale=jnp.zeros((), jnp.int32),
        )
    stale = record.stale + 1
    stopped = patience is not None and int(stale) >= patience
    return record._replace(stale=stale, stopped=jnp.asarray(stopped))


def _progress(
    state: State,
    steps: int,
    values: Float[Array, "length"],
    validation: float | None,
    started: float,
    first: int,
) -> Progress:
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


def _result(record: _Record, losses: np.ndarray, validations: np.ndarray, validated: bool) -> FitResult[Any]:
    state = record.state
    use_best = validated and bool(jnp.isfinite(record.best_value))
    return FitResult(
        module=record.best if use_best else state.module,
        losses=losses,
        validations=validations,
        best_step=int(record.best_step if use_best else state.step),
        skipped=int(state.skipped),
        stopped_early=bool(record.stopped),
        source_state=state.source,
    )


def _replicate(tree: Any, mesh: Mesh) -> Any:
    everywhere = NamedSharding(mesh, PartitionSpec())
    arrays, rest = eqx.partition(tree, eqx.is_array)
    return eqx.combine(jax.device_put(arrays, everywhere), rest)


def _check_counts(**counts: int) -> None:
    for name, count in counts.items():
        if count < 1:
            raise ValueError(f"{name} must be at least 1, got {count}")


def _check_batch(step: Step, state: State, key: PRNGKeyArray, mesh: Mesh | None) -> None:
    """Say before compiling what would otherwise fail deep inside."""
    if mesh is None and step.microbatches == 1:
        return
    pieces = step.microbatches * (1 if mesh is None else mesh.devices.shape[0])
    source = step.sample_batch
    batch = eqx.filter_eval_shape(lambda k: source(k, state.source) if step.living else source(k), key)
    for leaf in jax.tree.leaves(batch):
        if leaf.ndim and leaf.shape[0] % pieces:
            raise ValueError(
                f"the first axis of a batch must divide into {pieces} parts (devices times microbatches), "
                f"got shape {leaf.shape}"
            )
