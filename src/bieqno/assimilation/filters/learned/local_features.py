"""What a local filter sees of an ensemble and its observations: one column a variable or an observation, in bounded units."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bieqno.assimilation.filters.learned.tapered_gain import weights
from bieqno.assimilation.geometry import Neighbourhoods
from bieqno.assimilation.linalg import anomalies
from bieqno.assimilation.observation import Observed
from bieqno.operators import Standardiser
from bieqno.operators.many_sets import MANY, total

# Error of an observation, in units of its climate: a law that passes through zero is not to be believed there.
LEAST_ERROR = 1e-2
LEAST = 1e-3  # spread, in units of the climate, below which an ensemble counts as collapsed


class Variables(eqx.Module):
    """What is seen of variables."""

    mean: Float[Array, "*k b"]
    spread: Float[Array, "*k b"]
    log_spread: Float[Array, "*k b"]
    anomalies: Float[Array, "*k N b"]


class Observations(eqx.Module):
    """What is seen of observations, in units of their error.

    Args:
        innovation: observed minus predicted mean.
        precision: one over the standard deviation of the innovation.
        sharpness: one over that of the prediction.
        weight: of each observation in the increment of a Kalman filter.
        mask: 1 where there is one, else 0.
        facts: what networks are told.
        factor: predicted anomalies.
    """

    innovation: Float[Array, "*k b"]
    precision: Float[Array, "*k b"]
    sharpness: Float[Array, "*k b"]
    weight: Float[Array, "*k b"]
    mask: Float[Array, "*k b"]
    facts: Float[Array, "*k f b"]
    factor: Float[Array, "*k N b"]


class View(eqx.Module):
    """All that is seen: a column a variable, a column an observation."""

    variables: Float[Array, "_ n"]
    observations: Float[Array, "_ m"]
    facts: int = eqx.field(static=True)

    def of_variables(self, numbers: Int[Array, "*k b"]) -> Variables:
        """Some of the variables."""
        seen = _columns(self.variables, numbers)
        mean, spread, log_spread = (seen[..., k, :] for k in range(3))
        return Variables(mean, spread, log_spread, seen[..., 3:, :])

    def of_observations(self, numbers: Int[Array, "*k b"]) -> Observations:
        """Some of the observations."""
        seen = _columns(self.observations, numbers)
        facts, factor = seen[..., 5 : 5 + self.facts, :], seen[..., 5 + self.facts :, :]
        innovation, precision, sharpness, weight, mask = (seen[..., k, :] for k in range(5))
        return Observations(innovation, precision, sharpness, weight, mask, facts, factor)


def view(
    ensemble: Float[Array, "N n"],
    observed: Observed,
    around: Neighbourhoods,
    state: Standardiser,
    predicted: Standardiser,
    radius: Float[Array, ""],
) -> View:
    """Look at an ensemble.

    Args:
        ensemble: the prior.
        observed: what was observed.
        around: where everything is.
        state: units of variables, by kind.
        predicted: units of predicted observations, by kind.
        radius: of the taper, in units of the radius of the neighbourhoods.
    """
    x, A = anomalies((ensemble - state.mean[around.variables]) / state.scale[around.variables])
    y, Y = anomalies(observed.predict(ensemble))
    # An error law evaluated at the true value would tell a network what that value is.
    observed = eqx.tree_at(lambda o: o.reference, observed, observed.value)
    unit = predicted.scale[around.observations]
    std = jnp.sqrt(observed.std**2 + (LEAST_ERROR * unit) ** 2)
    trust = observed.std / std
    S, d = trust * observed.whiten(Y), trust * observed.whiten((observed.value - y)[None])[0]
    variance = total(S**2)
    facts = [
        asinh(d / jnp.sqrt(1 + variance)),
        variance / (1 + variance),
        asinh(3 * jnp.where(observed.mask, observed.value - y, 0) / unit),
        (y - predicted.mean[around.observations]) / unit,
        jnp.log(std / unit),
    ]
    # How far the taper reaches is learned from what is made of the solution, not through the solution.
    weight = jax.lax.stop_gradient(weights(S, d, around.between, radius))
    spread = jnp.sqrt(total(A**2) + LEAST**4)
    precision, sharpness = 1 / jnp.sqrt(1 + variance), 1 / jnp.sqrt(variance + LEAST**2)
    mask = observed.mask.astype(d.dtype)
    return View(
        jnp.stack([x, spread, jnp.log(spread + LEAST), *A]),
        jnp.stack([d, precision, sharpness, weight, mask, *facts, *S]),
        len(facts),
    )


def asinh(x: Float[Array, "*s"]) -> Float[Array, "*s"]:
    """``arcsinh``, by what is quick and exact enough for a network; of its slope, 1 at zero, nothing is lost.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> bool(jnp.allclose(asinh(jnp.array([-1e4, -0.1, 0.0, 2.0])), jnp.arcsinh(jnp.array([-1e4, -0.1, 0.0, 2.0]))))
        True
        >>> jax.grad(asinh)(0.0).item()
        1.0
    """
    positive = x >= 0
    size = jnp.where(positive, x, -x)
    value = jnp.log(size + jnp.sqrt(size**2 + 1))
    return jnp.where(positive, value, -value)


def _columns(table: Float[Array, "r n"], numbers: Int[Array, "*k b"]) -> Float[Array, "*k r b"]:
    """Columns of a table; numbers of `Stencil` are those of places, and need not be looked at."""
    if numbers.ndim == 1:
        return table.at[:, numbers].get(mode="promise_in_bounds")
    if numbers.shape[1] < MANY:
        return jnp.moveaxis(table.at[:, numbers].get(mode="promise_in_bounds"), 0, 1)
    return jax.lax.map(lambda which: _columns(table, which), numbers)
