"""Arguments as users give them: what NumPy takes becomes arrays as the annotations say, all else is refused by name.

Inside `jit`, `vmap` and `grad` values are not known, and only shapes and types are checked.
"""

import functools
import inspect
import math
import os
import sys
import typing
from collections.abc import Callable
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

F = TypeVar("F", bound=Callable[..., Any])
_KINDS = {
    "float32": "numbers",
    "int32": "whole numbers",
    "bool": "truth values",
}  # by a type that the annotation allows


_forked = False  # from a process that had used JAX


def _note_fork() -> None:
    global _forked
    _forked = _forked or bool(getattr(sys.modules.get("jax._src.xla_bridge"), "_backends", None))


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_note_fork)


def refuse_fork() -> None:
    """Refuse to run JAX in a process that was forked after it was used: its threads are gone, and it would wait without end."""
    if _forked:
        raise RuntimeError(
            "this process was forked from one that had used JAX, and would hang; start processes by "
            "multiprocessing.get_context('spawn'), or use joblib's default backend"
        )


class _Expected(NamedTuple):
    """What an annotation allows."""

    optional: bool
    arrays: tuple[Any, ...]  # annotations of jaxtyping
    parts: tuple[Any, ...]  # the same, of which tuples are allowed
    classes: tuple[type, ...]
    function: bool
    anything: bool

    @classmethod
    def of(cls, annotation: Any) -> "_Expected":
        union = typing.get_origin(annotation) in (typing.Union, UnionType)
        kinds = typing.get_args(annotation) if union else (annotation,)
        arrays = tuple(kind for kind in kinds if hasattr(kind, "dim_str"))
        tuples = [kind for kind in kinds if typing.get_origin(kind) is tuple]
        parts = tuple(part for kind in tuples for part in typing.get_args(kind) if hasattr(part, "dim_str"))
        functions = [kind for kind in kinds if isinstance(typing.get_origin(kind), type) and kind not in tuples]
        function = any(issubclass(typing.get_origin(kind), Callable) for kind in functions)  # type: ignore[arg-type]
        classes = tuple(kind for kind in kinds if isinstance(kind, type) and kind not in (*arrays, NoneType, Any))
        known = len(arrays) + len(tuples) * bool(parts) + function + len(classes) + (NoneType in kinds)
        return cls(NoneType in kinds, arrays, parts, classes, function, known < len(kinds))


def checked(*missing: str, finite: bool = True) -> Callable[[F], F]:
    """Decorate a function whose arguments become what its annotations say, or are refused with their names.

    Lists and arrays of NumPy become arrays of JAX. Wrong types are a TypeError; wrong numbers of axes, sizes that differ where
    the annotations give them one name, and values that are not finite are a ValueError. Those of arguments that `missing` names
    need not be finite. A result that is not finite is an error as well, unless `finite` is False.

    Example:
        >>> from jaxtyping import Array, Float
        >>> @checked()
        ... def total(values: Float[Array, "n"]) -> Float[Array, ""]:
        ...     return jnp.sum(values)
        >>> total([1, 2]).item()
        3.0
        >>> total([[1.0]])
        Traceback (most recent call last):
        ...
        ValueError: values has the shape (n), got (1, 1)
    """

    def decorate(function: F) -> F:
        signature = inspect.signature(function)
        several = inspect.Parameter.VAR_POSITIONAL
        expected = {
            name: (_is_key(parameter.annotation), parameter.kind is several, _Expected.of(parameter.annotation))
            for name, parameter in signature.parameters.items()
            if parameter.annotation is not inspect.Parameter.empty
            and parameter.kind is not inspect.Parameter.VAR_KEYWORD
        }

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            refuse_fork()
            bound, sizes = signature.bind(*args, **kwargs), dict[str, int]()
            for name, value in bound.arguments.items():
                if name not in expected:
                    continue
                key, many, wanted = expected[name]
                if key and (value is not None or not wanted.optional):
                    _check_key(name, value)
                elif key:
                    continue
                elif many:
                    taken = tuple(_take(name, one, wanted, {}, name in missing) for one in value)
                    bound.arguments[name] = taken
                else:
                    bound.arguments[name] = _take(name, value, wanted, sizes, name in missing)
            result = function(*bound.args, **bound.kwargs)
            if finite and not _all_finite(result):
                why = "its arguments are too large, or leave nothing to divide by"
                raise ValueError(f"the result of {function.__qualname__} is not finite: {why}")
            return result

        return wrapper  # type: ignore[return-value]

    return decorate


def _take(name: str, value: Any, wanted: _Expected, sizes: dict[str, Any], missing: bool) -> Any:
    """Return an argument as the annotation wants it."""
    if value is None and wanted.optional:
        return None
    value = _plain(value, wanted)
    for cls in wanted.classes:
        if _is(value, cls):
            if isinstance(value, Real) and math.isnan(value):
                raise ValueError(f"{name} is a number, got {value}")
            return value
    if wanted.function and callable(value):
        return value
    if wanted.parts and isinstance(value, tuple):
        return tuple(_array(name, one, wanted.parts, {}, missing) for one in value)
    if wanted.arrays and not (wanted.anything and not hasattr(value, "shape")):
        return _array(name, value, wanted.arrays, sizes, missing)
    if wanted.anything:
        return value
    names = [cls.__name__ for cls in wanted.classes] + ["function"] * wanted.function
    raise TypeError(f"{name} is a {' or a '.join(names)}, got {_described(value)}")


