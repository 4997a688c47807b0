"""Filters in files: what `bieqno.save` and `bieqno.load` do, for every filter and wrapper of this package."""

import os
from typing import Any

import equinox as eqx

from bieqno import persistence
from bieqno.assimilation import filters, models
from bieqno.assimilation.filters.learned.local_network import FieldNetwork, StencilSum
from bieqno.assimilation.filters.learned.surroundings import Surroundings
from bieqno.assimilation.geometry import Neighbours
from bieqno.assimilation.neighbourhoods import Candidates, Neighbourhoods, Stencil
from bieqno.assimilation.protocols import Filter
from bieqno.persistence.tensorfile import PersistenceError

PARTS = (Neighbours, Stencil, Candidates, Neighbourhoods, StencilSum, FieldNetwork, Surroundings)
_KNOWN = tuple(
    item
    for item in (*vars(filters).values(), *vars(models).values(), *PARTS)
    if isinstance(item, type) and issubclass(item, eqx.Module)
)


def save_filter(path: str | os.PathLike[str], filter: Filter) -> None:
    """Save a filter with all its wrappers to one file; see `bieqno.save`.

    Example:
        >>> import jax, pathlib, tempfile
        >>> from bieqno.assimilation import EnNF, Inflated
        >>> filter = Inflated(EnNF(2, key=jax.random.key(0)), 1.02)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_filter(pathlib.Path(folder) / "filter.bieqno", filter)
        ...     again = load_filter(pathlib.Path(folder) / "filter.bieqno")
        >>> bool(eqx.tree_equal(filter, again))
        True
    """
    persistence.save(path, _checked(filter), known=_KNOWN)


def load_filter(path: str | os.PathLike[str]) -> Any:
    """Load what `save_filter` wrote; no code from the file is run."""
    return persistence.load(path, known=_KNOWN)


def filter_to_bytes(filter: Filter) -> bytes:
    """Return the content of the file that `save_filter` would write."""
    return persistence.to_bytes(_checked(filter), known=_KNOWN)


def filter_from_bytes(content: bytes) -> Any:
    """Return what `load_filter` would return for a file of this content."""
    return persistence.from_bytes(content, known=_KNOWN)


def _checked(filter: Filter) -> eqx.Module:
    if not isinstance(filter, eqx.Module):
        raise PersistenceError(f"only filters that are modules can be saved, got {filter!r}")
    return filter
