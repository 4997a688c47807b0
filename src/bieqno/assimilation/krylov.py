"""A local analysis of one variable, without an eigen-decomposition.

A variable with the anomalies a needs the transform ``(I + S S^T)^(-1/2) a`` and the gain ``S^T (I + S S^T)^-1 a``: one
vector each, never a matrix. The bidiagonalisation of Golub and Kahan (1965), begun with a, turns both into functions of
a bidiagonal matrix B as large as the number of steps, which is at most min(N, m) + 1 and in practice below ten, for
the singular values of S are few and small where a filter is on track. The root is then a sum of shifted inverses, at
the nodes of Hale, Higham and Trefethen (2008). Neither S S^T nor B B^T is ever formed, so that 32 bits do where
errors are a thousandth of the spread. All of it is elementwise work over as many analyses as one likes: forty
eigen-decompositions by LAPACK take several times as long (`benchmarks/filters.py`).
"""

from collections.abc import Callable
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int
from scipy.special import ellipj, ellipk

CONDITION = 1e7  # eigenvalues up to here have the full accuracy of the root
TOGETHER = 2**16  # numbers in mapped batches up to which they are one batch: loops cost more than they save
NODES = 16  # error of the root about exp(-2 pi^2 NODES / (log CONDITION + 3)) = 7e-8


@cache
def root_nodes() -> tuple[np.ndarray, np.ndarray]:
    """Shifts and weights of ``x^(-1/2) = sum_q weights_q / (x + shifts_q)`` for x in [1, CONDITION]."""
    k2 = 1 / CONDITION
    quarter = ellipk(1 - k2)
    points = (np.arange(NODES) + 0.5) * quarter / NODES
    sn, cn, dn, _ = ellipj(points, 1 - k2)
    # The smallest eigenvalue is one, so Jacobi's functions give the nodes as they are.
    return (sn / cn) ** 2, 2 * quarter / (np.pi * NODES) * dn / cn**2


def bidiagonalise(
    factors: Float[Array, "b N m"], starts: Float[Array, "b N"], steps: int
) -> tuple[Float[Array, "b s N"], Float[Array, "b s m"], Float[Array, "b s"], Float[Array, "b s"], Int[Array, ""]]:
    """Orthonormal rows U and V, diagonal and subdiagonal of ``B = U S V^T``, and the number of steps that it took.

    The first row of U is the start, scaled. Element k of the subdiagonal is to the left of element k of the diagonal; the
    first is zero. Stops early, with zeros for the rest, when ``(I + S S^T) x = start`` is solved to rounding for all of the
    batch, which is explicit for that reason: mapped one by one, the loop would copy its whole state at every step.
    """
    dtype = factors.dtype
    eps = float(np.finfo(dtype).eps)
    batch, count, size = factors.shape
    # What is smaller than this is rounding, and no direction.
    noise = 4 * eps * jnp.sqrt(jnp.sum(factors**2, axis=(1, 2)))

    def unit(x: Float[Array, "b k"], least: Float[Array, "b"]) -> tuple[Array, Array]:
        length = jnp.linalg.norm(x, axis=1)
        length = jnp.where(length > least, length, 0)
        return length, jnp.where(length > 0, 1 / jnp.where(length > 0, length, 1), 0)[:, None] * x

    def advance(carry: tuple[Array, ...]) -> tuple[Array, ...]:
        k, U, V, diagonal, below, u, v, s, residual = carry
        beta = below[:, k]
        U = jax.lax.dynamic_update_slice_in_dim(U, u[:, None], k, 1)
        alpha, v = unit(jnp.einsum("bnm,bn->bm", factors, u) - beta[:, None] * v, noise)
        V = jax.lax.dynamic_update_slice_in_dim(V, v[:, None], k, 1)
        diagonal = jax.lax.dynamic_update_slice_in_dim(diagonal, alpha[:, None], k, 1)
        w = jnp.einsum("bnm,bm->bn", factors, v)
        w = w - jnp.einsum("bs,bsn->bn", jnp.einsum("bsn,bn->bs", U, w), U)
        beta, u = unit(w, noise)
        below = jax.lax.dynamic_update_slice_in_dim(below, beta[:, None], k + 1, 1)
        # The pivots of I + B B^T give the residual of conjugate gradients, which bounds that of the root.
        pivot = s + alpha**2
        return k + 1, U, V, diagonal, below, u, v, 1 + beta**2 * s / pivot, residual * alpha * beta / pivot

    ones = jnp.ones(batch, dtype)
    shapes = (steps, count), (steps, size), (steps,), (steps + 1,)
    tables = (jnp.zeros((batch, *shape), dtype) for shape in shapes)
    first = unit(starts, jnp.zeros_like(ones))[1]
    begin = (jnp.array(0), *tables, first, jnp.zeros((batch, size), dtype), ones, ones)
    used, U, V, diagonal, below, *_ = jax.lax.while_loop(
        lambda carry: (carry[0] < steps) & (jnp.max(carry[-1]) > 4 * eps), advance, begin
    )
    return U, V, diagonal, below[:, :-1], used


