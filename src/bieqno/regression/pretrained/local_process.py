"""The generalized Gaussian process in its local form: each test point asks the observations round it.

A mixture of local Gaussian processes (`experts`, `background`) says what is known without learning. The posterior operator
attends to the neighbours on behalf of the point, in relative positions, and corrects the mixture: it shifts the weights of
the experts, the mean and the variance, and states how neighbouring predictions hang together. Before training its
corrections are zero, so that the process begins as that mixture and cannot start out worse.

The mean and the variance depend on distances and angles between a point and its observations only, hence not on the frame
of the inputs. Each point is predicted by itself: a subset of the points gets the subset of the predictions.
"""

import math
from operator import itemgetter
from typing import NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from bieqno.gaussian import LowRankGaussian
from bieqno.operators import MLP, CrossAttentionPool, ElementwiseOperator, PosteriorOperator
from bieqno.regression.pretrained.background import FLOOR, NOISE_LEVELS, Background, Weighed, learn, weigh
from bieqno.regression.pretrained.experts import EXPERTS, Opinions, ask
from bieqno.regression.pretrained.features import NEIGHBOUR_FEATURES, POINT_FEATURES, of_neighbours, of_point
from bieqno.regression.pretrained.neighbourhood import (
    SITES,
    Neighbourhood,
    Units,
    around,
    nearest_row,
    nearest_rows,
    spread_rows,
)
from bieqno.regression.pretrained.trust import Compared, Moments, blend
from bieqno.regression.trained.splits import Data

T = TypeVar("T")
SHARED = len(EXPERTS) + 2
"""The output that says how much of the variance is shared with other points."""


class Circumstances(eqx.Module):
    """What is common to all predictions from one data set: its units, its background, its dimension."""

    units: Units
    background: Background
    dimension: Int[Array, ""]


class Stations(NamedTuple):
    """Observations, each with those nearest to it and some points to be predicted from them."""

    centres: Int[Array, "s"]
    """Rows of the observations."""
    rows: Int[Array, "s k"]
    """Rows of the nearest observations of each, nearest first and filled up by -1."""
    points: Float[Array, "s q d"]


