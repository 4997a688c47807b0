"""Compiling quickly, and keeping what was compiled: JAX's persistent compilation cache, in the user's cache folder by default.

``BIEQNO_CACHE`` names another folder, or ``off``. A cache that the user has given to JAX itself is left as it is.
"""

import os
import tempfile
import warnings
from collections.abc import Callable
from functools import cache, wraps
from pathlib import Path
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

LEAST_SECONDS = 0.1  # programs that compile faster are not worth a file
SMALLEST = 100_000  # bytes that must be free, the size of a small program
MAPS = 20_000  # mapped parts of memory, of which every compiled program takes several; Linux allows a process 65,530


# One object file per kernel, as XLA's fusion emitters make them, is too many for a large training: the loader of jaxlib 0.9
# recurses through them, and overflows its stack when the program comes from the compilation cache (docs/known_issues.md).
# Without them, and with the first level of optimization alone, a program compiles in less than half the time; a training or an
# LETKF is as fast afterwards, an EnKF of small models a third slower. Who names a level in the environment has that.
_LEVEL = "xla_backend_optimization_level"
_OPTIONS = {"xla_cpu_use_fusion_emitters": False} | ({} if _LEVEL in os.environ.get("XLA_FLAGS", "") else {_LEVEL: 1})


def quick_jit(function: F) -> F:
    """Compile a function as `equinox.filter_jit` does, but quickly: for what is compiled more often than it runs for long.

    Inside another compiled function, which is compiled as a whole, it is `equinox.filter_jit`.

    Example:
        >>> import jax
        >>> double = quick_jit(lambda x: 2 * x)
        >>> float(double(1.0)), float(jax.jit(double)(1.0))
        (2.0, 2.0)
    """
    import equinox as eqx
    import jax
    import jax.numpy as jnp

    jit: Any = eqx.filter_jit
    whole, part = jit(function, compiler_options=_OPTIONS), jit(function)

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        # What is made inside a compiled function is traced, even if no argument is.
        seen = jax.tree.leaves((jnp.zeros(()), args, kwargs))
        inside = any(isinstance(leaf, jax.core.Tracer) for leaf in seen)
        return (part if inside else whole)(*args, **kwargs)

    call.compiled = whole  # type: ignore[attr-defined]
    return call  # type: ignore[return-value]


def compilation_cache() -> Path | None:
    """Return the folder of compiled programs: ``BIEQNO_CACHE``, JAX's own setting, or one in the user's cache folder.

    Example:
        >>> before = os.environ.get("BIEQNO_CACHE", "")
        >>> os.environ["BIEQNO_CACHE"] = "off"
        >>> print(compilation_cache())
        None
        >>> os.environ["BIEQNO_CACHE"] = before
    """
    chosen = os.environ.get("BIEQNO_CACHE") or os.environ.get("JAX_COMPILATION_CACHE_DIR")
    if chosen == "off":
        return None
    return Path(chosen or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "bieqno"))


def cache_problem(folder: Path) -> str:
    """Return why compiled programs cannot be kept in a folder, which is made if need be; nothing if they can."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(SMALLEST))
    except OSError as error:
        advice = "every start compiles anew; name a folder in BIEQNO_CACHE, or set it to off"
        return f"compiled programs cannot be kept: {folder}: {error.strerror or error}; {advice}"
    # Should it become full later: JAX would warn of every single program.
    warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache entry")
    return ""


@cache
def use_compilation_cache() -> None:
    """Let JAX keep compiled programs, unless it does already; one warning if the folder cannot be written."""
    import jax
    from jax.experimental.compilation_cache import compilation_cache as of_jax

    folder = compilation_cache()
    if getattr(jax.config, "jax_compilation_cache_dir", None) is not None or folder is None:
        return
    problem = cache_problem(folder)
    if problem:
        warnings.warn(problem, UserWarning, stacklevel=2)
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", LEAST_SECONDS)
    of_jax.reset_cache()  # something may have been compiled without it


def forget_programs() -> None:
    """Let JAX forget what it has compiled before there is too much of it: a long series of studies would end in a crash."""
    import jax

    maps = Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > MAPS:
        jax.clear_caches()
