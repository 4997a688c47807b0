"""How a set of embeddings becomes one vector, whatever its size and order.

A pool is written as a *mergeable summary*: `summarize` a part of the set, `merge` the summaries of two parts,
`finish` the summary of the whole. Hence a set too large for memory is pooled in chunks with the same result
(`pool_set`), and the empty set has a defined value: every pool gives zeros for it.
"""

import abc
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from bieqno.operators.networks import Network, apply_network

Mask: TypeAlias = Bool[Array, "m"]
Summary: TypeAlias = Any
Elements: TypeAlias = Float[Array, "m p"] | tuple[Float[Array, "m _"], ...]
"""A set, one row per element; or the parts of its rows: under a `vmap` over one part the work on the others is done once."""


class AbstractPool(eqx.Module):
    """Pool the embeddings of a set into one vector; only cross-attention uses the query."""

    uses_query: eqx.AbstractClassVar[bool]

    @abc.abstractmethod
    def summarize(self, embeddings: Float[Array, "m w"], mask: Mask, query: Float[Array, "a"] | None) -> Summary:
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

    def __call__(
        self, embeddings: Float[Array, "m w"], mask: Mask | None = None, query: Float[Array, "a"] | None = None
    ) -> Float[Array, "v"]:
        """Pool a whole set."""
        embeddings, mask = blank_padding(embeddings, mask)
        return self.finish(self.summarize(embeddings, mask, query))


class MeanSummary(NamedTuple):
    """Sum of the embeddings and their number."""

    total: Float[Array, "w"]
    size: Float[Array, ""]


class MeanPool(AbstractPool):
    """The masked mean of the paper.

    Args:
        count: append ``1 / (1 + number of elements)``, on which a posterior depends and a mean does not.

    Example:
        >>> import jax.numpy as jnp
        >>> MeanPool()(jnp.array([[1.0], [3.0], [99.0]]), jnp.array([True, True, False])).tolist()
        [2.0]
        >>> MeanPool(count=True)(jnp.zeros((0, 1))).tolist()
        [0.0, 1.0]
    """

    count: bool = eqx.field(static=True, default=False)
    uses_query: ClassVar[bool] = False

    def summarize(self, embeddings: Float[Array, "m w"], mask: Mask, query: Float[Array, "a"] | None) -> MeanSummary:
        """Add up the embeddings that the mask keeps."""
        kept = jnp.where(mask[:, None], embeddings, 0)
        return MeanSummary(jnp.sum(kept, axis=0), jnp.sum(mask, dtype=embeddings.dtype))

    def merge(self, first: MeanSummary, second: MeanSummary) -> MeanSummary:
        """Add sums and numbers."""
        return MeanSummary(first.total + second.total, first.size + second.size)

    def finish(self, summary: MeanSummary) -> Float[Array, "v"]:
        """Divide the sum by the number; the empty set gives zeros."""
        mean = summary.total / jnp.maximum(summary.size, 1)
        return jnp.append(mean, 1 / (1 + summary.size)) if self.count else mean

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

    def summarize(
        self, embeddings: Float[Array, "m w"], mask: Mask, query: Float[Array, "a"] | None
    ) -> Float[Array, "v"]:
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


def pool_set(
    embed: Network,
    pool: AbstractPool,
    elements: Elements,
    *,
    mask: Mask | None,
    query: Float[Array, "a"] | None = None,
    chunk_size: int | None = None,
) -> Float[Array, "v"]:
    """Embed every element and pool the embeddings; `chunk_size` elements at a time, also backwards, bound the memory."""
    parts, mask = blank_parts(elements, mask)

    def summarize(parts: tuple[Float[Array, "c _"], ...], part_mask: Mask) -> Summary:
        embeddings = jax.vmap(lambda *row: apply_network(embed, *row))(*parts)
        return pool.summarize(embeddings, part_mask, query)

    size = mask.shape[0]
    if chunk_size is None or size <= chunk_size:
        return pool.finish(summarize(parts, mask))

    chunks = -(-size // chunk_size)
    padding = chunks * chunk_size - size
    cut = tuple(jnp.pad(x, ((0, padding), (0, 0))).reshape(chunks, chunk_size, x.shape[1]) for x in parts)
    masks = jnp.pad(mask, (0, padding)).reshape(chunks, chunk_size)
    # Rematerialising a chunk on the way back keeps the memory of the gradient bounded as well.
    rematerialised: Callable[..., Summary] = jax.checkpoint(summarize)

    def step(summary: Summary, chunk: tuple[tuple[Array, ...], Array]) -> tuple[Summary, None]:
        return pool.merge(summary, rematerialised(*chunk)), None

    begun = rematerialised(tuple(part[0] for part in cut), masks[0])
    summary, _ = jax.lax.scan(step, begun, (tuple(part[1:] for part in cut), masks[1:]))
    return pool.finish(summary)


def blank_padding(elements: Float[Array, "m p"], mask: Mask | None) -> tuple[Float[Array, "m p"], Mask]:
    """Replace padded rows by zeros, so that neither their values nor their gradients can leak."""
    if mask is None:
        return elements, jnp.ones(elements.shape[0], bool)
    mask = jnp.asarray(mask)
    if mask.shape != elements.shape[:1] or mask.dtype != bool:
        raise ValueError(
            f"a mask has one truth value for each of {elements.shape[0]} elements, "
            f"got shape {mask.shape} of {mask.dtype}"
        )
    return jnp.where(mask[:, None], elements, 0), mask


def blank_parts(elements: Elements, mask: Mask | None) -> tuple[tuple[Float[Array, "m _"], ...], Mask]:
    """Return the parts of a set's rows, one part if it was given as a whole, with padded rows replaced by zeros."""
    parts = elements if isinstance(elements, tuple) else (elements,)
    blanked = [blank_padding(part, mask) for part in parts]
    return tuple(part for part, _ in blanked), blanked[0][1]
