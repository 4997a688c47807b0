"""The equivariant operator on many sets at once, with all work where it costs least.

The last linear layer of an embedding is applied after the mean over a set, once per set instead of once per element; two
linear layers in a row are multiplied once for all sets. Sets are columns: their axis comes last and features first, so that
processors work on several sets at once, however few features, elements and neighbours there are.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bieqno.operators.equivariant import EquivariantOperator
from bieqno.operators.networks import MLP, TrunkAndBranch
from bieqno.operators.pooling import MeanPool

# From this many columns on a loop over neighbours is faster: XLA would recompute its result wherever it is used.
MANY = 512


def total(terms: Float[Array, "..."], axis: int = 0) -> Float[Array, "..."]:
    """Sum over an axis that is not the last, by halves: additions of whole columns, ten times as fast as XLA's sum.

    Example:
        >>> import jax.numpy as jnp
        >>> total(jnp.arange(10.0).reshape(5, 2)).tolist(), total(jnp.zeros((0, 2))).tolist()
        ([20.0, 25.0], [0.0, 0.0])
    """
    count = terms.shape[axis]
    rest = jnp.zeros((*terms.shape[:axis], *terms.shape[axis + 1 :]), terms.dtype)
    while count:
        if count % 2:
            rest = rest + jax.lax.index_in_dim(terms, count - 1, axis, keepdims=False)
        count = count // 2
        terms = jnp.add(*(jax.lax.slice_in_dim(terms, k * count, (k + 1) * count, axis=axis) for k in range(2)))
    return rest


def combined(weights: Float[Array, "k c _"], values: Float[Array, "k n b"]) -> Float[Array, "c n b"]:
    """Return ``sum_k weights[k, c] values[k, n]``, column by column: combinations of the values of k neighbours.

    Example:
        >>> import jax.numpy as jnp
        >>> combined(jnp.ones((3, 2, 1)), jnp.ones((3, 4, 5))).shape
        (2, 4, 5)
    """
    if values.shape[2] < MANY:
        return total(weights[:, :, None] * values[:, None])
    zero = jnp.zeros((weights.shape[1], *values.shape[1:]), values.dtype)
    return jax.lax.scan(lambda sum, pair: (sum + pair[0][:, None] * pair[1][None], None), zero, (weights, values))[0]


def before_last(
    network: MLP, *parts: Float[Array, "..."], begun: Float[Array, "..."] | float = 0.0
) -> Float[Array, "..."]:
    """Return the input of the last layer of a network of two or more layers without Fourier features, along the first axis.

    Other axes of the parts are broadcast: a part that inputs share is multiplied once. `begun` is the product of the first
    layer with the parts before these, if that is known.
    """
    first, *others, _ = network.layers
    axes = max(part.ndim for part in parts) - 1
    hidden = bias_of(first, axes) + begun
    start = first.weight.shape[1] - sum(len(part) for part in parts)
    for part in parts:
        hidden = hidden + jnp.tensordot(first.weight[:, start : start + len(part)], part, 1)
        start += len(part)
    for layer in others:
        following = jnp.tensordot(layer.weight, network.activation(hidden), 1) + bias_of(layer, axes)
        hidden = hidden + following if network.residual and following.shape == hidden.shape else following
    return network.activation(hidden)


def apply_to_columns(network: MLP, *parts: Float[Array, "..."]) -> Float[Array, "..."]:
    """Apply a network of two or more layers along the first axis.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> mlp = MLP(3, 2, key=jax.random.key(0))
        >>> apply_to_columns(mlp, jnp.ones((2, 5, 7)), jnp.ones((1, 1, 7))).shape
        (2, 5, 7)
    """
    hidden, last = before_last(network, *parts), network.layers[-1]
    return jnp.tensordot(last.weight, hidden, 1) + bias_of(last, hidden.ndim - 1)


def apply_to_sets(
    operator: EquivariantOperator, elements: tuple[Float[Array, "_ n b"], ...], context: Float[Array, "c b"]
) -> tuple[Float[Array, "q n b"], Float[Array, "r b"]]:
    """Return ``operator(elements[..., i].T, context=context[:, i])`` for all i: the outputs of branch and trunk.

    The operator embeds by plain `MLP`, pools by the mean, and fits by a `TrunkAndBranch`; all sets have one size.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> fit = TrunkAndBranch(4, 6, 1, 3, key=jax.random.key(0))
        >>> operator = EquivariantOperator(5, 4, context_size=2, width=4, fit=fit, key=jax.random.key(1))
        >>> own, shared = apply_to_sets(operator, (jnp.ones((5, 7, 9)),), jnp.ones((2, 9)))
        >>> own.shape, shared.shape
        ((1, 7, 9), (3, 9))
    """
    embed, interaction, fit = operator.embed_self, operator.interaction.embed, operator.fit
    mean = isinstance(operator.interaction.pool, MeanPool) and not operator.interaction.pool.count
    if not (mean and isinstance(embed, MLP) and isinstance(interaction, MLP) and isinstance(fit, TrunkAndBranch)):
        raise ValueError("many sets at once need an operator of MLPs, a plain mean and a TrunkAndBranch")
    count, last = max(elements[0].shape[1], 1), interaction.layers[-1]
    pooled = last.weight @ total(before_last(interaction, *elements), axis=1) / count + bias_of(last, 1)
    given = apply_to_columns(fit.trunk, pooled, context)
    (first, end), own, last = fit.branch.layers, fit.own_size, embed.layers[-1]
    kept = len(given) - (first.weight.shape[1] - own)
    shared = first.weight[:, own:] @ given[kept:] + (first.weight[:, :own] @ bias_of(last) + bias_of(first))[:, None]
    hidden = jnp.tensordot(first.weight[:, :own] @ last.weight, before_last(embed, *elements), 1) + shared[:, None]
    return jnp.tensordot(end.weight, fit.branch.activation(hidden), 1) + bias_of(end, 2), given[:kept]


def bias_of(layer: eqx.nn.Linear, axes: int = 0) -> Float[Array, "..."]:
    """Return the bias of a layer, zeros if it has none, with further axes of length one."""
    bias = jnp.zeros(layer.weight.shape[0], layer.weight.dtype) if layer.bias is None else layer.bias
    return bias.reshape(-1, *[1] * axes)
