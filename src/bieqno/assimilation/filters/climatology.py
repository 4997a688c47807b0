"""The climatology: what one knows without looking."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from bieqno.assimilation.observation import Observed


class Climatology(eqx.Module):
    """Answers with states drawn from a long free run, whatever was forecast or observed.

    The draw is shifted to the mean of the run, so that one member is that mean.

    Args:
        states: a sample of the climatology, such as `spin_up` gives.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from bieqno.assimilation import Observation
        >>> observed = Observation([0], 1.0).window(jnp.array([99.0]))
        >>> Climatology(jnp.array([[1.0], [3.0]]))(jnp.zeros((1, 1)), observed, key=jax.random.key(0)).item()
        2.0
    """

    states: Float[Array, "k n"]

    def __call__(self, ensemble: Float[Array, "N n"], observed: Observed, *, key: PRNGKeyArray) -> Float[Array, "N n"]:
        """Draw as many states as there are members."""
        if self.states.shape[1] != ensemble.shape[1]:
            raise ValueError(f"the climatology has {self.states.shape[1]} variables, the state {ensemble.shape[1]}")
        numbers = jax.random.randint(jax.random.fold_in(key, 1), (ensemble.shape[0],), 0, self.states.shape[0])
        drawn = self.states[numbers].astype(ensemble.dtype)
        return drawn + (jnp.mean(self.states, axis=0) - jnp.mean(drawn, axis=0)).astype(drawn.dtype)
