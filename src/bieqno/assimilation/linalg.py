"""Moments, noise and the gain of an ensemble, accurate in 32 bits and fast inside compiled loops.

Accurate: where an error is a thousandth of the spread, as under an error law that passes through zero, ``I + S^T S``
has a condition of a million and more, and 32 bits cannot even hold it. So it is never formed: everything here works
on S itself, whose condition is the square root of that.

Fast: a LAPACK call on a 40 x 40 matrix inside a `scan` is at the mercy of its threads: several times slower when the
cores are free, a hundred times when they are busy. Eliminating by hand costs one fused loop, vectorises over `vmap`,
and needs no threads (`benchmarks/filters.py` measures it). Large matrices go to LAPACK all the same.
"""

import math

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, PRNGKeyArray

SMALL = 128  # up to this size elimination by hand was the faster way
# Above about a thousand numbers XLA hands random numbers to its threads, which inside a loop of short steps costs four
# times what it saves, and far more on a busy machine (measured by `benchmarks/filters.py`).
BLOCK = 800
LARGE = 64 * BLOCK  # from here on threads pay


def anomalies(ensemble: Float[Array, "N n"]) -> tuple[Float[Array, "n"], Float[Array, "N n"]]:
    """Return the mean, and deviations A scaled so that ``A.T @ A`` is the ensemble covariance.

    One member has no deviation: its anomalies are zero, and whatever weighs by covariances leaves it alone.

    Example:
        >>> mean, A = anomalies(jnp.array([[1.0], [3.0]]))
        >>> mean.tolist(), (A.T @ A).item()
        ([2.0], 2.0)
    """
    if not ensemble.shape[0]:
        raise ValueError("an ensemble has at least one member, got none")
    mean = jnp.mean(ensemble, axis=0)
    return mean, (ensemble - mean) / jnp.sqrt(max(ensemble.shape[0] - 1, 1)).astype(ensemble.dtype)


