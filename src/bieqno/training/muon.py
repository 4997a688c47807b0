"""Muon: momentum whose matrices are made orthogonal (Jordan et al. 2024), in a form that compiles quickly.

All directions of a matrix learn alike, also those with small gradients. Where a step is expensive and networks are small that
saves many steps. The updates are those of `optax.contrib.muon`, which unrolls its iterations for every matrix: 10 s to compile
for the networks of the local filter. Here all numbers are one vector, and matrices of about the same shape one batch: 3 s.
"""

from collections import defaultdict
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

MOMENTUM = 0.95
# Root mean square of the elements of an update; that of Adam is 0.2 to 0.4, so that one learning rate serves all.
ROOT_MEAN_SQUARE = 0.4
# Of the Newton-Schulz iteration of Jordan et al., which takes singular values to about one (0.7 to 1.2) in few steps.
COEFFICIENTS = (3.4445, -4.775, 2.0315)
ITERATIONS = 5
LEAST = 16  # sides are padded to powers of two from here on
TINY = 1e-8  # keeps a matrix of zeros finite


class MuonState(NamedTuple):
    """Momentum of all numbers, and the moments of Adam."""

    momentum: Float[Array, "k"]
    adam: Any


def scale_by_muon(*, b2: float = 0.999) -> optax.GradientTransformation:
    """Return the direction of ascent: of matrices by Muon, of all else by Adam; both look ahead (Nesterov)."""
    adam = optax.scale_by_adam(b2=b2, nesterov=True)

    def init(params: Any) -> MuonState:
        flat, _ = ravel_pytree(params)
        return MuonState(jnp.zeros_like(flat), adam.init(flat))

    def update(updates: Any, state: MuonState, params: Any = None) -> tuple[Any, MuonState]:
        flat, unravel = ravel_pytree(updates)
        moved, moments = adam.update(flat, state.adam)
        momentum = MOMENTUM * state.momentum + (1 - MOMENTUM) * flat
        # Both averages are made free of the zeros that they begin with, the momentum as it will be after the next gradient.
        now, then = (1 - MOMENTUM ** (moments.count + k).astype(flat.dtype) for k in (0, 1))
        ahead = MOMENTUM * momentum / then + (1 - MOMENTUM) * flat / now
        leaves, tree = jax.tree.flatten(unravel(moved))
        wanted = [k for k, leaf in enumerate(leaves) if leaf.ndim == 2]
        matrices = jax.tree.leaves(unravel(ahead))
        for k, matrix in zip(wanted, orthogonalised([matrices[k] for k in wanted]), strict=True):
            leaves[k] = ROOT_MEAN_SQUARE * max(matrix.shape) ** 0.5 * matrix
        return jax.tree.unflatten(tree, leaves), MuonState(momentum, moments)

    return optax.GradientTransformation(init, update)


def orthogonalised(matrices: list[Array]) -> list[Array]:
    """Return for each matrix ``U V^T`` of its singular value decomposition, roughly: singular values of 0.7 to 1.2.

    Example:
        >>> (found,) = orthogonalised([jnp.diag(jnp.array([5.0, 0.5]))])
        >>> bool(jnp.all(jnp.abs(jnp.diag(found) - 1) < 0.35)), float(found[0, 1])
        (True, 0.0)
    """
    groups: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for k, matrix in enumerate(matrices):
        groups[tuple(max(LEAST, 2 ** (side - 1).bit_length()) for side in sorted(matrix.shape))].append(k)
    found = list(matrices)
    for (rows, columns), numbers in groups.items():
        wide = [matrices[k] if matrices[k].shape[0] <= matrices[k].shape[1] else matrices[k].T for k in numbers]
        # Zeros beside a matrix stay zeros, and change nothing in it.
        batch = jnp.stack([jnp.pad(x, ((0, rows - x.shape[0]), (0, columns - x.shape[1]))) for x in wide])
        batch = jax.lax.fori_loop(0, ITERATIONS, _iterate, batch / (_norms(batch) + TINY))
        for k, x, made in zip(numbers, wide, batch, strict=True):
            cut = made[: x.shape[0], : x.shape[1]]
            found[k] = cut if matrices[k].shape == cut.shape else cut.T
    return found


def _norms(batch: Float[Array, "b r c"]) -> Float[Array, "b 1 1"]:
    return jnp.sqrt(jnp.sum(batch**2, axis=(1, 2), keepdims=True))


def _iterate(_: Any, batch: Float[Array, "b r c"]) -> Float[Array, "b r c"]:
    a, b, c = COEFFICIENTS
    square = batch @ jnp.swapaxes(batch, 1, 2)
    return a * batch + (b * square + c * (square @ square)) @ batch