class LocalProcess(eqx.Module):
    """The joint distribution of noisy values at test points, given observations, for inputs of any dimension.

    Args:
        width: length of embeddings and hidden layers.
        heads: of the attention to the neighbours.
        waves: the covariance factor has two columns for each.
        key: random key of the initial weights.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> x = jnp.linspace(0, 1, 20)[:, None]
        >>> process = LocalProcess(width=16, key=jax.random.key(0))
        >>> gaussian = eqx.filter_jit(process)(jnp.array([[0.52], [0.9]]), x, 7 + 3 * x[:, 0])
        >>> gaussian.mean.round(1).tolist(), gaussian.factor.shape
        ([8.600000381469727, 9.699999809265137], (2, 16))
    """

    operator: PosteriorOperator
    waves: int = eqx.field(static=True)

    def __init__(self, *, width: int = 64, heads: int = 4, waves: int = 8, key: PRNGKeyArray) -> None:
        point_key, pool_key, key = jax.random.split(key, 3)
        operator = PosteriorOperator(
            POINT_FEATURES,
            NEIGHBOUR_FEATURES,
            len(EXPERTS) + 3 + waves,
            width=width,
            lean=True,
            inputs=ElementwiseOperator(
                MLP(POINT_FEATURES, width, width=2 * width, activation=jax.nn.silu, key=point_key)
            ),
            pool=CrossAttentionPool(width, query_size=width, heads=heads, key=pool_key),
            activation=jax.nn.silu,
            key=key,
        )
        self.operator = eqx.tree_at(lambda o: o.fit.network.layers[-1].weight, operator, replace_fn=jnp.zeros_like)
        self.waves = waves

    def __check_init__(self) -> None:
        expected = (POINT_FEATURES, NEIGHBOUR_FEATURES, len(EXPERTS) + 3 + self.waves)
        found = (self.operator.in_size, self.operator.observation_size, self.operator.out_size)
        if found != expected:
            raise ValueError(f"this version's experts need an operator of sizes {expected}, got {found}")

    def __call__(
        self,
        points: Float[Array, "n d"],
        inputs: Float[Array, "m d"],
        targets: Float[Array, "m"],
        *,
        observation_mask: Bool[Array, "m"] | None = None,
        dimension: Int[Array, ""] | None = None,
    ) -> LowRankGaussian:
        """The posterior at `points`, by comparing each with all observations; for some hundreds of them.

        Args:
            points: where to predict.
            inputs: where was observed.
            targets: what was observed.
            observation_mask: which observations are there; None if all are.
            dimension: of the space, where the columns beyond it are all zero; None if none are.
        """
        mask = jnp.ones(len(targets), bool) if observation_mask is None else observation_mask
        data = Data(inputs, targets, jnp.zeros_like(targets), mask)
        space = jnp.asarray(inputs.shape[1]) if dimension is None else dimension
        stations = jax.vmap(lambda x: nearest_row(x, data))(points)
        return self._learned(points[:, None], stations, data, space)

    def at_sites(self, points: Float[Array, "s q d"], data: Data, dimension: Int[Array, ""]) -> LowRankGaussian:
        """The posterior at some points of each of the sites that `spread_rows` finds, in one row: for training.

        The sites are looked at anyway, for what the whole data set tells. Points of sites that are not there mean nothing.
        """
        return self._learned(points, None, data, dimension)

    def _learned(
        self, points: Float[Array, "s q d"], stations: Int[Array, "s"] | None, data: Data, dimension: Int[Array, ""]
    ) -> LowRankGaussian:
        """The posterior at points of given stations, the sites if None, without knowing anything beforehand."""
        sites = spread_rows(data)
        centres = sites if stations is None else jnp.concatenate([sites, stations])
        rows = jax.vmap(lambda x: nearest_rows(x, data))(data.inputs[centres])
        units = Units.of(data, sites, rows[:SITES], dimension)
        wanted = points
        if stations is not None:
            nothing = jnp.broadcast_to(data.inputs[sites][:, None], (SITES, *points.shape[1:]))
            wanted = jnp.concatenate([nothing, points])
        # All at once: two decompositions in flight at the same time have been seen to wait for each other for ever.
        seen, opinions = asked(Stations(centres, rows, wanted), data, units)
        background = learn(jax.tree.map(itemgetter(slice(SITES)), opinions), sites >= 0, jnp.sum(data.mask))
        own = slice(None) if stations is None else slice(SITES, None)
        seen, opinions = jax.tree.map(itemgetter(own), (seen, opinions))
        return self.conclude(points, seen, opinions, Circumstances(units, background, dimension))

    def conclude(
        self,
        points: Float[Array, "s q d"],
        seen: Neighbourhood,
        opinions: Opinions,
        circumstances: Circumstances,
        share: Float[Array, "s"] | None = None,
    ) -> LowRankGaussian:
        """The posterior at points of which neighbourhoods and opinions are known, stacked along a first axis.

        Args:
            points: of each station.
            seen: by each point.
            opinions: of the experts of each station.
            circumstances: of the data set.
            share: of the correction in the mixture of it and the experts alone, at each station; None for one.
        """
        waves = _wave_vectors(self.waves, points.shape[2], circumstances.dimension)

        def at(point: Array, own: Neighbourhood, weighed: Weighed, share: Array) -> tuple[Array, Array, Array]:
            found, out = self._corrected(own, weighed, circumstances)
            mean, variance = blend(share, found)
            # How much of the variance is shared with other points, and over which wavelengths: the experts share none.
            shared = 0.99 * jax.nn.sigmoid(out[0] - 1) * share * found.corrected.variance
            # As an exponential: the root of a share that has become zero would have no gradient.
            amplitude = jnp.sqrt(shared) * jnp.exp(jax.nn.log_softmax(out[1:]) / 2)
            phase = waves @ (point / circumstances.units.spacing)
            factor = jnp.concatenate([amplitude * jnp.cos(phase), amplitude * jnp.sin(phase)])
            return mean, factor, jnp.log(variance - shared)

        shares = jnp.ones(len(points)) if share is None else share
        weighed = jax.vmap(lambda said: weigh(said, circumstances.background))(opinions)
        each = _in_one_row((points, seen, weighed))
        mean, factor, log_diag = jax.vmap(at)(*each, jnp.repeat(shares, points.shape[1]))
        return LowRankGaussian(mean, factor, log_diag).affine(circumstances.units.scale, circumstances.units.shift)

    def compare(self, seen: Neighbourhood, opinions: Opinions, circumstances: Circumstances) -> Compared:
        """How the points of all stations, in one row, are predicted with the correction and without it."""

        def at(own: Neighbourhood, weighed: Weighed) -> Compared:
            return self._corrected(own, weighed, circumstances)[0]

        units = circumstances.units
        weighed = jax.vmap(lambda said: weigh(said, circumstances.background))(opinions)
        found = jax.vmap(at)(*_in_one_row((seen, weighed)))
        return Compared(*(Moments(units.shift + units.scale * m, units.scale**2 * v) for m, v in found))

    def _corrected(self, seen: Neighbourhood, weighed: Weighed, circumstances: Circumstances) -> tuple[Compared, Array]:
        """Mean and variance at the centre of a neighbourhood, and the outputs that say more."""
        plain = base, spread = moments(weighed.log_weight, weighed)
        inputs = of_point(seen, weighed, base, spread, circumstances.background, circumstances.dimension)
        elements = of_neighbours(seen, base, spread)
        out = self.operator(inputs[None], elements, observation_mask=seen.mask)[0]
        gates, (shift, log_factor), rest = jnp.split(out, [len(EXPERTS), len(EXPERTS) + 2])
        mean, variance = moments(jax.nn.log_softmax(weighed.log_weight + gates), weighed)
        factor = jnp.exp(jnp.clip(log_factor, -15, 10))
        corrected = Moments(mean + shift * jnp.sqrt(variance), variance * factor + FLOOR)
        return Compared(corrected, plain), rest


