"""The ensemble Kalman filter with perturbed observations (eq. 12 of the paper; Burgers et al. 1998)."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from bieqno.arguments import checked, finite_floats
from bieqno.assimilation.linalg import anomalies, increments, thin_svd
from bieqno.assimilation.observation import Observed


class EnKF(eqx.Module):
    """Moves every member by ``K (d_i - H(z_i))`` with the gain of the ensemble's own covariances.

    Args:
        sampled: take the error covariance in the gain from the perturbations themselves, as the paper writes it, instead of
            R; its pseudo-inverse where that is singular.
        centred: make the perturbations sum to zero, which takes their sampling error off the mean.

    Example:
        >>> import jax
        >>> from bieqno.assimilation import Observation
        >>> prior = jax.random.normal(jax.random.key(0), (1000, 1))
        >>> observed = Observation([0], 1.0).window(jnp.array([2.0]))
        >>> posterior = EnKF()(prior, observed, key=jax.random.key(1))
        >>> posterior.mean().round(1).item(), posterior.var().round(1).item()  # 1 and 1/2
        (1.0, 0.5)
    """

    sampled: bool = eqx.field(static=True, default=False)
    centred: bool = eqx.field(static=True, default=True)

    @checked()
    def __call__(self, ensemble: Float[Array, "N n"], observed: Observed, *, key: PRNGKeyArray) -> Float[Array, "N n"]:
        """Analyse one window."""
        observed = observed.gaussian(ensemble)
        perturbed = observed.perturb(ensemble.shape[0], key=key)
        if self.centred:
            perturbed = perturbed + (observed.value - jnp.mean(perturbed, axis=0))
        predicted = observed.predict(ensemble)
        A = anomalies(ensemble)[1]
        S = observed.whiten(anomalies(predicted)[1])
        innovations = observed.whiten(perturbed - predicted)
        if not self.sampled:
            return ensemble + increments(S, innovations, A)
        # C_yy + C_dd is the Gram matrix of the stacked anomalies G = [S; P] = W L V^T, and S^T the transpose of the
        # upper rows of that: the gain needs no Gram matrix, whose condition would be the square of G's.
        G = jnp.concatenate([S, observed.whiten(anomalies(perturbed)[1])])
        W, L, Vt = thin_svd(G)
        significant = max(G.shape) * np.finfo(L.dtype).eps * jnp.max(L, initial=0.0) < L
        inverse = jnp.where(significant, 1 / jnp.where(significant, L, 1), 0)
        return ensemble + ((innovations @ Vt.T * inverse) @ W[: S.shape[0]].T) @ A


class LocalEnKF(eqx.Module):
    """The EnKF with covariances tapered by distance (Houtekamer and Mitchell 2001), for states whose covariances fit in memory.

    Correlated errors are whitened first. The tapers are the weights of each observation on the variables and on the observations.

    Example:
        >>> import jax
        >>> from bieqno.assimilation import Observation, distances, gaspari_cohn
        >>> prior = jax.random.normal(jax.random.key(0), (10, 4))
        >>> place = jnp.arange(4.0)[:, None]
        >>> taper = gaspari_cohn(distances(place[:1], place), 2.0)
        >>> observed = Observation([0], 1.0).window(jnp.array([2.0]))
        >>> moved = LocalEnKF(taper, taper[:, :1])(prior, observed, key=jax.random.key(1)) - prior
        >>> (jnp.abs(moved).max(axis=0) > 1e-6).tolist()
        [True, True, False, False]
    """

    state_taper: Float[Array, "m n"] = eqx.field(converter=finite_floats("state_taper"))
    observation_taper: Float[Array, "m m"] = eqx.field(converter=finite_floats("observation_taper"))

    def __check_init__(self) -> None:
        if self.state_taper is None or self.observation_taper is None:
            raise TypeError("state_taper and observation_taper hold numbers, got None")

    @checked()
    def __call__(self, ensemble: Float[Array, "N n"], observed: Observed, *, key: PRNGKeyArray) -> Float[Array, "N n"]:
        """Analyse one window."""
        observed.check_tapers(ensemble, self.state_taper, self.observation_taper)
        observed = observed.gaussian(ensemble)
        perturbed = observed.perturb(ensemble.shape[0], key=key)
        perturbed = perturbed + (observed.value - jnp.mean(perturbed, axis=0))
        predicted = observed.predict(ensemble)
        A, S = anomalies(ensemble)[1], observed.whiten(anomalies(predicted)[1])
        taper = self.observation_taper.astype(S.dtype)
        expected = taper * (S.T @ S) + jnp.eye(len(taper), dtype=S.dtype)
        weights = jnp.linalg.solve(expected, observed.whiten(perturbed - predicted).T)
        return ensemble + weights.T @ (self.state_taper.astype(S.dtype) * (S.T @ A))
