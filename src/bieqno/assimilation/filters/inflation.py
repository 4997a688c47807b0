"""Multiplicative inflation: answers the loss of spread that small ensembles suffer."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from bieqno.assimilation.filters.filter import Filter
from bieqno.assimilation.observation import Observed


def inflate(ensemble: Float[Array, "N n"], factor: float | Float[Array, ""]) -> Float[Array, "N n"]:
    """Stretch the deviations from the mean by a factor; 1 leaves the members as they are, to the bit."""
    mean = jnp.mean(ensemble, axis=0)
    return ensemble + (jnp.asarray(factor, ensemble.dtype) - 1) * (ensemble - mean)


class Inflated(eqx.Module):
    """Stretches the posterior of another filter.

    Args:
        filter: any filter.
        factor: 1 or a little more.

    Example:
        >>> import jax.numpy as jnp
        >>> inflate(jnp.array([[1.0], [3.0]]), 2.0).tolist()
        [[0.0], [4.0]]
    """

    filter: Filter
    factor: float | Float[Array, ""]

    def __call__(self, ensemble: Float[Array, "N n"], observed: Observed, *, key: PRNGKeyArray) -> Float[Array, "N n"]:
        """Analyse, then inflate."""
        return inflate(self.filter(ensemble, observed, key=key), self.factor)


class PriorInflated(eqx.Module):
    """Stretches the prior before another filter sees it.

    Args:
        filter: any filter that reads the prior (the iterative one makes its own).
        factor: 1 or a little more.
    """

    filter: Filter
    factor: float | Float[Array, ""]

    def __call__(self, ensemble: Float[Array, "N n"], observed: Observed, *, key: PRNGKeyArray) -> Float[Array, "N n"]:
        """Inflate, then analyse."""
        return self.filter(inflate(ensemble, self.factor), observed, key=key)
