"""F_I, the permutation-invariant operator (eq. 1 of the paper): embed, pool, fit."""

from typing import Unpack

import equinox as eqx
import jax
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from bieqno.operators.networks import MLP, MLPSettings, Network, check_fit, fitting_net, output_size
from bieqno.operators.pooling import AbstractPool, Elements, PoolLike, Query, as_pool, blank_parts, pool_set


class InvariantOperator(eqx.Module):
    """Map a set of any size to one vector that does not depend on the order of the set.

    ``phi_fit(pool_k phi_embed(x_k))``. Every part can be replaced by a module of your own.

    Args:
        in_size: length of an element.
        out_size: length of the result; None leaves the fitting net out (the lean form of the gGP equation),
            so that the result is the pooled embedding.
        width: length of the embeddings and hidden layers.
        pool: how the embeddings become one vector: the masked mean by default, an `AbstractPool`, or any function
            ``(embeddings [m, w], mask [m]) -> [v]``.
        embed: network in place of the default embedding net, ``[in_size] -> [w]``.
        fit: network in place of the default fitting net, ``[pooled] -> [out_size]``.
        chunk_size: embed and pool at most so many elements at a time, to bound the memory for large sets.
        key: for the initial weights.
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

    def __call__(
        self, elements: Elements, *, mask: Bool[Array, "m"] | None = None, query: Query = None
    ) -> Float[Array, "q"]:
        """Apply the operator to a set, one row per element or the parts of its rows; it may be empty.

        The mask says which rows are elements and not padding, all by default; a cross-attention pool needs the query.
        """
        parts, mask = blank_parts(elements, mask, self.in_size)
        pooled = pool_set(self.embed, self.pool, parts, mask, query, self.chunk_size)
        return pooled if self.fit is None else self.fit(pooled)
