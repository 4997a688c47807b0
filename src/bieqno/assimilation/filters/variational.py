"""3D-Var with a fixed background covariance; optimal interpolation, if the operator is linear."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from bieqno.assimilation.linalg import increments
from bieqno.assimilation.observation import Observed


class ThreeDVar(eqx.Module):
    """Minimises ``|z - z_i|^2_B + |d - H(z)|^2_R`` for each member on its own, by Gauss-Newton steps.

    One member is enough. One step solves a linear problem exactly, and is optimal interpolation.

    Args:
        background: covariance B of the background's error, often the climatology's scaled down.
        scale: factor on B, for tuning.
        iterations: Gauss-Newton steps, more than one for operators that are not linear.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from bieqno.assimilation import Observation
        >>> observed = Observation([0], 1.0).window(jnp.array([2.0]))
        >>> filter = ThreeDVar(jnp.array([[1.0, 0.5], [0.5, 1.0]]))
        >>> filter(jnp.zeros((1, 2)), observed, key=jax.random.key(0)).round(4).tolist()
        [[1.0, 0.5]]
    """

    background: Float[Array, "n n"]
    scale: float | Float[Array, ""] = 1.0
    iterations: int = eqx.field(static=True, default=1)

    def __call__(self, ensemble: Float[Array, "N n"], observed: Observed, *, key: PRNGKeyArray) -> Float[Array, "N n"]:
        """Analyse one window; draws nothing at random."""
        size = ensemble.shape[1]
        if self.background.shape != (size, size):
            raise ValueError(f"the background covariance is {self.background.shape}, the state has {size} variables")
        values, vectors = jnp.linalg.eigh(self.background * self.scale)
        root = vectors * jnp.sqrt(jnp.maximum(values, 0))  # B = root root^T

        def analyse(first: Float[Array, "n"]) -> Float[Array, "n"]:
            def improve(_: Array, z: Float[Array, "n"]) -> Float[Array, "n"]:
                H = jax.jacfwd(observed.operator)(z)
                S = observed.whiten((H @ root).T)
                gap = observed.value - observed.operator(z) + H @ (z - first)
                return first + increments(S, observed.whiten(gap[None]), root.T)[0]

            return jax.lax.fori_loop(0, self.iterations, improve, first)

        return jax.vmap(analyse)(ensemble)
