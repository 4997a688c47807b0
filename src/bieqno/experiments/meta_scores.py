"""How the tasks of `meta_1d` are drawn, scored and shown."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray
from threadpoolctl import threadpool_limits

from bieqno.experiments.meta_tasks import FAMILIES, MOST_OBSERVED, TaskSource, true_chain
from bieqno.regression.meta import Bank, ChainProcess
from bieqno.regression.meta.learning import Tasks

_BATCH = 16
"""Tasks that are scored at once."""
_OBSERVED_IN_FIGURE, _SAMPLES = 12, 2
DIMENSIONS = {
    "x": ("point",), "y": ("level",), "density": ("level", "point"), "sample": ("draw", "point"),
    "x_observed": ("observation",), "y_observed": ("observation",), "x_hidden": ("hidden",), "y_hidden": ("hidden",),
}  # fmt: skip


def draw(key: PRNGKeyArray, count: int, families: tuple[str, ...]) -> tuple[Tasks, Int[np.ndarray, "b"]]:
    """Tasks of some families, so many of each, and how many values of each task are observed."""
    task_key, seen_key = jax.random.split(key)
    with threadpool_limits(1, "blas"):
        tasks = jax.block_until_ready(_drawn(TaskSource(count), task_key))
    rows = np.concatenate([np.arange(count) + count * FAMILIES.index(family) for family in families])
    seen = np.asarray(jax.random.randint(seen_key, (len(tasks.x),), 0, MOST_OBSERVED + 1))
    return Tasks(tasks.x[rows], tasks.y[rows]), seen[rows]


def given_before(process: Bank | ChainProcess, tasks: Tasks) -> Float[np.ndarray, "b n"]:
    """Log-density of each value given all those before it, observed or predicted."""
    return _in_batches(lambda part: _chained(process, tasks.x[part], tasks.y[part]), len(tasks.x))


def given_observed(process: ChainProcess, tasks: Tasks, seen: Int[np.ndarray, "b"]) -> Float[np.ndarray, "b n"]:
    """Log-density of each value by itself, given the observed ones alone."""
    return _in_batches(
        lambda part: _single(process, tasks.x[part], tasks.y[part], jnp.asarray(seen[part])), len(tasks.x)
    )


def under_truth(family: str, tasks: Tasks) -> Float[np.ndarray, "b n"]:
    """Log-density of each value given all those before it, under the Gaussian process that the tasks were drawn from."""
    pairs = zip(np.asarray(tasks.x, np.float64), np.asarray(tasks.y, np.float64), strict=True)
    return np.stack([true_chain(family, x, y) for x, y in pairs])


def per_value(each: Float[np.ndarray, "b n"], seen: Int[np.ndarray, "b"], targets: int) -> list[float]:
    """Mean over the values to be predicted, which follow the observed ones, for each task.

    Example:
        >>> per_value(np.arange(6.0).reshape(2, 3), np.array([0, 1]), 2)
        [0.5, 4.5]
    """
    return [float(np.mean(own[start : start + targets])) for own, start in zip(each, seen, strict=True)]


def picture(process: ChainProcess, tasks: Tasks, points: int, key: PRNGKeyArray) -> dict[str, np.ndarray]:
    """What the figure shows of the first task: its values, the density of new ones and some samples."""
    x, y = tasks.x[0, :_OBSERVED_IN_FIGURE], tasks.y[0, :_OBSERVED_IN_FIGURE]
    low, high = jnp.min(tasks.y[0]), jnp.max(tasks.y[0])
    grid, edges = jnp.linspace(-2, 2, points), jnp.linspace(low - 0.5, high + 0.5, 151)
    with threadpool_limits(1, "blas"):
        density, samples = jax.block_until_ready(_density_and_samples(process, grid, edges, x, y, key))
    shown = {
        "x": grid, "y": (edges[1:] + edges[:-1]) / 2, "density": density, "sample": samples, "x_observed": x, "y_observed": y,
        "x_hidden": tasks.x[0, _OBSERVED_IN_FIGURE:], "y_hidden": tasks.y[0, _OBSERVED_IN_FIGURE:],
    }  # fmt: skip
    return {name: np.asarray(array, np.float32) for name, array in shown.items()}


def _in_batches(densities: Callable[[slice], Float[Array, "b n"]], count: int) -> Float[np.ndarray, "b n"]:
    with threadpool_limits(1, "blas"):  # threads of its own slow down small matrices
        return np.concatenate([densities(slice(start, start + _BATCH)) for start in range(0, count, _BATCH)])


@eqx.filter_jit
def _drawn(source: TaskSource, key: PRNGKeyArray) -> Tasks:
    return source(key)


@eqx.filter_jit
def _density_and_samples(
    process: ChainProcess,
    grid: Float[Array, "p"],
    edges: Float[Array, "e"],
    x: Float[Array, "n"],
    y: Float[Array, "n"],
    key: PRNGKeyArray,
) -> tuple[Float[Array, "_ p"], Float[Array, "s p"]]:
    mixture = process.at(grid, x, y)
    # The mean over each cell: a peak that is sharper than a cell would fall between two of them.
    below = jax.vmap(lambda edge: mixture.cdf(jnp.full_like(grid, edge)))(edges)
    # Drawn in random order, as the tasks' own values are.
    order = jax.random.permutation(key, len(grid))
    drawn = jax.lax.map(lambda own: process.sample(grid[order], x, y, key=own), jax.random.split(key, _SAMPLES))
    return jnp.diff(below, axis=0) / jnp.diff(edges)[:, None], drawn[:, jnp.argsort(order)]


@eqx.filter_jit
def _chained(process: Bank | ChainProcess, x: Float[Array, "b n"], y: Float[Array, "b n"]) -> Float[Array, "b n"]:
    return jax.vmap(lambda x, y: process.along(x, y).log_prob(y))(x, y)


@eqx.filter_jit
def _single(
    process: ChainProcess, x: Float[Array, "b n"], y: Float[Array, "b n"], seen: Int[Array, "b"]
) -> Float[Array, "b n"]:
    place = jnp.arange(x.shape[1])
    return jax.vmap(lambda x, y, seen: process.at(x, x, y, place < seen).log_prob(y))(x, y, seen)
