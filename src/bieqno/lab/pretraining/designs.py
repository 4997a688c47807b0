"""Where random functions are observed, and with what noise: scattered, on grids or in clusters; normal or with outliers."""

from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from bieqno.regression.data import Data
from bieqno.regression.pretrained.correction import MAX_DIMENSION
from bieqno.regression.pretrained.neighbours import NEIGHBOURS

LEAST = 8  # observations of a task at least
ANY = -1  # draw the family, the design or the law of the noise
DESIGNS = {"scattered": 0.47, "grid": 0.28, "crowded": 0.13, "clusters": 0.12}
NOISES = {"normal": 0.7, "growing": 0.12, "heavy-tailed": 0.1, "outliers": 0.08}
"""Kinds of designs and of noise, and how often each is drawn."""
CLUSTERS, _WIDTH = 5, 0.06  # most clusters, and their standard deviation along each input
_OUTLIERS, _FAR = 0.04, 8.0  # share of outliers, and how much larger their noise is

Kind: TypeAlias = int | Int[Array, ""]


def choose(key: PRNGKeyArray, shares: tuple[float, ...], given: Kind) -> Int[Array, ""]:
    """Return the number of a kind: drawn by the shares of all, unless one is given."""
    drawn = jax.random.choice(key, len(shares), p=jnp.array(shares))
    return jnp.where(jnp.asarray(given) < 0, drawn, given)


def nearest_rows(point: Float[Array, "d"], data: Data) -> Int[Array, "k"]:
    """Find the rows of the nearest observations by comparing with all, nearest first and padded by -1."""
    count = min(NEIGHBOURS, len(data.mask))
    distance = jnp.where(data.mask, jnp.sum((data.inputs - point) ** 2, axis=1), jnp.inf)
    negative, rows = jax.lax.top_k(-distance, count)
    return jnp.pad(jnp.where(jnp.isfinite(negative), rows, -1), (0, NEIGHBOURS - count), constant_values=-1)


class Layout(NamedTuple):
    """Places of observations in the unit cube, in random order."""

    inputs: Float[Array, "m d"]
    mask: Bool[Array, "m"]
    dimension: Int[Array, ""]
    spacing: Float[Array, ""]


def draw_layout(key: PRNGKeyArray, most: int, design: Kind = ANY) -> Layout:
    """Draw the dimension, the number of observations (uniform in its logarithm) and their places."""
    size_key, dimension_key, order_key, place_key, kind_key, grid_key, power_key = jax.random.split(key, 7)
    dimension = 1 + jax.random.choice(dimension_key, MAX_DIMENSION, p=jnp.array([0.5, 0.33, 0.1, 0.07]))
    fewest = jnp.minimum(LEAST * dimension, most)
    count = jnp.exp(jax.random.uniform(size_key, minval=jnp.log(fewest), maxval=jnp.log(most + 0.99))).astype(jnp.int32)
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

    centre_key, member_key, offset_key = jax.random.split(power_key, 3)
    centres = jax.random.uniform(centre_key, (CLUSTERS, MAX_DIMENSION), minval=0.1, maxval=0.9)
    offsets = _WIDTH * jax.random.normal(offset_key, (most, MAX_DIMENSION))
    clusters = jnp.clip(centres[jax.random.randint(member_key, (most,), 0, CLUSTERS)] + offsets, 0, 1)

    kind = choose(kind_key, tuple(DESIGNS.values()), design)
    inputs = jnp.where(jnp.arange(MAX_DIMENSION) < dimension, jnp.stack([scattered, grid, crowded, clusters])[kind], 0)
    number = jnp.where(kind == 1, cells, count)
    return Layout(inputs, jnp.arange(most) < number, dimension, number.astype(inputs.dtype) ** (-1 / dimension))


def draw_targets(key: PRNGKeyArray, layout: Layout, count: int) -> Float[Array, "t d"]:
    """Draw test points: two of three anywhere, the others near an observation."""
    place_key, row_key, offset_key = jax.random.split(key, 3)
    anywhere = jax.random.uniform(place_key, (count, MAX_DIMENSION))
    rows = jax.random.randint(row_key, (count,), 0, jnp.sum(layout.mask))
    near = layout.inputs[rows] + 0.6 * layout.spacing * jax.random.normal(offset_key, (count, MAX_DIMENSION))
    chosen = jnp.where((jnp.arange(count) % 3 == 0)[:, None], near, anywhere)
    return jnp.where(jnp.arange(MAX_DIMENSION) < layout.dimension, chosen, 0)


def draw_noise(key: PRNGKeyArray, x: Float[Array, "n d"], noise: Kind = ANY) -> Float[Array, "n"]:
    """Draw noise at `x`: normal, growing along a direction, of Student's law, or normal with outliers."""
    level_key, normal_key, slope_key, tail_key, far_key, kind_key = jax.random.split(key, 6)
    level = jnp.exp(jax.random.uniform(level_key, minval=jnp.log(2e-3), maxval=jnp.log(0.6)))
    normal = jax.random.normal(normal_key, (len(x),))
    slope = jax.random.normal(slope_key, (x.shape[1],))
    growing = normal * jnp.exp(2 * (x - 0.5) @ slope)
    # Student's law with 4 degrees of freedom, of variance one.
    squares = jnp.sum(jax.random.normal(tail_key, (len(x), 4)) ** 2, axis=1)
    heavy = normal * jnp.sqrt(2 / jnp.maximum(squares, 1e-3))
    far = jnp.where(jax.random.bernoulli(far_key, _OUTLIERS, (len(x),)), _FAR * normal, normal)
    kind = choose(kind_key, tuple(NOISES.values()), noise)
    return level * jnp.stack([normal, growing, heavy, far])[kind]
