"""Save and load modules: one file of arrays, and a JSON description of the module around them. Never pickle.

The description is a tree that mirrors the module: which class, its fields, where its arrays are. Loading walks the
tree and builds only classes and functions from a fixed list, the package's own and those that the caller passes;
nothing in the file is ever executed. A checksum catches damage; the `__check_init__` of each class catches
what is whole but does not fit together.
"""

import dataclasses
import inspect
import json
import math
import os
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from bieqno import operators
from bieqno.gaussian import LowRankGaussian
from bieqno.operators.networks import check_linear
from bieqno.persistence.tensorfile import PersistenceError, pack_tensors, read_tensors, unpack_tensors, write_tensors

Known: TypeAlias = type[eqx.Module] | Callable[..., Any]

_KIND = "module"
_OWN: tuple[Known, ...] = (
    *(item for item in vars(operators).values() if inspect.isclass(item)),
    LowRankGaussian,
    eqx.nn.Linear, eqx.nn.Identity, eqx.nn.LayerNorm,
    jax.nn.relu, jax.nn.gelu, jax.nn.silu, jax.nn.tanh, jax.nn.elu, jax.nn.selu, jax.nn.celu, jax.nn.softplus,
    jax.nn.sigmoid, jax.nn.leaky_relu, jax.nn.soft_sign, jax.nn.mish, jax.nn.identity, jnp.sin,
)  # fmt: skip


def save(
    path: str | os.PathLike[str], module: eqx.Module, *, known: Iterable[Known] | Mapping[str, Known] = ()
) -> None:
    """Save a module to one file, replacing what was there in one step.

    Args:
        path: the file, by custom ending in ``.bieqno``.
        module: any module built of the package's classes and of `known` ones.
        known: further classes and functions that the module is built of; as a dictionary, under names of your choice.

    Raises:
        PersistenceError: if the module holds something that cannot be stored, or the file cannot be written.

    Example:
        >>> import jax, pathlib, tempfile
        >>> operator = operators.InvariantOperator(2, 1, key=jax.random.key(0))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save(pathlib.Path(folder) / "operator.bieqno", operator)
        ...     again = load(pathlib.Path(folder) / "operator.bieqno")
        >>> bool(eqx.tree_equal(operator, again))
        True
    """
    tensors, description = _described(module, known)
    write_tensors(path, tensors, kind=_KIND, description=description)


def to_bytes(module: eqx.Module, *, known: Iterable[Known] | Mapping[str, Known] = ()) -> bytes:
    """The content of the file that `save` would write."""
    tensors, description = _described(module, known)
    return pack_tensors(tensors, kind=_KIND, description=description)


def load(path: str | os.PathLike[str], *, known: Iterable[Known] | Mapping[str, Known] = ()) -> Any:
    """Load a module that `save` wrote; no code from the file is run.

    Args:
        path: the file.
        known: the classes and functions beyond the package's own that the file may name.

    Raises:
        PersistenceError: if the file is missing, damaged, foreign, newer than this version, names a class that is not
            known, or its arrays do not fit its classes.
    """
    return _built(*read_tensors(path, kind=_KIND), known, source=str(path))


def from_bytes(content: bytes, *, known: Iterable[Known] | Mapping[str, Known] = ()) -> Any:
    """What `load` would return for a file of this content."""
    return _built(*unpack_tensors(content, kind=_KIND, source="the content"), known, source="the content")


def _described(module: eqx.Module, known: Iterable[Known] | Mapping[str, Known]) -> tuple[dict[str, np.ndarray], str]:
    tensors: dict[str, np.ndarray] = {}
    tree = _Encoder(_names(known), tensors).encode(module, "")
    return tensors, json.dumps(tree)


def _built(
    tensors: dict[str, np.ndarray], description: str, known: Iterable[Known] | Mapping[str, Known], *, source: str
) -> Any:
    try:
        tree = json.loads(description)
        if not isinstance(tree, dict) or "module" not in tree:
            raise PersistenceError("it does not describe a module")
        return _Decoder({name: item for item, name in _names(known).items()}, tensors).decode(tree)
    except PersistenceError as error:
        raise PersistenceError(f"cannot load {source}: {error}") from error
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError) as error:
        raise PersistenceError(f"cannot load {source}: its parts do not fit together: {error}") from error


def _names(known: Iterable[Known] | Mapping[str, Known]) -> dict[Known, str]:
    """Every class and function that may be named, with its name: the top package and its own, or the chosen one."""
    items = {name: item for item in _OWN for name in [_name(item)]}
    given = known.items() if isinstance(known, Mapping) else ((_name(item), item) for item in known)
    for name, item in given:
        if items.setdefault(name, item) is not item:
            raise PersistenceError(
                f"two different things are called {name}; give them names: known={{'first': ..., 'second': ...}}"
            )
    try:
        return {item: name for name, item in items.items()}
    except TypeError as error:
        raise PersistenceError(f"what is known must be classes and functions: {error}") from error


