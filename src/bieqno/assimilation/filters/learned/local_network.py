"""Networks on fields: a few numbers per variable, mixed with those of the variables beside it; all places share the weights."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from bieqno.assimilation.neighbourhoods import Stencil
from bieqno.operators import MLP
from bieqno.operators.networks import apply_linear

BUMPS = 9  # that encode a relative position, along each dimension
GLOBAL = 2  # numbers that hold for the whole ensemble
KERNEL = 16  # length of the hidden layer of the networks that make weights of places


def place_code(stencil: Stencil, here: int, there: int) -> Float[Array, "f P k"]:
    """Return what networks see of each pair of places: relative position, and one-hot kinds of both.

    Positions are encoded by bumps, evenly spaced in the signed square root of the offset: finest where things are near.
    """
    root = jnp.sign(stencil.offset) * jnp.sqrt(jnp.abs(stencil.offset))
    centres = jnp.linspace(-1, 1, BUMPS)
    bumps = jnp.exp(-0.5 * ((root[..., None] - centres) * (BUMPS - 1) / 2) ** 2)
    kinds = [
        jnp.broadcast_to(jax.nn.one_hot(stencil.here, here)[:, None], (*stencil.there.shape, here)),
        jax.nn.one_hot(stencil.there, there),
    ]
    return jnp.moveaxis(jnp.concatenate([bumps.reshape(*root.shape[:2], -1), *kinds], axis=-1), -1, 0)


class StencilSum(eqx.Module):
    """Weighted sums over the places near each place, each channel with its own weights, a function of the place code.

    On a regular grid it is a depthwise convolution; places may be anywhere.
    """

    kernel: MLP
    kinds: tuple[int, int] = eqx.field(static=True)

    def __init__(self, dimensions: int, channels: int, *, kinds: tuple[int, int], key: PRNGKeyArray) -> None:
        self.kinds = kinds
        self.kernel = MLP(self.size(dimensions), channels, width=KERNEL, depth=2, activation=jax.nn.silu, key=key)

    def size(self, dimensions: int) -> int:
        """Return the length of a place code."""
        return BUMPS * dimensions + sum(self.kinds)

    def weights(self, stencil: Stencil) -> Float[Array, "c k _"]:
        """Return the weights of each channel for every place; one column where all places see the same."""
        made = self.kernel(place_code(stencil, *self.kinds)) * stencil.present
        return jnp.moveaxis(stencil.spread(jnp.moveaxis(made, 0, -1)), 1, 0)


def stencil_sum(
    weights: Float[Array, "c k _"], fields: Float[Array, "*s c n"], stencil: Stencil
) -> Float[Array, "*s c n"]:
    """Return ``sum_k weights[c, k] fields[c, indices[k]]`` for every place, over the root of the number of terms."""
    number = stencil.spread(jnp.maximum(jnp.sum(stencil.present, axis=1), 1))
    return jnp.sum(weights * fields[..., stencil.indices.T], axis=-2) / jnp.sqrt(number)


class FieldNetwork(eqx.Module):
    """A residual network on fields: in each block every variable sees what is beside it. Returns zeros before training.

    What holds for the whole ensemble, its size, scales all fields (feature-wise modulation, Perez et al. 2018): what few
    members need is learned beside what many need, not instead of it.

    Args:
        dimensions, kinds: of space, and of variables.
        width: number of hidden fields.
        depth: number of blocks.
    """

    first: eqx.nn.Linear
    beside: tuple[StencilSum, ...]
    blocks: tuple[MLP, ...]
    last: eqx.nn.Linear
    scales: tuple[Float[Array, "w g"], ...] = ()  # none in filters that were saved before there were scales

    def __init__(
        self, in_size: int, out_size: int, *, dimensions: int, kinds: int, width: int, depth: int, key: PRNGKeyArray
    ) -> None:
        first_key, last_key, *keys = jax.random.split(key, 2 + 2 * depth)
        self.first = eqx.nn.Linear(in_size, width, key=first_key)
        self.beside = tuple(StencilSum(dimensions, width, kinds=(kinds, kinds), key=k) for k in keys[:depth])
        mlp: Any = {"width": width, "depth": 2, "activation": jax.nn.silu}
        self.blocks = tuple(MLP(2 * width, width, **mlp, key=k) for k in keys[depth:])
        self.last = jax.tree.map(jnp.zeros_like, eqx.nn.Linear(width, out_size, key=last_key))
        self.scales = tuple(jnp.zeros((rows, GLOBAL)) for rows in (*[width] * (depth + 1), out_size))

    def __call__(self, fields: Float[Array, "c n"], whole: Float[Array, "g"], stencil: Stencil) -> Float[Array, "q n"]:
        """Apply the network to fields, one column per variable, and to what holds for the `whole` ensemble."""
        scales = ((1 + scale @ whole)[:, None] for scale in self.scales)
        first, *others, last = scales if self.scales else [jnp.ones((1, 1))] * (len(self.blocks) + 2)
        hidden = first * apply_linear(self.first, fields)
        for beside, block, scale in zip(self.beside, self.blocks, others, strict=True):
            hidden = hidden + scale * block(hidden, stencil_sum(beside.weights(stencil), hidden, stencil))
        return last * apply_linear(self.last, hidden)
