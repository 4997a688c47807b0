"""Checkpoints of a training run: the leaves of its state, in one atomically replaced file."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from bieqno.tensorfile import PARTIAL_SUFFIX, PersistenceError, read_tensors, write_tensors

T = TypeVar("T")

_NAME = "checkpoint.bieqno"
_KIND = "training checkpoint"


def prepare_folder(folder: Path) -> None:
    """Make the folder, and clear away what a write that was killed half-way has left."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for leftover in folder.glob(f".{_NAME}.*{PARTIAL_SUFFIX}"):
            leftover.unlink(missing_ok=True)
    except OSError as error:
        raise PersistenceError(f"cannot use {folder} for checkpoints: {error.strerror}") from error


def write_checkpoint(folder: Path, state: Any, history: Mapping[str, np.ndarray], *, run: str) -> None:
    """Replace the checkpoint in `folder`; `run` names the run that it belongs to."""
    tensors = {f"state.{i}": leaf for i, leaf in enumerate(_leaves(state))}
    tensors |= {f"history.{name}": values for name, values in history.items()}
    write_tensors(folder / _NAME, tensors, kind=_KIND, description=run)


def read_checkpoint(folder: Path, like: T, *, run: str) -> tuple[T, dict[str, np.ndarray]] | None:
    """The state and history in `folder`, or None if there is none yet.

    Args:
        folder: where the checkpoint is.
        like: a state of the same structure, whose arrays give shapes and types.
        run: the run that the checkpoint must belong to.

    Raises:
        ValueError: if the checkpoint belongs to another run.
        PersistenceError: if it is damaged.
    """
    if not (folder / _NAME).exists():
        return None
    tensors, found = read_tensors(folder / _NAME, kind=_KIND)
    arrays, rest = eqx.partition(like, eqx.is_array)
    leaves, structure = jax.tree.flatten(arrays)
    missing = np.zeros((0, 0), bool)
    stored = [tensors.get(f"state.{i}", missing) for i in range(len(leaves))]
    expected = _leaves(like)
    same = [(s.shape, s.dtype) == (e.shape, e.dtype) for s, e in zip(stored, expected, strict=True)]
    if found != run or not all(same):
        raise ValueError(
            f"the checkpoint in {folder} belongs to another run (other module, key, data or settings); "
            "choose another folder, or delete it to start anew"
        )
    restored = [_restore(s, leaf) for s, leaf in zip(stored, leaves, strict=True)]
    history = {
        name.removeprefix("history."): values.copy() for name, values in tensors.items() if name.startswith("history.")
    }
    return eqx.combine(jax.tree.unflatten(structure, restored), rest), history


def fingerprint(*parts: Any) -> str:
    """A digest of all arrays in `parts`, and of how they are arranged."""
    digest = hashlib.sha256()
    for leaf in _leaves(parts):
        digest.update(f"{leaf.dtype} {leaf.shape}".encode())
        digest.update(leaf.tobytes())
    return digest.hexdigest()


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _leaves(tree: Any) -> list[np.ndarray]:
    arrays = jax.tree.leaves(eqx.filter(tree, eqx.is_array))
    return [np.asarray(jax.random.key_data(x) if _is_key(x) else x) for x in arrays]


def _restore(stored: np.ndarray, like: Any) -> Any:
    if _is_key(like):
        return jax.random.wrap_key_data(jnp.asarray(stored), impl=jax.random.key_impl(like))
    return jnp.asarray(stored)
