"""`fit`: the one training loop of the project.

Steps run in compiled chunks; between chunks there is time for progress, validation and a checkpoint. The randomness of
step k is derived from the key and k alone, so a run that was killed and goes on ends with the same bits.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import equinox as eqx
import jax
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, PRNGKeyArray, PyTree
from threadpoolctl import threadpool_limits

from bieqno.persistence.tensorfile import PersistenceError
from bieqno.training.checkpoint import prepare_folder, read_checkpoint, run_name, write_checkpoint
from bieqno.training.record import judge, out_of_patience, progress, start, story
from bieqno.training.result import FitResult, Progress, TrainingError
from bieqno.training.step import State, Step, run_chunk

M = TypeVar("M")

ADAM = optax.adam(1e-3)
"""The default optimizer; one object, so that runs of equal shape share one compilation."""


def fit(
    module: M,
    loss: Callable[..., Any],
    source: Callable[..., Any],
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
    identity: str = "",
    on_progress: Callable[[Progress], None] | None = None,
) -> FitResult[M]:
    """Train a module by stochastic gradient descent.

    Args:
        module: what is trained: all its floating-point arrays.
        loss: ``loss(module, batch, key=key)``, the mean loss over a batch.
        source: the batch source, ``source(key)``: stored arrays (`StoredData`) and fresh simulations alike.
        steps: number of optimizer steps.
        key: random key of the whole run.
        optimizer: an Optax optimizer; only those that call the loss themselves (line searches) do not work.
        source_state: makes the source a stateful one: ``source(key, state)`` is given the state, and
            ``loss`` returns ``(value, new_state)``, for example the module's own analyses to continue from.
        validate: held-out loss of a module, compiled; evaluated after every chunk, and the best module is returned.
        patience: stop after that many validations without improvement.
        chunk_steps: steps per compiled chunk.
        microbatches: split each batch along its first axis into so many parts whose gradients are averaged; keeps
            large batches in the processor's cache and bounds the memory.
        max_bad_steps: stop with an error after so many steps in a row without a finite loss and gradient.
        mesh: devices over which the first axis of each batch is spread (data-parallel).
        checkpoint: folder for the checkpoint; a run that finds its own there goes on from it.
        checkpoint_seconds: time between checkpoints at least; 0 writes one after every chunk.
        identity: names the objective in the checkpoint; change it where the meaning of `loss` or `source` changes in code
            that they call. With the version of bieqno it is a part of what a checkpoint must agree with.
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
    if patience is not None:
        _check_counts(patience=patience)
    _check_counts(steps=steps, chunk_steps=chunk_steps, microbatches=microbatches, max_bad_steps=max_bad_steps)
    if patience is not None and validate is None:
        raise ValueError("patience counts validations without improvement, but validate is None")
    if microbatches > 1 and source_state is not None:
        raise ValueError("a stateful batch source cannot be used with microbatches")
    if mesh is not None:
        mesh = Mesh(mesh.devices, mesh.axis_names)  # axes that the compiler may use as it sees fit
    step = Step(loss, source, optimizer, source_state is not None, microbatches, mesh)
    record = start(module, optimizer, source_state)
    _check_batch(step, record.state, key, mesh)

    folder = None if checkpoint is None else Path(checkpoint)
    run, losses, validations = "", np.zeros(0, np.float32), np.zeros(0, np.float32)
    if folder is not None:
        parts = (key, record, loss, source, optimizer, validate, chunk_steps, microbatches, mesh is None)
        run = run_name(identity, *parts)
        prepare_folder(folder)
        found = read_checkpoint(folder, record, run=run)
        if found is not None:
            record, history = found
            losses, validations = history["losses"], history["validations"]
            if int(record.state.step) > steps:
                raise ValueError(
                    f"the checkpoint in {folder} is at step {int(record.state.step)}, beyond the {steps} asked for"
                )
    if mesh is not None:
        record, step, key = _replicate((record, step, key), mesh)

    def save() -> None:
        if folder is not None:
            write_checkpoint(folder, record, {"losses": losses, "validations": validations}, run=run)

    def result() -> FitResult[M]:
        stopped = out_of_patience(record, patience) and int(record.state.step) < steps
        return story(record, losses, validations, validated=validate is not None, stopped=stopped)

    begun = saved = time.monotonic()
    first = int(record.state.step)
    try:
        while (done := int(record.state.step)) < steps and not out_of_patience(record, patience):
            length = min(chunk_steps - done % chunk_steps, steps - done)
            # Small linear algebra inside a compiled loop is slowed down by threads of its own.
            with threadpool_limits(1, "blas"):
                state, values = jax.block_until_ready(run_chunk(step, record.state, key, length))
            record = record._replace(state=state)
            losses = np.append(losses, np.asarray(values, np.float32))
            validation = None
            if validate is not None:
                validation = float(np.float32(_evaluate(validate, state.module)))
                validations = np.append(validations, np.float32(validation))
                record = judge(record, validation)
            if time.monotonic() - saved >= checkpoint_seconds:
                save()
                saved = time.monotonic()
            if on_progress is not None:
                on_progress(progress(record.state, steps, values, validation, begun, first))
            if int(state.longest_streak) >= min(max_bad_steps, steps):
                raise TrainingError(
                    f"loss or gradient was not finite in {int(state.longest_streak)} steps in a row before step "
                    f"{int(state.step)} (a smaller learning rate, clipped gradients or scaled inputs may help); "
                    "the last good state is in the error's `result`",
                    result(),
                )
    except BaseException as error:
        # Also when interrupted, what was reached is kept; and the error that ended the run is the one that is raised.
        try:
            save()
        except PersistenceError as failure:
            error.add_note(f"the checkpoint could not be written either: {failure}")
        raise
    try:
        save()
    except PersistenceError as error:
        raise TrainingError(f"training has ended, its checkpoint was not written: {error}", result()) from error
    return result()


@eqx.filter_jit
def _evaluate(validate: Callable[[Any], Float[Array, ""]], module: Any) -> Float[Array, ""]:
    return validate(module)


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
    source = step.source
    batch = eqx.filter_eval_shape(lambda k: source(k, state.source_state) if step.stateful else source(k), key)
    for leaf in jax.tree.leaves(batch):
        if (not leaf.ndim and step.microbatches > 1) or (leaf.ndim and leaf.shape[0] % pieces):
            raise ValueError(
                f"the first axis of a batch must divide into {pieces} parts (devices times microbatches), "
                f"got shape {leaf.shape}"
            )
