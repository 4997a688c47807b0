"""Files of named arrays: safetensors with a checksum and a format version, written atomically, checked when read.

A file of an older version goes through `MIGRATIONS`, one version after the other, or is refused with its version.
"""

import contextlib
import glob
import hashlib
import json
import os
import secrets
import time
from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Any, TypeAlias

import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy

Content: TypeAlias = tuple[dict[str, np.ndarray], str]
"""The arrays of a file by name, and its description."""

FORMAT_VERSION = 1
MIGRATIONS: dict[tuple[str, int], Callable[[dict[str, np.ndarray], str], Content]] = {}
"""How the content of a file of some kind and version becomes that of the next version."""

PARTIAL_SUFFIX = ".partial"
ABANDONED = 3600.0  # seconds after which what a writer left is not written to any more
_LABEL = "bieqno"

_DTYPES = {"BOOL": np.bool_, "BF16": jnp.bfloat16, "F16": np.float16, "F32": np.float32, "F64": np.float64}
_DTYPES |= {f"U{bits}": np.dtype(f"uint{bits}") for bits in (8, 16, 32, 64)}
_DTYPES |= {f"I{bits}": np.dtype(f"int{bits}") for bits in (8, 16, 32, 64)}
# What the format calls a type when it is written, by the name that NumPy gives it.
_WRITTEN_NAMES = {np.dtype(dtype).name for dtype in _DTYPES.values()}


class PersistenceError(Exception):
    """A file could not be written, or is not what it should be; the message says why."""


def write_tensors(
    path: str | os.PathLike[str], tensors: Mapping[str, np.ndarray], *, kind: str, description: str
) -> None:
    """Write arrays by name and a description to one file, or leave what was there untouched and raise PersistenceError.

    The `kind` says what the file holds, and is checked when it is read.
    """
    replace_file(Path(path), pack_tensors(tensors, kind=kind, description=description))


def pack_tensors(tensors: Mapping[str, np.ndarray], *, kind: str, description: str) -> bytes:
    """Return the content of such a file."""
    # Contiguous and in the byte order of the format, whatever file or machine an array came from.
    arrays = {
        name: np.array(tensors[name], tensors[name].dtype.newbyteorder("<"), order="C") for name in sorted(tensors)
    }
    for name, array in arrays.items():
        if array.dtype.name not in _WRITTEN_NAMES:
            raise PersistenceError(f"cannot store {name}: arrays of type {array.dtype} are not supported")
    label = {"format_version": FORMAT_VERSION, "kind": kind, "description": description, "writer": _writer()}
    label["sha256"] = _digest(label, arrays)
    # One entry only: several would be written in an order that changes from run to run.
    return safetensors.numpy.save(arrays, {_LABEL: json.dumps(label)})


@cache
def _writer() -> str:
    return f"bieqno {installed_version('bieqno')}"


def read_tensors(path: str | os.PathLike[str], *, kind: str) -> Content:
    """Read what `write_tensors` wrote; PersistenceError if it is missing, damaged, foreign, of another kind or version."""
    return unpack_tensors(read_file(Path(path)), kind=kind, source=str(path))


def read_file(path: Path) -> bytes:
    """Return the content of a file, or raise PersistenceError."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise PersistenceError(f"cannot read {path}: {error.strerror}") from error


def unpack_tensors(content: bytes, *, kind: str, source: str) -> Content:
    """Return the arrays and the description in the content of such a file; `source` names it in errors."""
    try:
        stored = safetensors.deserialize(content)
        length = int.from_bytes(content[:8], "little")
        metadata = json.loads(content[8 : 8 + length]).get("__metadata__") or {}
        label = json.loads(metadata[_LABEL]) if _LABEL in metadata else None
    except (safetensors.SafetensorError, ValueError, AttributeError, TypeError, RecursionError) as error:
        raise PersistenceError(f"{source} is damaged or not a bieqno file: {error}") from error
    expected = {"format_version": int, "kind": str, "description": str, "sha256": str}
    if not isinstance(label, dict) or any(type(label.get(name)) is not kind for name, kind in expected.items()):
        raise PersistenceError(f"{source} is a safetensors file, but not one of bieqno's")
    version = label["format_version"]
    if version > FORMAT_VERSION:
        newest = f"newer than {FORMAT_VERSION}, the newest that this bieqno reads"
        raise PersistenceError(f"{source} has format version {version}, {newest}; update bieqno")
    try:
        arrays = {name: np.frombuffer(x["data"], _DTYPES[x["dtype"]]).reshape(x["shape"]) for name, x in stored}
    except (KeyError, ValueError) as error:
        raise PersistenceError(f"{source} holds an array that bieqno cannot read: {error}") from error
    if _digest(label, arrays) != label.get("sha256"):
        raise PersistenceError(f"{source} is damaged: its checksum does not match its content")
    if label["kind"] != kind:
        raise PersistenceError(f"{source} holds a {label['kind']}, not a {kind}")
    found: Content = arrays, label["description"]
    for older in range(version, FORMAT_VERSION):
        if (kind, older) not in MIGRATIONS:
            raise PersistenceError(
                f"{source} has format version {version} (written by {label.get('writer', 'an early bieqno')}), too old for "
                f"this bieqno, which reads {FORMAT_VERSION}; load and save it with a version of bieqno in between"
            )
        found = MIGRATIONS[kind, older](*found)
    return found


def _digest(label: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> str:
    digest = hashlib.sha256()
    described = {name: value for name, value in label.items() if name != "sha256"}
    digest.update(json.dumps(described, sort_keys=True).encode())
    for name, array in sorted(arrays.items()):
        digest.update(json.dumps([name, array.dtype.name, array.shape]).encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def _remove_abandoned(path: Path) -> None:
    """Remove what writers of this file that were killed have left; another may be writing it now, but not for an hour."""
    with contextlib.suppress(OSError):
        for left in path.parent.glob(f".{glob.escape(path.name)}.*{PARTIAL_SUFFIX}"):
            if time.time() - left.stat().st_mtime > ABANDONED:
                left.unlink(missing_ok=True)


def replace_file(path: Path, content: bytes | memoryview) -> None:
    """Write beside the target, flush to the disk, then rename: a reader sees the old file or the new one.

    If that fails, PersistenceError is raised, what was there is still there, and nothing else is left behind. A link is
    followed; what is no regular file (a pipe, a device) is written to and never replaced.
    """
    try:
        # Before links are followed: /dev/stdout is a link to what has no path where it is a pipe.
        if path.exists() and not path.is_file() and not path.is_dir():
            with path.open("wb") as stream:
                stream.write(content)
            return
        path = path.resolve()
    except (OSError, RuntimeError) as error:  # RuntimeError: links that go round
        raise PersistenceError(f"cannot write {path}: {getattr(error, 'strerror', None) or error}") from error
    _remove_abandoned(path)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}{PARTIAL_SUFFIX}")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise PersistenceError(f"cannot write {path}: {error.strerror}") from error
    finally:  # also when the user stops it
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
