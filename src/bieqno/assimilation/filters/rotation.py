"""Random rotations that keep mean and covariance (Sakov and Oke 2008)."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, PRNGKeyArray

from bieqno.assimilation.filters.filter import Filter
from bieqno.assimilation.observation import Observed


def random_rotation(count: int, dtype: DTypeLike, *, key: PRNGKeyArray) -> Float[Array, "count count"]:
    """A random orthogonal matrix that maps the vector of ones to itself.

    A product of Householder reflections within the space of vectors that sum to zero: uniform there after
    count - 1 of them, whatever basis one thinks in.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> Q = random_rotation(4, jnp.float32, key=jax.random.key(0))
        >>> bool(jnp.allclose(Q @ jnp.ones(4), 1, atol=1e-5)), bool(jnp.allclose(Q @ Q.T, jnp.eye(4), atol=1e-5))
        (True, True)
    """
    directions = jax.random.normal(key, (max(count - 1, 0), count), dtype)
    return jax.lax.scan(lambda Q, v: (mirrored(Q, v), None), jnp.eye(count, dtype=dtype), directions)[0]


def mirrored(ensemble: Float[Array, "N n"], direction: Float[Array, "N"]) -> Float[Array, "N n"]:
    """The members mixed by one reflection, along what is left of a direction without its mean: mean and covariance stay.

    Where one of few members has drifted away from all others, as square-root filters let it, the next window finds the
    distance shared out.

    Example:
        >>> import jax.numpy as jnp
        >>> outlier = jnp.array([[-1.0], [-1.0], [-1.0], [3.0]])
        >>> mirrored(outlier, jnp.array([0.0, 0.0, 1.0, 1.0])).ravel().tolist()
        [1.0, 1.0, -3.0, 1.0]
    """
    v = direction - jnp.mean(direction)
    square = v @ v
    return ensemble - (2 / jnp.where(square > 0, square, 1)) * v[:, None] * (v @ ensemble)


class Rotated(eqx.Module):
    """Mixes the deviations of another filter's posterior at random, mean and covariance unchanged.

    Breaks up the outliers that square-root filters of small ensembles grow.

    Args:
        filter: any filter.
    """

    filter: Filter

    def __call__(self, ensemble: Float[Array, "N n"], observed: Observed, *, key: PRNGKeyArray) -> Float[Array, "N n"]:
        """Analyse, then rotate."""
        posterior = self.filter(ensemble, observed, key=key)
        Q = random_rotation(ensemble.shape[0], posterior.dtype, key=jax.random.fold_in(key, 3))
        mean = jnp.mean(posterior, axis=0)
        return mean + Q @ (posterior - mean)
