"""Where random functions are observed, and with what noise: scattered, on grids or in clusters; normal or with outliers.

Places are drawn in the unit cube and then squeezed along each input, as by a metric of length scales that was learned.
"""

from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from bieqno.regression.data import Data
from bieqno.regression.pretrained.correction import MAX_DIMENSION
from bieqno.regression.pretrained.neighbours import NEIGHBOURS

LEAST = 8  # observations of a task at least
ANY = -1  # draw the family, the design or the law of the noise
DIMENSIONS = (0.40, 0.26, 0.08, 0.06, *[0.2 / 8] * 8)  # how often functions have 1, 2, ... inputs
DESIGNS = {"scattered": 0.47, "grid": 0.28, "crowded": 0.13, "clusters": 0.12, "curve": 0.0}
NOISES = {"normal": 0.7, "growing": 0.12, "heavy-tailed": 0.1, "outliers": 0.08, "skewed": 0.0}
"""Kinds of designs and of noise, and how often each is drawn: never if it is held out for tests."""
CLUSTERS, _WIDTH = 5, 0.06  # most clusters, and their standard deviation along each input
_GRID_INPUTS = 4  # of more, a grid has too few places along each
_SQUEEZED = 1 / 3  # share of functions of a few inputs that are squeezed; those of more always are
_THIN = 3.0  # greatest logarithm of the squeezing
_COARSE, _LEVELS = (
    0.25,
    (1.0, 2.0, 4.0, 8.0),
)  # of many inputs, the share of those with a few values, so many steps apart
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
    """Places of observations in the unit cube, in random order, and how wide the cube is along each input of the metric."""

    inputs: Float[Array, "m d"]
    mask: Bool[Array, "m"]
    dimension: Int[Array, ""]
    widths: Float[Array, "d"]  # zero beyond the dimension
    spacing: Float[Array, ""]  # in the metric
    levels: Float[Array, "d"]  # steps between the values of inputs that have a few values only; zero for others

    def rounded(self, x: Float[Array, "n d"]) -> Float[Array, "n d"]:
        """Return places with the inputs of a few values at these."""
        steps = jnp.maximum(self.levels, 1)
        return jnp.where(self.levels > 0, jnp.round(jnp.clip(x, 0, 1) * steps) / steps, x)


