"""The operators on one set: F_I, permutation-invariant (eq. 1 of the paper), and F_E, permutation-equivariant (eq. 2).

``F_I(x) = phi_fit(pool_k phi_embed(x_k))``, and ``F_E(x)_i = phi_fit(phi_self(x_i) (+) pool_j phi_int(x_j) (+) context)``,
where (+) is concatenation.
"""

from typing import Any, Unpack, cast

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from bieqno.arguments import checked
from bieqno.operators.networks import (
    MLP,
    MLPSettings,
    Network,
    apply_linear,
    apply_network,
    bias_of,
    check_fit,
    fitting_net,
    output_size,
)
from bieqno.operators.pooling import AbstractPool, Elements, MeanPool, PoolLike, Query, as_pool, blank_parts, pool_set

TOGETHER = 2**12  # elements of many sets at a time: their hidden layers stay in the cache


class InvariantOperator(eqx.Module):
    """Map a set of any size to one vector that does not depend on the order of the set (F_I).

    Every part can be replaced by a module of your own.

    Args:
        out_size: length of the result; None leaves the fitting net out (the lean form of the gGP equation),
            so that the result is the pooled embedding.
        width: length of the embeddings and hidden layers.
        pool: how the embeddings become one vector: the masked mean by default, an `AbstractPool`, or any function
            ``(embeddings [m, w], mask [m]) -> [v]``.
        embed: network in place of the default embedding net, ``[in_size] -> [w]``.
        fit: network in place of the default fitting net, ``[pooled] -> [out_size]``.
        chunk_size: embed and pool at most so many elements at a time, to bound the memory for large sets.
        **network: `depth` (3), `activation` and `residual` of the default networks, `fourier_features` and
            `fourier_scale` of those that embed; see `MLP`.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> operator = InvariantOperator(3, 2, key=jax.random.key(0))
        >>> operator(jnp.ones((7, 3))).shape, operator(jnp.ones((0, 3))).shape
        ((2,), (2,))
    """

    embed: Network
    pool: AbstractPool
    fit: Network | None
    in_size: int = eqx.field(static=True)
    out_size: int = eqx.field(static=True)
    chunk_size: int | None = eqx.field(static=True)

    @checked()
    def __init__(
        self,
        in_size: int,
        out_size: int | None,
        *,
        width: int = 64,
        pool: PoolLike | None = None,
        embed: Network | None = None,
        fit: Network | None = None,
        chunk_size: int | None = None,
        key: PRNGKeyArray,
        **network: Unpack[MLPSettings],
    ) -> None:
        embed_key, fit_key = jax.random.split(key)
        self.in_size, self.chunk_size = in_size, chunk_size
        self.embed = embed if embed is not None else MLP(in_size, width, width=width, key=embed_key, **network)
        self.pool = as_pool(pool)
        pooled = self._pooled_size()
        self.fit = fitting_net(fit, pooled, out_size, width=width, key=fit_key, network=network)
        self.out_size = pooled if out_size is None else out_size

    def _pooled_size(self) -> int:
        return self.pool.out_size(output_size(self.embed, self.in_size, role="the embedding network"))

    def __check_init__(self) -> None:
        check_fit(self.fit, self._pooled_size(), self.out_size)
        if self.chunk_size is not None and self.chunk_size < 1:
            raise ValueError(f"chunk_size must be at least 1, got {self.chunk_size}")

    @checked()
    def __call__(
        self, elements: Elements, *, mask: Bool[Array, "m"] | None = None, query: Query = None
    ) -> Float[Array, "q"]:
        """Apply the operator to a set, one row per element or the parts of its rows; it may be empty.

        The mask says which rows are elements and not padding, all by default; a cross-attention pool needs the query.
        """
        parts, mask = blank_parts(elements, mask, self.in_size)
        pooled = pool_set(self.embed, self.pool, parts, mask, query, self.chunk_size)
        return pooled if self.fit is None else self.fit(pooled)


