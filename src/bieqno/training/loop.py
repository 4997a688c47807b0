"""`fit`: the one training loop of the project.

Steps run in compiled chunks; between chunks there is time for progress, validation and a checkpoint. The randomness of
step k is derived from the key and k alone, so a run that was killed and is resumed ends with the same bits.
"""

import os
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from bieqno import distributed
from bieqno.compilation import quick_jit
from bieqno.cores import one_blas_thread
from bieqno.persistence.tensorfile import PersistenceError
from bieqno.training.checkpoint import Checkpoint
from bieqno.training.clock import Clock
from bieqno.training.record import FitResult, Progress, Record, TrainingError, start
from bieqno.training.step import State, Step, run_chunk

M = TypeVar("M")

_MOST = 10**9  # steps of a training that has a budget in seconds, before anything is known of its pace
ADAM = optax.adam(1e-3)
"""The default optimizer; one object, so that runs of equal shape share one compilation."""


def fit(
    module: M,
    loss: Callable[..., Any],
    source: Callable[..., Any],
    *,
    steps: int | None = None,
    budget: float | None = None,
    key: PRNGKeyArray,
    optimizer: optax.GradientTransformation = ADAM,
    source_state: PyTree | None = None,
    validate: Callable[[M], Float[Array, ""]] | None = None,
    patience: int | None = None,
    tolerance: float = 0.0,
    watch: Callable[[M, Float[np.ndarray, "steps"]], bool] | None = None,
    chunk_steps: int = 100,
    microbatches: int = 1,
    max_bad_steps: int = 20,
    mesh: Mesh | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_seconds: float = 30.0,
    identity: str = "",
    on_progress: Callable[[Progress], None] | None = None,
) -> FitResult[M]:
    """Train a module by stochastic gradient descent; return it with its training history.

    Args:
        module: what is trained: all its floating-point arrays but those marked `frozen`.
        loss: ``loss(module, batch, key=key)``, the mean loss over a batch.
        source: the batch source, ``source(key)``: stored arrays (`StoredData`) and fresh simulations alike.
        steps: number of optimizer steps; or else
        budget: seconds of training, with compilation. How many steps that are is found out after every chunk.
        key: for the whole run.
        optimizer: an Optax optimizer; only those that call the loss themselves (line searches) do not work.
        source_state: makes the source a stateful one: ``source(key, state)`` is given the state, and ``loss`` returns
            ``(value, new_state)``, for example the module's own analyses to continue from.
        validate: held-out loss of a module, compiled; evaluated after every chunk, and the best module is returned.
        patience: stop after that many validations without improvement.
        tolerance: share by which a held-out loss may exceed the least and count as equal, for one that is itself uncertain: of
            equals the last is returned.
        watch: called after every chunk with the module and the losses so far; the training ends when it returns True.
        chunk_steps: steps per compiled chunk.
        microbatches: split each batch along its first axis into so many parts whose gradients are averaged; keeps
            large batches in the processor's cache and bounds the memory.
        max_bad_steps: raise `TrainingError`, whose `result` is the last good state, after so many steps in a row without
            a finite loss and gradient.
        mesh: devices over which the first axis of each batch is spread (data-parallel), of one process or of many, which all
            make the same call.
        checkpoint: folder for the checkpoint; a run that finds its own there resumes from it, on any number of devices and
            processes, which all see the folder; the first one writes it.
        checkpoint_seconds: time between checkpoints at least; 0 writes one after every chunk.
        identity: names the objective in the checkpoint; change it where the meaning of `loss` or `source` changes in code
            that they call. With the version of bieqno it is a part of what a checkpoint must agree with.
        on_progress: called before the first chunk, which compiles, and after every chunk.

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
    most = _most_steps(steps, budget)
    counts = {"steps": most, "chunk_steps": chunk_steps, "microbatches": microbatches, "max_bad_steps": max_bad_steps}
    _check_counts(counts, patience, validate is not None)
    if microbatches > 1 and source_state is not None:
        raise ValueError("a stateful batch source cannot be used with microbatches")
    if mesh is not None:
        mesh = distributed.free(mesh)
    step = Step(loss, source, optimizer, source_state is not None, microbatches, mesh, jnp.float32(most))
    record = start(module, optimizer, source_state)
    _check_batch(step, record.state, key, mesh)
    parts = (key, record, loss, source, optimizer, validate, chunk_steps, microbatches, mesh is None)
    stored = Checkpoint(checkpoint, identity, *parts)
    record = stored.read(record, most)
    if distributed.agree(record.step) != record.step:
        raise ValueError(f"the folder of the checkpoint is not the same for all processes: {checkpoint}")
    if mesh is not None:
        on_devices, step, key = distributed.spread((record.on_devices, step, key), mesh)
        record = Record(*on_devices, *record.history.values())
    clock = Clock(record.step, most, budget, chunk_steps, before=float(record.seconds[0]))
    saved, ended, length = time.monotonic(), False, 0
    try:
        if on_progress is not None and record.step < clock.steps:
            on_progress(record.progress(clock, 0))
        while record.step < clock.steps and not ended and not record.out_of_patience(patience):
            length = min(chunk_steps - record.step % chunk_steps, clock.steps - record.step)
            if budget is not None:  # before the first chunk nothing is known of the pace: the rate does not fall yet
                step = eqx.tree_at(lambda s: s.steps, step, jnp.float32(clock.steps))
            # Small linear algebra inside a compiled loop is slowed down by threads of its own.
            with one_blas_thread():
                state, values = jax.block_until_ready(run_chunk(step, record.state, key, length))
            validation = None if validate is None else _evaluated(validate, state.module)
            record = record.after(state, values, validation, tolerance)
            clock.after(record.step)
            record = record._replace(seconds=np.array([clock.before + clock.seconds]))
            if time.monotonic() - saved >= checkpoint_seconds:
                stored.write(record)
                saved = time.monotonic()
            if on_progress is not None:
                on_progress(record.progress(clock, length))
            ended = watch is not None and watch(state.module, record.losses)
            if int(state.longest_streak) >= min(max_bad_steps, most):
                raise TrainingError(
                    f"loss or gradient was not finite in {int(state.longest_streak)} steps in a row before step "
                    f"{record.step} (a smaller learning rate, clipped gradients or scaled inputs may help); "
                    "the last good state is in the error's `result`",
                    _reached(record, clock.steps, patience),
                )
    except BaseException as error:
        # Also when interrupted, what was reached is kept; and the error that ended the run is the one that is raised.
        try:
            stored.write(record)
        except PersistenceError as failure:
            error.add_note(f"the checkpoint could not be written either: {failure}")
        raise
    result = _reached(record, clock.steps, patience)
    try:
        stored.write(record)
    except PersistenceError as error:
        raise TrainingError(f"training has ended, its checkpoint was not written: {error}", result) from error
    return result


def _reached(record: Record, steps: int, patience: int | None) -> FitResult[Any]:
    """Return what a run has reached, in arrays of this process."""
    return Record(*distributed.local(record.on_devices), *record.history.values()).result(steps, patience)


def _most_steps(steps: int | None, budget: float | None) -> int:
    if (steps is None) == (budget is None):
        raise ValueError(f"a training has a number of steps or a budget in seconds, got {steps=} and {budget=}")
    if budget is not None and not 0 < budget < np.inf:
        raise ValueError(f"a budget is a positive number of seconds, got {budget=}")
    return _MOST if steps is None else steps


def _check_counts(counts: Mapping[str, int], patience: int | None, validated: bool) -> None:
    for name, count in {**counts, "patience": 1 if patience is None else patience}.items():
        if count < 1:
            raise ValueError(f"{name} must be at least 1, got {count}")
    if patience is not None and not validated:
        raise ValueError("patience counts validations without improvement, but validate is None")


@quick_jit
def _evaluate(validate: Callable[[Any], Float[Array, ""]], module: Any) -> Float[Array, ""]:
    return validate(module)


def _evaluated(validate: Callable[[Any], Float[Array, ""]], module: Any) -> float:
    """Return the held-out loss, which each process computes by itself and the first one's is."""
    return distributed.agree(float(np.float32(_evaluate(validate, distributed.local(module)))))


def _check_batch(step: Step, state: State, key: PRNGKeyArray, mesh: Mesh | None) -> None:
    """Refuse, before compiling, a batch that cannot be split."""
    pieces = step.microbatches * (1 if mesh is None else mesh.size)
    if pieces == 1:
        return
    for leaf in jax.tree.leaves(eqx.filter_eval_shape(step.draw, state, key)):
        if (not leaf.ndim and step.microbatches > 1) or (leaf.ndim and leaf.shape[0] % pieces):
            needed = f"divide into {pieces} parts (devices times microbatches)"
            raise ValueError(f"the first axis of a batch must {needed}, got shape {leaf.shape}")
