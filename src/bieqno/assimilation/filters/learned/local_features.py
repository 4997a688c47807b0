"""What a local filter sees of an ensemble and its observations, one column each, in bounded units.

Among it the gain of an ensemble whose covariances are tapered with distance, ``K = (rho o A^T S) (rho o S^T S + I)^-1`` with S
the predicted anomalies in units of the error. One system for all variables is solved in observation space by conjugate
gradients, whose products touch pairs of near observations only: the cost is linear in variables and observations.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bieqno.assimilation.geometry import Neighbourhoods, Stencil, gaspari_cohn
from bieqno.assimilation.linalg import anomalies
from bieqno.assimilation.observation import Observed
from bieqno.operators import Standardiser
from bieqno.operators.many_sets import MANY, total

# Error of an observation, in units of its climate: a law that passes through zero is not used there.
LEAST_ERROR = 1e-2
# Enough for a few per cent of accuracy at the condition numbers of sparse observations; a learned filter corrects the rest.
ITERATIONS = 6
TINY = 1e-8  # where nothing is left to solve
LEAST = 1e-3  # spread, in units of the climate, below which an ensemble counts as collapsed


class Variables(eqx.Module):
    """What is seen of variables."""

    mean: Float[Array, "*k b"]
    spread: Float[Array, "*k b"]
    log_spread: Float[Array, "*k b"]
    anomalies: Float[Array, "*k N b"]


class Observations(eqx.Module):
    """What is seen of observations, in units of their error."""

    innovation: Float[Array, "*k b"]  # observed minus predicted mean
    precision: Float[Array, "*k b"]  # one over the standard deviation of the innovation
    sharpness: Float[Array, "*k b"]  # one over that of the prediction
    weight: Float[Array, "*k b"]  # in the increment of a Kalman filter
    mask: Float[Array, "*k b"]  # 1 where there is one, else 0
    facts: Float[Array, "*k f b"]  # inputs of networks
    factor: Float[Array, "*k N b"]  # predicted anomalies


class View(eqx.Module):
    """All that is seen: one column per variable, one per observation."""

    variables: Float[Array, "_ n"]
    observations: Float[Array, "_ m"]
    facts: int = eqx.field(static=True)

    def of_variables(self, numbers: Int[Array, "*k b"]) -> Variables:
        """Return some of the variables."""
        seen = _columns(self.variables, numbers)
        mean, spread, log_spread = (seen[..., k, :] for k in range(3))
        return Variables(mean, spread, log_spread, seen[..., 3:, :])

    def of_observations(self, numbers: Int[Array, "*k b"]) -> Observations:
        """Return some of the observations."""
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
    """Look at an ensemble."""
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
    weight = jax.lax.stop_gradient(tapered_weights(S, d, around.between, radius))
    spread = jnp.sqrt(total(A**2) + LEAST**4)
    precision, sharpness = 1 / jnp.sqrt(1 + variance), 1 / jnp.sqrt(variance + LEAST**2)
    return View(
        jnp.stack([x, spread, jnp.log(spread + LEAST), *A]),
        jnp.stack([d, precision, sharpness, weight, observed.mask.astype(d.dtype), *facts, *S]),
        len(facts),
    )


def taper(stencil: Stencil, radius: float | Float[Array, ""]) -> Float[Array, "P k"]:
    """How much each place of a pattern counts; `radius` is in units of the radius that the stencil was built for."""
    return stencil.present * gaspari_cohn(jnp.sqrt(jnp.sum(stencil.offset**2, axis=-1)), radius)


def tapered_weights(
    factor: Float[Array, "N m"], innovation: Float[Array, "m"], between: Stencil, radius: float | Float[Array, ""]
) -> Float[Array, "m"]:
    """``(rho o S^T S + I)^-1 d`` with the taper rho of a radius in units of that of the stencil between observations.

    The predicted anomalies S and the innovation d are in units of the error, and zero where a value is missing.

    Example:
        >>> from bieqno.assimilation.geometry import Places
        >>> far_apart = Places(jnp.array([[0.0], [9.0]]))
        >>> tapered_weights(jnp.ones((1, 2)), jnp.array([2.0, 4.0]), Stencil.within(1.0, far_apart, far_apart), 1.0).tolist()
        [1.0, 2.0]
    """
    # One column per observation, so that all work is along them.
    near = between.indices.T
    rho = between.spread(taper(between, radius)).astype(factor.dtype)
    matrix = total(factor[:, None] * factor[:, near]) * rho
    diagonal = 1 + total(factor**2)

    def step(carry: tuple[Array, Array, Array, Array], _: None) -> tuple[tuple[Array, Array, Array, Array], None]:
        x, residual, direction, size = carry
        image = direction + total(matrix * direction[near])
        length = size / (jnp.sum(direction * image) + TINY)
        residual = residual - length * image
        scaled = residual / diagonal
        following = jnp.sum(residual * scaled)
        return (x + length * direction, residual, scaled + following / (size + TINY) * direction, following), None

    scaled = innovation / diagonal
    begin = (jnp.zeros_like(innovation), innovation, scaled, jnp.sum(innovation * scaled))
    return jax.lax.scan(step, begin, None, length=ITERATIONS)[0][0]


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


def _columns(table: Float[Array, "r n"], numbers: Int[Array, "*k b"]) -> Float[Array, "*k r b"]:
    """Columns of a table; numbers of `Stencil` are those of places, and need not be looked at."""
    if numbers.ndim == 1:
        return table.at[:, numbers].get(mode="promise_in_bounds")
    if numbers.shape[1] < MANY:
        return jnp.moveaxis(table.at[:, numbers].get(mode="promise_in_bounds"), 0, 1)
    return jax.lax.map(lambda which: _columns(table, which), numbers)
