"""The Gaussian with low-rank plus diagonal covariance ``L L^T + exp(D)`` (eq. 8 of the paper).

No n x n array is made unless `covariance` is called. With ``z = exp(-D/2) (y - m)`` and
``G = exp(-D/2) L``, the Woodbury identity reads ``(y - m)^T K^-1 (y - m) = min_w |z - G w|^2 + |w|^2``: a ridge
regression, the least-squares problem of ``A = [G; I]`` and ``b = [z; 0]``. Its residual by the QR factors of A is a sum
of squares, without the cancellation of the textbook form and without squaring the condition number, so that float32
suffices. The determinant lemma gives ``log |K| = sum D + log |A^T A|``.
"""

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float, Int, PRNGKeyArray

from bieqno.arguments import as_floats, checked


def _as_floats(values: Any) -> Array:
    return as_floats("a part of a Gaussian", values)


class AbstractGaussian(eqx.Module):
    """A joint Gaussian over n values, whatever the form of its covariance; arrays are JAX's or NumPy's."""

    mean: eqx.AbstractVar[Any]

    @property
    @abc.abstractmethod
    def variance(self) -> Any:
        """Variance of each point."""

    @property
    def std(self) -> Any:
        """Standard deviation of each point."""
        return self.variance**0.5

    @abc.abstractmethod
    def covariance(self) -> Any:
        """Return the dense covariance matrix, O(n^2) memory."""

    @abc.abstractmethod
    def log_prob(self, value: Any) -> Any:
        """Return the logarithm of the joint density at `value`."""

    @abc.abstractmethod
    def sample(self, count: int, *, key: PRNGKeyArray) -> Any:
        """Draw joint samples, one per row."""

    @abc.abstractmethod
    def marginal(self, indices: Any) -> "AbstractGaussian":
        """Return the joint distribution of some of the points, in the order of `indices`."""

    @abc.abstractmethod
    def condition(self, indices: Any, values: Any) -> "AbstractGaussian":
        """Return the distribution of the other points, in their order, given the values of those of `indices`."""


