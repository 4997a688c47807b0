"""The learned correction of the mixture of experts: a posterior operator that reads the neighbours of a point.

The operator attends to the neighbours on behalf of the point and corrects the mixture: it shifts the weights of the experts,
the mean and the variance. Before training its corrections are zero. Mean and variance depend only on distances and angles, hence
not on the frame of the inputs. Each point is predicted by itself: a subset of the points gets the subset of the predictions.

It reads numbers without units, relative to the mixture of experts: the mean `base` and the variance `spread` at the point.
Directions enter as cosines of angles, to the nearest observation and to the steepest ascent of the values.
The weights that ship with the package are trained by `make prior`.
"""

from functools import lru_cache
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from bieqno import persistence
from bieqno.operators import MLP, CrossAttentionPool, ElementwiseOperator, PosteriorOperator
from bieqno.persistence import PersistenceError
from bieqno.regression.pretrained import mixture as mixtures
from bieqno.regression.pretrained.experts import EXPERTS, NEAREST, ExpertPredictions
from bieqno.regression.pretrained.mixture import NOISE_LEVELS, Context, Mixture, Moments, Pair, moments
from bieqno.regression.pretrained.neighbours import Neighbourhood, length

SHIPPED = tuple(Path(__file__).with_name(name) for name in ("weights.bieqno", "weights_of_many.bieqno"))
FEW_INPUTS, MAX_DIMENSION = 4, 12  # most inputs that the former and the latter are used for

_RANKS = (1, 2, 3, 4, 6, 8, 16, 32)  # neighbours whose distance is a feature
_NOWHERE = 30.0  # distance of padding

POINT_FEATURES = 6 * len(EXPERTS) + len(_RANKS) + 9
NEIGHBOUR_FEATURES = 9
OUTPUTS = len(EXPERTS) + 2  # a shift of each expert's weight, of the mean and of the log-variance


class Correction(eqx.Module):
    """The posterior operator that corrects a mixture of experts."""

    operator: PosteriorOperator

    def __init__(self, *, width: int = 64, heads: int = 4, key: PRNGKeyArray) -> None:
        point_key, pool_key, key = jax.random.split(key, 3)
        points = MLP(POINT_FEATURES, width, width=2 * width, activation=jax.nn.silu, key=point_key)
        operator = PosteriorOperator(
            POINT_FEATURES,
            NEIGHBOUR_FEATURES,
            OUTPUTS,
            width=width,
            lean=True,
            inputs=ElementwiseOperator(points),
            pool=CrossAttentionPool(width, query_size=width, heads=heads, key=pool_key),
            activation=jax.nn.silu,
            key=key,
        )
        self.operator = eqx.tree_at(lambda o: o.fit.network.layers[-1].weight, operator, replace_fn=jnp.zeros_like)

    def __check_init__(self) -> None:
        expected = (POINT_FEATURES, NEIGHBOUR_FEATURES, OUTPUTS)
        found = (self.operator.in_size, self.operator.observation_size, self.operator.out_size)
        if found != expected:
            raise ValueError(f"this version's experts need an operator of sizes {expected}, got {found}")

    def compare(self, seen: Neighbourhood, predictions: ExpertPredictions, context: Context) -> Pair:
        """Predict the points of all centres, in one row, with the correction and without it."""

        def at(seen: Neighbourhood, mixture: Mixture) -> Pair:
            base, spread = experts = moments(mixture.log_weight, mixture)
            point = point_features(seen, mixture, base, spread, context)
            out = self.operator(point[None], neighbour_features(seen, base, spread), observation_mask=seen.mask)[0]
            gates, (shift, log_factor) = jnp.split(out, [len(EXPERTS)])
            mean, variance = moments(jax.nn.log_softmax(mixture.log_weight + gates), mixture)
            variance_corrected = variance * jnp.exp(jnp.clip(log_factor, -15, 10)) + mixtures.FLOOR
            return Pair(Moments(mean + shift * jnp.sqrt(variance), variance_corrected), experts)

        stacked = seen, jax.vmap(lambda own: mixtures.weigh(own, context))(predictions)
        pair, units = jax.vmap(at)(*jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), stacked)), context.units
        return Pair(*(Moments(units.shift + units.scale * m, units.scale**2 * v) for m, v in pair))


def shipped_correction(inputs: int = 1) -> Correction:
    """Return the correction that was pre-trained on random functions, for so many inputs."""
    return _loaded(SHIPPED[inputs > FEW_INPUTS])


