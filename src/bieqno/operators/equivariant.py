"""F_E, the permutation-equivariant operator (eq. 2 of the paper).

``y_i = phi_fit(phi_self(x_i) (+) pool_j phi_int(x_j) (+) context)``, where (+) is concatenation.
"""

from collections.abc import Callable
from typing import Unpack

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from bieqno.operators.invariant import InvariantOperator, check_elements
from bieqno.operators.networks import (
    MLP,
    Fourier,
    Layers,
    Network,
    NetworkSettings,
    apply_network,
    check_output,
    fitting_net,
    output_size,
)
from bieqno.operators.pooling import AbstractPool, Elements, blank_padding, blank_parts


class EquivariantOperator(eqx.Module):
    """Map a set of any size to as many vectors, in the order of the set.

    Args:
        in_size: length of an element.
        out_size: length of each result; None leaves the fitting net out (the lean form of the gGP equation),
            so that a result is the concatenation of self-embedding, pooled embedding and context.
        context_size: length of a context vector that all elements share; 0 for none.
        width: length of the embeddings and hidden layers.
        depth: number of layers of each network.
        pool: how the interaction embeddings become one vector; the masked mean by default.
        embed_self: network in place of the default self-embedding.
        embed_interaction: network in place of the default interaction embedding.
        fit: network in place of the default fitting net, applied to the concatenation.
        fourier_features: number of Fourier features of an element given to the default embedding nets.
        fourier_scale: their typical frequency.
        chunk_size: pool at most so many elements at a time, to bound the memory for large sets.
        key: random key of the initial weights.
        **network: `activation` and `residual` of the default networks.

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

    def __init__(
        self,
        in_size: int,
        out_size: int | None,
        *,
        context_size: int = 0,
        width: int = 64,
        depth: int = 3,
        pool: AbstractPool | Callable[[Array, Array], Array] | None = None,
        embed_self: Network | None = None,
        embed_interaction: Network | None = None,
        fit: Network | None = None,
        fourier_features: int = 0,
        fourier_scale: float = 1.0,
        chunk_size: int | None = None,
        key: PRNGKeyArray,
        **network: Unpack[NetworkSettings],
    ) -> None:
        self_key, interaction_key, fit_key = jax.random.split(key, 3)
        layers: Layers = {"width": width, "depth": depth, **network}
        fourier: Fourier = {"fourier_features": fourier_features, "fourier_scale": fourier_scale}
        own = embed_self if embed_self is not None else MLP(in_size, width, **layers, **fourier, key=self_key)
        self.embed_self = own
        self.interaction = InvariantOperator(
            in_size,
            None,
            pool=pool,
            embed=embed_interaction,
            chunk_size=chunk_size,
            key=interaction_key,
            **layers,
            **fourier,
        )
        own_size = output_size(own, in_size, role="the self-embedding network")
        joined = own_size + self.interaction.out_size + context_size
        self.fit = fitting_net(fit, joined, out_size, key=fit_key, **layers)
        self.in_size = in_size
        self.context_size = context_size
        self.out_size = joined if out_size is None else out_size

    def __check_init__(self) -> None:
        own = output_size(self.embed_self, self.in_size, role="the self-embedding network")
        joined = own + self.interaction.out_size + self.context_size
        if self.fit is not None:
            check_output(self.fit, joined, self.out_size, role="the fitting network")
        elif joined != self.out_size:
            raise ValueError(f"the joined embeddings have {joined} values, not {self.out_size}")
        if self.interaction.pool.uses_query:
            raise ValueError("the interaction is pooled once for all elements; a pool that asks for a query cannot be")

    def __call__(
        self, elements: Elements, *, context: Float[Array, "c"] | None = None, mask: Bool[Array, "n"] | None = None
    ) -> Float[Array, "n q"]:
        """Apply the operator; padded rows of the result are zero.

        Args:
            elements: the set, one row per element, or the parts of its rows; may be empty.
            context: vector shared by all elements, of length `context_size`.
            mask: which rows are elements, the others being padding; None if all are.
        """
        check_elements(elements, self.in_size)
        if (context is None and self.context_size) or (context is not None and context.shape != (self.context_size,)):
            given = "none" if context is None else f"shape {context.shape}"
            raise ValueError(f"expected a context of {self.context_size} values, got {given}")
        parts, mask = blank_parts(elements, mask)
        pooled = self.interaction(parts, mask=mask)
        shared = (pooled,) if context is None else (pooled, context)

        def update(*element: Float[Array, "_"]) -> Float[Array, "q"]:
            own = apply_network(self.embed_self, *element)
            if self.fit is None:
                return jnp.concatenate([own, *shared])
            return apply_network(self.fit, own, *shared)

        return jnp.where(mask[:, None], jax.vmap(update)(*parts), 0)


class ElementwiseOperator(eqx.Module):
    """One network applied to every element alone: the shared ``phi_fit`` of the paper's lean forms.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> operator = ElementwiseOperator(MLP(3, 2, key=jax.random.key(0)))
        >>> operator(jnp.ones((7, 3))).shape
        (7, 2)
    """

    network: Network

    def __call__(self, elements: Float[Array, "n p"], *, mask: Bool[Array, "n"] | None = None) -> Float[Array, "n q"]:
        """Apply the network to each row; padded rows of the result are zero."""
        elements, mask = blank_padding(elements, mask)
        return jnp.where(mask[:, None], jax.vmap(self.network)(elements), 0)
