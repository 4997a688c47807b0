"""What the numbers of a run depend on: settings, seed, code, versions and machine."""

import dataclasses
import hashlib
import json
import os
import platform
import subprocess
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

_PACKAGE = Path(__file__).parents[1]
_PACKAGES = ("bieqno", "jax", "jaxlib", "equinox", "optax", "numpy", "scipy", "scikit-learn")
_ABOVE = {"cli", "report"}  # what runs and shows experiments does not change their numbers


def provenance(experiment: str, settings: Any, seed: int) -> dict[str, Any]:
    """All that is known before a run, as JSON: the beginning of ``config.json``.

    Args:
        experiment: its name.
        settings: its settings, a dataclass.
        seed: what everything random grows from.
    """
    return {
        "experiment": experiment,
        "preset": settings.preset,
        "seed": seed,
        "settings": plain(settings),
        "versions": {"python": platform.python_version(), **{name: version(name) for name in _PACKAGES}},
        "code": code_digest(),
        "commit": commit(),
        "platform": {"system": platform.platform(), "machine": platform.machine(), "cores": os.cpu_count()},
    }


def run_key(config: Mapping[str, Any]) -> str:
    """A short name for everything that the numbers depend on, of what `provenance` says: code and versions first, then all."""

    def digest(*names: str) -> str:
        decisive = {name: config[name] for name in names}
        return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()

    return f"{digest('versions', 'code')[:6]}-{digest('experiment', 'settings', 'seed', 'versions', 'code')[:12]}"


@cache
def code_digest() -> str:
    """A digest of the source and the learned weights that the numbers depend on, committed or not."""
    digest = hashlib.sha256()
    for path in sorted([*_PACKAGE.rglob("*.py"), *_PACKAGE.rglob("*.bieqno")]):
        name = path.relative_to(_PACKAGE)
        if name.parts[0] not in _ABOVE:
            digest.update(f"{name.as_posix()}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:12]


@cache
def commit() -> str | None:
    """The commit that the package is at, with a plus if files were changed since; None outside a repository."""
    try:
        done = subprocess.run(
            ["git", "-C", str(_PACKAGE), "describe", "--always", "--abbrev=12", "--match=", "--dirty=+"],
            capture_output=True, text=True, check=True, timeout=10,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


def plain(value: Any) -> Any:
    """Settings as JSON knows them."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value if isinstance(value, str | int | float | bool | None) else repr(value)
