"""Random functions to learn from: smooth or rough, of several scales, with jumps and periods, additive or interacting.

All are defined on a cube of one to `MAX_DIMENSION` dimensions that is squeezed along inputs that matter little, as by the length
scales that a regressor learns, up to errors of these; columns beyond a task's dimension are zero. Functions of more than
`FEW_INPUTS` inputs come without their linear trend. Gaussian processes are drawn as sums of random waves, whose frequencies
follow a normal law (squared exponential) or Student's (Matern): any number of values in linear time.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from bieqno.lab.pretraining import designs
from bieqno.lab.pretraining.designs import ANY, Kind, Layout, choose
from bieqno.regression.data import Data
from bieqno.regression.pretrained.correction import FEW_INPUTS, MAX_DIMENSION
from bieqno.regression.pretrained.neighbours import spread_rows

WAVES, JUMPS, BUMPS = 96, 6, 5
FAMILIES = {
    "smooth or rough": 0.20,
    "two scales": 0.07,
    "fine in a region": 0.10,
    "fading in": 0.04,
    "steps": 0.17,
    "two levels": 0.08,
    "steps on waves": 0.07,
    "sawtooth": 0.05,
    "periodic": 0.04,
    "kinks": 0.03,
    "additive": 0.06,
    "interaction": 0.05,
    "periodic with trend": 0.04,
    "bumps": 0.0,
}
"""Kinds of functions, and how often each is drawn: never if it is held out for tests."""
_IRRELEVANT = 0.2  # share of functions that do not depend on all inputs
_SHRUNK = 0.03  # penalty of a trend, relative to the squares of its input


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
        ((3, 64, 12), (3, 32, 3))
    """

    batch_size: int = eqx.field(static=True)
    observations: int = eqx.field(static=True, default=512)
    candidates: int = eqx.field(static=True, default=384)
    most: int = eqx.field(static=True, default=3)

    def __call__(self, key: PRNGKeyArray) -> Task:
        """Draw tasks, stacked along a first axis."""
        return jax.vmap(self.draw)(jax.random.split(key, self.batch_size))

    def draw(
        self, key: PRNGKeyArray, family: Kind = ANY, design: Kind = ANY, noise: Kind = ANY, dimension: Kind = ANY
    ) -> Task:
        """Draw one task, of any kinds or of the given number of inputs and numbers in `FAMILIES`, `DESIGNS` and `NOISES`."""
        layout_key, target_key, function_key, noise_key = jax.random.split(key, 4)
        layout = designs.draw_layout(layout_key, self.observations, design, dimension)
        places = jnp.concatenate([layout.inputs, designs.draw_targets(target_key, layout, self.candidates)])
        places = layout.rounded(places)
        x = places * layout.widths
        f = draw_function(function_key, x, layout, family)
        seen = jnp.concatenate([layout.mask, jnp.ones(self.candidates, bool)])
        f = (f - jnp.mean(f, where=seen)) / (jnp.std(f, where=seen) + 1e-3)
        y = f + designs.draw_noise(noise_key, places, layout.dimension, noise)
        y = y - jnp.where(layout.dimension > FEW_INPUTS, _trend(x, y, jnp.arange(len(x)) < jnp.sum(layout.mask)), 0)
        rows = len(layout.mask)
        data, points = Data(x[:rows], y[:rows], jnp.zeros(rows), layout.mask), x[rows:]
        centres = jax.vmap(lambda x: designs.nearest_rows(x, data)[0])(points)
        probes = spread_rows(data.inputs, data.targets, data.mask)
        beside, chosen = jax.lax.top_k((probes[:, None] == centres).astype(jnp.int32), self.most)
        mask = beside > 0
        # Padding is at its probe, for the features of a point far away would be huge.
        points = jnp.where(mask[..., None], points[chosen], data.inputs[probes][:, None])
        return Task(data, points, y[rows:][chosen], mask, layout.dimension)


def _trend(x: Float[Array, "n d"], y: Float[Array, "n"], seen: Bool[Array, "n"]) -> Float[Array, "n"]:
    """Return the linear trend of the observations, as functions of many inputs are corrected without theirs."""
    centred = jnp.where(seen[:, None], x - jnp.mean(x, axis=0, where=seen[:, None]), 0)
    square = jnp.sum(centred**2, axis=0)
    slope = jnp.linalg.solve(centred.T @ centred + jnp.diag(_SHRUNK * square + 1e-6), centred.T @ y)
    return x @ slope


