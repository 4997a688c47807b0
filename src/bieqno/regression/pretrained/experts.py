"""Kriging experts: local Gaussian processes with a fixed bank of kernels, given the neighbours of a centre.

Each expert is ordinary kriging, a Gaussian process with an unknown constant mean: a weighted mean of the neighbours' values
whose weights add up to one. Its variance is known up to a scale, which the neighbours determine.

With the neighbours ordered from far to near, the rows of ``L^-1 (y - beta)`` are *innovations*: what each observation adds
to those farther out, in units of what was expected. Their squares and the diagonal of L give the likelihood of the whole
neighbourhood, the last of them that of the nearest observations given the others. Points that share a centre share its
decomposition, which is nearly all of the cost.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bieqno.regression.pretrained.neighbours import Centres, Neighbourhood, Units, length


class Expert(NamedTuple):
    """A stationary kernel."""

    smoothness: str
    length: float  # in units of the spacing
    noise_ratio: float  # variance of the noise over that of the function


_SHORT, _LONG = (0.6, 1.0, 1.7, 3.0, 6.0), (1.5, 4.0, 12.0)
EXPERTS = (
    *(Expert("smooth", length, ratio) for ratio in (1e-4, 1e-2) for length in _SHORT),
    *(Expert("smooth", length, ratio) for length, ratio in ((1.7, 0.3), (5.0, 0.3), (15.0, 0.3), (15.0, 3.0))),
    *(Expert("twice", length, ratio) for ratio in (1e-4, 1e-2) for length in _LONG),
    *(Expert("rough", length, ratio) for length, ratio in ((2.0, 1e-4), (8.0, 1e-4), (40.0, 1e-4))),
    *(Expert("rough", length, ratio) for length, ratio in ((8.0, 1e-2), (40.0, 1e-2))),
)
"""Squared exponential, Matern-5/2 and Matern-1/2. Lengths beyond the neighbourhood are polynomials or straight lines there."""

RATIOS = tuple(expert.noise_ratio for expert in EXPERTS)
_HUGE = 1e12  # more than any sum of squared innovations, so that a matrix with this in its corner is positive definite
NEAREST = 8  # how many of the nearest observations have a likelihood of their own


class ExpertPredictions(NamedTuple):
    """Predictions of each expert at points of a centre; variances and squares up to the expert's scale."""

    mean: Float[Array, "q e"]
    variance: Float[Array, "q e"]  # of a new noisy value
    squares: Float[Array, "2 e"]  # sum of squared innovations, of all and of the nearest observations
    log_det: Float[Array, "2 e"]  # sum of the logarithms of their expected sizes, likewise
    number: Float[Array, "2"]  # number of observations, likewise


def predict(centres: Centres, units: Units) -> tuple[Neighbourhood, ExpertPredictions]:
    """Return the neighbourhood of each point, stacked as (centre, point), and the experts' predictions at each centre."""

    def of_centre(centre: Centres) -> tuple[Neighbourhood, ExpertPredictions]:
        values = jnp.where(centre.mask, (centre.values - units.shift) / units.scale, 0)
        own = Neighbourhood(centre.offsets / units.spacing, values, centre.mask)
        points = centre.points / units.spacing
        return jax.vmap(own.recentred)(points), krige(own, points)

    return jax.vmap(of_centre)(centres)


def krige(neighbourhood: Neighbourhood, points: Float[Array, "q d"]) -> ExpertPredictions:
    """Let every expert predict the noisy values at points, given relative to the centre of a neighbourhood.

    Example:
        >>> import jax.numpy as jnp
        >>> offsets, there = jnp.array([[-1.0], [1.0]]), jnp.ones(2, bool)
        >>> found = krige(Neighbourhood(offsets, jnp.array([0.0, 2.0]), there), jnp.zeros((1, 1)))
        >>> bool(jnp.allclose(found.mean, 1.0, atol=1e-4))  # half-way between the two, whatever the kernel
        True
    """
    mask, offsets = neighbourhood.mask, neighbourhood.offsets
    k, q = len(mask), len(points)
    both = mask[:, None] & mask[None]
    own = jnp.eye(k, dtype=offsets.dtype)
    ratios = jnp.asarray(RATIOS, offsets.dtype)
    # Padding becomes independent of everything, with innovations of zero and an expected size of one.
    correlations = _correlations(length(offsets[:, None] - offsets[None]))
    K = jnp.where(both[None], correlations + ratios[:, None, None] * own[None], own[None])
    c = jnp.where(mask[None, None], _correlations(length(points[:, None] - offsets[None])), 0)
    one = jnp.broadcast_to(mask.astype(K.dtype), (len(K), 1, k))
    y = jnp.broadcast_to(jnp.where(mask, neighbourhood.values, 0), (len(K), 1, k))
    # Bordered by what is to be whitened, one decomposition does it all: L^-1 of these rows are its last rows.
    beside = jnp.concatenate([one, y, c], axis=1)
    corner = jnp.broadcast_to(_HUGE * jnp.eye(2 + q, dtype=K.dtype), (len(K), 2 + q, 2 + q))
    L = jnp.linalg.cholesky(jnp.block([[K, jnp.swapaxes(beside, 1, 2)], [beside, corner]]))
    o, z, c = L[:, k, :k], L[:, k + 1, :k], L[:, k + 2 :, :k]
    precision = jnp.maximum(jnp.sum(o * o, axis=1), 1e-6)
    beta = jnp.sum(o * z, axis=1) / precision
    innovations = z - beta[:, None] * o
    lack = 1 - jnp.einsum("ek,eqk->qe", o, c)  # of the weights before the constant mean takes the rest
    sizes = innovations**2, jnp.log(jnp.diagonal(L[:, :k, :k], axis1=1, axis2=2))
    squares, log_det = (jnp.stack([jnp.sum(x, axis=1), jnp.sum(x[:, -NEAREST:], axis=1)]) for x in sizes)
    return ExpertPredictions(
        beta[None] + jnp.einsum("eqk,ek->qe", c, innovations),
        jnp.maximum(1 + ratios[None] - jnp.sum(c * c, axis=2).T + lack**2 / precision[None], 1e-6),
        squares,
        log_det,
        jnp.stack([jnp.sum(mask), jnp.sum(mask[-NEAREST:])]).astype(K.dtype),
    )


def _correlations(distance: Float[Array, "*s"]) -> Float[Array, "e *s"]:
    """Return the correlation of every expert at the given distances; experts that differ in their noise alone share it."""
    kernels = dict.fromkeys((expert.smoothness, expert.length) for expert in EXPERTS)
    found = {kernel: _correlation(kernel[0], distance / kernel[1]) for kernel in kernels}
    # Rows of one array of all kernels would be gathered number by number, in several times the time.
    return jnp.stack([found[expert.smoothness, expert.length] for expert in EXPERTS])


def _correlation(smoothness: str, r: Float[Array, "*s"]) -> Float[Array, "*s"]:
    if smoothness == "twice":
        r = 5**0.5 * r
        return (1 + r + r**2 / 3) * jnp.exp(-r)
    return jnp.exp(-(r**2) / 2 if smoothness == "smooth" else -r)
