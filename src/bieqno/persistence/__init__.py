"""Save and load: JSON and safetensors in one file, never code."""

from bieqno.persistence.modules import from_bytes, load, save, to_bytes
from bieqno.persistence.tensorfile import PersistenceError, read_tensors, replace_file, write_tensors

__all__ = ["PersistenceError", "from_bytes", "load", "save", "to_bytes"]
__all__ += ["read_tensors", "replace_file", "write_tensors"]