def draw_layout(key: PRNGKeyArray, most: int, design: Kind = ANY, dimension: Kind = ANY) -> Layout:
    """Draw the dimension, unless it is given, the number of observations (uniform in its logarithm), places and metric."""
    size_key, dimension_key, order_key, place_key, kind_key, grid_key, power_key = jax.random.split(key, 7)
    dimension = choose(dimension_key, DIMENSIONS, jnp.asarray(dimension) - 1) + 1
    fewest = jnp.minimum(LEAST * dimension, most)
    count = jnp.exp(jax.random.uniform(size_key, minval=jnp.log(fewest), maxval=jnp.log(most + 0.99))).astype(jnp.int32)
    scattered = jax.random.uniform(place_key, (most, MAX_DIMENSION))
    crowded = scattered ** jnp.exp(jax.random.uniform(power_key, (MAX_DIMENSION,), minval=-0.7, maxval=0.7))

    # A grid of as many places along each input as the number allows, met in random order.
    side = jnp.floor(count ** (1 / dimension) + 1e-4).astype(jnp.int32)
    cells = side**dimension
    order = jnp.argsort(jnp.where(jnp.arange(most) < cells, jax.random.uniform(order_key, (most,)), 2.0))
    digits = (order[:, None] // side ** jnp.minimum(jnp.arange(MAX_DIMENSION), dimension - 1)) % side
    shake_key, ends_key = jax.random.split(grid_key)
    shake = jnp.array([0.0, 0.0, 0.5])[jax.random.randint(shake_key, (), 0, 3)]
    grid = (digits + 0.5 + shake * (scattered - 0.5)) / side
    with_ends = 0.5 + (grid - 0.5) * side / jnp.maximum(side - 1, 1)
    grid = jnp.where(jax.random.bernoulli(ends_key), grid, with_ends)

    centre_key, member_key, offset_key, curve_key, width_key, level_key = jax.random.split(power_key, 6)
    centres = jax.random.uniform(centre_key, (CLUSTERS, MAX_DIMENSION), minval=0.1, maxval=0.9)
    offsets = _WIDTH * jax.random.normal(offset_key, (most, MAX_DIMENSION))
    clusters = jnp.clip(centres[jax.random.randint(member_key, (most,), 0, CLUSTERS)] + offsets, 0, 1)
    turns, start = jax.random.uniform(curve_key, (2, MAX_DIMENSION))
    curve = 0.5 + 0.4 * jnp.sin(2 * jnp.pi * (2 * turns * scattered[:, :1] + start)) + offsets / 4

    kind = choose(kind_key, tuple(DESIGNS.values()), design)
    kind = jnp.where((kind == 1) & (dimension > _GRID_INPUTS), 0, kind)
    there = jnp.arange(MAX_DIMENSION) < dimension
    inputs = jnp.where(there, jnp.stack([scattered, grid, crowded, clusters, curve])[kind], 0)
    number = jnp.where(kind == 1, cells, count)
    widths = jnp.where(there, draw_widths(width_key, dimension), 0)
    coarse = jax.random.bernoulli(level_key, _COARSE, (MAX_DIMENSION,)) & (dimension > _GRID_INPUTS) & there
    levels = jnp.where(coarse, jax.random.choice(level_key, jnp.array(_LEVELS), (MAX_DIMENSION,)), 0.0)
    return Layout(inputs, jnp.arange(most) < number, dimension, widths, typical_spacing(widths, number), levels)


def draw_widths(key: PRNGKeyArray, dimension: Int[Array, ""]) -> Float[Array, "d"]:
    """Draw how wide the cube is along each input: squeezed where inputs matter less, one at most."""
    some_key, strength_key, each_key = jax.random.split(key, 3)
    some = (dimension > _GRID_INPUTS) | (jax.random.bernoulli(some_key, _SQUEEZED) & (dimension > 1))
    strength = jnp.where(some, jax.random.uniform(strength_key, maxval=_THIN), 0)
    each = jax.random.uniform(each_key, (MAX_DIMENSION,))
    return jnp.exp(-strength * (each - jnp.min(each, where=jnp.arange(MAX_DIMENSION) < dimension, initial=1)))


def typical_spacing(widths: Float[Array, "d"], number: Int[Array, ""]) -> Float[Array, ""]:
    """Return the typical distance of so many places: of inputs along which the cube is thinner than that, none counts.

    Example:
        >>> round(float(typical_spacing(jnp.array([1.0, 0.001, 0.0]), jnp.array(10))), 3)
        0.1
    """
    log_widths = jnp.cumsum(jnp.log(jnp.maximum(jnp.sort(widths, descending=True), 1e-30)))
    return jnp.exp(jnp.max((log_widths - jnp.log(number)) / jnp.arange(1, len(widths) + 1)))


def draw_targets(key: PRNGKeyArray, layout: Layout, count: int) -> Float[Array, "t d"]:
    """Draw test points: two of three anywhere, the others near an observation."""
    place_key, row_key, offset_key = jax.random.split(key, 3)
    anywhere = jax.random.uniform(place_key, (count, MAX_DIMENSION))
    rows = jax.random.randint(row_key, (count,), 0, jnp.sum(layout.mask))
    offsets = jax.random.normal(offset_key, (count, MAX_DIMENSION)) * jnp.minimum(1, jnp.sqrt(2 / layout.dimension))
    near = layout.inputs[rows] + 0.6 * layout.spacing / jnp.maximum(layout.widths, layout.spacing) * offsets
    chosen = jnp.where((jnp.arange(count) % 3 == 0)[:, None], near, anywhere)
    return jnp.where(jnp.arange(MAX_DIMENSION) < layout.dimension, chosen, 0)


def draw_noise(key: PRNGKeyArray, x: Float[Array, "n d"], dimension: Kind, noise: Kind = ANY) -> Float[Array, "n"]:
    """Draw noise at `x` in the unit cube: normal, growing along a direction, of Student's law, with outliers, or skewed."""
    level_key, normal_key, slope_key, tail_key, far_key, kind_key = jax.random.split(key, 6)
    least = jnp.where(dimension > _GRID_INPUTS, 2e-2, 2e-3)
    level = jnp.exp(jax.random.uniform(level_key, minval=jnp.log(least), maxval=0.0))
    normal = jax.random.normal(normal_key, (len(x),))
    slope = jnp.where(jnp.arange(x.shape[1]) < dimension, jax.random.normal(slope_key, (x.shape[1],)), 0)
    growing = normal * jnp.exp(2 * jnp.minimum(1, jnp.sqrt(2 / dimension)) * (x - 0.5) @ slope)
    # Student's law with 4 degrees of freedom, of variance one.
    squares = jnp.sum(jax.random.normal(tail_key, (len(x), 4)) ** 2, axis=1)
    heavy = normal * jnp.sqrt(2 / jnp.maximum(squares, 1e-3))
    far = jnp.where(jax.random.bernoulli(far_key, _OUTLIERS, (len(x),)), _FAR * normal, normal)
    kind = choose(kind_key, tuple(NOISES.values()), noise)
    skewed = jax.random.exponential(far_key, (len(x),)) - 1
    return level * jnp.stack([normal, growing, heavy, far, skewed])[kind]
