"""Where compiled programs are kept, so that a second start is fast."""

import os
from pathlib import Path


def compilation_cache() -> Path:
    """Where compiled programs are kept from one start to the next.

    ``BIEQNO_CACHE`` decides, then JAX's own ``JAX_COMPILATION_CACHE_DIR``, then the user's cache folder.
    """
    chosen = os.environ.get("BIEQNO_CACHE") or os.environ.get("JAX_COMPILATION_CACHE_DIR")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "bieqno"


def keep_compiled_programs() -> None:
    """Let JAX read and write the cache; it looks here when it is imported, which no command has done yet."""
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(compilation_cache())
