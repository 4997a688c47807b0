"""The learned correction of the mixture of experts: a posterior operator that reads the neighbours of a point.

The operator attends to the neighbours on behalf of the point and corrects the mixture: it shifts the weights of the experts,
the mean and the variance, and states how predictions at different points are correlated. Before training its corrections are
zero. Mean and variance depend only on distances and angles, hence not on the frame of the inputs. Each point is predicted by
itself: a subset of the points gets the subset of the predictions.
"""

import math
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from bieqno import persistence
from bieqno.gaussian import LowRankGaussian
from bieqno.operators import MLP, CrossAttentionPool, ElementwiseOperator, PosteriorOperator
from bieqno.persistence import PersistenceError
from bieqno.regression.pretrained.experts import EXPERTS, ExpertPredictions
from bieqno.regression.pretrained.features import NEIGHBOUR_FEATURES, POINT_FEATURES, neighbour_features, point_features
from bieqno.regression.pretrained.mixture import FLOOR, Context, Mixture, Moments, Pair, blend, moments, weigh
from bieqno.regression.pretrained.neighbours import Neighbourhood

T = TypeVar("T")
SHIPPED = Path(__file__).with_name("functions.bieqno")
"""The weights that come with the package; `make prior` trains them."""


class Correction(eqx.Module):
    """The posterior operator that corrects a mixture of experts; two columns of the covariance factor for each of the `waves`."""

    operator: PosteriorOperator
    waves: int = eqx.field(static=True)

    def __init__(self, *, width: int = 64, heads: int = 4, waves: int = 8, key: PRNGKeyArray) -> None:
        point_key, pool_key, key = jax.random.split(key, 3)
        points = MLP(POINT_FEATURES, width, width=2 * width, activation=jax.nn.silu, key=point_key)
        operator = PosteriorOperator(
            POINT_FEATURES,
            NEIGHBOUR_FEATURES,
            len(EXPERTS) + 3 + waves,
            width=width,
            lean=True,
            inputs=ElementwiseOperator(points),
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

    def joint(
        self,
        phases: Float[Array, "s q w"],
        seen: Neighbourhood,
        predictions: ExpertPredictions,
        context: Context,
        weight: Float[Array, "s"] | None = None,
    ) -> LowRankGaussian:
        """Return the joint posterior at the points of all centres, in one row.

        `phases` are those of the `wave_vectors`, in radians; `weight` is that of the correction at each centre, None for one.
        """

        def at(phase: Array, own: Neighbourhood, mixture: Mixture, weight: Array) -> tuple[Array, Array, Array]:
            pair, out = self._corrected(own, mixture, context)
            mean, variance = blend(weight, pair)
            # How much of the variance is shared with other points, and over which wavelengths: the experts share none.
            shared = 0.99 * jax.nn.sigmoid(out[0] - 1) * weight * pair.corrected.variance
            # As an exponential: the root of a share that has become zero would have no gradient.
            amplitude = jnp.sqrt(shared) * jnp.exp(jax.nn.log_softmax(out[1:]) / 2)
            factor = jnp.concatenate([amplitude * jnp.cos(phase), amplitude * jnp.sin(phase)])
            return mean, factor, jnp.log(variance - shared)

        weights = jnp.ones(len(phases)) if weight is None else weight
        mixtures = jax.vmap(lambda own: weigh(own, context))(predictions)
        each = _in_one_row((phases, seen, mixtures))
        mean, factor, log_diag = jax.vmap(at)(*each, jnp.repeat(weights, phases.shape[1]))
        return LowRankGaussian(mean, factor, log_diag).affine(context.units.scale, context.units.shift)

    def compare(self, seen: Neighbourhood, predictions: ExpertPredictions, context: Context) -> Pair:
        """Predict the points of all centres, in one row, with the correction and without it."""
        units = context.units
        mixtures = jax.vmap(lambda own: weigh(own, context))(predictions)
        pair = jax.vmap(lambda own, mixture: self._corrected(own, mixture, context)[0])(*_in_one_row((seen, mixtures)))
        return Pair(*(Moments(units.shift + units.scale * m, units.scale**2 * v) for m, v in pair))

    def _corrected(self, seen: Neighbourhood, mixture: Mixture, context: Context) -> tuple[Pair, Array]:
        """Return both predictions at a point, and the outputs that state the correlations."""
        base, spread = experts = moments(mixture.log_weight, mixture)
        point = point_features(seen, mixture, base, spread, context)
        out = self.operator(point[None], neighbour_features(seen, base, spread), observation_mask=seen.mask)[0]
        gates, (shift, log_factor), rest = jnp.split(out, [len(EXPERTS), len(EXPERTS) + 2])
        mean, variance = moments(jax.nn.log_softmax(mixture.log_weight + gates), mixture)
        factor = jnp.exp(jnp.clip(log_factor, -15, 10))
        return Pair(Moments(mean + shift * jnp.sqrt(variance), variance * factor + FLOOR), experts), rest


def wave_vectors(count: int, columns: int, dimension: Int[Array, ""]) -> Float[Array, "count columns"]:
    """Return fixed wave vectors, of 2 to 60 times the spacing, in directions that fill the space."""
    # Column by column, so that further columns, which are all zero, change nothing.
    keys = jax.vmap(lambda i: jax.random.fold_in(jax.random.key(0), i))(jnp.arange(columns))
    direction = jax.vmap(lambda key: jax.random.normal(key, (count,)))(keys).T
    direction = jnp.where((jnp.arange(columns) < dimension)[None], direction, 0)
    direction = direction / jnp.linalg.norm(direction, axis=1, keepdims=True)
    return 2 * math.pi * direction / jnp.geomspace(2.0, 60.0, count)[:, None]


@lru_cache
def shipped_correction() -> Correction:
    """Return the correction that was pre-trained on random functions."""
    if not SHIPPED.exists():
        raise PersistenceError(f"the pre-trained weights are not in {SHIPPED}; train them with `make prior`")
    return persistence.load(SHIPPED, known=[Correction])


@lru_cache
def no_correction() -> Correction:
    """Return the correction before any training: zero, whatever its other weights are, and without correlations.

    Example:
        >>> no_correction().waves
        8
    """
    plain = eqx.filter_jit(lambda key: Correction(width=16, key=key))(jax.random.key(0))
    shared = len(EXPERTS) + 2  # the output that says how much of the variance is shared with other points
    return eqx.tree_at(
        lambda c: c.operator.fit.network.layers[-1].bias, plain, replace_fn=lambda b: b.at[shared].set(-30)
    )


def _in_one_row(stacked: T) -> T:
    """Put the points of all centres one after the other."""
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), stacked)
