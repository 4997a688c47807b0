"""Compiled programs are kept between starts: JAX's persistent compilation cache, in the user's cache folder by default.

``BIEQNO_CACHE`` names another folder, or ``off``. A cache that the user has given to JAX itself is left as it is.
"""

import os
import warnings
from functools import cache
from pathlib import Path

LEAST_SECONDS = 0.1  # programs that compile faster are not worth a file


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


@cache
def use_compilation_cache() -> None:
    """Let JAX keep compiled programs, unless it does already; one warning if the folder cannot be written."""
    import jax
    from jax.experimental.compilation_cache import compilation_cache as of_jax

    folder = compilation_cache()
    if getattr(jax.config, "jax_compilation_cache_dir", None) is not None or folder is None:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(f"no permission to write to {folder}")
    except OSError as error:
        advice = "every start compiles anew; name a folder in BIEQNO_CACHE, or set it to off"
        warnings.warn(f"compiled programs cannot be kept: {error}; {advice}", UserWarning, stacklevel=2)
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", LEAST_SECONDS)
    of_jax.reset_cache()  # something may have been compiled without it