def _plain(value: Any, wanted: _Expected) -> Any:
    """Return a number of NumPy, or an array of one number, as Python's own where the annotation asks for such a one."""
    single = isinstance(value, np.generic) or (isinstance(value, (np.ndarray, jax.Array)) and value.shape == ())
    if not single or wanted.arrays or isinstance(value, (jax.core.Tracer, np.ma.MaskedArray)):
        return value
    if getattr(value.dtype, "kind", "V") not in "biuf":  # random keys have a type without a kind
        return value
    number = value.item()
    return number if {type(number), float} & set(wanted.classes) else value


def _is(value: Any, cls: type) -> bool:
    if cls is float:
        return isinstance(value, Real)
    if cls is int:
        return isinstance(value, Integral)
    return isinstance(value, cls)


def _array(name: str, value: Any, kinds: tuple[Any, ...], sizes: dict[str, Any], missing: bool) -> jax.Array:
    what = next(text for dtype, text in _KINDS.items() if any(dtype in kind.dtypes for kind in kinds))
    if isinstance(value, jax.ShapeDtypeStruct):  # a shape instead of an array, to find another shape
        return value  # type: ignore[return-value]
    if isinstance(value, np.ma.MaskedArray):
        raise ValueError(f"{name} is a masked array; fill it in first, as in {name}.filled(...)")
    try:
        array = value if isinstance(value, jax.Array) else np.asarray(value)
    except Exception as error:  # of whatever object
        raise ValueError(f"{name} cannot be made an array of {what}: {error}") from error
    boolean, whole = array.dtype == bool, jnp.issubdtype(array.dtype, jnp.integer)
    real = boolean or whole or jnp.issubdtype(array.dtype, jnp.floating)
    fits = {"numbers": real, "whole numbers": whole, "truth values": boolean}[what]
    if not fits and (what == "numbers" or not real):
        raise TypeError(f"{name} holds {what}, got {_described(value)}")
    if not fits and array.size:
        raise ValueError(f"{name} holds {what}, got {array.dtype} of shape {array.shape}")
    if what == "numbers" and not jnp.issubdtype(array.dtype, jnp.floating):
        array = array.astype(jnp.result_type(float))
    with np.errstate(over="ignore"):
        array = jnp.asarray(array, None if fits else bool if what == "truth values" else int)
    problems = [_misfit(array.shape, kind.dim_str.split(), sizes) for kind in kinds]
    if all(problem is not None for problem in problems):
        raise ValueError(f"{name} has the shape {' or '.join(map(str, problems))}, got {array.shape}")
    if what == "numbers" and not missing and not _all_finite(array):
        raise ValueError(f"{name} holds values that are not finite")
    return array


def as_floats(name: str, value: Any, *, finite: bool = False) -> jax.Array:
    """Return an argument of any shape as an array of floating-point numbers, which need not be finite unless it is said."""
    return _array(name, value, (Float[Array, "..."],), {}, not finite)


def finite_floats(name: str) -> Callable[[Any], Any]:
    """Return a converter for a field of a module that holds finite floating-point numbers; None stays, for optional fields."""
    return lambda value: None if value is None else as_floats(name, value, finite=True)


def _misfit(shape: tuple[Any, ...], axes: list[str], sizes: dict[str, Any]) -> str | None:
    """Return the shape that is expected, or None if it is this one; remember the sizes that have names."""
    several = [axis for axis in axes if axis == "..." or axis.startswith("*")]
    known = {axis: size for axis, size in sizes.items() if axis in axes}
    wanted = f"({', '.join(axes)})" + "".join(f" with {axis} = {size}" for axis, size in known.items())
    if several:
        return wanted if len(shape) < len(axes) - 1 else None
    if len(shape) != len(axes):
        return wanted
    pairs = [(axis, size) for axis, size in zip(axes, shape, strict=True) if not axis.startswith("_")]
    if any((int(axis) if axis.isdigit() else sizes.get(axis, size)) != size for axis, size in pairs):
        return wanted
    sizes.update({axis: size for axis, size in pairs if axis.isidentifier()})
    return None


def _is_key(annotation: Any) -> bool:
    """Return whether an annotation is that of a random key, or of one that may be None."""
    kinds = [kind for kind in typing.get_args(annotation) if kind is not NoneType]
    return kinds == list(typing.get_args(PRNGKeyArray))


def _check_key(name: str, value: Any) -> None:
    dtype, shape = getattr(value, "dtype", None), getattr(value, "shape", None)
    new = dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key) and shape == ()
    if not new and (dtype != np.uint32 or shape not in {(2,), (4,)}):
        raise TypeError(f"{name} is one random key, as jax.random.key(0) makes it, got {_described(value)}")


def _all_finite(tree: Any) -> bool:
    """Return whether all floating-point numbers in a tree are finite, as far as they are known."""
    leaves = [leaf for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.Array)]
    known = [leaf for leaf in leaves if not isinstance(leaf, jax.core.Tracer) and leaf.is_fully_addressable]
    numbers = [leaf for leaf in known if jnp.issubdtype(leaf.dtype, jnp.floating)]
    return all(map(_finite, numbers))


def _finite(array: jax.Array) -> bool:
    # By NumPy, which compiles nothing, or where the numbers are: then one flag crosses from the device.
    here = all(device.platform == "cpu" for device in array.devices())
    return bool(np.isfinite(array).all() if here else jnp.isfinite(array).all())


def _described(value: Any) -> str:
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    about = f" of {dtype} {shape}" if shape is not None else ""
    return f"{type(value).__name__}{about}"
