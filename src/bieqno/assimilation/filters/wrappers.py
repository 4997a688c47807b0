"""Filters about filters: inflation, relaxation, rotation, and a floor on the errors that a filter assumes.

With nothing observed all of them but `PriorInflated` return the prior as it is, as every filter does.
"""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, PRNGKeyArray

from bieqno.arguments import checked
from bieqno.assimilation.observation import Observed
from bieqno.assimilation.protocols import Filter, refuse_memory


class AbstractWrapper(eqx.Module):
    """A filter about another one that treats each variable by itself: a part of it is the same about a part of the other."""

    filter: eqx.AbstractVar[Filter]

    def __check_init__(self) -> None:
        refuse_memory(self.filter, type(self).__name__)

    def noise(self, shape: tuple[int, int], dtype: DTypeLike, *, key: PRNGKeyArray) -> Float[Array, "N n"] | None:
        """Return what the other filter draws."""
        return self.filter.noise(shape, dtype, key=key)  # type: ignore[attr-defined]

    def needs(self, variables: Int[np.ndarray, "k"]) -> tuple[Int[np.ndarray, "_"], Int[np.ndarray, "_"]]:
        """Return what the other filter needs."""
        return self.filter.needs(variables)  # type: ignore[attr-defined]

    def part(self, variables: Int[np.ndarray, "k"], observations: Int[np.ndarray, "l"]) -> Any:
        """Return the same about a part of the other filter."""
        return dataclasses.replace(self, filter=self.filter.part(variables, observations))  # type: ignore[attr-defined]


class Floored(AbstractWrapper):
    """Make another filter assume that no error has a standard deviation below a floor.

    The paper's error laws pass through zero, where R is singular. Square-root analyses in float32 then lose their digits: an
    LETKF of 32 members on the paper's Lorenz-96 diverged in 23 of 30 runs of several settings, and in none with 64-bit
    numbers, nor with a floor of 0.05.

    Example:
        >>> from bieqno.assimilation import ETKF, Observation
        >>> prior = jnp.array([[-1.0], [1.0]])
        >>> exact = Observation([0], 0.0).window(jnp.array([3.0]))
        >>> Floored(ETKF(), 2.0)(prior, exact, key=jax.random.key(0)).mean().round(4).item()  # as with an error of 2
        1.0
    """

    filter: Filter
    floor: float = eqx.field(static=True)

    @checked()
    def __call__(self, ensemble: Float[Array, "N n"], observed: Observed, *, key: PRNGKeyArray) -> Float[Array, "N n"]:
        """Analyse with the floor."""
        floored = dataclasses.replace(observed, error=observed.error.floored(self.floor))
        return self.filter(ensemble, floored, key=key)


@checked()
def inflate(ensemble: Float[Array, "N n"], factor: float | Float[Array, ""]) -> Float[Array, "N n"]:
    """Stretch the deviations from the mean by a factor; 1 leaves the members as they are, to the bit.

    Example:
        >>> inflate(jnp.array([[1.0], [3.0]]), 2.0).tolist()
        [[0.0], [4.0]]
    """
    mean = jnp.mean(ensemble, axis=0)
    return ensemble + (jnp.asarray(factor, ensemble.dtype) - 1) * (ensemble - mean)


class Inflated(AbstractWrapper):
    """Stretch the posterior of another filter: multiplicative inflation, against the loss of spread of small ensembles."""

    filter: Filter
    factor: float | Float[Array, ""]

    @checked()
    def __call__(self, ensemble: Float[Array, "N n"], observed: Observed, *, key: PRNGKeyArray) -> Float[Array, "N n"]:
        """Analyse, then inflate; where nothing was observed there is no analysis to inflate."""
        posterior = self.filter(ensemble, observed, key=key)
        return observed.or_prior(inflate(posterior, self.factor), posterior)