class EquivariantOperator(eqx.Module):
    """Map a set of any size to as many vectors, in the order of the set (F_E).

    Args:
        out_size: length of each result; None leaves the fitting net out (the lean form of the gGP equation),
            so that a result is the concatenation of self-embedding, pooled embedding and context.
        context_size: length of a context vector that all elements share; 0 for none.
        embed_self, embed_interaction: networks in place of the default embeddings.
        fit: network in place of the default fitting net, applied to the concatenation.
        width, pool, chunk_size, **network: as for `InvariantOperator`.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> operator = EquivariantOperator(3, 2, context_size=1, key=jax.random.key(0))
        >>> operator(jnp.ones((7, 3)), context=jnp.ones(1)).shape
        (7, 2)
    """

    embed_self: Network
    interaction: InvariantOperator
    fit: Network | None
    in_size: int = eqx.field(static=True)
    context_size: int = eqx.field(static=True)
    out_size: int = eqx.field(static=True)

    @checked()
    def __init__(
        self,
        in_size: int,
        out_size: int | None,
        *,
        context_size: int = 0,
        width: int = 64,
        pool: PoolLike | None = None,
        embed_self: Network | None = None,
        embed_interaction: Network | None = None,
        fit: Network | None = None,
        chunk_size: int | None = None,
        key: PRNGKeyArray,
        **network: Unpack[MLPSettings],
    ) -> None:
        self_key, interaction_key, fit_key = jax.random.split(key, 3)
        self.in_size, self.context_size = in_size, context_size
        own = embed_self if embed_self is not None else MLP(in_size, width, width=width, key=self_key, **network)
        self.embed_self = own
        parts: Any = {"pool": pool, "embed": embed_interaction, "chunk_size": chunk_size}
        self.interaction = InvariantOperator(in_size, None, width=width, key=interaction_key, **parts, **network)
        joined = self._joined_size()
        self.fit = fitting_net(fit, joined, out_size, width=width, key=fit_key, network=network)
        self.out_size = joined if out_size is None else out_size

    def _joined_size(self) -> int:
        own = output_size(self.embed_self, self.in_size, role="the self-embedding network")
        return own + self.interaction.out_size + self.context_size

    def __check_init__(self) -> None:
        check_fit(self.fit, self._joined_size(), self.out_size)
        if self.interaction.pool.uses_query:
            raise ValueError("the interaction is pooled once for all elements; a pool that asks for a query cannot be")

    @checked()
    def __call__(
        self, elements: Elements, *, context: Float[Array, "c"] | None = None, mask: Bool[Array, "n"] | None = None
    ) -> Float[Array, "n q"]:
        """Apply the operator to a set as `InvariantOperator` takes it; padded rows of the result are zero."""
        parts, mask = blank_parts(elements, mask, self.in_size)
        if (context is None and self.context_size) or (context is not None and context.shape != (self.context_size,)):
            given = "none" if context is None else f"shape {context.shape}"
            raise ValueError(f"expected a context of {self.context_size} values, got {given}")
        pooled = self.interaction(parts, mask=mask)
        shared = (pooled,) if context is None else (pooled, context)

        def update(*element: Float[Array, "_"]) -> Float[Array, "q"]:
            own = apply_network(self.embed_self, *element)
            return jnp.concatenate([own, *shared]) if self.fit is None else apply_network(self.fit, own, *shared)

        return jnp.where(mask[:, None], jax.vmap(update)(*parts), 0)

    def many(
        self, elements: Float[Array, "p n s"], context: Float[Array, "c s"], mask: Bool[Array, "n"]
    ) -> Float[Array, "q n s"]:
        """Apply the operator to `s` sets of one size and one mask, each with a context of its own, some at a time."""
        _, size, sets = elements.shape
        block = max(1, TOGETHER // max(size, 1)) if isinstance(size, int) else sets
        if sets > block:
            count, padding = -(-sets // block), (0, -sets % block)
            cut = jnp.pad(elements, ((0, 0), (0, 0), padding)), jnp.pad(context, ((0, 0), padding))
            parts = tuple(jnp.moveaxis(x.reshape(*x.shape[:-1], count, block), -2, 0) for x in cut)
            found = jax.lax.map(lambda part: self.many(part[0], part[1], mask), parts)
            return jnp.moveaxis(found, 0, -2).reshape(found.shape[1], size, count * block)[..., :sets]
        networks, pool = (self.embed_self, self.interaction.embed, self.fit), self.interaction.pool
        plain = all(isinstance(net, MLP) and net.features is None and len(net.layers) > 1 for net in networks)
        if not plain or not isinstance(pool, MeanPool) or pool.count:
            each: Any = jax.vmap(lambda rows, c: self(rows, context=c, mask=mask), in_axes=(2, 1), out_axes=2)
            return jnp.moveaxis(each(jnp.moveaxis(elements, 0, 1), context), 1, 0)
        own, other, fit = cast(tuple[MLP, MLP, MLP], networks)
        here = mask[:, None]
        elements = jnp.where(here, elements, 0)
        # What is linear is done after the mean, once for a set, and in one product with the layer that follows.
        hidden = jnp.sum(jnp.where(here, other.before_last(elements), 0), axis=1, keepdims=True)
        pooled = apply_linear(other.layers[-1], hidden / jnp.maximum(jnp.sum(mask, dtype=hidden.dtype), 1))
        last, first = own.layers[-1], fit.layers[0].weight[:, : own.layers[-1].weight.shape[0]]
        begun = jnp.tensordot(first @ last.weight, own.before_last(elements), 1)
        begun = begun + (first @ bias_of(last))[:, None, None]
        found = apply_linear(fit.layers[-1], fit.before_last(pooled, context[:, None], begun=begun))
        return jnp.where(here, found, 0)
