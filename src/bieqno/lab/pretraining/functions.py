"""Random functions to learn from, and where they are observed: smooth or rough, of several scales, with jumps and periods.

All are defined on the unit cube of one to `MAX_DIMENSION` dimensions; columns beyond a task's dimension are zero. Gaussian
processes are drawn as sums of random waves, whose frequencies follow a normal law (squared exponential) or Student's
(Matern): any number of values in linear time.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from bieqno.regression.data import Data
from bieqno.regression.pretrained.correction import MAX_DIMENSION
from bieqno.regression.pretrained.neighbours import NEIGHBOURS, spread_rows

LEAST = 8  # observations of a task at least
WAVES, JUMPS = 96, 6


class Task(eqx.Module):
    """Observations of a random function, and noisy values at other points, some near each probe, to be predicted."""

    data: Data
    points: Float[Array, "s q d"]
    values: Float[Array, "s q"]
    mask: Bool[Array, "s q"]
    dimension: Int[Array, ""]


class RandomTasks(eqx.Module):
    """The batch source: tasks of random functions, with at most `most` of the `candidates` next to each probe.

    Example:
        >>> import jax
        >>> task = jax.jit(RandomTasks(3, observations=64, candidates=32))(jax.random.key(0))
        >>> task.data.inputs.shape, task.values.shape
        ((3, 64, 4), (3, 32, 3))
    """

    batch_size: int = eqx.field(static=True)
    observations: int = eqx.field(static=True, default=512)
    candidates: int = eqx.field(static=True, default=384)
    most: int = eqx.field(static=True, default=3)

    def __call__(self, key: PRNGKeyArray) -> Task:
        """Draw tasks, stacked along a first axis."""
        return jax.vmap(self.draw)(jax.random.split(key, self.batch_size))

    def draw(self, key: PRNGKeyArray) -> Task:
        """Draw one task."""
        layout_key, target_key, function_key, level_key, noise_key = jax.random.split(key, 5)
        layout = draw_layout(layout_key, self.observations)
        points = draw_targets(target_key, layout, self.candidates)
        f = draw_function(function_key, jnp.concatenate([layout.inputs, points]), layout.dimension, layout.spacing)
        seen = jnp.concatenate([layout.mask, jnp.ones(self.candidates, bool)])
        f = (f - jnp.mean(f, where=seen)) / (jnp.std(f, where=seen) + 1e-3)
        noise = jnp.exp(jax.random.uniform(level_key, minval=jnp.log(2e-3), maxval=jnp.log(0.6)))
        y = f + noise * jax.random.normal(noise_key, f.shape)
        rows = len(layout.mask)
        data = Data(layout.inputs, y[:rows], jnp.zeros(rows), layout.mask)
        centres = jax.vmap(lambda x: nearest_rows(x, data)[0])(points)
        probes = spread_rows(data.inputs, data.targets, data.mask)
        beside, chosen = jax.lax.top_k((probes[:, None] == centres).astype(jnp.int32), self.most)
        mask = beside > 0
        # Padding is at its probe, for the features of a point far away would be huge.
        points = jnp.where(mask[..., None], points[chosen], data.inputs[probes][:, None])
        return Task(data, points, y[rows:][chosen], mask, layout.dimension)


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


def draw_layout(key: PRNGKeyArray, most: int) -> Layout:
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

    kind = jax.random.choice(kind_key, 3, p=jnp.array([0.55, 0.3, 0.15]))
    inputs = jnp.where(jnp.arange(MAX_DIMENSION) < dimension, jnp.stack([scattered, grid, crowded])[kind], 0)
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


def draw_function(
    key: PRNGKeyArray, x: Float[Array, "n d"], dimension: Int[Array, ""], spacing: Float[Array, ""]
) -> Float[Array, "n"]:
    """Draw the values at `x` of a random function of a random kind, with scales down to the `spacing` of the observations."""
    keys = jax.random.split(key, 14)
    log_spacing = jnp.log(spacing)
    length = jnp.exp(jax.random.uniform(keys[0], minval=log_spacing + jnp.log(0.7), maxval=jnp.log(1.5)))
    shorter = jnp.maximum(length * jnp.exp(-jax.random.uniform(keys[1], maxval=jnp.log(10.0))), 0.7 * spacing)
    wider = jnp.exp(jax.random.uniform(keys[2], minval=jnp.maximum(log_spacing + jnp.log(3.0), -3), maxval=0.0))
    coarse = random_waves(keys[3], x, length)
    fine = random_waves(keys[4], x, shorter) * jnp.exp(jax.random.uniform(keys[5], minval=-2.0, maxval=0.7))
    field = random_waves(keys[6], x, wider, smooth=True)
    threshold = jax.random.normal(keys[7]) * 0.7
    box = jnp.all(jnp.abs(x - jax.random.uniform(keys[8], (x.shape[1],))) < jnp.exp(-1.2), axis=1)
    region = jnp.where(threshold > 0.2, box, field > threshold)
    steps = _jumps(keys[9], x, dimension)
    # Along a random direction, with a period that the observations can resolve.
    period = jnp.exp(jax.random.uniform(keys[10], minval=log_spacing + jnp.log(3.0), maxval=jnp.log(0.8)))
    phase = x @ _direction(keys[11], dimension) / jnp.maximum(period, 3 * spacing) + threshold
    harmonics = jax.random.normal(keys[13], (2, 4)) / jnp.arange(1, 5)
    turns = 2 * jnp.pi * phase[:, None] * jnp.arange(1, 5)
    kinds = [
        (0.24, coarse),
        (0.08, coarse + fine),
        (0.12, coarse + fine * region),
        (0.05, coarse + fine * jax.nn.sigmoid(4 * (field - threshold))),  # fading in
        (0.20, steps),
        (0.09, (field > threshold).astype(x.dtype)),  # two levels
        (0.08, coarse + 2 * steps * jnp.abs(threshold)),
        (0.06, (phase % 1.0) * (1 + 0.3 * field * (threshold > 0))),  # sawtooth
        (0.05, jnp.cos(turns) @ harmonics[0] + jnp.sin(turns) @ harmonics[1]),  # periodic
        (0.03, jnp.abs(coarse - threshold)),  # kinks
    ]
    shares, values = zip(*kinds, strict=True)
    return jnp.stack(values)[jax.random.choice(keys[12], len(kinds), p=jnp.array(shares))]


def random_waves(key: PRNGKeyArray, x: Float[Array, "n d"], length: Array, smooth: bool = False) -> Float[Array, "n"]:
    """Draw a Gaussian process of variance one, squared exponential or Matern, with its own length along each input."""
    frequency_key, tail_key, law_key, phase_key, stretch_key = jax.random.split(key, 5)
    frequency = jax.random.normal(frequency_key, (WAVES, x.shape[1]))
    if not smooth:
        # Student's law with 1, 3 or 5 degrees of freedom: Matern-1/2, -3/2, -5/2. The rest stays normal.
        squares = jnp.cumsum(jax.random.normal(tail_key, (WAVES, 5)) ** 2, axis=1)
        degrees = jnp.array([1, 3, 5, 5])
        law = jax.random.choice(law_key, 4, p=jnp.array([0.2, 0.15, 0.2, 0.45]))
        tail = jnp.sqrt(degrees[law] / jnp.maximum(squares[:, degrees[law] - 1], 1e-4))
        frequency = frequency * jnp.where(law == 3, 1.0, tail)[:, None]
    stretch = jnp.exp(0.25 * jax.random.normal(stretch_key, (x.shape[1],)))
    phase = 2 * jnp.pi * jax.random.uniform(phase_key, (WAVES,))
    return jnp.sqrt(2 / WAVES) * jnp.sum(jnp.cos(x @ (frequency * stretch / length).T + phase), axis=1)


def _jumps(key: PRNGKeyArray, x: Float[Array, "n d"], dimension: Int[Array, ""]) -> Float[Array, "n"]:
    """Draw a function that is constant between a few jumps across planes: of random heights, or between two levels."""
    direction_key, place_key, height_key, count_key, level_key = jax.random.split(key, 5)
    direction = jax.vmap(lambda own: _direction(own, dimension))(jax.random.split(direction_key, JUMPS))
    centre = 0.5 * (jnp.arange(x.shape[1]) < dimension)
    # Places on the line are spread over it; planes pass near the centre.
    reach = jnp.sum(jnp.abs(direction), axis=1) / 2
    place = (2 * jax.random.uniform(place_key, (JUMPS,)) - 1) * reach
    beyond = (x - centre) @ direction.T > place
    active = jnp.arange(JUMPS) < jax.random.randint(count_key, (), 1, JUMPS + 1)
    heights = jnp.where(active, jax.random.normal(height_key, (JUMPS,)), 0)
    parity = jnp.sum(beyond & active, axis=1) % 2
    return jnp.where(jax.random.bernoulli(level_key, 0.4), parity.astype(x.dtype), beyond @ heights)


def _direction(key: PRNGKeyArray, dimension: Int[Array, ""]) -> Float[Array, "d"]:
    """Draw a unit vector; along one of the inputs in one of three cases."""
    kind_key, axis_key, free_key = jax.random.split(key, 3)
    free = jnp.where(jnp.arange(MAX_DIMENSION) < dimension, jax.random.normal(free_key, (MAX_DIMENSION,)), 0)
    along = jnp.arange(MAX_DIMENSION) == jax.random.randint(axis_key, (), 0, dimension)
    chosen = jnp.where(jax.random.bernoulli(kind_key, 1 / 3), along, free / jnp.linalg.norm(free))
    return chosen.astype(free.dtype)
