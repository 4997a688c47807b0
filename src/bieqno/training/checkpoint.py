"""Checkpoints of a training run: the leaves of its state, in one atomically replaced file."""

import dataclasses
import functools
import hashlib
import inspect
import os
import types
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from bieqno.persistence.tensorfile import PARTIAL_SUFFIX, PersistenceError, read_tensors, write_tensors
from bieqno.training.record import Record
from bieqno.training.step import is_key

_NAME = "checkpoint.bieqno"
_KIND = "training checkpoint"


class Checkpoint:
    """The checkpoint in a folder (None keeps nothing) of the run that `identity`, the objective's name, and `parts` define."""

    def __init__(self, folder: str | os.PathLike[str] | None, identity: str, *parts: Any) -> None:
        self.path = None if folder is None else Path(folder) / _NAME
        # Code that a loss calls by a global name is not in a fingerprint; version and identity stand for it.
        self.run = "" if folder is None else "\n".join([version("bieqno"), fingerprint(identity), fingerprint(*parts)])

    def read(self, record: Record, steps: int) -> Record:
        """Return the record in the folder, or the given one if there is none yet.

        Raises ValueError for the checkpoint of another run or beyond `steps`, PersistenceError for a damaged one.
        """
        if self.path is None:
            return record
        folder = self.path.parent
        _prepare(folder)
        if not self.path.exists():
            return record
        tensors, found = read_tensors(self.path, kind=_KIND)
        arrays, rest = eqx.partition(record.on_devices, eqx.is_array)
        leaves, structure = jax.tree.flatten(arrays)
        stored = [tensors.get(f"state.{i}", np.zeros((0, 0), bool)) for i in range(len(leaves))]
        pairs = zip(stored, _leaves(record.on_devices), strict=True)
        if found != self.run or not all((a.shape, a.dtype) == (b.shape, b.dtype) for a, b in pairs):
            raise ValueError(
                f"the checkpoint in {folder} belongs to another run ({_difference(found, self.run)}); "
                "choose another folder, or delete it to start anew"
            )
        restored = jax.tree.unflatten(structure, map(_restore, stored, leaves))
        history = [tensors[f"history.{name}"].copy() for name in record.history]
        record = Record(*eqx.combine(restored, rest), *history)
        if record.step > steps:
            raise ValueError(f"the checkpoint in {folder} is at step {record.step}, beyond the {steps} asked for")
        return record

    def write(self, record: Record) -> None:
        """Replace the checkpoint; the first process does."""
        if self.path is not None and jax.process_index() == 0:
            tensors = {f"state.{i}": leaf for i, leaf in enumerate(_leaves(record.on_devices))}
            tensors |= {f"history.{name}": values for name, values in record.history.items()}
            write_tensors(self.path, tensors, kind=_KIND, description=self.run)


def fingerprint(*parts: Any) -> str:
    """Return a digest, the same in every process, of arrays, settings, and the code and closures of functions."""
    digest = hashlib.sha256()
    _describe(parts, digest.update, frozenset())
    return digest.hexdigest()


def _prepare(folder: Path) -> None:
    """Make the folder, and remove what a write that was killed half-way has left."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for leftover in folder.glob(f".{_NAME}.*{PARTIAL_SUFFIX}"):
            leftover.unlink(missing_ok=True)
    except OSError as error:
        raise PersistenceError(f"cannot use {folder} for checkpoints: {error.strerror}") from error


def _difference(found: str, run: str) -> str:
    """Say in what two runs differ."""
    (old, *identities), (new, *others) = found.split("\n"), run.split("\n")
    if old != new:
        return f"written by bieqno {old}, this is {new}"
    return "other identity" if identities[:1] != others[:1] else "other module, key, loss, data or optimizer"


def _describe(value: Any, write: Callable[[bytes], None], seen: frozenset[int]) -> None:
    """Write a description of any value that does not depend on where in memory things are."""
    if isinstance(value, (jax.Array, np.ndarray)):
        array = np.asarray(jax.random.key_data(value) if is_key(value) else value)
        write(f"array {array.dtype} {array.shape}".encode() + array.tobytes())
    elif isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 2**53:
        write(f"number {float(value)!r}".encode())  # Optax's schedules turn whole numbers into floats when first used
    elif isinstance(value, (bool, int, float, complex, str, bytes, np.generic, type(None))):
        write(f"{type(value).__name__} {value!r}".encode())
    elif id(value) in seen:
        write(b"again")
    else:
        write(f"{type(value).__name__} {getattr(value, '__qualname__', '')}".encode())
        for part in _parts(value):
            _describe(part, write, seen | {id(value)})


def _parts(value: Any) -> list[Any]:
    """Return what a value is made of."""
    if isinstance(value, (list, tuple)):
        return list(value)
    if isinstance(value, range):
        return [value.start, value.stop, value.step]
    if isinstance(value, Mapping):
        return [part for item in value.items() for part in item]
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=repr)
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
    if isinstance(value, (type, types.ModuleType)) or not hasattr(value, "__dict__"):
        return []
    return [sorted(vars(value).items()), type(value).__call__ if callable(value) else None]


def _leaves(tree: Any) -> list[np.ndarray]:
    arrays = jax.tree.leaves(eqx.filter(tree, eqx.is_array))
    return [np.asarray(jax.random.key_data(x) if is_key(x) else x) for x in arrays]


def _restore(stored: np.ndarray, like: Any) -> Any:
    if is_key(like):
        return jax.random.wrap_key_data(jnp.asarray(stored), impl=jax.random.key_impl(like))
    return jnp.asarray(stored)