@lru_cache
def _loaded(path: Path) -> Correction:
    if not path.exists():
        raise PersistenceError(
            f"the pre-trained weights are not in {path}; install the package again, or see docs/prior.md (`make prior`)"
        )
    return persistence.load(path, known=[Correction])


def suited(correction: Correction, inputs: int) -> Correction:
    """Return the correction to use for so many inputs: if it is one of those that ship, that for their number."""
    if inputs > MAX_DIMENSION:
        return no_correction()  # of more inputs nothing was learned
    if correction is (known := shipped_correction(inputs)):
        return known
    other = shipped_correction(1 if inputs > FEW_INPUTS else MAX_DIMENSION)
    return known if all(map(np.array_equal, *map(jax.tree.leaves, (correction, other)))) else correction


@lru_cache
def no_correction() -> Correction:
    """Return the correction before any training: zero, whatever its other weights are."""
    return eqx.filter_jit(lambda key: Correction(width=16, key=key))(jax.random.key(0))


def point_features(
    seen: Neighbourhood, mixture: Mixture, base: Float[Array, ""], spread: Float[Array, ""], context: Context
) -> Float[Array, "p"]:
    """Return the features of a test point."""
    likelihood = mixture.log_likelihood - jnp.max(mixture.log_likelihood, axis=1, keepdims=True)
    log_spread = jnp.log(spread)
    levels = jnp.asarray(NOISE_LEVELS, spread.dtype)
    probability = jnp.exp(context.log_noise)
    log_noise = probability @ levels
    count = jnp.sum(seen.mask)
    distances = jnp.where(seen.mask, length(seen.offsets), _NOWHERE)[-jnp.asarray(_RANKS)]
    return jnp.concatenate(
        [
            jnp.arcsinh((mixture.mean - base) / jnp.sqrt(spread)),
            (jnp.log(mixture.variance) - log_spread) / 2,
            jnp.maximum(mixture.log_weight, -12) / 4,
            *(-jnp.log1p(-likelihood / 4)),  # damped: differences go down to minus thousands
            jnp.maximum(context.log_prior, -8) / 4,
            jnp.log(distances + 0.05),
            jnp.stack(
                [
                    log_spread / 4,
                    log_noise / 4,
                    (log_spread - log_noise) / 4,
                    jnp.sqrt(jnp.maximum(probability @ (levels - log_noise) ** 2, 1e-6)),
                    _log_variation(seen, 3) - log_spread / 2,
                    _log_variation(seen, NEAREST) - log_spread / 2,
                    _log_variation(seen, 3) - log_noise / 2,
                    jnp.minimum(context.dimension, MAX_DIMENSION).astype(spread.dtype) / 4,  # as in the pre-training
                    1 / (1 + count.astype(spread.dtype) / 8),
                ]
            ),
        ]
    )


def neighbour_features(seen: Neighbourhood, base: Float[Array, ""], spread: Float[Array, ""]) -> Float[Array, "k r"]:
    """Return the features of each neighbour."""
    distance = length(seen.offsets)
    direction = seen.offsets / jnp.maximum(distance, 1e-6)[:, None]
    value = (seen.values - base) / jnp.sqrt(spread)
    near = jnp.where(seen.mask, jnp.exp(-((distance / 3) ** 2) / 2), 0)
    middle = jnp.sum(near * seen.values) / jnp.maximum(jnp.sum(near), 1e-6)
    ascent = (near * (seen.values - middle)) @ seen.offsets
    uphill = direction @ (ascent / jnp.maximum(jnp.linalg.norm(ascent), 1e-6))
    return jnp.stack(
        [
            jnp.log(distance + 0.05),
            1 / (1 + distance),
            distance / 8,
            direction @ direction[-1],
            uphill,
            jnp.arcsinh(value),
            jnp.tanh(value),
            seen.values,
            jnp.arcsinh(10 * (seen.values - seen.values[-1])),
        ],
        axis=1,
    )


def _log_variation(seen: Neighbourhood, count: int) -> Float[Array, ""]:
    """Return the logarithm of the standard deviation of the nearest values."""
    there, values = seen.mask[-count:], seen.values[-count:]
    number = jnp.maximum(jnp.sum(there), 1).astype(values.dtype)
    mean = jnp.sum(jnp.where(there, values, 0)) / number
    return jnp.log(jnp.sum(jnp.where(there, (values - mean) ** 2, 0)) / number + 1e-6) / 2
