"""F_I, the permutation-invariant operator (eq. 1 of the paper): embed, pool, fit."""

from collections.abc import Callable
from typing import Unpack

import equinox as eqx
import jax
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from bieqno.operators.networks import (
    MLP,
    Fourier,
    Layers,
    Network,
    NetworkSettings,
    check_output,
    fitting_net,
    output_size,
)
from bieqno.operators.pooling import AbstractPool, CustomPool, Elements, MeanPool, pool_set


class InvariantOperator(eqx.Module):
    """Map a set of any size to one vector that does not depend on the order of the set.

    ``phi_fit(pool_k phi_embed(x_k))``. Every part can be replaced by a module of your own.

    Args:
        in_size: length of an element.
        out_size: length of the result; None leaves the fitting net out (the lean form of the gGP equation),
            so that the result is the pooled embedding.
        width: length of the embeddings and hidden layers.
        depth: number of layers of each network.
        pool: how the embeddings become one vector: the masked mean by default, an `AbstractPool`, or any function
            ``(embeddings [m, w], mask [m]) -> [v]``.
        embed: network in place of the default embedding net, ``[in_size] -> [w]``.
        fit: network in place of the default fitting net, ``[pooled] -> [out_size]``.
        fourier_features: number of Fourier features of an element given to the default embedding net.
        fourier_scale: their typical frequency.
        chunk_size: embed and pool at most so many elements at a time, to bound the memory for large sets.
        key: random key of the initial weights.
        **network: `activation` and `residual` of the default networks.

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
        depth: int = 3,
        pool: AbstractPool | Callable[[Array, Array], Array] | None = None,
        embed: Network | None = None,
        fit: Network | None = None,
        fourier_features: int = 0,
        fourier_scale: float = 1.0,
        chunk_size: int | None = None,
        key: PRNGKeyArray,
        **network: Unpack[NetworkSettings],
    ) -> None:
        embed_key, fit_key = jax.random.split(key)
        layers: Layers = {"width": width, "depth": depth, **network}
        fourier: Fourier = {"fourier_features": fourier_features, "fourier_scale": fourier_scale}
        self.embed = embed if embed is not None else MLP(in_size, width, **layers, **fourier, key=embed_key)
        self.pool = as_pool(pool)
        pooled = self.pool.out_size(output_size(self.embed, in_size, role="the embedding network"))
        self.fit = fitting_net(fit, pooled, out_size, key=fit_key, **layers)
        self.in_size = in_size
        self.out_size = pooled if out_size is None else out_size
        self.chunk_size = chunk_size

    def __check_init__(self) -> None:
        width = output_size(self.embed, self.in_size, role="the embedding network")
        pooled = self.pool.out_size(width)
        if self.fit is not None:
            check_output(self.fit, pooled, self.out_size, role="the fitting network")
        elif pooled != self.out_size:
            raise ValueError(f"the pooled embedding has {pooled} values, not {self.out_size}")
        if self.chunk_size is not None and self.chunk_size < 1:
            raise ValueError(f"chunk_size must be at least 1, got {self.chunk_size}")

    def __call__(
        self, elements: Elements, *, mask: Bool[Array, "m"] | None = None, query: Float[Array, "a"] | None = None
    ) -> Float[Array, "q"]:
        """Apply the operator.

        Args:
            elements: the set, one row per element, or the parts of its rows; may be empty.
            mask: which rows are elements, the others being padding; None if all are.
            query: what a cross-attention pool attends with.
        """
        check_elements(elements, self.in_size)
        pooled = pool_set(self.embed, self.pool, elements, mask=mask, query=query, chunk_size=self.chunk_size)
        return pooled if self.fit is None else self.fit(pooled)


def check_elements(elements: Elements, in_size: int) -> None:
    """Refuse sets whose elements have another length than the operator was built for."""
    parts = elements if isinstance(elements, tuple) else (elements,)
    same = len({part.shape[:1] for part in parts}) == 1 and all(part.ndim == 2 for part in parts)
    if not same or sum(part.shape[1] for part in parts) != in_size:
        shapes = " + ".join(str(part.shape) for part in parts)
        raise ValueError(f"expected a set of shape (any, {in_size}), got {shapes}")


def as_pool(pool: AbstractPool | Callable[[Array, Array], Array] | None) -> AbstractPool:
    """Return a pool: the mean for None, a plain function as a pool."""
    if pool is None:
        return MeanPool()
    return pool if isinstance(pool, AbstractPool) else CustomPool(pool)
