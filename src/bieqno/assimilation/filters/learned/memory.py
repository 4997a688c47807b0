"""What a filter remembers of earlier windows: how consistent innovations were, how far correlations reach, and what was held out.

Decaying sums over windows, of numbers without units. From the first follows how much larger the errors of forecasts are than
their spread, as in adaptive inflation (Anderson 2009; Miyoshi 2011): one ratio of variances for all observations, which many
windows tell, and from it one near each variable. From the second follows beyond which distance a sample covariance of so few
members is mostly noise, from the third how much wider or narrower a taper predicts observations best that are left out.
"""

from functools import cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from bieqno.assimilation.geometry import gaspari_cohn
from bieqno.assimilation.neighbourhoods import Stencil

WINDOWS = 50.0  # after which a window counts 1/e
BINS = 16  # of distance, from 0 to the radius within which observations are looked for
RADII = tuple(np.geomspace(0.06, 3.0, 48).tolist())  # of tapers, in that unit, among which the best is chosen
FACTORS = (0.35, 0.6, 1.0, 1.7, 2.8)  # of the radius, of which held-out observations say which is best
SHARES = (0.4, 1.0, 2.5)  # and of the share of earlier forecasts in the covariances
LAGS, EACH = 10, 4  # windows whose forecast anomalies are remembered, and how many of each
SHARE = 0.3  # of what is held out that counts as independent
PREFERENCE = 0.5  # deviation of the logarithm of a factor before anything was held out
POOLED_WINDOWS = 300.0  # after which a window counts 1/e for the variance ratio of all observations
POOLED_DEVIATION = 0.7  # of the logarithm of that ratio before anything was observed
INDEPENDENT = 0.5  # share of the innovations of a window that counts as independent
GROSS = 6.0  # deviations as which an innovation beyond them counts: one gross error is no lost ensemble
CERTAIN = 2.0  # deviations of that logarithm by which the ratio of all observations is drawn towards one
LEAST, MOST, GRID = -1.5, 5.0, 40  # logarithms of variance ratios that are considered, and their number


