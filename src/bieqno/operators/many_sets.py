"""The equivariant operator on many sets at once, with all work where it costs least.

What all elements of a set share is computed once per set (`TrunkAndBranch`); the last linear layer of an embedding is
applied after the mean over a set; two linear layers in a row are multiplied once for all sets. Sets are columns: their axis
comes last and features first, so that processors work on several sets at once, however few features and elements there are.
"""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from bieqno.operators.networks import MLP, apply_linear, bias_of
from bieqno.operators.pooling import MeanPool
from bieqno.operators.sets import EquivariantOperator

# From this many columns on a loop over neighbours is faster: XLA would recompute its result wherever it is used.
MANY = 512


class TrunkAndBranch(eqx.Module):
    """A fitting net with a large part that is computed once per set, and a small part once per element.

    ``phi_fit(own (+) shared) = branch(own (+) t_2) (+) t_1`` with ``t_1 (+) t_2 = trunk(shared)``.

    Args:
        own_size: length of an element's own part, which comes first in the input.
        shared_size: length of the rest, which all elements of a set share.
        branch_out, trunk_out: length of the branch's output and of t_1.
        width, depth: of the trunk.
        link: length of t_2, and of the branch's hidden layer.
        scale: factor of the initial weights of both last layers; small where a result near zero is a good start.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> fit = TrunkAndBranch(2, 3, 1, 4, key=jax.random.key(0))
        >>> fit(jnp.ones(2), jnp.ones(3)).shape, fit(jnp.ones(5)).shape
        ((5,), (5,))
    """

    takes_parts: ClassVar[bool] = True
    trunk: MLP
    branch: MLP
    own_size: int = eqx.field(static=True)

    def __init__(
        self,
        own_size: int,
        shared_size: int,
        branch_out: int,
        trunk_out: int,
        *,
        width: int = 128,
        depth: int = 4,
        link: int = 32,
        scale: float = 1.0,
        key: PRNGKeyArray,
    ) -> None:
        trunk_key, branch_key = jax.random.split(key)
        act, given = jax.nn.silu, trunk_out + link
        trunk = MLP(shared_size, given, width=width, depth=depth, activation=act, residual=True, key=trunk_key)
        branch = MLP(own_size + link, branch_out, width=link, depth=2, activation=act, key=branch_key)
        self.trunk, self.branch = (
            eqx.tree_at(lambda net: net.layers[-1].weight, net, replace_fn=lambda weight: scale * weight)
            for net in (trunk, branch)
        )
        self.own_size = own_size

    def __check_init__(self) -> None:
        link = self.branch.layers[0].weight.shape[1] - self.own_size
        if not 0 <= link <= self.trunk.layers[-1].weight.shape[0]:
            raise ValueError(f"the branch takes {link} values, the trunk gives {self.trunk.layers[-1].weight.shape[0]}")

    def __call__(self, *parts: Float[Array, "_"]) -> Float[Array, "q"]:
        """Apply the network to the concatenation of `parts`; a first part of `own_size` saves work."""
        if parts[0].shape != (self.own_size,):
            joined = jnp.concatenate(parts)
            parts = (joined[: self.own_size], joined[self.own_size :])
        own, *shared = parts
        given = self.trunk(*shared)
        kept = given.shape[0] - (self.branch.layers[0].weight.shape[1] - self.own_size)
        return jnp.concatenate([self.branch(own, given[kept:]), given[:kept]])


def total(terms: Float[Array, "..."], axis: int = 0) -> Float[Array, "..."]:
    """Sum over an axis that is not the last, by halves: additions of whole columns, ten times as fast as XLA's sum."""
    count = terms.shape[axis]
    rest = jnp.zeros((*terms.shape[:axis], *terms.shape[axis + 1 :]), terms.dtype)
    while count:
        if count % 2:
            rest = rest + jax.lax.index_in_dim(terms, count - 1, axis, keepdims=False)
        count = count // 2
        terms = jnp.add(*(jax.lax.slice_in_dim(terms, k * count, (k + 1) * count, axis=axis) for k in range(2)))
    return rest


def combined(weights: Float[Array, "k c _"], values: Float[Array, "k n b"]) -> Float[Array, "c n b"]:
    """Return ``sum_k weights[k, c] values[k, n]``, column by column: combinations of the values of k neighbours."""
    if values.shape[2] < MANY:
        return total(weights[:, :, None] * values[:, None])
    zero = jnp.zeros((weights.shape[1], *values.shape[1:]), values.dtype)
    return jax.lax.scan(lambda sum, pair: (sum + pair[0][:, None] * pair[1][None], None), zero, (weights, values))[0]


def apply_to_sets(
    operator: EquivariantOperator, elements: tuple[Float[Array, "_ n b"], ...], context: Float[Array, "c b"]
) -> tuple[Float[Array, "q n b"], Float[Array, "r b"]]:
    """Return ``operator(elements[..., i].T, context=context[:, i])`` for all i: the outputs of branch and trunk.

    The operator embeds by plain `MLP`, pools by the mean, and fits by a `TrunkAndBranch`; all sets have one size.
    """
    embed, interaction, fit = operator.embed_self, operator.interaction.embed, operator.fit
    mean = isinstance(operator.interaction.pool, MeanPool) and not operator.interaction.pool.count
    if not (mean and isinstance(embed, MLP) and isinstance(interaction, MLP) and isinstance(fit, TrunkAndBranch)):
        raise ValueError("many sets at once need an operator of MLPs, a plain mean and a TrunkAndBranch")
    count, last = max(elements[0].shape[1], 1), interaction.layers[-1]
    pooled = last.weight @ total(interaction.before_last(*elements), axis=1) / count + bias_of(last, 1)
    given = fit.trunk(pooled, context)
    (first, end), own, last = fit.branch.layers, fit.own_size, embed.layers[-1]
    kept = len(given) - (first.weight.shape[1] - own)
    shared = first.weight[:, own:] @ given[kept:] + (first.weight[:, :own] @ bias_of(last) + bias_of(first))[:, None]
    hidden = jnp.tensordot(first.weight[:, :own] @ last.weight, embed.before_last(*elements), 1) + shared[:, None]
    return apply_linear(end, fit.branch.activation(hidden)), given[:kept]
