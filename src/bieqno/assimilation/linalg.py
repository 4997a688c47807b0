"""Small symmetric solves, written out so that they stay fast inside compiled loops.

A LAPACK call on a 40 x 40 matrix inside a `scan` is at the mercy of its threads: several times slower when the
cores are free, a hundred times when they are busy. Eliminating by hand costs one fused loop, vectorises over
`vmap`, and needs no threads (`benchmarks/filters.py` measures it). Large matrices go to LAPACK all the same.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

SMALL = 128  # up to this size elimination by hand was the faster way


def solve_shifted(factor: Float[Array, "k m"], right: Float[Array, "m r"]) -> Float[Array, "m r"]:
    """Solve ``(I + factor.T @ factor) x = right``: positive definite, eigenvalues at least one.

    Example:
        >>> import jax.numpy as jnp
        >>> solve_shifted(jnp.ones((3, 1)), jnp.array([[8.0]])).tolist()
        [[2.0]]
    """
    size = factor.shape[1]
    if not size:
        return right
    matrix = jnp.eye(size, dtype=factor.dtype) + factor.T @ factor
    if size > SMALL:
        return jax.scipy.linalg.cho_solve(jax.scipy.linalg.cho_factor(matrix), right)

    # Gauss-Jordan elimination; a positive definite matrix needs no pivoting.
    def eliminate(k: Array, both: Float[Array, "m mr"]) -> Float[Array, "m mr"]:
        row = both[k] / both[k, k]
        column = both[:, k].at[k].add(-1)
        return both - column[:, None] * row

    both = jnp.concatenate([matrix, right], axis=1)
    return jax.lax.fori_loop(0, size, eliminate, both)[:, size:]


def spectrum_shifted(
    factor: Float[Array, "N m"],
) -> tuple[Float[Array, "k"], Float[Array, "N k"]]:
    """Eigenvalues and -vectors of ``factor @ factor.T`` that matter, from the smaller of the two Gram matrices.

    Returns:
        values: squares of the singular values, k = min(N, m) of them.
        vectors: left singular vectors in columns, zero where a value is zero to rounding.
    """
    count, size = factor.shape
    if count <= size:
        values, vectors = jnp.linalg.eigh(factor @ factor.T)
        return jnp.maximum(values, 0), vectors
    values, right = jnp.linalg.eigh(factor.T @ factor)
    values = jnp.maximum(values, 0)
    # A direction that is zero to rounding has no left vector; its weight is zero in every use.
    tiny = values <= np.finfo(factor.dtype).eps * size * jnp.max(values, initial=0.0)
    scale = jnp.where(tiny, 0, 1 / jnp.sqrt(jnp.where(tiny, 1, values)))
    return values, (factor @ right) * scale
