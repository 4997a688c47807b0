"""How a set of embeddings becomes one vector, whatever its size and order.

A pool is written as a *mergeable summary*: `summarize` a part of the set, `merge` the summaries of two parts,
`finish` the summary of the whole. Hence a set too large for memory is pooled in chunks with the same result
(`pool_set`), and the empty set has a defined value: every pool gives zeros for it.
"""

import abc
from collections.abc import Callable
from typing import Any, ClassVar, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from bieqno.arguments import checked
from bieqno.operators.networks import Network, apply_network

Embeddings: TypeAlias = Float[Array, "m w"]
Mask: TypeAlias = Bool[Array, "m"]
Query: TypeAlias = Float[Array, "a"] | None
Summary: TypeAlias = Any
Elements: TypeAlias = Float[Array, "m p"] | tuple[Float[Array, "m _"], ...]
"""A set, one row per element; or the parts of its rows: under a `vmap` over one part the work on the others is done once."""


class AbstractPool(eqx.Module):
    """Pool the embeddings of a set into one vector; only cross-attention uses the query."""

    uses_query: eqx.AbstractClassVar[bool]

    @abc.abstractmethod
    def summarize(self, embeddings: Embeddings, mask: Mask, query: Query) -> Summary:
        """Summarize a part of the set."""

    @abc.abstractmethod
    def merge(self, first: Summary, second: Summary) -> Summary:
        """Join the summaries of two parts."""

    @abc.abstractmethod
    def finish(self, summary: Summary) -> Float[Array, "v"]:
        """Turn the summary of the whole set into the pooled vector."""

    @abc.abstractmethod
    def out_size(self, width: int) -> int:
        """Return the length of the pooled vector for embeddings of length `width`."""

    @checked()
    def __call__(self, embeddings: Embeddings, mask: Mask | None = None, query: Query = None) -> Float[Array, "v"]:
        """Pool a whole set."""
        embeddings, mask = blank_padding(embeddings, mask)
        return self.finish(self.summarize(embeddings, mask, query))


PoolLike: TypeAlias = AbstractPool | Callable[[Array, Array], Array]


class MeanPool(AbstractPool):
    """The masked mean of the paper; `count` appends ``1 / (1 + m)``, for a posterior depends on the number of elements m.

    Example:
        >>> import jax.numpy as jnp
        >>> MeanPool()(jnp.array([[1.0], [3.0], [99.0]]), jnp.array([True, True, False])).tolist()
        [2.0]
        >>> MeanPool(count=True)(jnp.zeros((0, 1))).tolist()
        [0.0, 1.0]
    """

    count: bool = eqx.field(static=True, default=False)
    uses_query: ClassVar[bool] = False

    def summarize(self, embeddings: Embeddings, mask: Mask, query: Query) -> Summary:
        """Return the sum of the embeddings that the mask keeps, and their number."""
        kept = jnp.where(mask[:, None], embeddings, 0)
        return jnp.sum(kept, axis=0), jnp.sum(mask, dtype=embeddings.dtype)

    def merge(self, first: Summary, second: Summary) -> Summary:
        """Add sums and numbers."""
        return jax.tree.map(jnp.add, first, second)

    def finish(self, summary: Summary) -> Float[Array, "v"]:
        """Divide the sum by the number; the empty set gives zeros."""
        total, size = summary
        mean = total / jnp.maximum(size, 1)
        return jnp.append(mean, 1 / (1 + size)) if self.count else mean

    def out_size(self, width: int) -> int:
        """Return the length of the pooled vector."""
        return width + self.count


