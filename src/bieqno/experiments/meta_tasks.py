"""The tasks that neural processes are compared on: functions of one variable on [-2, 2], of four families and their mixture.

As in Bruinsma et al., *Autoregressive conditional neural processes* (2023), whose set-up is in the repository
``wesselb/neuralprocesses`` (``data/predefined.py``): squared exponential and Matern-5/2 kernels of length 0.25, a weakly
periodic one that is squared exponential of length 0.5 times the periodic kernel of period 0.25, all of variance 1 with noise
of variance 0.05; and sawtooths without noise, of frequency 2 to 4, random phase and direction. Up to 30 observations, 50
values to be predicted, 100 of sawtooths and in the mixture.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jaxtyping import Array, Float, PRNGKeyArray

from bieqno.regression.meta.learning import Tasks

NOISE_VARIANCE = 0.05
MOST_OBSERVED = 30
TARGETS = {"eq": 50, "matern": 50, "weakly periodic": 50, "sawtooth": 100}
FAMILIES = tuple(TARGETS)
LENGTH = MOST_OBSERVED + max(TARGETS.values())
"""Values of a task, in random order: those of any number of observations and of what is predicted from them."""


def _eq(d: Array) -> Array:
    return jnp.exp(-0.5 * (d / 0.25) ** 2)


def _matern(d: Array) -> Array:
    r = 5**0.5 * jnp.abs(d) / 0.25
    return (1 + r + r**2 / 3) * jnp.exp(-r)


def _weakly_periodic(d: Array) -> Array:
    return jnp.exp(-0.5 * (d / 0.5) ** 2 - 2 * jnp.sin(jnp.pi * d / 0.25) ** 2)


KERNELS: dict[str, Callable[[Array], Array]] = {"eq": _eq, "matern": _matern, "weakly periodic": _weakly_periodic}
"""Of the differences of inputs, without the noise."""


class TaskSource(eqx.Module):
    """The batch source: as many tasks of every family, one family after the other.

    Attributes:
        each: number of tasks of each family.
        length: number of values of each task.

    Example:
        >>> import jax
        >>> TaskSource(2, 10)(jax.random.key(0)).y.shape
        (8, 10)
    """

    each: int = eqx.field(static=True)
    length: int = eqx.field(static=True, default=LENGTH)

    def __call__(self, key: PRNGKeyArray) -> Tasks:
        """Draw tasks."""
        x_key, gp_key, saw_key = jax.random.split(key, 3)
        x = jax.random.uniform(x_key, (len(FAMILIES), self.each, self.length), minval=-2.0, maxval=2.0)
        difference = x[:-1, :, :, None] - x[:-1, :, None, :]
        K = jnp.stack([kernel(own) for kernel, own in zip(KERNELS.values(), difference, strict=True)])
        L = jnp.linalg.cholesky(K + NOISE_VARIANCE * jnp.eye(self.length))
        gp = jnp.einsum("fbnm,fbm->fbn", L, jax.random.normal(gp_key, x[:-1].shape))
        y = jnp.concatenate([gp, sawtooths(saw_key, x[-1])[None]])
        return Tasks(x.reshape(-1, self.length), y.reshape(-1, self.length))


def sawtooths(key: PRNGKeyArray, x: Float[Array, "b n"]) -> Float[Array, "b n"]:
    """Values in [0, 1) of random sawtooths, one for each row."""
    frequency_key, direction_key, phase_key = jax.random.split(key, 3)
    frequency = jax.random.uniform(frequency_key, (len(x), 1), minval=2.0, maxval=4.0)
    direction = jax.random.rademacher(direction_key, (len(x), 1), x.dtype)
    return (frequency * direction * x + jax.random.uniform(phase_key, (len(x), 1))) % 1


def true_chain(family: str, x: Float[np.ndarray, "n"], y: Float[np.ndarray, "n"]) -> Float[np.ndarray, "n"]:
    """Log-density of each value given those before it, under the Gaussian process that the family is drawn from.

    Example:
        >>> true_chain("eq", np.zeros(1), np.zeros(1)).round(4) == round(-0.5 * np.log(2 * np.pi * 1.05), 4)
        array([ True])
    """
    K = np.asarray(KERNELS[family](jnp.asarray(x[:, None] - x)), np.float64) + NOISE_VARIANCE * np.eye(len(x))
    L = np.linalg.cholesky(K)
    z = scipy.linalg.solve_triangular(L, y, lower=True)
    return -0.5 * (z**2 + np.log(2 * np.pi)) - np.log(np.diag(L))