class Memory(eqx.Module):
    """Decaying sums: near each variable of observations, and over all of squared correlations by kinds and distance."""

    weight: Float[Array, "n"]  # number of observations
    squares: Float[Array, "n"]  # of innovations, in units of the observation error
    expected: Float[Array, "n"]  # variance of predictions, likewise
    correlations: Float[Array, "pairs b"]  # squares of sample correlations of variables and predictions
    number: Float[Array, "pairs b"]  # of these
    spread: Float[Array, "n"]  # of the last analysis; 0 where there was none
    unfamiliar: Float[Array, ""]  # how far what was seen is from what was met in training; 0 within it, a running mean
    windows: Float[Array, ""]  # with observations that there were
    held_out: Float[Array, "3 c"]  # by factors of share and radius: log variances, squared errors over them, number
    lagged: Float[Array, "l n"]  # anomalies of the last forecasts; squares sum to the variance of each on average
    pooled: Float[Array, "g"]  # log-likelihood of one variance ratio for all observations, on the grid of its logarithm

    @classmethod
    def new(cls, variables: int, pairs: int) -> "Memory":
        """Remember nothing."""
        none, binned, zero = jnp.zeros(variables), jnp.zeros((pairs, BINS)), jnp.zeros(())
        held_out, lagged = jnp.zeros((3, len(SHARES) * len(FACTORS))), jnp.zeros((LAGS * EACH, variables))
        return cls(none, none, none, binned, binned, none, zero, zero, held_out, lagged, jnp.zeros(GRID))

    def with_correlations(
        self, square: Float[Array, "k n"], known: Bool[Array, "k n"], pair: Int[Array, "k n"], close: Stencil
    ) -> "Memory":
        """Return the memory a window later, with squares of the correlations between variables and observations near them."""
        distance = jnp.broadcast_to(close.spread(jnp.sqrt(jnp.sum(close.offset**2, axis=-1))), square.shape)
        slot = pair * BINS + jnp.minimum((distance * BINS).astype(int), BINS - 1)
        fade = jnp.where(jnp.any(known), 1 - 1 / WINDOWS, 1.0)

        def summed(before: Float[Array, "pairs b"], values: Float[Array, "k n"]) -> Float[Array, "pairs b"]:
            now = jnp.zeros(before.size, before.dtype).at[slot.ravel()].add(jnp.where(known, values, 0).ravel())
            return fade * before + now.reshape(before.shape)

        found = summed(self.correlations, square), summed(self.number, jnp.ones_like(square))
        return eqx.tree_at(lambda m: (m.correlations, m.number), self, found)

    def with_innovations(
        self, number: Float[Array, "n"], squares: Float[Array, "n"], expected: Float[Array, "n"]
    ) -> "Memory":
        """Return the memory a window later, with sums over the observations near each variable."""
        fade = jnp.where(jnp.any(number > 0), 1 - 1 / WINDOWS, 1.0)
        pairs = ((self.weight, number), (self.squares, squares), (self.expected, expected))
        return eqx.tree_at(lambda m: (m.weight, m.squares, m.expected), self, [fade * old + new for old, new in pairs])

    def with_pooled(self, squares: Float[Array, "m"], expected: Float[Array, "m"], mask: Bool[Array, "m"]) -> "Memory":
        """Return the memory a window later, with the likelihood of its innovations under each variance ratio of all."""
        total = 1 + jnp.exp(_log_ratios()) * expected
        found = -0.5 * jnp.sum(jnp.where(mask, jnp.log(total) + squares / total, 0), axis=1)
        fade = jnp.where(jnp.any(mask), 1 - 1 / POOLED_WINDOWS, 1.0)
        return eqx.tree_at(lambda m: m.pooled, self, jax.lax.stop_gradient(fade * self.pooled + found))

    def with_strange(self, strange: Float[Array, ""], mask: Bool[Array, "m"]) -> "Memory":
        """Return the memory a window later, with how far what was seen in it is from training.

        The mean is one over all windows while these are few: the first says already what it saw.
        """
        windows = self.windows + jnp.any(mask)
        share = jnp.any(mask) / jnp.clip(windows, 1, WINDOWS)
        found = jax.lax.stop_gradient((self.unfamiliar + (strange - self.unfamiliar) * share, windows))
        return eqx.tree_at(lambda m: (m.unfamiliar, m.windows), self, found)

    def with_held_out(self, sums: Float[Array, "3 c"]) -> "Memory":
        """Return the memory a window later, with how observations that were left out were predicted."""
        fade = jnp.where(sums[2, 0] > 0, 1 - 1 / WINDOWS, 1.0)
        return eqx.tree_at(lambda m: m.held_out, self, jax.lax.stop_gradient(fade * self.held_out + sums))

    def with_forecast(
        self, A: Float[Array, "N n"], present: Bool[Array, "N"], mask: Bool[Array, "m"], *, key: PRNGKeyArray
    ) -> "Memory":
        """Return the memory a window later, with a few random members' anomalies of this forecast in place of the oldest."""
        chance, chosen = jax.lax.top_k(
            jnp.where(present, jax.random.uniform(key, present.shape), -1), min(EACH, len(A))
        )
        drawn = jnp.minimum(jnp.sum(present), len(chosen))
        own = jnp.where(chance[:, None] >= 0, A[chosen], 0) * jnp.sqrt(jnp.sum(present) / drawn)
        own = jnp.pad(own, ((0, EACH - len(own)), (0, 0))).astype(self.lagged.dtype)
        moved = jnp.where(jnp.any(mask), jnp.concatenate([own, self.lagged[:-EACH]]), self.lagged)
        return eqx.tree_at(lambda m: m.lagged, self, jax.lax.stop_gradient(moved))

    def lagged_anomalies(self) -> Float[Array, "l n"]:
        """Return anomalies whose squares sum to the mean variance of the last forecasts."""
        return self.lagged / jnp.sqrt(jnp.clip(self.windows, 1, LAGS))

    def log_factors(self) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Return the means of the logarithms of the factors of share and radius, after what was held out.

        By Bayes' rule, with the likelihood of a normal law whose variances are known up to one factor: it is the inflation that
        sets this, and share and radius are to be judged by where they put the mean, and by the relative sizes of variances.
        """
        variances, squares, number = self.held_out
        fit = -0.5 * (variances + number * jnp.log(jnp.maximum(squares, 1e-6) / jnp.maximum(number, 1)))
        share, radius = jnp.meshgrid(*(jnp.log(jnp.asarray(x, fit.dtype)) for x in (SHARES, FACTORS)), indexing="ij")
        prior = -0.5 * (share**2 + radius**2).ravel() / PREFERENCE**2
        odds = jax.nn.softmax(SHARE * fit + prior)
        return odds @ share.ravel(), odds @ radius.ravel()

    def reach(self, count: Float[Array, ""]) -> Float[Array, "pairs"]:
        """Return for each pair of kinds the radius of the taper that is best for covariances of so many members.

        It has the least expected squared error of tapered correlations L c, without bias estimated from the squares of sample
        correlations, whose noise is known (as Menetrier et al. 2015 do for each distance): the sum of ``L^2 c^2 - 2 L r`` with
        r the part of c^2 that is no noise. Correlations that vanish at some distance, as at none between waves' height and
        velocity, thus end no radius. In units of the radius within which observations are looked for.
        """
        noise = 1 / jnp.maximum(count - 1, 1)
        real = (self.correlations - noise * self.number) / jnp.maximum(1 - noise, noise)
        taper = jnp.asarray(_candidates(), real.dtype)
        risk = self.correlations @ taper**2 - 2 * real @ taper
        radius = jnp.asarray(RADII, real.dtype)[jnp.argmin(risk, axis=1)]
        return jnp.where(jnp.any(self.number > 0, axis=1), radius, RADII[-1])

    def pooled_ratio(self) -> Float[Array, ""]:
        """Return the logarithm of the forecasts' error variance over the ensemble's, one for all observations.

        As far as it is `CERTAIN` deviations away from zero: an estimate that wanders about zero costs more than it mends.
        """
        grid = _log_ratios()[:, 0]
        odds = jax.nn.softmax(INDEPENDENT * self.pooled - 0.5 * (grid / POOLED_DEVIATION) ** 2)
        mean = odds @ grid
        deviation = jnp.sqrt(odds @ (grid - mean) ** 2)
        return jnp.sign(mean) * jnp.maximum(jnp.abs(mean) - CERTAIN * deviation, 0)

    def variance_ratio(self, deviation: Float[Array, ""]) -> tuple[Float[Array, "n"], Float[Array, "n"]]:
        """Return mean and deviation of the logarithm of the forecasts' error variance over the ensemble's, near each variable.

        Bayes' rule on a grid: before anything was observed near it the law is normal about the ratio of all observations, with
        this `deviation`.
        """
        grid, expected = _log_ratios(), self.pooled_ratio()
        share = jnp.where(self.weight > 0, 1 / jnp.maximum(self.weight, 1e-6), 0)
        total = 1 + jnp.exp(grid) * self.expected * share
        fit = -0.5 * self.weight * (jnp.log(total) + self.squares * share / total)
        odds = jax.nn.softmax(fit - 0.5 * ((grid - expected) / deviation) ** 2, axis=0)
        mean = jnp.sum(odds * grid, axis=0)
        return mean, jnp.sqrt(jnp.sum(odds * (grid - mean) ** 2, axis=0) + 1e-8)


def bounded_squares(innovation: Float[Array, "m"], expected: Float[Array, "m"]) -> Float[Array, "m"]:
    """Return squares of innovations that are remembered, of predictions with an expected variance."""
    return jnp.minimum(innovation**2, GROSS**2 * (1 + expected))


def _log_ratios() -> Float[Array, "g 1"]:
    """Return the logarithms of the variance ratios that are considered."""
    return jnp.linspace(LEAST, MOST, GRID)[:, None]


@cache
def _candidates() -> Float[np.ndarray, "b r"]:
    """Return the tapers of all radii, in the middle of each bin of distances."""
    with jax.ensure_compile_time_eval():
        middle = (jnp.arange(BINS) + 0.5) / BINS
        return np.stack([np.asarray(gaspari_cohn(middle, radius)) for radius in RADII], axis=1)
