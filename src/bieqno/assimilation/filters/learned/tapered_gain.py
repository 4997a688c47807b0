"""The gain of an ensemble whose covariances are tapered with distance, at a cost linear in variables and observations.

``K = (rho o A^T S) (rho o S^T S + I)^-1``, with S the predicted anomalies in units of the error. One system for all
variables is solved in observation space by conjugate gradients, whose products touch pairs of near observations only.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bieqno.assimilation.geometry import Stencil
from bieqno.assimilation.localization import gaspari_cohn
from bieqno.operators.many_sets import total

# Enough for a few per cent of accuracy at the condition numbers of sparse observations; a learned filter corrects the rest.
ITERATIONS = 6
TINY = 1e-8  # where nothing is left to solve


def taper(stencil: Stencil, radius: float | Float[Array, ""]) -> Float[Array, "P k"]:
    """How much the stencil of each pattern count; `radius` is in units of the radius that the stencil were built for."""
    distance = jnp.sqrt(jnp.sum(stencil.offset**2, axis=-1))
    return stencil.present * gaspari_cohn(distance, radius)


def weights(
    factor: Float[Array, "N m"], innovation: Float[Array, "m"], between: Stencil, radius: float | Float[Array, ""]
) -> Float[Array, "m"]:
    """``(rho o S^T S + I)^-1 d``.

    Args:
        factor: the predicted anomalies S over the root of N - 1, in units of the error; zero where a value is missing.
        innovation: observed minus predicted mean, in units of the error.
        between: the observations near each observation.
        radius: of the taper, in units of the radius of the stencil.

    Example:
        >>> import jax.numpy as jnp
        >>> from bieqno.assimilation.geometry import Places
        >>> far_apart = Places(jnp.array([[0.0], [9.0]]))
        >>> weights(jnp.ones((1, 2)), jnp.array([2.0, 4.0]), Stencil.within(1.0, far_apart, far_apart), 1.0).tolist()
        [1.0, 2.0]
    """
    # One column an observation, so that all work is along them.
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