def white_noise(shape: tuple[int, ...], dtype: DTypeLike, *, key: PRNGKeyArray) -> Float[Array, "..."]:
    """Return standard normal numbers, drawn in blocks small enough to stay on one thread.

    Example:
        >>> white_noise((40, 40), jax.numpy.float32, key=jax.random.key(0)).shape
        (40, 40)
    """
    size = math.prod(shape)
    if size <= BLOCK or size >= LARGE:
        return jax.random.normal(key, shape, dtype)
    blocks = -(-size // BLOCK)
    width = -(-size // blocks)

    drawn = jax.lax.map(lambda k: jax.random.normal(k, (width,), dtype), jax.random.split(key, blocks))
    return drawn.reshape(-1)[:size].reshape(shape)


def thin_svd(matrix: Float[Array, "r c"]) -> tuple[Float[Array, "r k"], Float[Array, "k"], Float[Array, "k c"]]:
    """Return ``U, L, V^T`` with ``matrix = U diag(L) V^T``, by LAPACK's gesvd.

    By default JAX calls gesdd, which shares out a batch among the threads of XLA and waits for them on one of these: when all
    of them wait it deadlocks, which on one core is a matter of time (see docs/known_issues.md). gesvd uses no threads.

    Example:
        >>> thin_svd(jnp.array([[3.0, 0.0], [0.0, 4.0]]))[1].round(4).tolist()
        [4.0, 3.0]
    """
    U, L, Vt = jax.lax.linalg.svd(matrix, full_matrices=False, algorithm=jax.lax.linalg.SvdAlgorithm.QR)
    return U, L, Vt


def increments(
    factor: Float[Array, "k m"], innovations: Float[Array, "r m"], anomalies: Float[Array, "k n"]
) -> Float[Array, "r n"]:
    """Apply the gain to innovations: ``D (I + S^T S)^-1 S^T A`` with S the factor, in units of the error.

    Example:
        >>> increments(jnp.ones((3, 1)), jnp.array([[8.0]]), jnp.eye(3)).tolist()
        [[2.0, 2.0, 2.0]]
    """
    S, D, A = factor, innovations, anomalies
    count, size = S.shape
    if not size:
        return jnp.zeros((D.shape[0], A.shape[1]), S.dtype)
    if 2 * size <= count and size <= SMALL:
        return _by_observations(S, D) @ (S.T @ A)
    if min(count, size) <= SMALL:
        return _by_members(S, D) @ A
    # With S^T stacked on I = QR the gain is Q_1 Q_2^T A, and with S on I it is Q_2 Q_1^T A.
    if count < size:
        Q = jnp.linalg.qr(jnp.concatenate([S.T, jnp.eye(count, dtype=S.dtype)]))[0]
        return (D @ Q[:size]) @ (Q[size:].T @ A)
    Q = jnp.linalg.qr(jnp.concatenate([S, jnp.eye(size, dtype=S.dtype)]))[0]
    return (D @ Q[count:]) @ (Q[:count].T @ A)


def _take_out(
    both: Float[Array, "c kr"], row: Float[Array, "kr"], count: int
) -> tuple[Float[Array, "c kr"], Float[Array, "c"], Float[Array, ""]]:
    """Update by one observation, a row of its k anomalies and r innovations: the new rows, the gain, and the precision."""
    s = row[:count]
    precision = 1 / (1 + s @ s)
    gain = precision * (both[:, :count] @ s)
    # Potter's factor: the anomalies of this observation shrink by exactly the root of the precision.
    shrink = jnp.where(jnp.arange(row.size) < count, 1 / (1 + jnp.sqrt(precision)), 1)
    return both - gain[:, None] * (shrink * row), gain, precision


def _by_observations(S: Float[Array, "k m"], D: Float[Array, "r m"]) -> Float[Array, "r m"]:
    """``D (I + S^T S)^-1`` on arrays with one row per observation: for few of them."""
    count, size = S.shape
    # What the updates do to the innovations is L^-1, the gains are the rows of L^T: I + S^T S = L diag(1 + variance) L^T.

    def assimilate(both: Float[Array, "m kr"], k: Array) -> tuple[Array, tuple[Array, Array]]:
        row = both[k]
        both, gain, precision = _take_out(both, row, count)
        return both, (gain, precision * row[count:])

    def substitute(x: Float[Array, "m r"], step: tuple[Array, Array, Array]) -> tuple[Array, None]:
        k, gain, scaled = step
        # The rows of later observations are there already, those of earlier ones are still zero.
        return x.at[k].set(scaled - gain @ x), None

    numbers = jnp.arange(size)
    _, (gains, scaled) = jax.lax.scan(assimilate, jnp.concatenate([S, D]).T, numbers)
    return jax.lax.scan(substitute, jnp.zeros_like(D.T), (numbers, gains, scaled), reverse=True)[0].T


def _by_members(S: Float[Array, "k m"], D: Float[Array, "r m"]) -> Float[Array, "r k"]:
    """``D (I + S^T S)^-1 S^T`` on arrays with one row per member: for any number of observations."""
    count, size = S.shape
    innovations = jnp.concatenate([jnp.zeros_like(S), D]).T

    def assimilate(k: Array, both: Float[Array, "k kr"]) -> Float[Array, "k kr"]:
        # This observation as the earlier ones have left it.
        row = S[:, k] @ both + innovations[k]
        return _take_out(both, row, count)[0]

    # The transform of the anomalies, and minus the weights.
    begin = jnp.eye(count, count + D.shape[0], dtype=S.dtype)
    return -jax.lax.fori_loop(0, size, assimilate, begin)[:, count:].T


def magnitude(state: Float[Array, "n"]) -> Float[Array, "n"]:
    """Return the size of each variable: its absolute value; where it is zero that of the others, or one.

    Example:
        >>> magnitude(jnp.array([-3.0, 0.0, 4.0])).round().tolist(), magnitude(jnp.zeros(2)).tolist()
        ([3.0, 3.0, 4.0], [1.0, 1.0])
    """
    size = jnp.abs(state)
    largest = jnp.max(size)
    typical = largest * jnp.sqrt(jnp.mean((size / jnp.where(largest > 0, largest, 1)) ** 2))
    return jnp.where(size > 0, size, jnp.where(typical > 0, typical, 1))
