"""What the local filter sees of an ensemble and its observations: fields without units, one number per variable each."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from bieqno.assimilation.geometry import gaspari_cohn
from bieqno.assimilation.neighbourhoods import Neighbourhoods, Stencil
from bieqno.assimilation.observation import Observed
from bieqno.operators import Standardiser

AT_A_TIME = 64  # variables whose observations are gathered together, and stay in the cache
LEAST = 1e-5  # spread, in units of the climate, below which an ensemble counts as collapsed


class Prior(eqx.Module):
    """Moments of an ensemble in units of the climate, and of its predictions in units of the observation error.

    Members that are padding have anomalies of zero.
    """

    present: Bool[Array, "N"]
    count: Float[Array, ""]
    mean: Float[Array, "n"]
    anomalies: Float[Array, "N n"]  # scaled so that their squares sum to the variance
    spread: Float[Array, "n"]
    factor: Float[Array, "N m"]  # the same of predictions, S
    innovation: Float[Array, "m"]  # observed minus predicted mean, d
    move: Float[Array, "N n"]  # by a Newton step of each member's own likelihood, in units of the spread

    @property
    def root(self) -> Float[Array, ""]:
        """Factor from anomalies to deviations of members."""
        return jnp.sqrt(jnp.maximum(self.count - 1, 1))


def prior_of(
    ensemble: Float[Array, "N n"],
    present: Bool[Array, "N"],
    observed: Observed,
    around: Neighbourhoods,
    climate: Standardiser,
) -> Prior:
    """Look at an ensemble; `climate` standardises each kind of variable."""
    scale = climate.scale[around.variables]
    ensemble, observed = without_padding(ensemble, present, observed)
    predicted, back = _with_gradient(observed, ensemble)
    y, Y = mean_and_anomalies(predicted, present)
    x, A = mean_and_anomalies((ensemble - climate.mean[around.variables]) / scale, present)
    S, d = observed.whiten(Y), observed.whiten((observed.value - y)[None])[0]
    shrink = resolved(S)
    spread = jnp.sqrt(jnp.sum(A**2, axis=0) + LEAST**2)
    # Gradient of each member's log-likelihood, and the size of its sensitivity: exact where a value depends on one variable.
    whitened = shrink * observed.whiten(observed.value - predicted)
    signs = jnp.where(observed.numbers % 2 == 0, 1.0, -1.0).astype(S.dtype)
    (gradient,) = back(observed.whiten(shrink * whitened))
    (slope,) = back(observed.whiten(jnp.broadcast_to(shrink * signs, predicted.shape)))
    unit = scale * spread
    move = unit * gradient / (1 + (unit * slope) ** 2)
    count, move = jnp.sum(present, dtype=ensemble.dtype), jnp.where(present[:, None], move, 0)
    return Prior(present, count, x, A, spread, S * shrink, d * shrink, move)


def without_padding(
    ensemble: Float[Array, "N n"], present: Bool[Array, "N"], observed: Observed
) -> tuple[Float[Array, "N n"], Observed]:
    """Return members with padding replaced by the first, and what was observed with Gaussian errors, as a network may see it."""
    # An error law evaluated at the true value would reveal that value to a network.
    observed = eqx.tree_at(lambda o: o.reference, observed, observed.value)
    ensemble = jnp.where(present[:, None], ensemble, ensemble[0])
    return ensemble, observed.gaussian(ensemble, present)


def mean_and_anomalies(
    rows: Float[Array, "N k"], present: Bool[Array, "N"]
) -> tuple[Float[Array, "k"], Float[Array, "N k"]]:
    """Return the mean of the members present, and anomalies whose squares sum to the variance; those of padding are zero."""
    count = jnp.sum(present, dtype=rows.dtype)
    mean = jnp.sum(jnp.where(present[:, None], rows, 0), axis=0) / count
    return mean, jnp.where(present[:, None], rows - mean, 0) / jnp.sqrt(jnp.maximum(count - 1, 1))


def resolved(S: Float[Array, "N m"]) -> Float[Array, "m"]:
    """Return the factor for errors that are lost in the rounding of the spread: they count as a share of it, as in the LETKF."""
    share = float(np.finfo(S.dtype).eps) ** 0.25
    return 1 / jnp.maximum(1, share * jnp.sqrt(jnp.sum(S**2, axis=0) + LEAST**2))


def _with_gradient(observed: Observed, ensemble: Float[Array, "N n"]) -> tuple[Array, Callable[[Array], tuple[Array]]]:
    """Return predictions, and the map from their gradient to that of members: zero where JAX cannot differentiate."""
    try:
        return jax.vjp(observed.predict, ensemble)
    except (ValueError, TypeError, NotImplementedError):  # such as a `jax.pure_callback`
        return observed.predict(ensemble), lambda _: (jnp.zeros_like(ensemble),)


def seen_fields(
    prior: Prior,
    mask: Bool[Array, "m"],
    close: Stencil,
    taper: Float[Array, "k _"],
    weights: Float[Array, "c k _"],
    kinds: Float[Array, "p n"],
) -> Float[Array, "f n"]:
    """Return what is seen at each variable before the analysis: moments, ensemble size, its kind, and the observations near it.

    Of observations, weighed by the `taper`: the number, how far innovations exceed what the ensemble expects, the share of the
    ensemble in the expected innovation, and sums by the learned `weights`: of innovations, and of innovations times their
    sample correlation with the variable, the increments of single observations.
    """
    near, present = close.indices.T, mask.astype(prior.mean.dtype)
    variance = jnp.sum(prior.factor**2, axis=0)
    innovation = prior.innovation / jnp.sqrt(1 + variance)
    number, squares, shares = (
        jnp.sum(taper * (present * values)[near], axis=0)
        for values in (jnp.ones_like(variance), innovation**2, variance / (1 + variance))
    )
    rows, columns = (prior.factor / jnp.sqrt(1 + variance)).T, (close.indices, prior.anomalies.T)
    correlation = jax.lax.map(lambda x: rows[x[0]] @ x[1], columns, batch_size=AT_A_TIME).T / prior.spread
    (plain, related), terms = jnp.split(weights, 2), taper * innovation[near]
    pairs, shared = ((plain, terms), (related, terms * correlation)), weights.shape[-1] == 1  # by all places
    sums = jnp.concatenate([w[..., 0] @ x if shared else jnp.sum(w * x, axis=1) for w, x in pairs])
    sums = sums / jnp.sqrt(1 + number)
    facts = [
        prior.mean,
        jnp.log(prior.spread) / 3,  # orders of magnitude, scaled to the size of the others
        jnp.log((1 + squares) / (1 + number)),
        shares / (0.1 + number),
        jnp.log1p(number),
        *jnp.broadcast_to(jnp.stack([1 / jnp.sqrt(prior.count), jnp.log(prior.count) / 3])[:, None], (2, len(number))),
    ]
    return jnp.concatenate([jnp.stack(facts), kinds, asinh(sums)])


SEEN = 7  # fields beside the kinds and the sums


def taper(stencil: Stencil, radius: Float[Array, "*n"]) -> Float[Array, "k _"]:
    """Return how much each observation near a variable counts; the radius is in units of that of the stencil."""
    distance = stencil.spread(jnp.sqrt(jnp.sum(stencil.offset**2, axis=-1)))
    return stencil.spread(stencil.present) * gaspari_cohn(distance, radius)


def asinh(x: Float[Array, "*s"]) -> Float[Array, "*s"]:
    """``arcsinh``, by what is quick and exact enough for a network; of its slope, 1 at zero, nothing is lost.

    Example:
        >>> bool(jnp.allclose(asinh(jnp.array([-1e4, -0.1, 0.0, 2.0])), jnp.arcsinh(jnp.array([-1e4, -0.1, 0.0, 2.0]))))
        True
        >>> jax.grad(asinh)(0.0).item()
        1.0
    """
    size = jnp.where(x >= 0, x, -x)
    value = jnp.log(size + jnp.sqrt(size**2 + 1))
    return jnp.where(x >= 0, value, -value)
