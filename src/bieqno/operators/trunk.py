"""A fitting net that does most of its work once a set, and little once an element."""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from bieqno.operators.networks import MLP


class TrunkAndBranch(eqx.Module):
    """A large net on what all elements share, and a small one on what is an element's own and what the large one tells it.

    In place of the fitting net of an operator: ``phi_fit(own (+) shared) = branch(own (+) t_2) (+) t_1`` with
    ``t_1 (+) t_2 = trunk(shared)``. For a set of N elements the trunk is computed once instead of N times.

    Args:
        own_size: length of an element's own part, which comes first in the input.
        shared_size: length of the rest.
        branch_out: length of what the branch gives.
        trunk_out: length of what the trunk gives besides.
        width: length of the trunk's hidden layers.
        depth: number of its layers.
        link: length of what the trunk tells the branch, and of the branch's hidden layer.
        scale: factor of the initial weights of both last layers; small where a result near zero is a good beginning.
        key: random key of the initial weights.

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
        silu = jax.nn.silu
        trunk = MLP(
            shared_size, trunk_out + link, width=width, depth=depth, activation=silu, residual=True, key=trunk_key
        )
        branch = MLP(own_size + link, branch_out, width=link, depth=2, activation=silu, key=branch_key)
        self.trunk, self.branch = (
            eqx.tree_at(lambda net: net.layers[-1].weight, net, replace_fn=lambda weight: scale * weight)
            for net in (trunk, branch)
        )
        self.own_size = own_size

    def __check_init__(self) -> None:
        link = self.branch.layers[0].weight.shape[1] - self.own_size
        if not 0 <= link <= self.trunk.layers[-1].weight.shape[0]:
            raise ValueError(
                f"the branch wants {link} values of a trunk that gives {self.trunk.layers[-1].weight.shape[0]}"
            )

    def __call__(self, *parts: Float[Array, "_"]) -> Float[Array, "q"]:
        """Apply the network to the concatenation of `parts`; a first part of `own_size` spares work."""
        if parts[0].shape != (self.own_size,):
            joined = jnp.concatenate(parts)
            parts = (joined[: self.own_size], joined[self.own_size :])
        own, *shared = parts
        told = self.trunk(*shared)
        aside = told.shape[0] - (self.branch.layers[0].weight.shape[1] - self.own_size)
        return jnp.concatenate([self.branch(own, told[aside:]), told[:aside]])
