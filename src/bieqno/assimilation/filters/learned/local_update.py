"""The weights of the local filter, and what they do to an ensemble.

It is the paper's operator in full: equivariant to the members, invariant to the set of observations, each an element of
relative position, innovation, prediction, error and covariance with the variable. What an ensemble knows is in its second
moments; these are given to the networks, in units that keep them bounded, together with the increment that a Kalman filter
with tapered covariances would make. The networks correct it; before training they hardly do.

What depends on places alone is computed once for each pattern of `Stencil`, not once per variable.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from bieqno.assimilation.filters.learned.local_features import LEAST, View, asinh, taper, view
from bieqno.assimilation.geometry import Neighbourhoods, Stencil
from bieqno.assimilation.observation import Observed
from bieqno.operators import MLP, EquivariantOperator, Standardiser, TrunkAndBranch, frozen
from bieqno.operators.many_sets import apply_to_sets, combined, total
from bieqno.operators.networks import bias_of

BUMPS = 9  # that encode a relative position, along each dimension
# Numbers that describe an observation, its relation to a variable, and the variable.
FACTS, RELATIONS, EXTRAS = 5, 4, 6
CHUNK = 2**17  # numbers in a hidden layer: variables are done in chunks of about this, which stay in the cache


class LocalUpdate(eqx.Module):
    """The weights of a `LocalEnNF`, without a place: they serve wherever the kinds of values are the same.

    Args:
        state, predicted: standardise variables and predicted observations, one number per kind.
        radius, reach: how far an observation can act, and how far away other variables are looked at.
        extent: how far from the mean an analysis may be, in standard deviations, one number per kind; None for no bound. A
            member beyond all that a model does by itself would blow up in the next forecast.
        width: length of the hidden layers of the net that sees the ensemble as a whole.
        small: length of those that see one member or one observation.
        channels: number of combinations of innovations, and of neighbouring variables, that each variable looks at.
    """

    beside: MLP
    elements: MLP
    operator: EquivariantOperator
    taper: Float[Array, "2"]
    state: Standardiser
    predicted: Standardiser
    channels: int = eqx.field(static=True)
    radius: float = eqx.field(static=True)
    reach: float = eqx.field(static=True)
    extent: Float[Array, "p"] = frozen()

    def __init__(
        self,
        dimensions: int,
        *,
        state: Standardiser,
        predicted: Standardiser,
        radius: float,
        reach: float,
        extent: Float[Array, "p"] | None = None,
        width: int = 128,
        small: int = 32,
        channels: int = 8,
        key: PRNGKeyArray,
    ) -> None:
        beside_key, element_key, operator_key, fit_key = jax.random.split(key, 4)
        place, C = BUMPS * dimensions, channels
        variable_kinds, observation_kinds = state.scale.shape[0], predicted.scale.shape[0]
        silu = jax.nn.silu
        self.beside = MLP(place + 2 * variable_kinds, 3 * C, width=small, depth=2, activation=silu, key=beside_key)
        element = place + variable_kinds + observation_kinds + FACTS + RELATIONS
        self.elements = MLP(element, C + small, width=small, depth=3, activation=silu, key=element_key)
        member, context = 2 * C + 2, 2 * C + small + EXTRAS + variable_kinds
        fit = TrunkAndBranch(small, small + context, 1, 4 + 2 * C, width=width, link=small, scale=0.1, key=fit_key)
        self.operator = EquivariantOperator(
            member,
            1 + 4 + 2 * C,
            context_size=context,
            width=small,
            depth=2,
            activation=silu,
            fit=fit,
            key=operator_key,
        )
        self.taper = jnp.zeros(2)
        self.state, self.predicted = state, predicted
        self.extent = jnp.full(variable_kinds, jnp.inf) if extent is None else extent
        self.channels, self.radius, self.reach = channels, radius, reach

    def check(self, around: Neighbourhoods) -> None:
        """Refuse neighbourhoods that the weights were not made for."""
        place = self.beside.layers[0].weight.shape[1] - 2 * self.state.scale.shape[0]
        dimensions = around.near.offset.shape[-1]
        if place != BUMPS * dimensions:
            raise ValueError(f"these weights are for {place // BUMPS} dimensions, the neighbourhoods have {dimensions}")
        if (self.radius, self.reach) != (around.radius, around.reach):
            raise ValueError(
                f"these weights are for a radius of {self.radius:g} and a reach of {self.reach:g}, "
                f"the neighbourhoods have {around.radius:g} and {around.reach:g}"
            )
        for what, kinds, known in (
            ("variables", around.variables, self.state.scale.shape[0]),
            ("observations", around.observations, self.predicted.scale.shape[0]),
        ):
            most = int(jnp.max(kinds, initial=0)) + 1
            if most > known:
                raise ValueError(f"these weights know {known} kinds of {what}, the neighbourhoods have {most}")

    def __call__(
        self, ensemble: Float[Array, "N n"], observed: Observed, around: Neighbourhoods, noise: Float[Array, "N n"]
    ) -> Float[Array, "N n"]:
        """Analyse one window; `noise` is standard normal and adds spread where members agree too much."""
        count, size = ensemble.shape
        state = self.state
        radius = jax.nn.sigmoid(1 + self.taper[0] + self.taper[1] * jnp.log(count / 10))
        seen = view(ensemble, observed, around, state, self.predicted, radius)
        tables = self._tables(around, radius)
        most = max(count, around.near.indices.shape[1], around.beside.indices.shape[1])
        chunk = max(1, CHUNK // (most * self.elements.layers[0].weight.shape[0]))
        near, beside, noise = around.near, around.beside, noise - total(noise) / count
        rows = _Row(jnp.arange(size), near.indices.T, beside.indices.T, near.pattern, beside.pattern, noise)
        moved = _in_chunks(lambda row: self._moved(row, seen, tables, around), rows, chunk)
        mean, scale = state.mean[around.variables], state.scale[around.variables]
        most_far = self.extent[around.variables] * scale
        return jnp.clip(ensemble + moved * scale, mean - most_far, mean + most_far).astype(ensemble.dtype)

    def _tables(self, around: Neighbourhoods, radius: Float[Array, ""]) -> "_Tables":
        """What the networks make of places alone."""
        variables, observations = self.state.scale.shape[0], self.predicted.scale.shape[0]
        psi = self.beside(_place(around.beside, variables, variables))
        place = _place(around.near, variables, observations)
        begun = jnp.tensordot(self.elements.layers[0].weight[:, : len(place)], place, 1)
        return _Tables(
            beside=jnp.moveaxis(jnp.where(around.beside.present, psi, 0), 0, -1),
            near=jnp.moveaxis(begun, 1, 0),
            taper=taper(around.near, radius),
            kind=jax.nn.one_hot(around.beside.here, variables),
        )

    def _moved(self, row: "_Row", seen: View, tables: "_Tables", around: Neighbourhoods) -> Float[Array, "N b"]:
        """What is added to each member, for a block of variables, in units of the climate."""
        C, (count, width) = self.channels, row.noise.shape
        root = jnp.sqrt(max(count - 1, 1)).astype(row.noise.dtype)
        mine, theirs = seen.of_variables(row.number), seen.of_variables(row.beside)
        x, A = mine.mean, root * mine.anomalies
        # Neighbouring variables: learned combinations of their means, spreads and anomalies.
        there = around.beside.spread(around.beside.present, row.beside_pattern)
        local = combined(there[:, None], theirs.spread[:, None] ** 2)[0, 0]
        local = jnp.sqrt(local / jnp.maximum(total(there), 1)) + LEAST
        psi = around.beside.spread(tables.beside, row.beside_pattern)
        means = total(psi[:, :C] * theirs.mean[:, None])
        spreads = total(psi[:, C : 2 * C] * theirs.log_spread[:, None])
        beside = combined(psi[:, 2 * C :], theirs.anomalies) * (root / local)
        # Observations: each by itself, and its part in a Kalman increment.
        near = seen.of_observations(row.near)
        heard = around.near.spread(around.near.present, row.near_pattern) * near.mask
        covariance = total(mine.anomalies * near.factor, axis=1)
        share = around.near.spread(tables.taper, row.near_pattern) * covariance * near.weight
        alone = covariance * near.precision**2 / local
        relations = [
            covariance * near.sharpness / mine.spread,
            asinh(share / local),
            asinh(alone * near.innovation),
            asinh(alone / near.precision),
        ]
        place = around.near.spread(tables.near, row.near_pattern)
        hidden = self.elements.before_last(jnp.swapaxes(near.facts, 0, 1), jnp.stack(relations), begun=place)
        hidden, last = heard * hidden, self.elements.layers[-1]
        told = jnp.tensordot(last.weight[:C], hidden, 1) + heard * bias_of(last, 2)[:C]
        number, increment = combined(heard[:, None], jnp.stack([jnp.ones_like(share), share], axis=1))[0]
        # The rest of the last layer is linear, too, and follows the sum.
        summed = last.weight[C:] @ total(hidden, axis=1) + bias_of(last, 1)[C:] * number
        # Each member's own innovations, in learned combinations.
        told = jnp.swapaxes(told * near.precision, 0, 1)
        own = combined(told, near.innovation[:, None] - root * near.factor)
        sizes = jnp.array([1 / jnp.sqrt(count), jnp.log(count) / 3])[:, None]
        extras = [x, jnp.log(local), asinh(increment / local), asinh(3 * increment)]
        kind = around.beside.spread(tables.kind, row.beside_pattern)
        shared = [means, spreads, 0.3 * summed, jnp.stack(extras), kind, sizes]
        context = jnp.concatenate([jnp.broadcast_to(part, (len(part), width)) for part in shared])
        members = (beside, jnp.stack([A / local, x + A]), asinh(own))
        bent, said = apply_to_sets(self.operator, members, context)
        shift, far, stretch, room = said[:4]
        middle = total(own, axis=1) / count
        mean = increment + local * (shift + total(said[4 : 4 + C] * middle)) + 0.3 * far
        along = total(said[4 + C :, None] * (own - middle[:, None]))
        bent = bent[0] - total(bent[0]) / count
        made = along + bent + jax.nn.softplus(room - 3) * row.noise
        moved = mean + (jax.nn.softplus(stretch + 0.4) - 1) * A + local * made
        # Where nothing was observed, nothing is known that the forecast did not know.
        return jnp.where(number > 0, moved, 0)


class _Tables(eqx.Module):
    """What the networks make of places alone, for each pattern of stencil."""

    beside: Float[Array, "P s c"]
    near: Float[Array, "Q w k"]
    taper: Float[Array, "Q k"]
    kind: Float[Array, "P p"]


class _Row(eqx.Module):
    """What belongs to single variables."""

    number: Int[Array, "b"]
    near: Int[Array, "k b"]
    beside: Int[Array, "s b"]
    near_pattern: Int[Array, "b"]
    beside_pattern: Int[Array, "b"]
    noise: Float[Array, "N b"]


def _place(stencil: Stencil, here: int, there: int) -> Float[Array, "r P k"]:
    """Relative positions, as heights of bumps, which a network separates more easily than numbers; and both kinds."""
    centres = jnp.linspace(-1, 1, BUMPS)
    heights = jnp.exp(-0.5 * ((stencil.offset[..., None] - centres) * (BUMPS - 1) / 2) ** 2)
    patterns, others, dimensions = stencil.offset.shape
    kind = jnp.broadcast_to(jax.nn.one_hot(stencil.here, here)[:, None], (patterns, others, here))
    heights = heights.reshape(patterns, others, BUMPS * dimensions)
    return jnp.moveaxis(jnp.concatenate([heights, kind, jax.nn.one_hot(stencil.there, there)], axis=-1), -1, 0)


def _in_chunks(function: Callable[[_Row], Float[Array, "N b"]], rows: _Row, chunk: int) -> Float[Array, "N n"]:
    """Apply a function to columns, at most `chunk` at a time."""
    size = rows.number.shape[0]
    if size <= chunk:
        return function(rows)
    chunks = -(-size // chunk)
    even = -(-size // chunks)

    def step(made: Array, start: Array) -> tuple[Array, None]:
        part = jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, start, even, axis=-1), rows)
        return jax.lax.dynamic_update_slice_in_dim(made, function(part), start, axis=-1), None

    # The last chunk ends where the columns end, and begins within the one before it if need be.
    starts = jnp.minimum(even * jnp.arange(chunks), size - even)
    return jax.lax.scan(step, jnp.zeros_like(rows.noise), starts)[0]