def solve_bidiagonal(
    diagonal: Float[Array, "b s"], below: Float[Array, "b s"], shifts: Float[Array, "q"], used: Int[Array, ""] | int
) -> tuple[Float[Array, "b q s"], Float[Array, "b q s"]]:
    """Solve ``(shift + B B^T) x = e_1`` for many shifts; gives x and ``B^T x``, without a single subtraction.

    From the last row upwards the pivots are ``p = r + below^2`` with ``r = shift + diagonal^2 r' / p'``, a dash for the row
    beneath; e_1 is met last, so that the way down is a plain product. Only the first `used` rows are not zero.
    """
    batch, rows = diagonal.shape
    table = jnp.zeros((rows, batch, len(shifts)), diagonal.dtype)
    alpha, beta = diagonal.T[..., None], below.T[..., None]

    def up(k: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        row = used - 1 - k
        share, pivots, shares = carry
        r = shifts + alpha[row] ** 2 * share
        pivot = r + beta[row] ** 2
        return r / pivot, pivots.at[row].set(pivot), shares.at[row].set(share)

    ones = jnp.ones(table.shape[1:], table.dtype)
    _, pivots, shares = jax.lax.fori_loop(0, used, up, (ones, table, table))

    def down(row: Array, x: Array) -> Array:
        return x.at[row].set(-alpha[row - 1] * beta[row] * x[row - 1] / pivots[row])

    x = jax.lax.fori_loop(1, used, down, table.at[0].set(1 / jnp.where(used > 0, pivots[0], shifts)))
    return jnp.moveaxis(x, 0, 2), jnp.moveaxis(alpha * x * shares, 0, 2)


@jax.custom_vjp
def root_and_gain(
    factors: Float[Array, "b N m"], vectors: Float[Array, "b N"]
) -> tuple[Float[Array, "b N"], Float[Array, "b m"]]:
    """``(I + S S^T)^(-1/2) a`` and ``S^T (I + S S^T)^(-1) a`` for every S of `factors` and a of `vectors`.

    Rows of zeros in both, members that are padding, change nothing. Can be differentiated, once, in reverse mode.

    Example:
        >>> root, gain = root_and_gain(jnp.array([[[2.0], [0.0]]]), jnp.array([[1.0, 1.0]]))
        >>> [round(float(x), 4) for x in (root[0, 0], root[0, 1], gain[0, 0])]
        [0.4472, 1.0, 0.4]
    """
    return _root_and_gain(factors, vectors)


def _one_batch_after_another(function: Callable[..., tuple[Array, Array]]) -> Callable[..., tuple[Array, Array]]:
    """Make a mapped function take its batches in turn, each in the cache and with an end of its own, unless all are small.

    Mapped as one, all would continue until the last is done, copying what they have: 64 truths took three times as long.
    """
    mappable = jax.custom_batching.custom_vmap(function)

    @mappable.def_vmap
    def in_turn(size: int, mapped: list[bool], *given: Array) -> tuple[tuple[Array, Array], tuple[bool, bool]]:
        both = zip(given, mapped, strict=True)
        given = tuple(x if is_mapped else jnp.broadcast_to(x, (size, *x.shape)) for x, is_mapped in both)
        if given[0].size > TOGETHER:
            return jax.lax.map(lambda one: mappable(*one), given), (True, True)
        found = mappable(*(x.reshape(-1, *x.shape[2:]) for x in given))
        first, second = (x.reshape(size, -1, *x.shape[1:]) for x in found)
        return (first, second), (True, True)

    return mappable


def _shifted(
    factors: Float[Array, "b N m"], vectors: Float[Array, "b N"], shifts: Float[Array, "q"]
) -> tuple[Float[Array, "b q s"], Float[Array, "b q s"], Float[Array, "b s N"], Float[Array, "b s m"]]:
    """Return coefficients x, y and bases U, V of ``X = (shift + S S^T)^-1 a = x U`` and ``S^T X = y V``, all shifts at once."""
    _, count, size = factors.shape
    # In a program for any number of members the loop finds its end by itself; its tables are as long as they may have to be.
    steps = min(count, size + 1) if isinstance(count, int) else size + 1
    U, V, diagonal, below, used = bidiagonalise(factors, vectors, steps)
    x, y = solve_bidiagonal(diagonal, below, shifts, used)
    norms = jnp.linalg.norm(vectors, axis=1)[:, None, None]
    return norms * x, norms * y, U, V


def _quadrature(dtype: DTypeLike) -> tuple[Array, Array]:
    """Return 1 and the shifts of the root above it, and the weights of the latter."""
    shifts, weights = (jnp.asarray(x, dtype) for x in root_nodes())
    return 1 + jnp.concatenate([jnp.zeros(1, dtype), shifts]), weights


@_one_batch_after_another
def _root_and_gain(factors: Float[Array, "b N m"], vectors: Float[Array, "b N"]) -> tuple[Array, Array]:
    shifts, weights = _quadrature(vectors.dtype)
    x, y, U, V = _shifted(factors, vectors, shifts)
    return jnp.einsum("q,bqs,bsn->bn", weights, x[:, 1:], U), jnp.einsum("bs,bsm->bm", y[:, 0], V)


@_one_batch_after_another
def _transposed(
    factors: Float[Array, "b N m"], vectors: Float[Array, "b N"], root: Float[Array, "b N"], gain: Float[Array, "b m"]
) -> tuple[Array, Array]:
    """Return the derivatives by S and a of a function of root and gain, from those by root and gain.

    With X_q, Y_q the shifted solutions for a and for the derivative g by the root, ``da = sum_q w_q Y_q`` and
    ``dS = -sum_q w_q (Y_q (S^T X_q)^T + X_q (S^T Y_q)^T)``; the gain adds terms of shift one, with Z for S times its derivative.
    """
    shifts, weights = _quadrature(vectors.dtype)
    # Three right-hand sides as one batch: a third of the program to compile.
    begins = jnp.concatenate([vectors, root, jnp.einsum("bnm,bm->bn", factors, gain)])
    x, y, U, V = _shifted(jnp.tile(factors, (3, 1, 1)), begins, shifts)
    X, Y, Z = jnp.split(jnp.einsum("bqs,bsn->bqn", x, U), 3)
    SX, SY, SZ = jnp.split(jnp.einsum("bqs,bsm->bqm", y, V), 3)
    left = jnp.concatenate([-weights[:, None] * Y[:, 1:], -weights[:, None] * X[:, 1:], X[:, :1], -Z[:, :1]], axis=1)
    right = jnp.concatenate([SX[:, 1:], SY[:, 1:], gain[:, None] - SZ[:, :1], SX[:, :1]], axis=1)
    return jnp.einsum("bqn,bqm->bnm", left, right), jnp.einsum("q,bqn->bn", weights, Y[:, 1:]) + Z[:, 0]


root_and_gain.defvjp(
    lambda factors, vectors: (_root_and_gain(factors, vectors), (factors, vectors)),
    lambda kept, derivatives: _transposed(*kept, *derivatives),
)
