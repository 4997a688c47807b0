"""Attention pools: a weighted mean whose weights depend on the elements and on a query.

Softmax weights are kept relative to the largest logit so far, so that summaries of parts of a set merge exactly.
"""

from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from bieqno.arguments import checked
from bieqno.operators.networks import check_linear
from bieqno.operators.pooling import AbstractPool, Embeddings, Mask, Query


class AttentionSummary(NamedTuple):
    """Softmax-weighted sum of values, relative to the largest logit so far."""

    peak: Float[Array, "*queries heads"]
    weight: Float[Array, "*queries heads"]
    total: Float[Array, "*queries heads v"]


class AbstractAttention(AbstractPool):
    """Projections to keys and values, merging and normalising, for all attention pools."""

    to_key: eqx.AbstractVar[eqx.nn.Linear]
    to_value: eqx.AbstractVar[eqx.nn.Linear]

    def __check_init__(self) -> None:
        for layer in (self.to_key, self.to_value):
            check_linear(layer)
            if layer.in_features != layer.out_features or layer.in_features != self.to_key.in_features:
                raise ValueError("keys and values must be as long as the embeddings")

    def merge(self, first: AttentionSummary, second: AttentionSummary) -> AttentionSummary:
        """Bring both parts to the larger peak and add."""
        peak = jnp.maximum(first.peak, second.peak)
        a, b = jnp.exp(first.peak - peak), jnp.exp(second.peak - peak)
        total = a[..., None] * first.total + b[..., None] * second.total
        return AttentionSummary(peak, a * first.weight + b * second.weight, total)

    def finish(self, summary: AttentionSummary) -> Float[Array, "v"]:
        """Normalise the weights; the empty set gives zeros."""
        weight = jnp.where(summary.weight > 0, summary.weight, 1)
        return (summary.total / weight[..., None]).reshape(-1)

    def out_size(self, width: int) -> int:
        """Return the length of the pooled vector of one query."""
        if width != self.to_key.in_features:
            raise ValueError(f"this attention pool takes embeddings of {self.to_key.in_features} values, got {width}")
        return width

    def attend(self, queries: Float[Array, "*queries heads d"], embeddings: Embeddings, mask: Mask) -> AttentionSummary:
        """Weigh the values of a part of the set by the match of its keys with the queries."""
        heads, d = queries.shape[-2:]
        keys = jax.vmap(self.to_key)(embeddings).reshape(-1, heads, d)
        values = jax.vmap(self.to_value)(embeddings).reshape(-1, heads, d)
        logits = jnp.einsum("...hd,mhd->...hm", queries, keys) / jnp.sqrt(d).astype(keys.dtype)
        logits = jnp.where(mask, logits, -jnp.inf)
        # The peak of an empty set is made finite, so that no difference of infinities arises.
        peak = jax.lax.stop_gradient(jnp.nan_to_num(jnp.max(logits, axis=-1, initial=-jnp.inf)))
        weights = jnp.exp(logits - peak[..., None])
        total = jnp.einsum("...hm,mhd->...hd", weights, values)
        return AttentionSummary(peak, jnp.sum(weights, axis=-1), total)


class AttentionPool(AbstractAttention):
    """Multi-head attention of learned queries to the set; the pooled vector has ``queries * width`` values.

    The number of heads must divide `width`, the length of the embeddings.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> pool = AttentionPool(8, heads=2, queries=3, key=jax.random.key(0))
        >>> pool(jnp.ones((5, 8))).shape
        (24,)
    """

    learned: Float[Array, "queries heads d"]
    to_key: eqx.nn.Linear
    to_value: eqx.nn.Linear
    uses_query: ClassVar[bool] = False

    @checked()
    def __init__(self, width: int, *, heads: int = 4, queries: int = 1, key: PRNGKeyArray) -> None:
        _check_heads(width, heads)
        if queries < 1:
            raise ValueError(f"attention pooling needs at least one query, got {queries}")
        query_key, key_key, value_key = jax.random.split(key, 3)
        self.learned = jax.random.normal(query_key, (queries, heads, width // heads))
        self.to_key = eqx.nn.Linear(width, width, use_bias=False, key=key_key)
        self.to_value = eqx.nn.Linear(width, width, key=value_key)

    def __check_init__(self) -> None:
        if self.learned.ndim != 3 or self.learned.shape[1] * self.learned.shape[2] != self.to_key.out_features:
            raise ValueError(f"learned queries of shape {self.learned.shape} do not fit the keys")

    def summarize(self, embeddings: Embeddings, mask: Mask, query: Query) -> AttentionSummary:
        """Attend to a part of the set with every learned query."""
        return self.attend(self.learned, embeddings, mask)

    def out_size(self, width: int) -> int:
        """Return the length of the pooled vector."""
        return self.learned.shape[0] * super().out_size(width)


class CrossAttentionPool(AbstractAttention):
    """Multi-head attention in which an input element, of length `query_size`, is the query.

    The number of heads must divide `width`, the length of the embeddings.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> pool = CrossAttentionPool(8, query_size=3, heads=2, key=jax.random.key(0))
        >>> pool(jnp.ones((5, 8)), query=jnp.ones(3)).shape
        (8,)
    """

    to_query: eqx.nn.Linear
    to_key: eqx.nn.Linear
    to_value: eqx.nn.Linear
    heads: int = eqx.field(static=True)
    uses_query: ClassVar[bool] = True

    @checked()
    def __init__(self, width: int, *, query_size: int, heads: int = 4, key: PRNGKeyArray) -> None:
        query_key, key_key, value_key = jax.random.split(key, 3)
        self.to_query = eqx.nn.Linear(query_size, width, key=query_key)
        self.to_key = eqx.nn.Linear(width, width, use_bias=False, key=key_key)
        self.to_value = eqx.nn.Linear(width, width, key=value_key)
        self.heads = heads

    def __check_init__(self) -> None:
        check_linear(self.to_query)
        if self.to_query.out_features != self.to_key.out_features:
            raise ValueError("queries and keys must have the same length")
        _check_heads(self.to_key.weight.shape[0], self.heads)

    def summarize(self, embeddings: Embeddings, mask: Mask, query: Query) -> AttentionSummary:
        """Attend to a part of the set with the given query."""
        if query is None:
            raise ValueError("cross-attention needs a query, and none was given")
        if query.shape != (self.to_query.in_features,):
            raise ValueError(f"expected a query of {self.to_query.in_features} values, got shape {query.shape}")
        return self.attend(self.to_query(query).reshape(self.heads, -1), embeddings, mask)


def _check_heads(width: int, heads: int) -> None:
    if heads < 1 or width % heads:
        raise ValueError(f"the number of heads must divide the width, got {heads} heads for {width}")
