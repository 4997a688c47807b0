"""Objects that a set-up names as ``module:object``: found in its own folder first, then among what is installed.

To import a module is to run it: a set-up is a program of its owner's, and is to be trusted like one.
"""

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from bieqno.lab.nearest import did_you_mean


def find_object(name: str, folder: Path) -> Any:
    """The object that a text such as ``my_model:observation`` names.

    Raises:
        ValueError: if there is no such module or object, or importing it fails.

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
    found: Any = _module(module_name, folder)
    for part in path.split("."):
        if not hasattr(found, part):
            names = [other for other in dir(found) if not other.startswith("_")]
            raise ValueError(f"the module {module_name} has no {path!r}; {did_you_mean(part, names)}")
        found = getattr(found, part)
    return found


def _module(name: str, folder: Path) -> ModuleType:
    folder = folder.resolve()
    top = name.split(".")[0]
    own = (folder / f"{top}.py").exists() or (folder / top / "__init__.py").exists()
    loaded = sys.modules.get(top)
    if own and loaded is not None and folder not in Path(getattr(loaded, "__file__", None) or "/").resolve().parents:
        # Another set-up's module of the same name.
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
        there = [path.stem for path in sorted(folder.glob("*.py"))]
        raise ValueError(
            f"there is no module {name!r} in {folder} or installed; {did_you_mean(name, there)}"
        ) from error
    except Exception as error:  # whatever the user's own code may raise
        raise ValueError(f"importing the module {name} failed: {type(error).__name__}: {error}") from error
