"""The bootstrap particle filter (Gordon, Salmond and Smith 1993) with systematic resampling and jitter."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from bieqno.arguments import checked
from bieqno.assimilation.linalg import white_noise
from bieqno.assimilation.observation import Observed


class ParticleFilter(eqx.Module):
    """Weigh members by their likelihood under any law, resample them, and jitter the copies.

    Assumes nothing about linearity or the shape of the prior; needs many members. It resamples in every window with
    observations, since an ensemble carries no weights from one to the next. Survivors keep their places and copies fill
    the others, in an order set by the weights: the filter commutes with permutations. The jitter has the covariance of the
    weighted ensemble, in units of the bandwidth ``N^(-1/(n+4))`` of a kernel density estimate.

    Example:
        >>> from bieqno.assimilation import Observation
        >>> prior = jax.random.normal(jax.random.key(0), (4000, 1))
        >>> observed = Observation([0], 1.0).window(jnp.array([2.0]))
        >>> posterior = ParticleFilter(jitter=0.2)(prior, observed, key=jax.random.key(1))
        >>> posterior.mean().round(1).item(), posterior.var().round(1).item()
        (1.0, 0.5)
    """

    jitter: float | Float[Array, ""] = 0.5

    @checked()
    def __call__(self, ensemble: Float[Array, "N n"], observed: Observed, *, key: PRNGKeyArray) -> Float[Array, "N n"]:
        """Analyse one window."""
        count, size = ensemble.shape
        comb_key, noise_key = jax.random.split(jax.random.fold_in(key, 1))
        offset = jax.random.uniform(comb_key, (), ensemble.dtype)
        noise = white_noise((count, count if count < size else size), ensemble.dtype, key=noise_key)
        return self.update(ensemble, observed, offset, noise)

    def update(
        self, ensemble: Float[Array, "N n"], observed: Observed, offset: Float[Array, ""], noise: Float[Array, "N k"]
    ) -> Float[Array, "N n"]:
        """Analyse with given randomness: the offset of the resampling comb in [0, 1), and one row of jitter per member."""
        count, size = ensemble.shape
        weights = jax.nn.softmax(observed.log_weights(ensemble))
        chosen = ensemble[_resample(weights, offset)]
        # A factor of the covariance in the smaller of N and n, so that the jitter of few members stays in their span.
        A = (ensemble - weights @ ensemble) * jnp.sqrt(weights)[:, None]
        if noise.shape[1] == count:
            shake = noise @ A
        else:
            values, vectors = jnp.linalg.eigh(A.T @ A)
            shake = noise @ (vectors * jnp.sqrt(jnp.maximum(values, 0))).T
        bandwidth = self.jitter * count ** (-1 / (size + 4))
        return observed.or_prior(chosen + jnp.asarray(bandwidth, ensemble.dtype) * shake, ensemble)


def _resample(weights: Float[Array, "N"], offset: Float[Array, ""]) -> Array:
    """Parents by systematic resampling, survivors in their own places."""
    count = weights.shape[0]
    # The order of the weights, not of the members, decides which are hit by the comb's teeth.
    order = jnp.argsort(-weights)
    edges = jnp.cumsum(weights[order])
    # Rounding must neither add a tooth nor lose the last.
    teeth = jnp.minimum(jnp.floor(edges / edges[-1] * count + 1 - offset), count).at[-1].set(count)
    copies = jnp.diff(teeth.astype(int), prepend=0)
    extra = jnp.maximum(copies - 1, 0)
    # The j-th empty place takes the j-th extra copy.
    donors = jnp.repeat(jnp.arange(count), extra, total_repeat_length=count)
    vacancy = jnp.cumsum(copies == 0) - 1
    source = jnp.where(copies > 0, jnp.arange(count), donors[vacancy])
    return jnp.zeros(count, int).at[order].set(order[source])
