"""What the numbers of a run depend on: settings, seed, versions, and the source that a study can reach.

A change elsewhere leaves results as they are: ``--resume`` runs only those studies again whose own source changed.
"""

import ast
import dataclasses
import hashlib
import json
import os
import platform
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[2]
_PACKAGES = ("bieqno", "jax", "jaxlib", "equinox", "optax", "numpy", "scipy", "scikit-learn")
_DISPLAY = ("bieqno.cli", "bieqno.lab.report")  # what runs and shows experiments does not change their numbers


def provenance(experiment: str, modules: Iterable[str], settings: Any, seed: int) -> dict[str, Any]:
    """Return all that is known before a run, as JSON: the beginning of ``config.json``. `modules` hold the study."""
    return {
        "experiment": experiment,
        "preset": settings.preset,
        "seed": seed,
        "settings": json.loads(json.dumps(settings, default=_plain)),
        "versions": {"python": platform.python_version(), **{name: version(name) for name in _PACKAGES}},
        "code": _code_digest(tuple(modules)),
        "commit": _commit(),
        "platform": {"system": platform.platform(), "machine": platform.machine(), "cores": os.cpu_count()},
    }


def run_key(config: Mapping[str, Any]) -> str:
    """Return a digest of everything that the numbers depend on, from `provenance`: code and versions first, then all."""

    def digest(*names: str) -> str:
        decisive = {name: config[name] for name in names}
        return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()

    return f"{digest('versions', 'code')[:6]}-{digest('experiment', 'settings', 'seed', 'versions', 'code')[:12]}"


def sources(*modules: str) -> set[str]:
    """Return the modules of this package that some modules can reach: those they import, and those that these import.

    A name taken from a package leads to the module that defines it, not to all that the package holds.

    Example:
        >>> reached = sources("bieqno.lab.studies.step_1d")
        >>> "bieqno.gaussian" in reached, "bieqno.assimilation.filters.transform" in reached
        (True, False)
    """
    found: set[str] = set()
    waiting = list(modules)
    while waiting:
        name = waiting.pop()
        if name not in found and not name.startswith(_DISPLAY) and _exists(name):
            found.add(name)
            waiting += _imported(name)
    return found


@cache
def _imported(module: str) -> tuple[str, ...]:
    tree = ast.parse(_file(module).read_text())
    packages = dict(_whole_packages(tree))
    used = [
        (packages[node.value.id], node.attr)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in packages
    ]
    named = [
        (node.module, name.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("bieqno")
        for name in node.names
        if (node.module, name.name) not in packages.items()
    ]
    return tuple(dict.fromkeys(_defined_in(str(package), name) for package, name in (*named, *used)))


def _whole_packages(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield the packages and modules that a module imports as such, each with its name there."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((n.asname, n.name) for n in node.names if n.asname and n.name.startswith("bieqno"))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("bieqno"):
            inner = ((n.asname or n.name, f"{node.module}.{n.name}") for n in node.names)
            yield from (pair for pair in inner if _exists(pair[1]))


def _defined_in(module: str, name: str) -> str:
    """Return the module that defines what another one offers under a name."""
    if _exists(f"{module}.{name}"):
        return f"{module}.{name}"
    if _file(module).name == "__init__.py":
        for node in ast.walk(ast.parse(_file(module).read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("bieqno"):
                for offered in node.names:
                    if (offered.asname or offered.name) == name:
                        return _defined_in(str(node.module), offered.name)
    return module


def _file(module: str) -> Path:
    path = _ROOT.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _exists(module: str) -> bool:
    return _file(module).exists()


@cache
def _code_digest(modules: tuple[str, ...]) -> str:
    """Return a digest of the source that modules can reach and of the data beside it, committed or not."""
    files = {_file(name) for name in sources(*modules)}
    files |= {path for file in files for kind in ("*.bieqno", "data/*.csv") for path in file.parent.glob(kind)}
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(f"{path.relative_to(_ROOT).as_posix()}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:12]


@cache
def _commit() -> str | None:
    """Return the commit that the package is at, with a plus if files were changed since; None outside a repository."""
    command = ["git", "-C", str(_ROOT), "describe", "--always", "--abbrev=12", "--match=", "--dirty=+"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


def _plain(value: Any) -> Any:
    """Return what JSON does not know as something that it knows."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return vars(value)
    return dict(value) if isinstance(value, Mapping) else repr(value)
