"""Where random functions are observed, and where they are asked for: scattered, on grids, crowded."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

MAX_DIMENSION = 4
LEAST = 8
"""Observations of a task at least."""
_DIMENSIONS = (0.5, 0.33, 0.1, 0.07)


class Layout(NamedTuple):
    """Places of observations in the unit cube, in random order."""

    inputs: Float[Array, "m d"]
    mask: Bool[Array, "m"]
    dimension: Int[Array, ""]
    spacing: Float[Array, ""]


def draw_layout(key: PRNGKeyArray, most: int) -> Layout:
    """Draw the dimension, the number of observations (as many small as large ones) and their places."""
    size_key, dimension_key, order_key, place_key, kind_key, grid_key, power_key = jax.random.split(key, 7)
    dimension = 1 + jax.random.choice(dimension_key, MAX_DIMENSION, p=jnp.array(_DIMENSIONS))
    fewest = jnp.minimum(LEAST * dimension, most)
    log_count = jax.random.uniform(size_key, minval=jnp.log(fewest), maxval=jnp.log(most + 0.99))
    count = jnp.exp(log_count).astype(jnp.int32)
    there = jnp.arange(MAX_DIMENSION) < dimension
    scattered = jax.random.uniform(place_key, (most, MAX_DIMENSION))
    crowded = scattered ** jnp.exp(jax.random.uniform(power_key, (MAX_DIMENSION,), minval=-0.7, maxval=0.7))

    # A grid of as many places along each input as the number allows, met in random order.
    side = jnp.floor(count ** (1 / dimension) + 1e-4).astype(jnp.int32)
    cells = side**dimension
    order = jnp.argsort(jnp.where(jnp.arange(most) < cells, jax.random.uniform(order_key, (most,)), 2.0))
    digits = (order[:, None] // side ** jnp.arange(MAX_DIMENSION)) % side
    shake_key, ends_key = jax.random.split(grid_key)
    shake = jnp.array([0.0, 0.0, 0.5])[jax.random.randint(shake_key, (), 0, 3)]
    grid = (digits + 0.5 + shake * (scattered - 0.5)) / side
    with_ends = 0.5 + (grid - 0.5) * side / jnp.maximum(side - 1, 1)
    grid = jnp.where(jax.random.bernoulli(ends_key), grid, with_ends)

    kind = jax.random.choice(kind_key, 3, p=jnp.array([0.55, 0.3, 0.15]))
    inputs = jnp.where(there, jnp.stack([scattered, grid, crowded])[kind], 0)
    number = jnp.where(kind == 1, cells, count)
    spacing = number.astype(inputs.dtype) ** (-1 / dimension)
    return Layout(inputs, jnp.arange(most) < number, dimension, spacing)


def draw_targets(key: PRNGKeyArray, layout: Layout, count: int) -> Float[Array, "t d"]:
    """Draw test points: two of three anywhere, the others near an observation."""
    place_key, row_key, offset_key = jax.random.split(key, 3)
    anywhere = jax.random.uniform(place_key, (count, MAX_DIMENSION))
    rows = jax.random.randint(row_key, (count,), 0, jnp.sum(layout.mask))
    near = layout.inputs[rows] + 0.6 * layout.spacing * jax.random.normal(offset_key, (count, MAX_DIMENSION))
    chosen = jnp.where((jnp.arange(count) % 3 == 0)[:, None], near, anywhere)
    return jnp.where(jnp.arange(MAX_DIMENSION) < layout.dimension, chosen, 0)
