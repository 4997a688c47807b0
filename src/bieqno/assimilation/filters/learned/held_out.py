"""Held-out observations: how well local analyses of several radii predict what is left out of them.

Correlations tell the radius that is best for one covariance after another. How many observations an ensemble of a few members
can take in at once they do not tell, nor whether a network steers well where it was not trained: both show in what is held out.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from bieqno.assimilation.filters.learned.memory import FACTORS
from bieqno.assimilation.filters.learned.scale_free import TINY, Moments
from bieqno.assimilation.geometry import gaspari_cohn
from bieqno.assimilation.krylov import root_and_gain
from bieqno.assimilation.neighbourhoods import Stencil

PLACES = 16  # where it is tried in each window, at most and drawn at random: the cost does not grow with the system


def held_out(
    prior: Moments,
    member_weights: Float[Array, "s l"],
    close: Stencil,
    known: Bool[Array, "k n"],
    kinds: tuple[Int[Array, "n"], Int[Array, "m"]],
    log_radius: Float[Array, "k n"],
    inflation: Float[Array, "n"],
    *,
    key: PRNGKeyArray,
) -> Float[Array, "3 c"]:
    """Return sums over some places of log variances, squared errors over them, and ones.

    Each is of the observation nearest to a variable, as the analysis of all others near it predicts that, with anomalies times
    each of the `member_weights` and with each factor of the radius. Its kind is that of the variable, for the radius of another
    pair of kinds says nothing about this one's.
    """
    nearest = jnp.argmax(known, axis=0)  # a stencil is in this order
    left = jnp.take_along_axis(close.indices, nearest[:, None], axis=1)[:, 0]
    apt = jnp.any(known, axis=0) & (kinds[0] == kinds[1][left])
    here = jax.lax.top_k(jnp.where(apt, jax.random.uniform(key, apt.shape), -1), min(PLACES, len(apt)))[1]
    left, near, apt, scale = left[here], close.indices[here], apt[here], inflation[here, None]
    others = known[:, here].T & (near != left[:, None])
    distance = close.spread(jnp.sqrt(jnp.sum(close.offset**2, axis=-1)), close.pattern[here]).T
    radius = jnp.exp(log_radius[:, here].T) * jnp.asarray(FACTORS)[:, None, None]
    taper = gaspari_cohn(jnp.broadcast_to(distance, radius.shape), radius)
    weight = jnp.where(others, jnp.sqrt(taper + TINY), 0)
    S, start = ((scale * weight)[..., None] * prior.S.T[near], scale * prior.S.T[left])
    S, start = (member_weights.reshape(-1, *[1] * (x.ndim - 1), x.shape[-1]) * x for x in (S, start))
    starts = jnp.broadcast_to(start[:, None], (*S.shape[:3], S.shape[4]))
    flat = jnp.swapaxes(S, 3, 4).reshape(-1, S.shape[4], S.shape[3]), starts.reshape(-1, S.shape[4])
    root, gain = (x.reshape(-1, *weight.shape[1:2], x.shape[-1]) for x in root_and_gain(*flat))
    weight = jnp.tile(weight, (len(member_weights), 1, 1))
    predicted = jnp.sum(gain * weight * prior.innovation[near], axis=-1)
    variance = 1 + jnp.sum(root**2, axis=-1)
    each = jnp.log(variance), (prior.innovation[left] - predicted) ** 2 / variance, jnp.ones_like(variance)
    return jnp.stack([jnp.sum(jnp.where(apt, x, 0), axis=1) for x in each])
