"""Relaxation to the prior spread (Whitaker and Hamill 2012)."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from bieqno.assimilation.filters.filter import Filter
from bieqno.assimilation.observation import Observed


class Relaxed(eqx.Module):
    """Gives each variable of another filter's posterior part of its prior spread back.

    Inflates most where the observations took most away, and nothing where there are none.

    Args:
        filter: any filter.
        weight: 0 for the posterior's own spread, 1 for the prior's.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from bieqno.assimilation import ETKF, Observation
        >>> prior = jnp.array([[-1.0], [1.0]])
        >>> observed = Observation([0], 1.0).window(jnp.array([0.0]))
        >>> Relaxed(ETKF(), 1.0)(prior, observed, key=jax.random.key(0)).round(4).tolist()
        [[-1.0], [1.0]]
    """

    filter: Filter
    weight: float | Float[Array, ""]

    def __call__(self, ensemble: Float[Array, "N n"], observed: Observed, *, key: PRNGKeyArray) -> Float[Array, "N n"]:
        """Analyse, then widen."""
        posterior = self.filter(ensemble, observed, key=key)
        before, after = jnp.std(ensemble, axis=0), jnp.std(posterior, axis=0)
        ratio = jnp.where(after > 0, (before - after) / jnp.where(after > 0, after, 1), 0)
        stretch = jnp.asarray(self.weight, posterior.dtype) * ratio
        return posterior + stretch * (posterior - jnp.mean(posterior, axis=0))
