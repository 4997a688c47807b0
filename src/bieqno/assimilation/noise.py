"""White noise for compiled loops."""

import math

import jax
from jax.typing import DTypeLike
from jaxtyping import Array, Float, PRNGKeyArray

# Above about a thousand numbers XLA hands the work to its threads, which inside a loop of short steps costs four
# times what it saves, and far more on a busy machine (measured by `benchmarks/filters.py`).
BLOCK = 800
LARGE = 64 * BLOCK  # from here on threads are worth their while


def white_noise(shape: tuple[int, ...], dtype: DTypeLike, *, key: PRNGKeyArray) -> Float[Array, "..."]:
    """Standard normal numbers, drawn in blocks small enough to stay on one thread.

    Example:
        >>> import jax
        >>> white_noise((40, 40), jax.numpy.float32, key=jax.random.key(0)).shape
        (40, 40)
    """
    size = math.prod(shape)
    if size <= BLOCK or size >= LARGE:
        return jax.random.normal(key, shape, dtype)
    blocks = -(-size // BLOCK)
    width = -(-size // blocks)

    def draw(block_key: PRNGKeyArray) -> Float[Array, "w"]:
        return jax.random.normal(block_key, (width,), dtype)

    return jax.lax.map(draw, jax.random.split(key, blocks)).reshape(-1)[:size].reshape(shape)
