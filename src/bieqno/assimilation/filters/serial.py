"""The serial ensemble square-root filter, one observation after another (Whitaker and Hamill 2002)."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from bieqno.arguments import checked
from bieqno.assimilation.linalg import anomalies
from bieqno.assimilation.observation import Observed


class SerialEnSRF(eqx.Module):
    """Assimilates scalar observations in turn, each with its gain tapered by distance.

    Correlated errors are whitened by the symmetric root of R first. The tapers are the weights of each observation on the
    variables and on the observations, which is how the predictions of later ones learn of earlier ones; None for 1.

    Example:
        >>> from bieqno.assimilation import Observation, distances, gaspari_cohn
        >>> prior = jax.random.normal(jax.random.key(0), (10, 4))
        >>> place = jnp.arange(4.0)[:, None]
        >>> taper = gaspari_cohn(distances(place[:1], place), 2.0)
        >>> filter = SerialEnSRF(taper, taper[:, :1])
        >>> observed = Observation([0], 1.0).window(jnp.array([2.0]))
        >>> moved = filter(prior, observed, key=jax.random.key(1)) - prior
        >>> (jnp.abs(moved).max(axis=0) > 1e-6).tolist()
        [True, True, False, False]
    """

    state_taper: Float[Array, "m n"] | None = None
    observation_taper: Float[Array, "m m"] | None = None

    def __check_init__(self) -> None:
        if (self.state_taper is None) != (self.observation_taper is None):
            raise ValueError("localization tapers both the state and the observations, or neither")

    @checked()
    def __call__(self, ensemble: Float[Array, "N n"], observed: Observed, *, key: PRNGKeyArray) -> Float[Array, "N n"]:
        """Analyse one window; draws nothing at random."""
        count = observed.value.shape[0]
        if not count:
            return ensemble
        observed = observed.gaussian(ensemble)
        state_taper, observation_taper = (jnp.ones((count, 1)),) * 2  # without localization
        if self.state_taper is not None and self.observation_taper is not None:
            state_taper, observation_taper = self.state_taper, self.observation_taper
            observed.check_tapers(ensemble, state_taper, observation_taper)
        predicted_mean, Y = anomalies(observed.predict(ensemble))
        mean, A = anomalies(ensemble)
        S = observed.whiten(Y)
        innovation = observed.whiten((observed.value - predicted_mean)[None])[0]

        def assimilate(carry: tuple[Array, ...], turn: tuple[Array, Array, Array]) -> tuple[tuple[Array, ...], None]:
            mean, A, S, innovation = carry
            k, on_variables, on_observations = turn
            s = S[:, k]
            variance = s @ s
            state_gain = on_variables * (s @ A) / (1 + variance)
            observation_gain = on_observations * (s @ S) / (1 + variance)
            # Potter's factor shrinks the anomalies of this observation by exactly 1 / sqrt(1 + variance).
            reduced = s / (1 + 1 / jnp.sqrt(1 + variance))
            return (
                mean + state_gain * innovation[k],
                A - reduced[:, None] * state_gain,
                S - reduced[:, None] * observation_gain,
                innovation - observation_gain * innovation[k],
            ), None

        turns = (jnp.arange(count), state_taper.astype(A.dtype), observation_taper.astype(A.dtype))
        begin: tuple[Array, ...] = (mean, A, S, innovation)
        mean, A, *_ = jax.lax.scan(assimilate, begin, turns)[0]
        posterior = mean + A * jnp.sqrt(max(ensemble.shape[0] - 1, 1)).astype(A.dtype)
        return observed.or_prior(posterior, ensemble)
