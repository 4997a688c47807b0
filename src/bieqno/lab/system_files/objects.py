"""Objects of the user's own that a system file names: import them, and check that they are what they should be.

To import a module is to run it: a system file is a program of its owner, and no safer than one.
"""

import importlib
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bieqno.assimilation import Filter, Members, System
from bieqno.assimilation.models.forecast import AbstractEnsembleModel, forecast
from bieqno.lab.texts import did_you_mean

LONGEST_NAME = 240  # bytes of the name of a module, whose file has a suffix


def find_object(name: str, folder: Path) -> Any:
    """Return the object that a text such as ``my_model:observation`` names, from the folder or what is installed.

    Example:
        >>> find_object("math:pi", Path("."))
        3.141592653589793
        >>> find_object("math:pii", Path("."))
        Traceback (most recent call last):
        ...
        ValueError: the module math has no 'pii'; did you mean 'pi'?
    """
    module_name, colon, path = name.partition(":")
    if not (colon and module_name and path):
        raise ValueError(f"expected 'module:object', as in 'my_model:model', got {name!r}")
    if len(module_name.encode(errors="replace")) > LONGEST_NAME:
        raise ValueError(f"expected 'module:object', got a name that no file can have: {name[:40]!r}...")
    found: Any = _import(module_name, folder.resolve())
    for part in path.split("."):
        if not hasattr(found, part):
            names = [other for other in dir(found) if not other.startswith("_")]
            raise ValueError(f"the module {module_name} has no {path!r}; {did_you_mean(part, names)}")
        found = getattr(found, part)
    return found


def _import(name: str, folder: Path) -> ModuleType:
    top = name.split(".")[0]
    own = (folder / f"{top}.py").exists() or (folder / top / "__init__.py").exists()
    loaded = Path(getattr(sys.modules.get(top), "__file__", None) or "/").resolve()
    if own and folder not in loaded.parents:  # perhaps a module of the same name that another system file named
        for other in [other for other in sys.modules if other.split(".")[0] == top]:
            del sys.modules[other]
        importlib.invalidate_caches()
    if str(folder) not in sys.path[:1]:
        sys.path.insert(0, str(folder))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise ValueError(f"the module {name} needs {error.name!r}, which is not installed") from error
        hint = did_you_mean(name, [path.stem for path in sorted(folder.glob("*.py"))])
        raise ValueError(f"there is no module {name!r} in {folder} or installed; {hint}") from error
    except Exception as error:  # whatever the user's own code may raise
        raise ValueError(f"importing the module {name} failed: {type(error).__name__}: {error}") from error


def check_model(model: Any, state: Float[Array, "n"], inputs: Any = None) -> Any:
    """Return a model that runs for one window, with its inputs if it has any; one that does not is reported by its own error."""
    if isinstance(model, Members):
        with tempfile.TemporaryDirectory() as folder:
            errors = model.run(state[None], [0], window=0, folder=Path(folder)).errors
        if errors:
            raise ValueError(f"it fails on a state of {len(state)} variables: {errors[0]}")
        return model
    try:
        after = forecast(model, jnp.stack([state, state]), inputs, key=jax.random.key(0))
    except Exception as error:  # whatever the user's own code may raise
        given = f" and the inputs {', '.join(inputs)}" if isinstance(inputs, dict) else ""
        said = f"it fails on a state of {len(state)} variables{given}: {type(error).__name__}: {error}"
        raise ValueError(said if given else f"{said} (it was given no inputs)") from error
    if not np.isfinite(np.asarray(after)).all():
        raise ValueError("it gives values that are not finite one window after 'state'")
    return model


def check_filter(filter: Any, system: System, inputs: Any = None) -> Filter:
    """Return the filter if it takes ensembles and observations of a system, a ValueError if not; nothing is computed."""
    if not callable(filter):
        raise ValueError(f"expected a filter, got {type(filter).__name__}")
    ensemble = jnp.stack([system.state] * 4)
    observed = system.observation.window(jnp.zeros(system.observed), start=ensemble, inputs=inputs)
    try:
        shape = jax.eval_shape(lambda members: filter(members, observed, key=jax.random.key(0)), ensemble).shape
    except Exception as error:  # whatever the user's own code may raise
        raise ValueError(f"it does not work as a filter: {type(error).__name__}: {error}") from error
    if shape != ensemble.shape:
        raise ValueError(f"a filter keeps the shape {ensemble.shape} of an ensemble, got {shape}")
    return filter


def check_callable(item: Any) -> Any:
    """Return something to call, or a model, that is not a class."""
    if isinstance(item, type):
        raise ValueError(f"it is a class; make an object of it in your module, as in my_object = {item.__name__}(...)")
    if not (callable(item) or isinstance(item, AbstractEnsembleModel)):
        raise ValueError(f"expected something to call, got {type(item).__name__}")
    return item


def check_instance(item: Any, cls: type[Any], example: str) -> Any:
    """Return an object of a class."""
    if not isinstance(item, cls):
        kind = (item if isinstance(item, type) else type(item)).__name__
        raise ValueError(f"expected a bieqno.assimilation.{cls.__name__}, as in {example}, got {kind}")
    return item


def check_array(item: Any, what: str, *shapes: tuple[int | None, ...]) -> Float[np.ndarray, "..."]:
    """Return an object as finite numbers of one of some shapes, None for any length."""
    values = np.asarray(item, float)
    alike = (shape for shape in shapes if len(shape) == values.ndim)
    fits = any(all(k in (None, n) for k, n in zip(shape, values.shape, strict=True)) for shape in alike)
    if not values.size or not fits:
        raise ValueError(f"expected {what}, got shape {values.shape}")
    if not np.isfinite(values).all():
        raise ValueError("it holds values that are not finite")
    return values
