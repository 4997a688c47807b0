"""The update of the local ensemble neural filter, step by step: features, base analysis, correction, transform."""

import math
from typing import TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from bieqno.assimilation.filters.learned.local_features import LEAST, Prior, asinh, prior_of, seen_fields, taper
from bieqno.assimilation.filters.learned.local_network import FieldNetwork, StencilSum, stencil_sum
from bieqno.assimilation.filters.transform import local_transforms
from bieqno.assimilation.neighbourhoods import Neighbourhoods, Stencil
from bieqno.assimilation.observation import Observed
from bieqno.operators import EquivariantOperator, Standardiser, frozen

SIZE = 10.0  # ensemble size at which the settings of the base are given; they vary with its logarithm
NOISE = 0.02  # spread of the noise before training, as a share of that of the analysis
STEP = 0.1  # unit of a correction of the mean, in units of the climate, for ensembles that have collapsed
FAR = 5.0  # largest logarithm of a radius, an inflation or a noise, in their units
TINY = 1e-12  # keeps the root of a taper of zero differentiable

Base: TypeAlias = tuple[Float[Array, "N n"], Float[Array, "n"], Float[Array, "n"]]  # anomalies, spread, increments


class AbstractLocalUpdate(eqx.Module):
    """The weights of a local filter, and its update of an ensemble; places and units say where it is used."""

    # Of the base: the value at SIZE members and the slope in log N; a radius is in units of the neighbourhoods'.
    log_radius: Float[Array, "2"]
    log_inflation: Float[Array, "2"]
    innovation_sums: StencilSum
    steering: FieldNetwork
    correction: FieldNetwork
    beside: StencilSum
    operator: EquivariantOperator
    climate: Standardiser
    extent: Float[Array, "p"] = frozen()
    neighbourhoods: Neighbourhoods = frozen()

    def __check_init__(self) -> None:
        around = self.neighbourhoods
        size, dimensions = self.innovation_sums.kernel.layers[0].weight.shape[1], around.near.dimensions
        if size != self.innovation_sums.size(dimensions):
            raise ValueError(
                f"these weights are for another space than the {dimensions} dimensions of the neighbourhoods"
            )
        there = {"variables": around.variables, "observations": around.observations}
        for (what, kinds), known in zip(there.items(), self.innovation_sums.kinds, strict=True):
            most = int(jnp.max(kinds, initial=0)) + 1
            if most > known:
                raise ValueError(f"these weights know {known} kinds of {what}, the neighbourhoods have {most}")

    def analyse_with(
        self, white: Float[Array, "N n"], ensemble: Float[Array, "N n"], observed: Observed, present: Bool[Array, "N"]
    ) -> Float[Array, "N n"]:
        """Analyse an ensemble with given standard normal numbers, all that it has of chance."""
        around = self.neighbourhoods
        observed.check_known(ensemble, around.variables.shape[0], around.observations.shape[0])
        if not ensemble.shape[0]:
            raise ValueError("an ensemble has at least one member, got none")
        close = around.near.among(observed.mask)
        if not close.indices.shape[1]:
            return ensemble
        prior = prior_of(ensemble, present, observed, around, self.climate)
        size = jnp.log(prior.count / SIZE)
        log_radius, log_inflation = (law[0] + law[1] * size for law in (self.log_radius, self.log_inflation))
        # Both are zero at SIZE members. The first resolves few members, the second many.
        whole = jnp.stack([3 * (1 / jnp.sqrt(prior.count) - 1 / math.sqrt(SIZE)), size])
        near, sums = taper(close, _bounded(log_radius)), self.innovation_sums.weights(close)
        kinds = jax.nn.one_hot(around.variables, self.climate.scale.shape[0]).T
        seen = seen_fields(prior, observed.mask, close, near, sums, kinds)
        steered = self.steering(seen, whole, around.beside)
        base, analysed = _base_analysis(prior, close, log_radius + steered[0])
        corrected = self.correction(jnp.concatenate([seen, analysed]), whole, around.beside)
        values = self._transformed(prior, base, log_inflation + steered[1] + corrected[0], corrected[1:], white)
        values = self._within_extent(
            values * self.climate.scale[around.variables] + self.climate.mean[around.variables]
        )
        return observed.or_prior(values.astype(ensemble.dtype), ensemble)

    def _transformed(
        self,
        prior: Prior,
        base: Base,
        log_inflation: Float[Array, "n"],
        corrected: Float[Array, "_ n"],
        white: Float[Array, "N n"],
    ) -> Float[Array, "N n"]:
        """Return members in units of the climate: corrected mean, inflated anomalies, moves of members, and smooth noise."""
        moves, log_noise, step, context = corrected[0], corrected[1], corrected[2], corrected[3:]
        beside = self.beside.weights(self.neighbourhoods.beside)
        moved = self._moved(prior, base, context, beside[:2]) + moves
        noise = NOISE * _bounded(log_noise) * self._noise(prior, beside[2], white)
        anomalies, spread, shift = base
        mean = prior.mean + shift + STEP * step
        return mean + prior.root * _bounded(log_inflation) * anomalies + spread * (moved + noise)

    def _moved(
        self, prior: Prior, base: Base, context: Float[Array, "c n"], weights: Float[Array, "2 k _"]
    ) -> Float[Array, "N n"]:
        """Return what the equivariant operator adds to each member, in units of the spread of the analysis."""
        beside, move = self.neighbourhoods.beside, asinh(prior.move)
        before, after = (prior.root * a / s for a, s in ((prior.anomalies, prior.spread), base[:2]))
        there = stencil_sum(weights, jnp.stack([before, move], axis=1), beside)
        mean = jnp.broadcast_to(prior.mean, before.shape)
        elements = jnp.stack([before, after, move, mean, there[:, 0], there[:, 1]])
        return self.operator.many(elements, context, prior.present)[0]

    def _noise(self, prior: Prior, weights: Float[Array, "k _"], white: Float[Array, "N n"]) -> Float[Array, "N n"]:
        """Return standard normal fields, one per member present, smooth as learned, with a mean of zero."""
        beside = self.neighbourhoods.beside
        weights = weights / jnp.sqrt(jnp.sum(weights**2, axis=0) + TINY)
        here = prior.present.astype(white.dtype)
        # A product, which is computed once; XLA would draw what is only subtracted anew for every neighbour.
        centred = white.T @ (jnp.diag(here) - jnp.outer(here, here) / prior.count)
        return jnp.sum(weights.T[..., None] * centred[beside.indices], axis=1).T

    def _within_extent(self, values: Float[Array, "N n"]) -> Float[Array, "N n"]:
        """Keep members within the climate: one beyond all that the model does would blow up in the next forecast."""
        kinds = self.neighbourhoods.variables
        mean, far = self.climate.mean[kinds], (self.extent * self.climate.scale)[kinds]
        return jnp.clip(values, mean - far, mean + far)


def _base_analysis(prior: Prior, close: Stencil, log_radius: Float[Array, "n"]) -> tuple[Base, Float[Array, "4 n"]]:
    """Return the local ensemble transform, with a radius for each variable, and what the correction sees of it."""
    near = jnp.broadcast_to(taper(close, _bounded(log_radius)), close.indices.T.shape)
    weight = jnp.sqrt(near + TINY).T
    anomalies, shift = local_transforms(prior.anomalies, prior.factor, prior.innovation, close.indices, weight)
    spread = jnp.sqrt(jnp.sum(anomalies**2, axis=0) + LEAST**2)
    # Three times an increment, a third of a logarithm of orders of magnitude: to the size of the other fields.
    ratio = jnp.log(spread / prior.spread)
    analysed = jnp.stack([asinh(shift / prior.spread), asinh(3 * shift), ratio, jnp.log(spread) / 3])
    return (anomalies, spread, shift), analysed


def _bounded(log: Float[Array, "*s"]) -> Float[Array, "*s"]:
    """Return the exponential, bounded so that weights that training has thrown far off still give finite numbers."""
    return jnp.exp(jnp.clip(log, -FAR, FAR))
