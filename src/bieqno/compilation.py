"""Compiled programs are kept between starts: JAX's persistent compilation cache, in the user's cache folder by default.

``BIEQNO_CACHE`` names another folder, or ``off``. A cache that the user has given to JAX itself is left as it is.
"""

import os
import tempfile
import warnings
from functools import cache
from pathlib import Path

LEAST_SECONDS = 0.1  # programs that compile faster are not worth a file
SMALLEST = 100_000  # bytes that must be free, the size of a small program
MAPS = 20_000  # mapped parts of memory, of which every compiled program takes several; Linux allows a process 65,530


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
