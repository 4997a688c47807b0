"""Mean and scaled anomalies of an ensemble."""

import jax.numpy as jnp
from jaxtyping import Array, Float


def anomalies(ensemble: Float[Array, "N n"]) -> tuple[Float[Array, "n"], Float[Array, "N n"]]:
    """Mean, and deviations A scaled so that ``A.T @ A`` is the ensemble covariance.

    One member has no deviation: its anomalies are zero, and whatever weighs by covariances leaves it alone.

    Example:
        >>> import jax.numpy as jnp
        >>> mean, A = anomalies(jnp.array([[1.0], [3.0]]))
        >>> mean.tolist(), (A.T @ A).item()
        ([2.0], 2.0)
    """
    mean = jnp.mean(ensemble, axis=0)
    return mean, (ensemble - mean) / jnp.sqrt(max(ensemble.shape[0] - 1, 1)).astype(ensemble.dtype)
