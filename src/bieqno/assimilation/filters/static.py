"""Analyses that know the climatology only: the climatology itself, and 3D-Var with a fixed background covariance."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from bieqno.arguments import checked, finite_floats
from bieqno.assimilation.linalg import increments
from bieqno.assimilation.observation import Observed


class Climatology(eqx.Module):
    """Draw states from a long free run, whatever was forecast or observed.

    The one filter that does not return the prior where nothing is observed. The draw is shifted to the mean of the run, so
    that one member is that mean.

    Example:
        >>> from bieqno.assimilation import Observation
        >>> observed = Observation([0], 1.0).window(jnp.array([99.0]))
        >>> Climatology(jnp.array([[1.0], [3.0]]))(jnp.zeros((1, 1)), observed, key=jax.random.key(0)).item()
        2.0
    """

    states: Float[Array, "k n"] = eqx.field(converter=finite_floats("states"))

    def __check_init__(self) -> None:
        if np.ndim(self.states) != 2 or not len(self.states):
            raise ValueError(f"states are rows, at least one, got shape {np.shape(self.states)}")

    @checked()
    def __call__(self, ensemble: Float[Array, "N n"], observed: Observed, *, key: PRNGKeyArray) -> Float[Array, "N n"]:
        """Draw as many states as there are members."""
        if self.states.shape[1] != ensemble.shape[1]:
            raise ValueError(f"the climatology has {self.states.shape[1]} variables, the state {ensemble.shape[1]}")
        numbers = jax.random.randint(jax.random.fold_in(key, 1), (ensemble.shape[0],), 0, self.states.shape[0])
        drawn = self.states[numbers].astype(ensemble.dtype)
        return drawn + (jnp.mean(self.states, axis=0) - jnp.mean(drawn, axis=0)).astype(drawn.dtype)


class ThreeDVar(eqx.Module):
    """Minimises ``|z - z_i|^2_B + |d - H(z)|^2_R`` for each member on its own, by Gauss-Newton steps.

    One member is enough. One step solves a linear problem exactly, and is optimal interpolation. The background's error
    covariance B, often the climatology's, is decomposed once, when the filter is made; `scale` is a factor on it, for tuning.

    Example:
        >>> from bieqno.assimilation import Observation
        >>> observed = Observation([0], 1.0).window(jnp.array([2.0]))
        >>> filter = ThreeDVar(jnp.array([[1.0, 0.5], [0.5, 1.0]]))
        >>> filter(jnp.zeros((1, 2)), observed, key=jax.random.key(0)).round(4).tolist()
        [[1.0, 0.5]]
    """

    root: Float[Array, "n n"]
    scale: float | Float[Array, ""]
    iterations: int = eqx.field(static=True)

    @checked()
    def __init__(
        self, background: Float[Array, "n n"], scale: float | Float[Array, ""] = 1.0, iterations: int = 1
    ) -> None:
        values, vectors = jnp.linalg.eigh(jnp.asarray(background, float))
        self.root = vectors * jnp.sqrt(jnp.maximum(values, 0))  # B = root root^T
        self.scale, self.iterations = scale, iterations

    @checked()
    def __call__(self, ensemble: Float[Array, "N n"], observed: Observed, *, key: PRNGKeyArray) -> Float[Array, "N n"]:
        """Analyse one window; draws nothing at random."""
        size = ensemble.shape[1]
        if self.root.shape != (size, size):
            raise ValueError(f"the background covariance is {self.root.shape}, the state has {size} variables")
        observed = observed.gaussian(ensemble)
        root = (self.root * jnp.sqrt(self.scale)).astype(ensemble.dtype)

        def analyse(first: Float[Array, "n"]) -> Float[Array, "n"]:
            def improve(_: Array, z: Float[Array, "n"]) -> Float[Array, "n"]:
                H = jax.jacfwd(observed.operator)(z)
                S = observed.whiten((H @ root).T)
                gap = observed.value - observed.operator(z) + H @ (z - first)
                return first + increments(S, observed.whiten(gap[None]), root.T)[0]

            return jax.lax.fori_loop(0, self.iterations, improve, first)

        return jax.vmap(analyse)(ensemble)
