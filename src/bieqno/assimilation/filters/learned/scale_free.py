"""What the pretrained filter sees: numbers without units, of an ensemble, its observations and what it remembers."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from bieqno.assimilation.filters.learned.local_features import mean_and_anomalies, resolved, without_padding
from bieqno.assimilation.filters.learned.memory import Memory
from bieqno.assimilation.geometry import gaspari_cohn
from bieqno.assimilation.neighbourhoods import Stencil
from bieqno.assimilation.observation import Observed

SEEN = 16  # numbers that are seen of each variable before the analysis
TINY = 1e-12  # of numbers without units
ZERO = 1e-30  # square of a deviation, in any unit, of members that agree


class Moments(eqx.Module):
    """Moments of an ensemble, and of its predictions in units of the observation error; padding has anomalies of zero."""

    count: Float[Array, ""]
    mean: Float[Array, "n"]
    A: Float[Array, "N n"]
    deviation: Float[Array, "n"]
    S: Float[Array, "N m"]
    expected: Float[Array, "m"]  # variance of predictions
    innovation: Float[Array, "m"]
    shrink: Float[Array, "m"]  # of S and innovation, for errors that are lost in the rounding of the spread

    @property
    def root(self) -> Float[Array, ""]:
        """Factor from anomalies to deviations of members."""
        return jnp.sqrt(jnp.maximum(self.count - 1, 1))

    @classmethod
    def of(cls, ensemble: Float[Array, "N n"], present: Bool[Array, "N"], observed: Observed) -> "Moments":
        """Look at an ensemble, all of it or the members that are present."""
        ensemble, observed = without_padding(ensemble, present, observed)
        (x, A), (y, Y) = (mean_and_anomalies(rows, present) for rows in (ensemble, observed.predict(ensemble)))
        S, d = observed.whiten(Y), observed.whiten((observed.value - y)[None])[0]
        shrink = resolved(S)
        S, d, count = S * shrink, d * shrink, jnp.sum(present, dtype=ensemble.dtype)
        return cls(count, x, A, jnp.sqrt(jnp.sum(A**2, axis=0) + ZERO), S, jnp.sum(S**2, axis=0), d, shrink)

    def joined(self, lagged: Float[Array, "l n"], observed: Observed, member_weights: Float[Array, "a"]) -> "Moments":
        """Return these moments with lagged anomalies behind those of this forecast, in units for these weights."""
        predicted = jax.lax.stop_gradient(
            observed.predict(self.mean + jnp.concatenate([0 * lagged[:1], self.root * lagged]))
        )
        # An operator may not be defined that far from the mean, as a logarithm is not.
        apart = predicted[1:] - predicted[0]
        earlier = observed.whiten(jnp.where(jnp.isfinite(apart), apart, 0)) / self.root
        S = jnp.concatenate([self.S / self.shrink, earlier])
        shrink = resolved(member_weights[:, None] * S)
        rows = jnp.concatenate([self.A, lagged]), self.deviation, S * shrink, self.expected
        return Moments(self.count, self.mean, *rows, self.innovation / self.shrink * shrink, shrink)

    def weighted(self, member_weights: Float[Array, "l"]) -> "Moments":
        """Return the moments with anomalies times these factors."""
        A, S = member_weights[:, None] * self.A, member_weights[:, None] * self.S
        deviation, expected = jnp.sqrt(jnp.sum(A**2, axis=0) + ZERO), jnp.sum(S**2, axis=0)
        return Moments(self.count, self.mean, A, deviation, S, expected, self.innovation, self.shrink)

    def related(self, close: Stencil) -> Float[Array, "k n"]:
        """Return the squares of the sample correlations of each variable with the predictions near it."""
        scaled = self.S / jnp.sqrt(self.expected + TINY)
        return jnp.minimum(jnp.sum((self.A / self.deviation)[:, None] * scaled[:, close.indices.T], axis=0) ** 2, 1)

    def known(self, close: Stencil, mask: Bool[Array, "m"]) -> Bool[Array, "k n"]:
        """Return which of the observations near each variable there are; of members that agree nothing is learned."""
        return (mask & (self.expected > 0))[close.indices.T] & (close.spread(close.present) > 0)

    def tails(self) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Return mean squared skewness and mean kurtosis of all variables, over what they are in a normal ensemble."""
        unit = self.A / self.deviation * self.root
        third, fourth = (jnp.mean(jnp.sum(unit**power, axis=0) ** (2 if power == 3 else 1)) for power in (3, 4))
        return third / (6 * self.count + 1), fourth / (3 * self.count)


def tapers(close: Stencil, log_radius: Float[Array, "k n"], known: Bool[Array, "k n"]) -> Float[Array, "k n"]:
    """Return how much each observation near a variable counts; the radius is in units of that of the stencil."""
    distance = close.spread(jnp.sqrt(jnp.sum(close.offset**2, axis=-1)))
    return jnp.where(known, gaspari_cohn(jnp.broadcast_to(distance, known.shape), jnp.exp(log_radius)), 0)


def hybrid_weights(share: Float[Array, "*s"], own: int, lagged: int) -> Float[Array, "*s l"]:
    """Return the factors of own and lagged anomalies under which the latter have a share of the covariances."""
    earlier = jnp.arange(own + lagged) >= own
    return jnp.sqrt(jnp.where(earlier, share[..., None], 1 - share[..., None]))


def features(
    prior: Moments,
    tails: tuple[Float[Array, ""], Float[Array, ""]],
    memory: Memory,
    sums: tuple[Float[Array, "n"], Float[Array, "n"], Float[Array, "n"]],
    consistency: tuple[Float[Array, "n"], Float[Array, "n"]],
    log_radius: Float[Array, "n"],
) -> Float[Array, "f n"]:
    """Return what the network sees of each variable before the analysis.

    The ensemble size; number, expected and actual squares of the innovations near it and of all; the variance ratio that is
    remembered, with its uncertainty; the radius; tails of the ensemble; and how much the spread grew since the last analysis.
    """
    number, squares, expected = sums
    ratio, doubt = consistency
    share, every = expected / jnp.maximum(number, 1e-3), jnp.ones_like(number)
    total, all_squares, all_expected = (jnp.sum(x) for x in sums)
    overall = all_expected / jnp.maximum(total, 1e-3)
    skewness, kurtosis = tails
    grown = jnp.log(prior.deviation / jnp.where(memory.spread > 0, memory.spread, prior.deviation))
    grown = jnp.clip(grown, -2, 2)
    fields = [
        every * jnp.log(prior.count) / 3,
        every / jnp.sqrt(prior.count),
        jnp.log1p(number),
        share / (1 + share),
        jnp.log(share + 1e-3) / 3,
        every * overall / (1 + overall),
        jnp.log((1 + squares) / (1 + number + expected)),
        every * jnp.log((1 + all_squares) / (1 + total + all_expected)),
        ratio,
        jnp.log(doubt),
        every * jnp.mean(ratio),
        log_radius,
        every * jnp.log(skewness + 0.1),
        every * jnp.log(kurtosis + 0.1),
        grown,
        every * jnp.mean(grown),
    ]
    return jax.lax.stop_gradient(jnp.stack(fields))
