"""The ensemble transform Kalman filter with the symmetric root (Bishop et al. 2001; Hunt et al. 2007)."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from bieqno.assimilation.linalg import anomalies
from bieqno.assimilation.observation import Observed


class ETKF(eqx.Module):
    """Moves mean and anomalies by the Kalman filter's formulas, exactly and without perturbations.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from bieqno.assimilation import Observation
        >>> prior = jnp.array([[-1.0], [1.0]])  # mean 0, variance 2
        >>> observed = Observation([0], 2.0).window(jnp.array([3.0]))
        >>> posterior = ETKF()(prior, observed, key=jax.random.key(0))
        >>> posterior.mean().round(4).item(), posterior.var(ddof=1).round(4).item()  # 1 and 4/3
        (1.0, 1.333299994468689)
    """

    def __call__(self, ensemble: Float[Array, "N n"], observed: Observed, *, key: PRNGKeyArray) -> Float[Array, "N n"]:
        """Analyse one window; draws nothing at random."""
        predicted = observed.predict(ensemble)
        predicted_mean, Y = anomalies(predicted)
        mean, A = anomalies(ensemble)
        S = observed.whiten(Y)
        innovation = observed.whiten((observed.value - predicted_mean)[None])[0]
        # With S = U L V^T:  weights = U L (1 + L^2)^-1 V^T d,  transform = U (1 + L^2)^(-1/2) U^T, the identity
        # outside the columns of U.
        U, L, Vt = jnp.linalg.svd(S, full_matrices=False)
        weights = U @ (L / (1 + L**2) * (Vt @ innovation))
        shrink = U @ ((U.T @ (ensemble - mean)) * (1 / jnp.sqrt(1 + L**2) - 1)[:, None])
        return ensemble + weights @ A + shrink