def moments(log_weight: Float[Array, "e"], weighed: Weighed) -> Moments:
    """Mean and variance of the mixture of experts."""
    weight = jnp.exp(log_weight)
    mean = weight @ weighed.mean
    return Moments(mean, weight @ (weighed.variance + (weighed.mean - mean) ** 2))


def look_around(
    data: Data,
    sites: Int[Array, "s"],
    rows: Int[Array, "s k"],
    dimension: Int[Array, ""],
    noise: Float[Array, ""] | None = None,
) -> Circumstances:
    """Find out what is common to all predictions from a data set.

    Args:
        data: the observations.
        sites: some of them, by `spread_rows`.
        rows: the nearest observations of each site.
        dimension: of the space of the inputs.
        noise: the standard deviation of the noise, if it is known.
    """
    units = Units.of(data, sites, rows, dimension)
    _, opinions = asked(Stations(sites, rows, data.inputs[sites][:, None]), data, units)
    known = None if noise is None else _peaked(2 * jnp.log(noise / units.scale))
    background = learn(opinions, sites >= 0, jnp.sum(data.mask), known)
    return Circumstances(units, background, jnp.asarray(dimension))


def asked(stations: Stations, data: Data, units: Units) -> tuple[Neighbourhood, Opinions]:
    """The neighbourhood of each point, and what the experts of each station say."""

    def of_station(row: Array, rows: Array, points: Array) -> tuple[Neighbourhood, Opinions]:
        centre = data.inputs[row]
        neighbourhood, offsets = around(centre, data, units, rows), (points - centre) / units.spacing
        return jax.vmap(neighbourhood.seen_from)(offsets), ask(neighbourhood, offsets)

    return jax.vmap(of_station)(*stations)


def _in_one_row(stacked: T) -> T:
    """The points of all stations one after the other."""
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), stacked)


def _peaked(log_variance: Float[Array, ""]) -> Float[Array, "levels"]:
    """A known level of the noise as probabilities of all levels."""
    levels = jnp.asarray(NOISE_LEVELS)
    return jax.nn.log_softmax(-0.5 * ((jnp.clip(log_variance, levels[0], levels[-1]) - levels) / 0.3) ** 2)


def _wave_vectors(count: int, columns: int, dimension: Int[Array, ""]) -> Float[Array, "count columns"]:
    """Fixed waves from twice to sixty times the spacing, in directions that fill the space."""
    # Column by column, so that further columns, which are all zero, change nothing.
    keys = jax.vmap(lambda i: jax.random.fold_in(jax.random.key(0), i))(jnp.arange(columns))
    direction = jax.vmap(lambda key: jax.random.normal(key, (count,)))(keys).T * (jnp.arange(columns) < dimension)
    direction = direction / jnp.linalg.norm(direction, axis=1, keepdims=True)
    return 2 * math.pi * direction / jnp.geomspace(2.0, 60.0, count)[:, None]
