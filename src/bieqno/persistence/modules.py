"""Save and load modules: one file of arrays, and a JSON description of the module around them. Never pickle.

The description is a tree that mirrors the module: which class, its fields, where its arrays are. Loading builds only classes
and functions from a fixed list, the package's own and those that the caller passes; nothing in the file is ever executed. The
`__check_init__` of each class detects parts that do not fit together. A field that a file does not know takes its default.
"""

import dataclasses
import inspect
import json
import math
import os
import types
import typing
from collections.abc import Callable, Hashable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from bieqno import operators
from bieqno.gaussian import LowRankGaussian
from bieqno.operators.fixed import INFINITE
from bieqno.operators.networks import check_linear
from bieqno.persistence.tensorfile import PersistenceError, pack_tensors, read_file, replace_file, unpack_tensors

Known: TypeAlias = type[eqx.Module] | Callable[..., Any]
ManyKnown: TypeAlias = Iterable[Known] | Mapping[str, Known]

_KIND = "module"
_PLAIN = {bool, int, float, str, dict, tuple, list, types.NoneType}
_OWN_PACKAGES = ("bieqno", "equinox")  # what they hold is known; a user's own modules may hold anything
_OWN: tuple[Known, ...] = (
    *(item for item in vars(operators).values() if inspect.isclass(item)),
    LowRankGaussian,
    *(eqx.nn.Linear, eqx.nn.Identity, eqx.nn.LayerNorm),
    *(jax.nn.relu, jax.nn.gelu, jax.nn.silu, jax.nn.tanh, jax.nn.elu, jax.nn.selu, jax.nn.celu, jax.nn.softplus),
    *(jax.nn.sigmoid, jax.nn.leaky_relu, jax.nn.soft_sign, jax.nn.mish, jax.nn.identity, jnp.sin),
)


def save(path: str | os.PathLike[str], module: eqx.Module, *, known: ManyKnown = ()) -> None:
    """Save a module to one file, by custom ending in ``.bieqno``, replacing what was there in one step.

    The module is built of the package's classes and of `known` classes and functions; as a dictionary, these have names of
    your choice. PersistenceError is raised if something cannot be stored, or the file not be written.

    Example:
        >>> import jax, pathlib, tempfile
        >>> operator = operators.InvariantOperator(2, 1, key=jax.random.key(0))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save(pathlib.Path(folder) / "operator.bieqno", operator)
        ...     again = load(pathlib.Path(folder) / "operator.bieqno")
        >>> bool(eqx.tree_equal(operator, again))
        True
    """
    replace_file(Path(path), to_bytes(module, known=known))


def to_bytes(module: eqx.Module, *, known: ManyKnown = ()) -> bytes:
    """Return the content of the file that `save` would write."""
    tensors: dict[str, np.ndarray] = {}
    tree = _Encoder(_names(known), tensors).encode(module, "")
    return pack_tensors(tensors, kind=_KIND, description=json.dumps(tree))


def load(path: str | os.PathLike[str], *, known: ManyKnown = ()) -> Any:
    """Load a module that `save` wrote; no code from the file is run.

    PersistenceError is raised if the file is missing, damaged, foreign, of a version that cannot be read, names a class that
    is neither the package's own nor `known`, or holds arrays that do not fit its classes.
    """
    return from_bytes(read_file(Path(path)), known=known, source=str(path))


def from_bytes(content: bytes, *, known: ManyKnown = (), source: str = "the content") -> Any:
    """Return what `load` would for a file of this content; `source` names it in errors."""
    tensors, description = unpack_tensors(content, kind=_KIND, source=source)
    try:
        tree = json.loads(description)
        if not isinstance(tree, dict) or "module" not in tree:
            raise PersistenceError("it does not describe a module")
        return _Decoder({name: item for item, name in _names(known).items()}, tensors).decode(tree)
    except PersistenceError as error:
        raise PersistenceError(f"cannot load {source}: {error}") from error
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError, AssertionError) as error:
        raise PersistenceError(f"cannot load {source}: its parts do not fit together: {error}") from error


