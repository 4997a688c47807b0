"""Which observations moved a variable, and by how much.

The increment of the mean is followed along the path from no innovation (each observed value is what the ensemble predicts)
to the observed values; each observation gets its part of the way: the integrated gradients of Sundararajan, Taly and Yan
(2017). Where the update is linear, as in every Kalman filter, that is the gain times the innovation, exactly. For a learned
filter the parts still sum to the increment, up to what it does without any innovation. A filter that draws members anew
has no derivative: there each observation is left out in turn.
"""

from collections.abc import Callable
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from bieqno.arguments import checked
from bieqno.assimilation.observation import Observed
from bieqno.assimilation.protocols import Filter

NODES = 8  # of Gauss and Legendre, along the path
COMPLETE = 0.02  # largest share of the increment that the parts may miss before observations are left out in turn
TINY = 1e-30  # of a gain that is zero
LINEAR = 1e-3  # largest change of the gain along the path, as a share of it, of an update that counts as linear


class Explanation(eqx.Module):
    """The increment of the analysis mean, and the part that each observation has in it."""

    increment: Float[Array, "n"]  # of the mean, posterior minus prior
    innovation: Float[Array, "m"]  # observed minus predicted mean; zero where missing
    contribution: Float[Array, "n m"]  # what each observation moved each variable by
    remainder: Float[Array, "n"]  # increment minus all contributions: what moves without any innovation
    method: Literal["linear", "path", "leave-one-out"] = eqx.field(static=True)

    @property
    def gain(self) -> Float[Array, "n m"]:
        """Contribution per unit of innovation; zero where there is none."""
        moved = self.innovation != 0
        return jnp.where(moved, self.contribution / jnp.where(moved, self.innovation, 1), 0)

    @property
    def share(self) -> Float[Array, "n m"]:
        """Contribution as a share of all that moved the variable, the sum of absolute contributions."""
        total = jnp.sum(jnp.abs(self.contribution), axis=1, keepdims=True)
        return jnp.where(total > 0, self.contribution / jnp.where(total > 0, total, 1), 0)


@checked()
def explain(
    filter: Filter, ensemble: Float[Array, "N n"], observed: Observed, *, key: PRNGKeyArray | None = None
) -> Explanation:
    """Return what each observation has moved each variable by, in one analysis of an ensemble.

    With the key of a window of `cycle` it explains that very analysis. A filter in other coordinates of the observed values
    (`Transformed(seen=...)`) compares there, so that a part of its increment may count as a remainder.

    Example:
        >>> from bieqno.assimilation import ETKF, Observation
        >>> prior = jnp.array([[0.0, 0.0], [2.0, 1.0], [4.0, 2.0]])
        >>> found = explain(ETKF(), prior, Observation([0, 1], 1.0).window(jnp.array([3.0, jnp.nan])))
        >>> found.method, found.innovation.tolist(), bool(jnp.allclose(found.gain[:, 0], jnp.array([0.8, 0.4])))
        ('linear', [1.0, 0.0], True)
    """
    key = jax.random.key(0) if key is None else key
    prior = jnp.mean(ensemble, axis=0)
    # What a filter compares with: of a law that is not Gaussian its mean.
    predicted = jnp.mean(observed.gaussian(ensemble).predict(ensemble), axis=0)
    innovation = jnp.where(observed.mask, observed.value - predicted, 0)

    def increment(value: Float[Array, "m"]) -> Float[Array, "n"]:
        given = eqx.tree_at(lambda o: o.value, observed, jnp.where(observed.mask, value, 0))
        return jnp.mean(filter(ensemble, given, key=key), axis=0) - prior

    full = increment(observed.value)
    none = increment(observed.value - innovation)
    contribution, change = _along_path(increment, observed.value, innovation)
    missed = jnp.linalg.norm(full - none - jnp.sum(contribution, axis=1))
    if not missed <= COMPLETE * jnp.linalg.norm(full - none) + 1e-6 * jnp.linalg.norm(prior):
        contribution = _left_out(filter, ensemble, observed, full + prior, key)
        method: Literal["linear", "path", "leave-one-out"] = "leave-one-out"
    else:
        method = "linear" if change <= LINEAR else "path"
    return Explanation(full, innovation, contribution, full - jnp.sum(contribution, axis=1), method)


def _along_path(
    increment: Callable[[Float[Array, "m"]], Float[Array, "n"]], value: Float[Array, "m"], innovation: Float[Array, "m"]
) -> tuple[Float[Array, "n m"], float]:
    """Return the gain along the path, integrated, times the innovation; and by how much it changes, as a share of it."""
    points, weights = np.polynomial.legendre.leggauss(NODES)
    # In reverse mode, for the local analysis has no derivative in the other.
    gain = jax.jit(jax.jacrev(increment))
    gains = jnp.stack([gain(value - (1 - (1 + point) / 2) * innovation) for point in points])
    mean = jnp.tensordot(jnp.asarray(weights / 2, gains.dtype), gains, axes=1)
    change = jnp.max(jnp.linalg.norm(gains - mean, axis=(1, 2)))
    return mean * innovation, float(change / jnp.maximum(jnp.linalg.norm(mean), TINY))


def _left_out(
    filter: Filter, ensemble: Float[Array, "N n"], observed: Observed, posterior: Float[Array, "n"], key: PRNGKeyArray
) -> Float[Array, "n m"]:
    """Return how the posterior mean changes by each observation, the others given."""

    def without(k: Array) -> Float[Array, "n"]:
        mask = observed.mask & (jnp.arange(len(observed.mask)) != k)
        given = eqx.tree_at(lambda o: o.mask, observed, mask)
        return posterior - jnp.mean(filter(ensemble, given, key=key), axis=0)

    return jax.lax.map(without, jnp.arange(len(observed.mask))).T