class LowRankGaussian(AbstractGaussian):
    """A joint Gaussian over n values with covariance ``factor @ factor.T + diag(exp(log_diag))``; O(n r^2) for rank r.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> gaussian = LowRankGaussian(jnp.zeros(3), jnp.ones((3, 1)), jnp.zeros(3))
        >>> gaussian.covariance().tolist()
        [[2.0, 1.0, 1.0], [1.0, 2.0, 1.0], [1.0, 1.0, 2.0]]
        >>> gaussian.sample(5, key=jax.random.key(0)).shape
        (5, 3)
    """

    mean: Float[Array, "n"] = eqx.field(converter=_as_floats)
    factor: Float[Array, "n r"] = eqx.field(converter=_as_floats)
    log_diag: Float[Array, "n"] = eqx.field(converter=_as_floats)

    def __check_init__(self) -> None:
        mean, factor, log_diag = self.mean.shape, self.factor.shape, self.log_diag.shape
        if len(mean) != 1 or len(factor) != 2 or log_diag != mean or factor[:1] != mean:
            found = f"got shapes {mean}, {factor} and {log_diag}"
            raise ValueError(f"a LowRankGaussian has a mean [n], a factor [n, r] and a log_diag [n]; {found}")
        parts = self.mean, self.factor, self.log_diag
        if not all(isinstance(part, jax.core.Tracer) or np.isfinite(part).all() for part in parts):
            raise ValueError("mean, factor and log_diag of a LowRankGaussian are finite")

    @property
    def size(self) -> int:
        """Number of points n."""
        return self.mean.shape[0]

    @property
    def rank(self) -> int:
        """Number of columns r of the factor."""
        return self.factor.shape[1]

    @property
    def variance(self) -> Float[Array, "n"]:
        """Variance of each point."""
        return jnp.sum(self.factor**2, axis=1) + jnp.exp(self.log_diag)

    def covariance(self) -> Float[Array, "n n"]:
        """Return the dense covariance matrix, O(n^2) memory."""
        return self.factor @ self.factor.T + jnp.diag(jnp.exp(self.log_diag))

    @checked()
    def log_prob(self, value: Float[Array, "n"]) -> Float[Array, ""]:
        """Return the logarithm of the joint density at `value`, in O(n r^2)."""
        if value.shape != self.mean.shape:
            raise ValueError(f"expected {self.size} values, got shape {value.shape}")
        scale = jnp.exp(-self.log_diag / 2)
        distance, log_det = _ridge(self.factor * scale[:, None], (value - self.mean) * scale)
        return -0.5 * (distance + log_det + jnp.sum(self.log_diag) + self.size * jnp.log(2 * jnp.pi))

    @checked()
    def sample(self, count: int, *, key: PRNGKeyArray) -> Float[Array, "count n"]:
        """Draw joint samples, in O(n r) each."""
        shared_key, own_key = jax.random.split(key)
        shared = jax.random.normal(shared_key, (count, self.rank), self.mean.dtype)
        own = jax.random.normal(own_key, (count, self.size), self.mean.dtype)
        return self.mean[None] + shared @ self.factor.T + jnp.exp(self.log_diag / 2)[None] * own

    @checked()
    def marginal(self, indices: Int[Array, "k"]) -> "LowRankGaussian":
        """Return the joint distribution of some of the points, in the order of `indices`."""
        outside = (indices >= self.size) | (indices < -self.size)
        if not isinstance(indices, jax.core.Tracer) and outside.any():
            raise ValueError(f"indices must lie within {self.size} points, got {indices}")
        return LowRankGaussian(self.mean[indices], self.factor[indices], self.log_diag[indices])

    @checked()
    def condition(self, indices: Int[Array, "k"], values: Float[Array, "k"]) -> "LowRankGaussian":
        """Return the distribution of the other points, in their order, given the values of those of `indices`.

        Example:
            >>> pair = LowRankGaussian(jnp.zeros(2), jnp.ones((2, 1)), jnp.zeros(2))  # variances 2, covariance 1
            >>> other = pair.condition(jnp.array([0]), jnp.array([3.0]))
            >>> bool(jnp.allclose(other.mean, 1.5)), bool(jnp.allclose(other.variance, 1.5))
            (True, True)
        """
        known, rest = self.marginal(indices), self.marginal(jnp.delete(jnp.arange(self.size), indices))
        scale = jnp.exp(-known.log_diag / 2)
        G = known.factor * scale[:, None]
        C = jnp.linalg.cholesky(G.T @ G + jnp.eye(self.rank, dtype=G.dtype))
        shared = jax.scipy.linalg.cho_solve((C, True), G.T @ ((values - known.mean) * scale))
        return LowRankGaussian(
            rest.mean + rest.factor @ shared, solve_triangular(C, rest.factor.T, lower=True).T, rest.log_diag
        )

    @checked()
    def affine(self, scale: float | Float[Array, "*n"], shift: float | Float[Array, "*n"]) -> "LowRankGaussian":
        """Return the distribution of ``scale * y + shift``, for numbers or one value per point; `scale` is not zero."""
        scale = jnp.broadcast_to(jnp.asarray(scale, self.mean.dtype), self.mean.shape)
        log_diag = self.log_diag + 2 * jnp.log(jnp.abs(scale))
        return LowRankGaussian(scale * self.mean + shift, scale[:, None] * self.factor, log_diag)


@jax.custom_jvp
def _ridge(G: Float[Array, "n r"], z: Float[Array, "n"]) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """``min_w |z - G w|^2 + |w|^2`` and ``log |I + G^T G|``."""
    return _least_squares(G, z)[:2]


@_ridge.defjvp
def _ridge_jvp(
    primals: tuple[Array, Array], tangents: tuple[Array, Array]
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Hold w fixed at the minimum; and ``d log |A^T A| = 2 tr(A^+ dA)``. Cheaper and more stable than dQ, dR."""
    (G, z), (dG, dz) = primals, tangents
    n = G.shape[0]
    distance, log_det, Q, R, residual = _least_squares(G, z)
    distance_dot = 2 * jnp.dot(residual[:n], dz + dG @ residual[n:])
    log_det_dot = 2 * jnp.sum(solve_triangular(R, Q[:n].T).T * dG)
    return (distance, log_det), (distance_dot, log_det_dot)


def _least_squares(G: Float[Array, "n r"], z: Float[Array, "n"]) -> tuple[Array, Array, Array, Array, Array]:
    """The two values of `_ridge`, the factors Q, R of ``A = [G; I]``, and the residual ``b - A w``, which ends with -w."""
    r = G.shape[1]
    Q, R = jnp.linalg.qr(jnp.concatenate([G, jnp.eye(r, dtype=G.dtype)]))
    residual = jnp.concatenate([z, jnp.zeros(r, z.dtype)])
    for _ in range(2):  # projecting twice leaves a residual that is orthogonal to working precision
        residual = residual - Q @ (Q.T @ residual)
    return jnp.sum(residual**2), 2 * jnp.sum(jnp.log(jnp.abs(jnp.diagonal(R)))), Q, R, residual
