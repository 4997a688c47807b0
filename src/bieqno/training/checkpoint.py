"""Checkpoints of a training run: the leaves of its state, in one atomically replaced file."""

import dataclasses
import functools
import hashlib
import inspect
import types
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from bieqno.persistence.tensorfile import PARTIAL_SUFFIX, PersistenceError, read_tensors, write_tensors

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
            f"the checkpoint in {folder} belongs to another run ({_difference(found, run)}); "
            "choose another folder, or delete it to start anew"
        )
    restored = [_restore(s, leaf) for s, leaf in zip(stored, leaves, strict=True)]
    history = {
        name.removeprefix("history."): values.copy() for name, values in tensors.items() if name.startswith("history.")
    }
    return eqx.combine(jax.tree.unflatten(structure, restored), rest), history


def run_name(identity: str, *parts: Any) -> str:
    """Name a run by the version of the package, the identity of its objective, and the fingerprint of its parts."""
    return "\n".join([version("bieqno"), fingerprint(identity), fingerprint(*parts)])


def _difference(found: str, run: str) -> str:
    """Say in what two runs differ."""
    (old, *identities), (new, *others) = found.split("\n"), run.split("\n")
    if old != new:
        return f"written by bieqno {old}, this is {new}"
    return "other identity" if identities[:1] != others[:1] else "other module, key, loss, data or optimizer"


def fingerprint(*parts: Any) -> str:
    """A digest of what defines a run: arrays, settings, and functions with the values that they close over.

    It is the same in every process, and differs where a learning rate, the data or the code of a loss differs. Code that a
    loss calls by a global name is not seen; the version and the identity in `run_name` stand for it.
    """
    digest = hashlib.sha256()
    _describe(parts, digest.update, set())
    return digest.hexdigest()


def _describe(value: Any, write: Callable[[bytes], None], seen: set[int]) -> None:
    """Write a description of any value that does not depend on where in memory things are."""
    if isinstance(value, (jax.Array, np.ndarray)):
        array = np.asarray(jax.random.key_data(value) if _is_key(value) else value)
        write(f"array {array.dtype} {array.shape}".encode() + array.tobytes())
        return
    if isinstance(value, (bool, int, float, complex, str, bytes, np.generic, type(None))):
        write(f"{type(value).__name__} {value!r}".encode())
        return
    if id(value) in seen:
        write(b"again")
        return
    seen.add(id(value))
    write(f"{type(value).__name__} {getattr(value, '__qualname__', '')}".encode())
    for part in _parts(value):
        _describe(part, write, seen)
    seen.discard(id(value))


def _parts(value: Any) -> list[Any]:
    """What a value is made of."""
    if isinstance(value, (list, tuple)):
        return list(value)
    if isinstance(value, dict):
        return [part for item in value.items() for part in item]
    if isinstance(value, functools.partial):
        return [value.func, value.args, value.keywords]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [getattr(value, field.name, None) for field in dataclasses.fields(value)]
        return [*fields, type(value).__call__ if callable(value) else None]
    if inspect.iscode(value):
        return [value.co_code, list(value.co_consts), list(value.co_names)]
    value = inspect.unwrap(value) if callable(value) else value
    if inspect.ismethod(value):
        return [value.__self__, value.__func__]
    if inspect.isfunction(value):
        cells = [cell.cell_contents for cell in value.__closure__ or () if cell != types.CellType()]
        return [value.__code__, value.__defaults__, value.__kwdefaults__, cells]
    return []


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _leaves(tree: Any) -> list[np.ndarray]:
    arrays = jax.tree.leaves(eqx.filter(tree, eqx.is_array))
    return [np.asarray(jax.random.key_data(x) if _is_key(x) else x) for x in arrays]


def _restore(stored: np.ndarray, like: Any) -> Any:
    if _is_key(like):
        return jax.random.wrap_key_data(jnp.asarray(stored), impl=jax.random.key_impl(like))
    return jnp.asarray(stored)
