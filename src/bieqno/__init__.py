"""Approximate Bayesian inference with permutation-equivariant neural operators."""

import os
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

# Read when JAX is imported: the compiler's own log, at length on every program that comes from the cache, is not for users.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

__version__ = version("bieqno")

if TYPE_CHECKING:
    from bieqno.public import *  # noqa: F403
else:
    # JAX and scikit-learn take seconds to import, and `bieqno --help` needs neither: names come when first asked for.

    def __getattr__(name: str) -> Any:
        if find_spec(f"bieqno.{name}") is not None:
            return import_module(f"bieqno.{name}")
        public = import_module("bieqno.public")
        if name not in {"__all__", *public.__all__}:
            raise AttributeError(f"module 'bieqno' has no attribute {name!r}")
        return getattr(public, name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *import_module("bieqno.public").__all__})
