"""The local ensemble transform Kalman filter (Hunt, Kostelich and Szunyogh 2007)."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from bieqno.assimilation.krylov import root_and_gain
from bieqno.assimilation.linalg import anomalies
from bieqno.assimilation.localization import Neighbours, gaspari_cohn
from bieqno.assimilation.observation import Observed

# Numbers gathered at a time: analyses are done in chunks of about this, so that memory is bounded and stays in cache.
CHUNK = 2**18


class LETKF(eqx.Module):
    """An ETKF for each variable with the observations near it, whose errors grow with distance.

    Cost and memory are linear in the number of variables. Correlated errors are whitened by the symmetric
    root of R first, which keeps every value nearest to its place.

    Args:
        neighbours: the observations that can reach each variable.
        radius: where the influence of an observation ends; at most that of the neighbours.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from bieqno.assimilation import Neighbours, Observation
        >>> ring = jnp.arange(8.0)[:, None]
        >>> filter = LETKF(Neighbours.within(2.0, ring, ring[:1], period=8.0), 2.0)
        >>> prior = jax.random.normal(jax.random.key(0), (5, 8))
        >>> observed = Observation([0], 1.0).window(jnp.array([2.0]))
        >>> moved = filter(prior, observed, key=jax.random.key(1)) - prior
        >>> (jnp.abs(moved).max(axis=0) > 1e-6).tolist()
        [True, True, False, False, False, False, False, True]
    """

    neighbours: Neighbours
    radius: float | Float[Array, ""]

    def __check_init__(self) -> None:
        # A traced radius has no value yet; `tune` checks its grid before it traces.
        if isinstance(self.radius, jax.core.Tracer):
            return
        if float(self.radius) > self.neighbours.radius * (1 + 1e-6):  # rounding in 32 bits
            raise ValueError(
                f"a radius of {float(self.radius):g} is beyond that of the neighbours, {self.neighbours.radius:g}: "
                "build these with Neighbours.within for the largest radius of interest"
            )

    def __call__(self, ensemble: Float[Array, "N n"], observed: Observed, *, key: PRNGKeyArray) -> Float[Array, "N n"]:
        """Analyse one window; draws nothing at random."""
        count, size = ensemble.shape
        reach = self.neighbours.indices.shape
        known, present = (reach[0], self.neighbours.observations), (size, observed.value.shape[0])
        if known != present:
            raise ValueError(
                f"neighbours are known for {known[0]} variables and {known[1]} observations, "
                f"the state has {present[0]} and {present[1]} are observed"
            )
        if not reach[1]:
            return ensemble
        predicted_mean, Y = anomalies(observed.predict(ensemble))
        mean, A = anomalies(ensemble)
        # One row per observation, the innovation behind the anomalies: a neighbourhood is a gather of rows.
        innovation = observed.whiten((observed.value - predicted_mean)[None])
        rows = jnp.concatenate([observed.whiten(Y), innovation]).T
        # An error that is lost in the rounding of the spread, as where an error law passes through zero, would cost
        # all digits; it counts as this share of the spread, 2 % in 32 bits and 0.01 % in 64.
        share = float(np.finfo(rows.dtype).eps) ** 0.25
        rows = rows / jnp.maximum(1, share * jnp.linalg.norm(rows[:, :-1], axis=1, keepdims=True))
        weight = jnp.sqrt(gaspari_cohn(self.neighbours.distance, self.radius)).astype(rows.dtype)

        def analyse(
            a: Float[Array, "b N"], near: Int[Array, "b k"], weight: Float[Array, "b k"]
        ) -> Float[Array, "b N"]:
            local = rows[near] * weight[..., None]
            S, d = local[..., :-1], local[..., -1]
            root, gain = root_and_gain(jnp.swapaxes(S, 1, 2), a)
            # The mean moves by a^T (I + S S^T)^-1 S d, the same for all members.
            shift = jnp.sum(gain * d, axis=1)
            return root * jnp.sqrt(max(count - 1, 1)).astype(a.dtype) + shift[:, None]

        chunk = min(size, max(1, CHUNK // (count * reach[1])))
        chunks = -(-size // chunk)
        padding = chunks * chunk - size
        if chunks == 1:
            moved = analyse(A.T, self.neighbours.indices, weight)
        else:
            parts = [
                jnp.pad(x, ((0, padding), (0, 0))).reshape(chunks, chunk, -1)
                for x in (A.T, self.neighbours.indices, weight)
            ]
            moved = jax.lax.map(lambda part: analyse(*part), tuple(parts)).reshape(-1, count)[:size]
        return observed.or_prior(mean + moved.T, ensemble)