class PriorInflated(AbstractWrapper):
    """Stretch the prior before another filter sees it, in every window: it stands for an error of the model."""

    filter: Filter
    factor: float | Float[Array, ""]

    @checked()
    def __call__(self, ensemble: Float[Array, "N n"], observed: Observed, *, key: PRNGKeyArray) -> Float[Array, "N n"]:
        """Inflate, then analyse; with nothing observed the inflated prior is returned."""
        return self.filter(inflate(ensemble, self.factor), observed, key=key)


class Relaxed(AbstractWrapper):
    """Give each variable of another filter's posterior part of its prior spread back (Whitaker and Hamill 2012).

    Inflates most where the observations took most away, and nothing where there are none. A weight of 0 keeps the
    posterior's own spread, 1 restores the prior's.

    Example:
        >>> from bieqno.assimilation import ETKF, Observation
        >>> prior = jnp.array([[-1.0], [1.0]])
        >>> observed = Observation([0], 1.0).window(jnp.array([0.0]))
        >>> Relaxed(ETKF(), 1.0)(prior, observed, key=jax.random.key(0)).round(4).tolist()
        [[-1.0], [1.0]]
    """

    filter: Filter
    weight: float | Float[Array, ""]

    @checked()
    def __call__(self, ensemble: Float[Array, "N n"], observed: Observed, *, key: PRNGKeyArray) -> Float[Array, "N n"]:
        """Analyse, then relax."""
        posterior = self.filter(ensemble, observed, key=key)
        before, after = jnp.std(ensemble, axis=0), jnp.std(posterior, axis=0)
        ratio = jnp.where(after > 0, (before - after) / jnp.where(after > 0, after, 1), 0)
        stretch = jnp.asarray(self.weight, posterior.dtype) * ratio
        relaxed = posterior + stretch * (posterior - jnp.mean(posterior, axis=0))
        return observed.or_prior(relaxed, posterior)


class Rotated(AbstractWrapper):
    """Mix the deviations of another filter's posterior at random, mean and covariance unchanged (Sakov and Oke 2008).

    Breaks up the outliers that square-root filters of small ensembles grow.
    """

    filter: Filter

    @checked()
    def __call__(self, ensemble: Float[Array, "N n"], observed: Observed, *, key: PRNGKeyArray) -> Float[Array, "N n"]:
        """Analyse, then rotate."""
        posterior = self.filter(ensemble, observed, key=key)
        Q = random_rotation(ensemble.shape[0], posterior.dtype, key=jax.random.fold_in(key, 3))
        mean = jnp.mean(posterior, axis=0)
        return observed.or_prior(mean + Q @ (posterior - mean), posterior)


@checked()
def random_rotation(count: int, dtype: DTypeLike, *, key: PRNGKeyArray) -> Float[Array, "count count"]:
    """Return a random orthogonal matrix that maps the vector of ones to itself.

    A product of Householder reflections within the space of vectors that sum to zero: uniform there after
    count - 1 of them, in any basis.

    Example:
        >>> Q = random_rotation(4, jnp.float32, key=jax.random.key(0))
        >>> bool(jnp.allclose(Q @ jnp.ones(4), 1, atol=1e-5)), bool(jnp.allclose(Q @ Q.T, jnp.eye(4), atol=1e-5))
        (True, True)
    """
    directions = jax.random.normal(key, (max(count - 1, 0), count), dtype)
    return jax.lax.scan(lambda Q, v: (mirrored(Q, v), None), jnp.eye(count, dtype=dtype), directions)[0]


def mirrored(ensemble: Float[Array, "N n"], direction: Float[Array, "N"]) -> Float[Array, "N n"]:
    """Mix the members by one reflection, along a direction without its mean: mean and covariance stay.

    Where one of few members has drifted away from all others, as square-root filters let it, the distance is shared out.

    Example:
        >>> outlier = jnp.array([[-1.0], [-1.0], [-1.0], [3.0]])
        >>> mirrored(outlier, jnp.array([0.0, 0.0, 1.0, 1.0])).ravel().tolist()
        [1.0, 1.0, -3.0, 1.0]
    """
    v = direction - jnp.mean(direction)
    square = v @ v
    return ensemble - (2 / jnp.where(square > 0, square, 1)) * v[:, None] * (v @ ensemble)