def _names(known: ManyKnown) -> dict[Known, str]:
    """Return every class and function that a file may name, with its name: package and own name, or the chosen one."""
    items = {_name(item): item for item in _OWN}
    given = known.items() if isinstance(known, Mapping) else ((_name(item), item) for item in known)
    for name, item in given:
        if items.setdefault(name, item) is not item:
            advice = "give them names: known={'first': ..., 'second': ...}"
            raise PersistenceError(f"two different things are called {name}; {advice}")
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
                data = np.asarray(jax.random.key_data(value))
                return {"key": self._put(path, data), "impl": str(jax.random.key_impl(value))}
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
            case eqx.Module() if type(value) in self.names:
                names = [field.name for field in dataclasses.fields(value)]
                fields = {name: self.encode(getattr(value, name), f"{path}.{name}") for name in names}
                if type(value).__module__.split(".")[0] in _OWN_PACKAGES:
                    self._check(value)
                return {"module": self.names[type(value)], "fields": fields}
            case eqx.Module():
                name = type(value).__name__
                reason = f"{name} is not one of bieqno's classes; pass known=[{name}] to save and load"
            case Hashable() if callable(value) and value in self.names:
                return {"function": self.names[value]}
            case _:
                reason = f"{value!r} is neither an array, a number, a text nor a module; "
                reason += "a function or class of your own must be passed in known=[...]"
        raise PersistenceError(f"cannot save {path or 'the module'}: {reason}")

    def _check(self, module: eqx.Module) -> None:
        """Refuse to write what could not be loaded."""
        for field in dataclasses.fields(module):
            try:
                _check_field(f"{type(module).__name__}.{field.name}", field, getattr(module, field.name))
            except ValueError as error:
                raise PersistenceError(f"cannot save it: {error}") from error

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
                if jax.dtypes.canonicalize_dtype(self.tensors[path].dtype) != self.tensors[path].dtype:
                    advice = "switch on 64-bit numbers first: jax.config.update('jax_enable_x64', True)"
                    raise PersistenceError(f"{path} has type {self.tensors[path].dtype}; {advice}")
                return jnp.asarray(self.tensors[path])
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
            advice = "if you know where it comes from, pass it in known=[...]"
            raise PersistenceError(f"it names {name}, which is not one of bieqno's own; {advice}")
        item = self.items[name]
        if module != (inspect.isclass(item) and issubclass(item, eqx.Module)):
            raise PersistenceError(f"it uses {name} as what it is not")
        return item

    def _module(self, cls: type[eqx.Module], fields: dict[str, Any]) -> eqx.Module:
        expected = {field.name: field for field in dataclasses.fields(cls)}
        defaults = {name: _default(field) for name, field in expected.items() if name not in fields}
        if set(fields) - set(expected) or any(value is dataclasses.MISSING for value in defaults.values()):
            raise PersistenceError(f"{cls.__name__} has the fields {sorted(expected)}, the file has {sorted(fields)}")
        if inspect.isabstract(cls):
            raise PersistenceError(f"{cls.__name__} is abstract")
        # As Equinox itself rebuilds modules: fields are set directly, then the invariants are checked.
        module = object.__new__(cls)
        for name, field in expected.items():
            value = defaults[name] if name in defaults else self.decode(fields[name])
            if cls.__module__.split(".")[0] in _OWN_PACKAGES:
                _check_field(f"{cls.__name__}.{name}", field, value)
            object.__setattr__(module, name, value)
        if isinstance(module, eqx.nn.Linear):
            check_linear(module)
        for base in cls.__mro__:
            if "__check_init__" in vars(base):
                vars(base)["__check_init__"](module)
        return module


def _check_field(name: str, field: dataclasses.Field[Any], value: Any) -> None:
    """Refuse arrays of another type than a field is declared with, numbers that no float holds, NaN, and infinity.

    A field that may be infinite is declared as ``eqx.field(metadata={INFINITE: True})``.
    """
    union = typing.get_origin(field.type) in (typing.Union, types.UnionType)
    kinds = typing.get_args(field.type) if union else (field.type,)
    if float in kinds and isinstance(value, int):
        value = float(value)
    plain = [typing.get_origin(kind) or kind for kind in kinds]
    counted = isinstance(value, np.generic) and bool({int, float} & set(plain))
    if set(plain) <= _PLAIN and type(value) not in plain and not counted:
        raise ValueError(f"{name} holds a {type(value).__name__}, which is not what it is declared with")
    declared = {dtype for kind in kinds if hasattr(kind, "dim_str") for dtype in kind.dtypes}
    for leaf in jax.tree.leaves(value, is_leaf=lambda part: isinstance(part, eqx.Module)):
        number, array = isinstance(leaf, float), isinstance(leaf, (np.ndarray, np.generic, jax.Array))
        if array and declared and leaf.dtype.name not in declared:
            raise ValueError(f"{name} holds {leaf.dtype}, which is not what it is declared with")
        if number or (array and jnp.issubdtype(leaf.dtype, jnp.floating)):
            values = np.asarray(leaf, float)
            if np.isnan(values).any() or not (number or INFINITE in field.metadata or np.isfinite(values).all()):
                raise ValueError(f"{name} holds values that are not finite")


def _default(field: dataclasses.Field[Any]) -> Any:
    """Return the value of a field that was added after the file was written; MISSING if it has no default."""
    value = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    return value if value is dataclasses.MISSING else field.metadata.get("converter", lambda x: x)(value)
