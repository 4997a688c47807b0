"""Functions of ``I + S S^T`` applied to one vector, without an eigen-decomposition.

A local analysis updates one variable, so it needs the transform ``(I + S S^T)^(-1/2)`` and the inverse applied to
one vector of anomalies only, never as matrices. Lanczos' recurrence turns both into functions of a tridiagonal
matrix as large as the number of steps, which is at most min(N, m) + 1 and in practice below ten, for the eigenvalues
of ``S S^T`` are few and small where a filter is on track. The root is then a sum of shifted inverses, at the nodes of
Hale, Higham and Trefethen (2008), each a tridiagonal solve. All of it is elementwise work over as many analyses
as one likes: forty eigen-decompositions by LAPACK take several times as long (`benchmarks/filters.py`).
"""

from functools import cache
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.special import ellipj, ellipk

LanczosState: TypeAlias = tuple[Array, Array, Array, Array, Array, Array, Array]

CONDITION = 1e6  # eigenvalues up to here have the full accuracy of the root
NODES = 16  # error of the root about exp(-2 pi^2 NODES / (log CONDITION + 3)) = 1e-8


@cache
def root_nodes() -> tuple[np.ndarray, np.ndarray]:
    """Shifts and weights of ``x^(-1/2) = sum_q weights_q / (x + shifts_q)`` for x in [1, CONDITION]."""
    k2 = 1 / CONDITION
    quarter = ellipk(1 - k2)
    points = (np.arange(NODES) + 0.5) * quarter / NODES
    sn, cn, dn, _ = ellipj(points, 1 - k2)
    # The smallest eigenvalue is one, so Jacobi's functions give the nodes as they are.
    shifts = (sn / cn) ** 2
    weights = 2 * quarter / (np.pi * NODES) * dn / cn**2
    return shifts, weights


def lanczos(
    factors: Float[Array, "b N m"], starts: Float[Array, "b N"], steps: int
) -> tuple[Float[Array, "b s N"], Float[Array, "b s"], Float[Array, "b s"]]:
    """Orthonormal bases V, diagonals and off-diagonals of ``V (S S^T) V^T``, beginning with the starts, scaled.

    Stops early, with zeros for the rest, when ``(I + S S^T) x = start`` is solved to rounding for all of the batch.
    The batch is explicit for that reason: mapped one by one, the loop would copy its whole state at every step.
    """
    dtype = factors.dtype
    tolerance = 4 * np.finfo(dtype).eps
    norms = jnp.linalg.norm(starts, axis=1, keepdims=True)

    def unfinished(carry: LanczosState) -> Array:
        return (carry[0] < steps) & (jnp.max(carry[-1]) > tolerance)

    def advance(carry: LanczosState) -> LanczosState:
        k, V, diagonal, off, pivot, direction, residual = carry
        V = jax.lax.dynamic_update_slice_in_dim(V, direction[:, None], k, 1)
        w = jnp.einsum("bnm,bm->bn", factors, jnp.einsum("bnm,bn->bm", factors, direction))
        along = jnp.sum(direction * w, axis=1)
        w = w - jnp.einsum("bs,bsn->bn", jnp.einsum("bsn,bn->bs", V, w), V)
        beta = jnp.linalg.norm(w, axis=1)
        # The pivots of I + T give the residual of conjugate gradients, which bounds that of the root.
        previous = jnp.where(k > 0, off[:, jnp.maximum(k - 1, 0)], 0)
        pivot = 1 + along - previous**2 / pivot
        residual = residual * beta / pivot
        direction = w / jnp.where(beta > 0, beta, 1)[:, None]
        diagonal = jax.lax.dynamic_update_slice_in_dim(diagonal, along[:, None], k, 1)
        off = jax.lax.dynamic_update_slice_in_dim(off, beta[:, None], k, 1)
        return k + 1, V, diagonal, off, pivot, direction, residual

    batch, count = starts.shape
    zeros = jnp.zeros((batch, steps), dtype)
    ones = jnp.ones(batch, dtype)
    first = starts / jnp.where(norms > 0, norms, 1)
    begin = (jnp.array(0), jnp.zeros((batch, steps, count), dtype), zeros, zeros, ones, first, ones)
    _, V, diagonal, off, *_ = jax.lax.while_loop(unfinished, advance, begin)
    return V, diagonal, off


def solve_tridiagonal(diagonal: Float[Array, "q s"], off: Float[Array, "s"]) -> Float[Array, "q s"]:
    """Solve ``T_q x = e_1`` for tridiagonal matrices that share their off-diagonal, without pivoting."""
    above = jnp.concatenate([off[:-1], jnp.zeros(1, off.dtype)])  # couples k and k + 1

    # From the last row upwards: then e_1 is met last, and the way down is a plain product.
    def up(pivot: Float[Array, "q"], row: tuple[Array, Array]) -> tuple[Array, Array]:
        d, b = row
        pivot = d - b**2 / pivot
        return pivot, pivot

    ones = jnp.ones(diagonal.shape[0], diagonal.dtype)
    _, pivots = jax.lax.scan(up, ones, (diagonal.T, above), reverse=True)
    below = jnp.concatenate([jnp.zeros(1, off.dtype), off[:-1]])

    def down(x: Float[Array, "q"], row: tuple[Array, Array]) -> tuple[Array, Array]:
        pivot, b = row
        x = -b * x / pivot
        return x, x

    first = 1 / pivots[0]
    _, rest = jax.lax.scan(down, first, (pivots[1:], below[1:]))
    return jnp.concatenate([first[None], rest]).T


def root_and_inverse(
    factors: Float[Array, "b N m"], vectors: Float[Array, "b N"]
) -> tuple[Float[Array, "b N"], Float[Array, "b N"]]:
    """``(I + S S^T)^(-1/2) a`` and ``(I + S S^T)^(-1) a`` for every S of `factors` and a of `vectors`.

    Example:
        >>> import jax.numpy as jnp
        >>> root, inverse = root_and_inverse(jnp.array([[[2.0], [0.0]]]), jnp.array([[1.0, 1.0]]))
        >>> [round(float(x), 4) for x in (root[0, 0], root[0, 1], inverse[0, 0], inverse[0, 1])]
        [0.4472, 1.0, 0.2, 1.0]
    """
    _, count, size = factors.shape
    V, diagonal, off = lanczos(factors, vectors, min(count, size + 1))
    shifts, weights = (jnp.asarray(x, vectors.dtype) for x in root_nodes())
    shifts = jnp.concatenate([jnp.zeros(1, vectors.dtype), shifts])
    shifted = 1 + diagonal[:, None] + shifts[:, None]
    solved = jax.vmap(solve_tridiagonal)(shifted, off)
    norms = jnp.linalg.norm(vectors, axis=1)[:, None]
    root = jnp.einsum("q,bqs,bsn->bn", weights, solved[:, 1:], V)
    return norms * root, norms * jnp.einsum("bs,bsn->bn", solved[:, 0], V)