def draw_function(key: PRNGKeyArray, x: Float[Array, "n d"], layout: Layout, family: Kind = ANY) -> Float[Array, "n"]:
    """Draw the values at `x` of a random function of a random kind, with scales down to the spacing of the observations."""
    relevance_key, additive_key, *keys = jax.random.split(key, 16)
    dimension, spacing = layout.dimension, layout.spacing
    relevant = _relevant(relevance_key, dimension)
    x, layout = x * relevant, layout._replace(widths=layout.widths * relevant)
    log_spacing = jnp.log(spacing)
    longest = 1.5 * jnp.sqrt(jnp.maximum(dimension, 2) / 2)
    length = jnp.exp(jax.random.uniform(keys[0], minval=log_spacing + jnp.log(0.7), maxval=jnp.log(longest)))
    shorter = jnp.maximum(length * jnp.exp(-jax.random.uniform(keys[1], maxval=jnp.log(10.0))), 0.7 * spacing)
    wider = jnp.exp(jax.random.uniform(keys[2], minval=jnp.maximum(log_spacing + jnp.log(3.0), -3), maxval=0.0))
    coarse = random_waves(keys[3], x, length)
    fine = random_waves(keys[4], x, shorter) * jnp.exp(jax.random.uniform(keys[5], minval=-2.0, maxval=0.7))
    field = random_waves(keys[6], x, wider, smooth=True)
    threshold = jax.random.normal(keys[7]) * 0.7
    box = jnp.all(jnp.abs(x - layout.widths * jax.random.uniform(keys[8], x.shape[1:])) < jnp.exp(-1.2), axis=1)
    region = jnp.where(threshold > 0.2, box, field > threshold)
    steps = _jumps(keys[9], x, layout)
    # Along a random direction, with a period that the observations can resolve.
    period = jnp.exp(jax.random.uniform(keys[10], minval=log_spacing + jnp.log(3.0), maxval=jnp.log(0.8)))
    phase = x @ _direction(keys[11], dimension) / jnp.maximum(period, 3 * spacing) + threshold
    harmonics = jax.random.normal(keys[13], (2, 4)) / jnp.arange(1, 5)
    turns = 2 * jnp.pi * phase[:, None] * jnp.arange(1, 5)
    periodic = jnp.cos(turns) @ harmonics[0] + jnp.sin(turns) @ harmonics[1]
    values = (
        coarse,
        coarse + fine,
        coarse + fine * region,
        coarse + fine * jax.nn.sigmoid(4 * (field - threshold)),
        steps,
        (field > threshold).astype(x.dtype),
        coarse + 2 * steps * jnp.abs(threshold),
        (phase % 1.0) * (1 + 0.3 * field * (threshold > 0)),
        periodic,
        jnp.abs(coarse - threshold),
        random_waves(additive_key, x, length, additive=dimension),
        coarse * (field + threshold),
        periodic + 4 * (x - 0.5) @ _direction(keys[12], dimension),
        _bumps(keys[6], x, layout, wider / 2),
    )
    return jnp.stack(values)[choose(keys[12], tuple(FAMILIES.values()), family)]


def _relevant(key: PRNGKeyArray, dimension: Int[Array, ""]) -> Float[Array, "d"]:
    """Draw which inputs matter: all in most cases, otherwise a part, of which one is there."""
    some_key, each_key, one_key = jax.random.split(key, 3)
    each = jax.random.bernoulli(each_key, 0.5, (MAX_DIMENSION,))
    one = jnp.arange(MAX_DIMENSION) == jax.random.randint(one_key, (), 0, dimension)
    return jnp.where(jax.random.bernoulli(some_key, _IRRELEVANT), (each | one).astype(float), 1.0)


def random_waves(
    key: PRNGKeyArray, x: Float[Array, "n d"], length: Array, smooth: bool = False, additive: Array | None = None
) -> Float[Array, "n"]:
    """Draw a Gaussian process of variance one, squared exponential or Matern, with its own length along each input.

    With `additive`, each wave runs along one of so many inputs: a sum of functions of single inputs.
    """
    frequency_key, tail_key, law_key, phase_key, stretch_key = jax.random.split(key, 5)
    frequency = jax.random.normal(frequency_key, (WAVES, x.shape[1]))
    if not smooth:
        # Student's law with 1, 3 or 5 degrees of freedom: Matern-1/2, -3/2, -5/2. The rest stays normal.
        squares = jnp.cumsum(jax.random.normal(tail_key, (WAVES, 5)) ** 2, axis=1)
        degrees = jnp.array([1, 3, 5, 5])
        law = jax.random.choice(law_key, 4, p=jnp.array([0.2, 0.15, 0.2, 0.45]))
        tail = jnp.sqrt(degrees[law] / jnp.maximum(squares[:, degrees[law] - 1], 1e-4))
        frequency = frequency * jnp.where(law == 3, 1.0, tail)[:, None]
    if additive is not None:
        frequency = jnp.where(jnp.arange(WAVES)[:, None] % additive == jnp.arange(x.shape[1]), frequency, 0)
    stretch = jnp.exp(0.25 * jax.random.normal(stretch_key, (x.shape[1],)))
    phase = 2 * jnp.pi * jax.random.uniform(phase_key, (WAVES,))
    return jnp.sqrt(2 / WAVES) * jnp.sum(jnp.cos(x @ (frequency * stretch / length).T + phase), axis=1)


def _bumps(key: PRNGKeyArray, x: Float[Array, "n d"], layout: Layout, radius: Float[Array, ""]) -> Float[Array, "n"]:
    """Draw a function that is flat but for a few bumps."""
    place_key, height_key = jax.random.split(key)
    centres = layout.widths * jax.random.uniform(place_key, (BUMPS, x.shape[1]))
    square = jnp.sum((x[:, None] - centres) ** 2, axis=2)
    return jnp.exp(-square / (2 * radius**2)) @ jax.random.normal(height_key, (BUMPS,))


def _jumps(key: PRNGKeyArray, x: Float[Array, "n d"], layout: Layout) -> Float[Array, "n"]:
    """Draw a function that is constant between a few jumps across planes: of random heights, or between two levels."""
    direction_key, place_key, height_key, count_key, level_key = jax.random.split(key, 5)
    direction = jax.vmap(lambda own: _direction(own, layout.dimension))(jax.random.split(direction_key, JUMPS))
    # Places on the line are spread over it; planes pass near the centre.
    reach = jnp.abs(direction) @ layout.widths / 2
    place = (2 * jax.random.uniform(place_key, (JUMPS,)) - 1) * reach
    beyond = (x - layout.widths / 2) @ direction.T > place
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
