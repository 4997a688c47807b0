"""Batch sources. Any function of a key is one; this is the one over stored arrays."""

import equinox as eqx
import jax
from jaxtyping import Array, PRNGKeyArray, PyTree


class StoredData(eqx.Module):
    """A batch source over stored arrays: rows drawn at random, the same rows of every array.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> source = StoredData((jnp.zeros((100, 3)), jnp.zeros(100)), batch_size=8)
        >>> [part.shape for part in source(jax.random.key(0))]
        [(8, 3), (8,)]
    """

    arrays: PyTree[Array]
    batch_size: int = eqx.field(static=True)

    def __check_init__(self) -> None:
        sizes = {x.shape[0] for x in jax.tree.leaves(self.arrays)}
        if len(sizes) != 1 or 0 in sizes:
            raise ValueError(f"stored arrays need the same number of rows, at least one; got {sorted(sizes)}")
        if self.batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {self.batch_size}")

    def __call__(self, key: PRNGKeyArray) -> PyTree[Array]:
        """Draw a batch."""
        size = jax.tree.leaves(self.arrays)[0].shape[0]
        rows = jax.random.randint(key, (self.batch_size,), 0, size)
        return jax.tree.map(lambda x: x[rows], self.arrays)
