"""F_E, the permutation-equivariant operator (eq. 2 of the paper).

``y_i = phi_fit(phi_self(x_i) (+) pool_j phi_int(x_j) (+) context)``, where (+) is concatenation.
"""

from typing import Any, Unpack

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from bieqno.operators.invariant import InvariantOperator
from bieqno.operators.networks import MLP, MLPSettings, Network, apply_network, check_fit, fitting_net, output_size
from bieqno.operators.pooling import Elements, PoolLike, blank_padding, blank_parts


class EquivariantOperator(eqx.Module):
    """Map a set of any size to as many vectors, in the order of the set.

    Args:
        in_size: length of an element.
        out_size: length of each result; None leaves the fitting net out (the lean form of the gGP equation),
            so that a result is the concatenation of self-embedding, pooled embedding and context.
        context_size: length of a context vector that all elements share; 0 for none.
        embed_self, embed_interaction: networks in place of the default embeddings.
        fit: network in place of the default fitting net, applied to the concatenation.
        width, pool, chunk_size, key, **network: as for `InvariantOperator`.

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