class CustomPool(AbstractPool):
    """A pool made of any function ``(embeddings [m, w], mask [m]) -> [v]`` of a whole set; it cannot be used in chunks.

    Example:
        >>> import jax.numpy as jnp
        >>> largest = CustomPool(lambda x, mask: jnp.max(jnp.where(mask[:, None], x, 0), axis=0, initial=0))
        >>> largest(jnp.array([[1.0], [3.0]])).tolist()
        [3.0]
    """

    function: Callable[[Array, Array], Array]
    uses_query: ClassVar[bool] = False

    def summarize(self, embeddings: Embeddings, mask: Mask, query: Query) -> Float[Array, "v"]:
        """Apply the function to the whole set."""
        return self.function(embeddings, mask)

    def merge(self, first: Summary, second: Summary) -> Summary:
        """Refuse: how parts of a set combine is not known."""
        raise ValueError("a pool made of a plain function cannot be used in chunks; leave chunk_size out")

    def finish(self, summary: Float[Array, "v"]) -> Float[Array, "v"]:
        """Return what the function gave."""
        return summary

    def out_size(self, width: int) -> int:
        """Return the length of the pooled vector, without computing it."""
        shapes = jax.ShapeDtypeStruct((1, width), jnp.zeros(()).dtype), jax.ShapeDtypeStruct((1,), jnp.bool_)
        out = eqx.filter_eval_shape(self.function, *shapes)
        if out.ndim != 1:
            raise ValueError(f"a pool must return one vector, got shape {out.shape}")
        return int(out.shape[0])


def as_pool(pool: PoolLike | None) -> AbstractPool:
    """Return a pool: the mean for None, a plain function as a `CustomPool`."""
    pool = MeanPool() if pool is None else pool
    return pool if isinstance(pool, AbstractPool) else CustomPool(pool)


def pool_set(
    embed: Network, pool: AbstractPool, parts: tuple[Array, ...], mask: Mask, query: Query, chunk_size: int | None
) -> Float[Array, "v"]:
    """Embed every element and pool the embeddings; `chunk_size` elements at a time, also backwards, bound the memory."""

    def summarize(parts: tuple[Float[Array, "c _"], ...], part_mask: Mask) -> Summary:
        embeddings = jax.vmap(lambda *row: apply_network(embed, *row))(*parts)
        return pool.summarize(embeddings, part_mask, query)

    size = mask.shape[0]
    if chunk_size is None or size <= chunk_size:
        return pool.finish(summarize(parts, mask))
    padding = -size % chunk_size
    padded = jax.tree.map(lambda x: jnp.pad(x, [(0, padding), (0, 0)][: x.ndim]), (parts, mask))
    cut = jax.tree.map(lambda x: x.reshape(-1, chunk_size, *x.shape[1:]), padded)
    # Rematerialising a chunk on the way back keeps the memory of the gradient bounded as well.
    rematerialised: Callable[..., Summary] = jax.checkpoint(summarize)
    begun = rematerialised(*jax.tree.map(lambda x: x[0], cut))
    others = jax.tree.map(lambda x: x[1:], cut)
    summary, _ = jax.lax.scan(lambda sum, chunk: (pool.merge(sum, rematerialised(*chunk)), None), begun, others)
    return pool.finish(summary)


def blank_padding(elements: Float[Array, "m p"], mask: Mask | None) -> tuple[Float[Array, "m p"], Mask]:
    """Replace padded rows by zeros, so that neither their values nor their gradients can leak."""
    if mask is None:
        return elements, jnp.ones(elements.shape[0], bool)
    mask, size = jnp.asarray(mask), elements.shape[0]
    if mask.shape != (size,) or mask.dtype != bool:
        raise ValueError(f"a mask has one truth value per element, {size}, got shape {mask.shape} of {mask.dtype}")
    return jnp.where(mask[:, None], elements, 0), mask


def blank_parts(elements: Elements, mask: Mask | None, in_size: int) -> tuple[tuple[Float[Array, "m _"], ...], Mask]:
    """Return the parts of a set's rows with padding replaced by zeros; refuse elements that are not of `in_size`."""
    parts = elements if isinstance(elements, tuple) else (elements,)
    same = len({part.shape[:1] for part in parts}) == 1 and all(part.ndim == 2 for part in parts)
    if not same or sum(part.shape[1] for part in parts) != in_size:
        shapes = " + ".join(str(part.shape) for part in parts)
        raise ValueError(f"expected a set of shape (any, {in_size}), got {shapes}")
    blanked = [blank_padding(part, mask) for part in parts]
    return tuple(part for part, _ in blanked), blanked[0][1]