def _name(item: Known) -> str:
    name = getattr(item, "__name__", "<")
    if "<" in name:
        raise PersistenceError(f"{item!r} has no name of its own; give it one: known={{'name': ...}}")
    return f"{item.__module__.split('.')[0]}.{name}"


@dataclasses.dataclass
class _Encoder:
    names: dict[Known, str]
    tensors: dict[str, np.ndarray]

    def encode(self, value: Any, path: str) -> Any:
        """Describe a value as JSON, and put its arrays aside under their path."""
        match value:
            case np.generic():
                return {"scalar": self._put(path, np.asarray(value))}
            case None | bool() | int() | str():
                return value
            case float():
                return value if math.isfinite(value) else {"float": repr(value)}
            case jax.Array() if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
                return {
                    "key": self._put(path, np.asarray(jax.random.key_data(value))),
                    "impl": str(jax.random.key_impl(value)),
                }
            case jax.Array():
                return {"array": self._put(path, np.asarray(value))}
            case np.ndarray():
                return {"numpy": self._put(path, value)}
            case tuple() if type(value) is tuple:
                return {"tuple": [self.encode(x, f"{path}.{i}") for i, x in enumerate(value)]}
            case list():
                return {"list": [self.encode(x, f"{path}.{i}") for i, x in enumerate(value)]}
            case dict() if all(isinstance(name, str) for name in value):
                return {"dict": {name: self.encode(x, f"{path}.{name}") for name, x in value.items()}}
        kind = type(value)
        if isinstance(value, eqx.Module) and kind in self.names:
            fields = {
                field.name: self.encode(getattr(value, field.name), f"{path}.{field.name}")
                for field in dataclasses.fields(value)
            }
            return {"module": self.names[kind], "fields": fields}
        if isinstance(value, eqx.Module):
            raise PersistenceError(
                f"cannot save {path or 'the module'}: {kind.__name__} is not one of bieqno's classes; "
                f"pass known=[{kind.__name__}] to save and load"
            )
        if callable(value) and isinstance(value, Hashable) and value in self.names:
            return {"function": self.names[value]}
        raise PersistenceError(
            f"cannot save {path or 'the module'}: {value!r} is neither an array, a number, a text nor a module; "
            "a function or class of your own must be passed in known=[...]"
        )

    def _put(self, path: str, array: np.ndarray) -> str:
        """Put an array aside; the number makes the name unique whatever the path looks like."""
        name = f"{len(self.tensors)}{path}"
        self.tensors[name] = array
        return name


@dataclasses.dataclass
class _Decoder:
    items: dict[str, Known]
    tensors: dict[str, np.ndarray]

    def decode(self, node: Any) -> Any:
        """Build the value that a description stands for."""
        if not isinstance(node, dict):
            return node
        match node:
            case {"float": text}:
                return float(text)
            case {"key": path, "impl": impl}:
                return jax.random.wrap_key_data(jnp.asarray(self.tensors[path]), impl=impl)
            case {"array": path}:
                return self._array(path)
            case {"numpy": path}:
                return self.tensors[path].copy()
            case {"scalar": path}:
                return self.tensors[path][()]
            case {"tuple": items}:
                return tuple(self.decode(item) for item in items)
            case {"list": items}:
                return [self.decode(item) for item in items]
            case {"dict": items}:
                return {name: self.decode(item) for name, item in items.items()}
            case {"function": name}:
                return self._known(name, module=False)
            case {"module": name, "fields": fields}:
                return self._module(self._known(name, module=True), fields)
        raise PersistenceError(f"its description has an unknown form: {sorted(node)}")

    def _known(self, name: str, *, module: bool) -> Any:
        if name not in self.items:
            raise PersistenceError(
                f"it names {name}, which is not one of bieqno's own; if you trust it, pass it in known=[...]"
            )
        item = self.items[name]
        if module != (inspect.isclass(item) and issubclass(item, eqx.Module)):
            raise PersistenceError(f"it uses {name} as what it is not")
        return item

    def _array(self, path: str) -> jax.Array:
        stored = self.tensors[path]
        if jax.dtypes.canonicalize_dtype(stored.dtype) != stored.dtype:
            raise PersistenceError(
                f"{path} has type {stored.dtype}; switch on 64-bit numbers first: "
                "jax.config.update('jax_enable_x64', True)"
            )
        return jnp.asarray(stored)

    def _module(self, cls: type[eqx.Module], fields: dict[str, Any]) -> eqx.Module:
        expected = [field.name for field in dataclasses.fields(cls)]
        if sorted(fields) != sorted(expected):
            raise PersistenceError(f"{cls.__name__} has the fields {sorted(expected)}, the file has {sorted(fields)}")
        if inspect.isabstract(cls):
            raise PersistenceError(f"{cls.__name__} is abstract")
        # As Equinox itself rebuilds modules: fields are set directly, then the invariants are checked.
        module = object.__new__(cls)
        for name in expected:
            object.__setattr__(module, name, self.decode(fields[name]))
        if isinstance(module, eqx.nn.Linear):
            check_linear(module)
        for base in cls.__mro__:
            if "__check_init__" in vars(base):
                vars(base)["__check_init__"](module)
        return module
