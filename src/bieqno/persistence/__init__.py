"""Save and load: JSON and safetensors in one file, never code."""

from bieqno.persistence.modules import from_bytes, load, save, to_bytes
from bieqno.persistence.tensorfile import PersistenceError, replace_file

__all__ = ["PersistenceError", "from_bytes", "load", "replace_file", "save", "to_bytes"]
