"""A few Gaussian processes whose kernels are learned from tasks, and how much each is believed.

With the values in the order in which they are asked for, one decomposition of a kernel matrix tells all the predictions of
the chain rule: row i of ``L^-1 (y - mean)`` is what value i adds to those before it, in units ``L[i, i]`` of what was
expected. Their likelihoods together say how much each process is believed before the next value.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from bieqno.regression.meta.mixture import Mixture

_HUGE = 1e12
"""More than any sum of squared innovations, so that a matrix with this in its corner is positive definite."""
_LEAST_NOISE = 1e-4
"""Variance that keeps a decomposition in single precision."""


class Bank(eqx.Module):
    """Gaussian processes of one variable: smooth, twice differentiable, rough and repeating ones.

    It begins with lengths of 0.15 to 0.5 and periods of 0.16 to 0.48 in the unit of the tasks; `learn_bank`
    finds those that explain them.

    Example:
        >>> import jax.numpy as jnp
        >>> bank = Bank()
        >>> mixture = bank.along(jnp.array([0.0, 0.0]), jnp.array([1.0, 0.5]))
        >>> mixture.means[0].tolist() == [0.0] * bank.size  # nothing was seen before the first value
        True
    """

    log_length: Float[Array, "e"]
    log_period: Float[Array, "e"]
    log_repetition: Float[Array, "e"]
    log_variance: Float[Array, "e"]
    log_noise: Float[Array, "e"]
    mean: Float[Array, "e"]
    logit: Float[Array, "e"]

    def __init__(self) -> None:
        # Two smooth, two twice differentiable, one rough, four repeating: the order of `covariance`.
        self.log_length = jnp.log(jnp.array([0.15, 0.5, 0.15, 0.5, 0.3, 0.5, 0.5, 0.5, 0.5]))
        self.log_period = jnp.log(jnp.array([1.0, 1.0, 1.0, 1.0, 1.0, 0.16, 0.23, 0.33, 0.48]))
        zero = jnp.zeros(len(self.log_length))
        self.log_repetition, self.log_variance, self.mean, self.logit = zero, zero, zero, zero
        self.log_noise = zero + jnp.log(0.1)

    @property
    def size(self) -> int:
        """Number of processes."""
        return len(self.logit)

    def along(self, x: Float[Array, "n"], y: Float[Array, "n"]) -> Mixture:
        """Each value given those before it."""
        K = self.covariance(x[:, None] - x) + self._noise[:, None, None] * jnp.eye(len(x))
        residual = y - self.mean[:, None]
        L, z = _whiten(K, residual[:, None])
        size = jnp.diagonal(L, axis1=1, axis2=2)
        innovation = z[:, 0]
        each = -0.5 * (innovation**2 + jnp.log(2 * jnp.pi)) - jnp.log(size)
        before = jnp.cumsum(each, axis=1) - each
        log_weight = jax.nn.log_softmax(self.logit[:, None] + before, axis=0)
        return Mixture(log_weight.T, (y - size * innovation).T, (size**2).T)

    def at(
        self, points: Float[Array, "p"], x: Float[Array, "n"], y: Float[Array, "n"], mask: Bool[Array, "n"]
    ) -> Mixture:
        """Each point given the same observations, those that are there."""
        both = mask[:, None] & mask
        K = self.covariance(x[:, None] - x) + self._noise[:, None, None] * jnp.eye(len(x))
        K = jnp.where(both, K, jnp.eye(len(x)))  # what is not there is a value of zero that nothing depends on
        residual = jnp.where(mask, y - self.mean[:, None], 0)
        across = jnp.where(mask, self.covariance(points[:, None] - x), 0)
        L, whitened = _whiten(K, jnp.concatenate([residual[:, None], across], axis=1))
        z, c = whitened[:, 0], whitened[:, 1:]
        log_size = jnp.log(jnp.diagonal(L, axis1=1, axis2=2))
        evidence = jnp.sum(jnp.where(mask, -0.5 * (z**2 + jnp.log(2 * jnp.pi)) - log_size, 0), axis=1)
        mean = self.mean[:, None] + jnp.einsum("epn,en->ep", c, z)
        variance = (jnp.exp(self.log_variance) + self._noise)[:, None] - jnp.sum(c**2, axis=2)
        log_weight = jax.nn.log_softmax(self.logit + evidence)
        return Mixture(jnp.broadcast_to(log_weight, mean.T.shape), mean.T, jnp.maximum(variance, _LEAST_NOISE).T)

    def covariance(self, difference: Float[Array, "*s"]) -> Float[Array, "e *s"]:
        """Of the functions without their noise."""
        shape = (-1, *[1] * difference.ndim)
        r = jnp.abs(difference) / jnp.exp(self.log_length).reshape(shape)
        twice = 5**0.5 * r[2:4]
        sine = jnp.sin(jnp.pi * difference / jnp.exp(self.log_period[5:]).reshape(shape))
        repeating = jnp.exp(-0.5 * r[5:] ** 2 - 2 * jnp.exp(self.log_repetition[5:]).reshape(shape) * sine**2)
        parts = [jnp.exp(-0.5 * r[:2] ** 2), (1 + twice + twice**2 / 3) * jnp.exp(-twice), jnp.exp(-r[4:5]), repeating]
        return jnp.exp(self.log_variance).reshape(shape) * jnp.concatenate(parts)

    @property
    def _noise(self) -> Float[Array, "e"]:
        return jnp.exp(self.log_noise) + _LEAST_NOISE


def _whiten(
    K: Float[Array, "e n n"], rows: Float[Array, "e k n"]
) -> tuple[Float[Array, "e n n"], Float[Array, "e k n"]]:
    """The Cholesky factor L of each matrix and ``L^-1`` of the rows.

    Bordered by the rows, one decomposition does both. It also waits for the rows: two decompositions in flight at the same
    time have been seen to wait for each other for ever, and the rows come from that of the tasks' own drawing.
    """
    n, k = K.shape[1], rows.shape[1]
    corner = jnp.broadcast_to(_HUGE * jnp.eye(k, dtype=K.dtype), (len(K), k, k))
    L = jnp.linalg.cholesky(jnp.block([[K, jnp.swapaxes(rows, 1, 2)], [rows, corner]]))
    return L[:, :n, :n], L[:, n:, :n]
