"""The local ensemble neural filter: each variable is updated from what lies round it, by weights shared by all.

It is the paper's operator in full: equivariant to the members, invariant to the set of observations, each an element of
relative position, innovation, prediction, error and covariance with the variable. What an ensemble knows is in its second
moments; these are given to the networks, in units that keep them bounded, together with the increment that a Kalman filter
with tapered covariances would make. The networks correct it, and begin with hardly correcting it.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from bieqno.assimilation.filters.rotation import mirrored
from bieqno.assimilation.filters.tapered_gain import taper, weights
from bieqno.assimilation.moments import anomalies
from bieqno.assimilation.noise import white_noise
from bieqno.assimilation.observation import Observed
from bieqno.assimilation.surroundings import Links, Surroundings
from bieqno.operators import MLP, EquivariantOperator, Standardiser, TrunkAndBranch

BUMPS = 9  # by which a relative position is told to a network, along each dimension
# Numbers that describe an observation, its relation to a variable, and the variable.
FACTS, RELATIONS, EXTRAS = 5, 4, 6
CHUNK = 2**21  # numbers in a hidden layer: variables go in chunks of about this, so that memory is bounded
LEAST_ERROR = (
    1e-2  # of an observation, in units of its climate: a law that passes through zero is not to be believed there
)
LEAST = 1e-3  # spread, in units of the climate, below which an ensemble counts as collapsed


class LocalUpdate(eqx.Module):
    """The weights of a `LocalEnNF`, without a place: they serve wherever the kinds of values are the same.

    Args:
        dimensions: of space.
        state: standardises variables, one number a kind.
        predicted: standardises predicted observations, one number a kind.
        radius: how far an observation can act; relative positions are in units of it.
        reach: how far away other variables are looked at, likewise.
        extent: how far from the mean an analysis may be, in standard deviations, one number a kind; None for no bound. A
            member beyond all that a model does by itself would blow up in the next forecast.
        width: length of the hidden layers of the net that sees the ensemble as a whole.
        small: length of those that see one member or one observation.
        channels: number of combinations of innovations, and of neighbouring variables, that each variable looks at.
        key: random key of the initial weights.
    """

    beside: MLP
    elements: MLP
    operator: EquivariantOperator
    taper: Float[Array, "2"]
    state: Standardiser
    predicted: Standardiser
    extent: Float[Array, "p"]
    channels: int = eqx.field(static=True)
    radius: float = eqx.field(static=True)
    reach: float = eqx.field(static=True)

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
        self.operator = EquivariantOperator(
            member,
            1 + 4 + 2 * C,
            context_size=context,
            width=small,
            depth=2,
            activation=silu,
            fit=TrunkAndBranch(small, small + context, 1, 4 + 2 * C, width=width, link=small, scale=0.1, key=fit_key),
            key=operator_key,
        )
        self.taper = jnp.zeros(2)
        self.state = state
        self.predicted = predicted
        self.extent = jnp.full(variable_kinds, jnp.inf) if extent is None else extent
        self.channels = channels
        self.radius = radius
        self.reach = reach

    def check(self, around: Surroundings) -> None:
        """Refuse surroundings that the weights were not made for."""
        place = self.beside.layers[0].weight.shape[1] - 2 * self.state.scale.shape[0]
        dimensions = around.near.offset.shape[-1]
        if place != BUMPS * dimensions:
            raise ValueError(f"these weights are for {place // BUMPS} dimensions, the surroundings have {dimensions}")
        if (self.radius, self.reach) != (around.radius, around.reach):
            raise ValueError(
                f"these weights are for a radius of {self.radius:g} and a reach of {self.reach:g}, "
                f"the surroundings have {around.radius:g} and {around.reach:g}"
            )
        for what, kinds, known in (
            ("variables", around.variables, self.state.scale.shape[0]),
            ("observations", around.observations, self.predicted.scale.shape[0]),
        ):
            most = int(jnp.max(kinds, initial=0)) + 1
            if most > known:
                raise ValueError(f"these weights know {known} kinds of {what}, the surroundings have {most}")

    def __call__(
        self, ensemble: Float[Array, "N n"], observed: Observed, around: Surroundings, noise: Float[Array, "N n"]
    ) -> Float[Array, "N n"]:
        """Analyse one window; `noise` is standard normal and makes room where members agree too much."""
        count, size = ensemble.shape
        # Units are what they are; they do not learn.
        state, predicted, extent = jax.lax.stop_gradient((self.state, self.predicted, self.extent))
        mean, scale = state.mean[around.variables], state.scale[around.variables]
        x, A = anomalies((ensemble - mean) / scale)
        y, Y = anomalies(observed.predict(ensemble))
        # An error law evaluated at the true value would tell a network what that value is.
        observed = eqx.tree_at(lambda o: o.reference, observed, observed.value)
        unit = predicted.scale[around.observations]
        std = jnp.sqrt(observed.std**2 + (LEAST_ERROR * unit) ** 2)
        trust = observed.std / std
        S, d = trust * observed.whiten(Y), trust * observed.whiten((observed.value - y)[None])[0]
        variance = jnp.sum(S**2, axis=0)
        facts = [
            jnp.arcsinh(d / jnp.sqrt(1 + variance)),
            variance / (1 + variance),
            jnp.arcsinh(3 * jnp.where(observed.mask, observed.value - y, 0) / unit),
            (y - predicted.mean[around.observations]) / unit,
            jnp.log(std / unit),
        ]
        radius = jax.nn.sigmoid(1 + self.taper[0] + self.taper[1] * jnp.log(count / 10))
        seen = _Seen(
            mean=x,
            anomalies=A.T,
            spread=jnp.sqrt(jnp.sum(A**2, axis=0) + LEAST**4),
            factor=S.T,
            innovation=d,
            total=jnp.sqrt(1 + variance),
            # How far the taper reaches is learned from what is made of the solution, not through the solution.
            weight=jax.lax.stop_gradient(weights(S, d, around.between, radius)),
            mask=observed.mask,
            facts=jnp.stack(facts, axis=1),
            kinds=jax.nn.one_hot(around.observations, predicted.scale.shape[0]),
            variables=jax.nn.one_hot(around.variables, state.scale.shape[0]),
            radius=radius,
        )
        centred = (noise - jnp.mean(noise, axis=0)).T
        most = max(count, around.near.indices.shape[1], around.beside.indices.shape[1])
        moved = _in_chunks(
            lambda row: self._moved(row, seen),
            _Row(jnp.arange(size), around.near, around.beside, centred),
            max(1, CHUNK // (most * self.elements.layers[0].weight.shape[0])),
        )
        most_far = extent[around.variables] * scale
        return jnp.clip(ensemble + moved.T * scale, mean - most_far, mean + most_far).astype(ensemble.dtype)

    def _moved(self, row: "_Row", seen: "_Seen") -> Float[Array, "b N"]:
        """What is added to each member, for a block of variables, in units of the climate."""
        near, beside, C = row.near, row.beside, self.channels
        count = seen.anomalies.shape[1]
        root = jnp.sqrt(max(count - 1, 1)).astype(seen.mean.dtype)
        kind = seen.variables[row.number]
        x, A = seen.mean[row.number], root * seen.anomalies[row.number]
        # Neighbouring variables: learned combinations of their means, spreads and anomalies.
        spread = seen.spread[beside.indices]
        neighbours = jnp.maximum(jnp.sum(beside.present, axis=1), 1)
        local = jnp.sqrt(jnp.sum(jnp.where(beside.present, spread**2, 0), axis=1) / neighbours) + LEAST
        psi = _each(self.beside, _place(beside, kind, seen.variables))
        psi = jnp.where(beside.present[..., None], psi, 0)
        means = jnp.einsum("bsc,bs->bc", psi[..., :C], seen.mean[beside.indices])
        spreads = jnp.einsum("bsc,bs->bc", psi[..., C : 2 * C], jnp.log(spread + LEAST))
        around = jnp.einsum("bsc,bsN->bNc", psi[..., 2 * C :], seen.anomalies[beside.indices])
        around = around * (root / local)[:, None, None]
        # Observations: what each says by itself, and what the Kalman gain would make of it.
        factor, heard = seen.factor[near.indices], near.present & seen.mask[near.indices]
        total, d = seen.total[near.indices], seen.innovation[near.indices]
        covariance = jnp.einsum("bN,bkN->bk", seen.anomalies[row.number], factor)
        share = taper(near, seen.radius) * covariance * seen.weight[near.indices]
        alone = covariance / total**2
        relations = [
            covariance / (seen.spread[row.number][:, None] * jnp.sqrt(total**2 - 1 + LEAST**2)),
            jnp.arcsinh(share / local[:, None]),
            jnp.arcsinh(alone * d / local[:, None]),
            jnp.arcsinh(alone * total / local[:, None]),
        ]
        described = jnp.concatenate([seen.facts[near.indices], jnp.stack(relations, axis=-1)], axis=-1)
        told = _each(self.elements, _place(near, kind, seen.kinds), described)
        told = jnp.where(heard[..., None], told, 0)
        increment = jnp.sum(jnp.where(heard, share, 0), axis=1)
        # Each member's own innovations, in learned combinations.
        own = (d[..., None] - root * factor) / total[..., None]
        own = jnp.einsum("bkc,bkN->bNc", told[..., :C], own)
        sizes = jnp.array([1 / jnp.sqrt(count), jnp.log(count) / 3])
        extras = [x, jnp.log(local), jnp.arcsinh(increment / local), jnp.arcsinh(3 * increment)]
        context = jnp.concatenate(
            [
                means, spreads, 0.3 * jnp.sum(told[..., C:], axis=1), jnp.stack(extras, axis=1), kind,
                jnp.broadcast_to(sizes, (x.shape[0], 2)),
            ],
            axis=1,
        )  # fmt: skip
        member = jnp.stack([A / local[:, None], x[:, None] + A], axis=-1)
        members = jnp.concatenate([around, member, jnp.arcsinh(own)], axis=-1)
        out = jax.vmap(lambda elements, shared: self.operator(elements, context=shared))(members, context)
        bent, said = _centred(out[..., 0]), out[:, 0, 1:]
        shift, far, stretch, room = said[:, 0], said[:, 1], said[:, 2], said[:, 3]
        mean = increment + local * (shift + jnp.sum(said[:, 4 : 4 + C] * jnp.mean(own, axis=1), axis=1)) + 0.3 * far
        along = jnp.einsum("bc,bNc->bN", said[:, 4 + C :], own - jnp.mean(own, axis=1, keepdims=True))
        made = along + bent + jax.nn.softplus(room - 3)[:, None] * row.noise
        moved = mean[:, None] + (jax.nn.softplus(stretch + 0.4) - 1)[:, None] * A + local[:, None] * made
        # Where nothing was observed, nothing is known that the forecast did not know.
        return jnp.where(jnp.any(heard, axis=1, keepdims=True), moved, 0)


class LocalEnNF(eqx.Module):
    """Moves each variable by what was observed near it, as it has learned to; knows where things are.

    Takes ensembles of any size, any number of variables and observations, and missing values; on a periodic domain it is
    equivariant to translations. Trained by `train_filter`, against the truth.

    Args:
        update: the learned weights.
        surroundings: where variables and observations are.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from bieqno.assimilation import Observation
        >>> from bieqno.assimilation.surroundings import Places
        >>> ring = Places.grid(8, period=8.0)
        >>> around = Surroundings.of(ring, ring.at([0]), radius=2.0, reach=1.0)
        >>> plain = Standardiser.unit(1)
        >>> filter = LocalEnNF(LocalUpdate(1, state=plain, predicted=plain, radius=2.0, reach=1.0, key=jax.random.key(0)), around)
        >>> prior = jax.random.normal(jax.random.key(1), (5, 8))
        >>> observed = Observation([0], 1.0).window(jnp.array([2.0]))
        >>> posterior = jax.jit(lambda prior: filter(prior, observed, key=jax.random.key(2)))(prior)
        >>> (jnp.abs(posterior.mean(axis=0) - prior.mean(axis=0)) > 1e-6).tolist()
        [True, True, True, False, False, False, True, True]
    """

    update: LocalUpdate
    surroundings: Surroundings

    def __check_init__(self) -> None:
        self.update.check(self.surroundings)

    def __call__(self, ensemble: Float[Array, "N n"], observed: Observed, *, key: PRNGKeyArray) -> Float[Array, "N n"]:
        """Analyse one window."""
        known = self.surroundings.variables.shape[0], self.surroundings.observations.shape[0]
        present = ensemble.shape[1], observed.value.shape[0]
        if known != present:
            raise ValueError(
                f"the surroundings are of {known[0]} variables and {known[1]} observations, "
                f"the state has {present[0]} and {present[1]} are observed"
            )
        count, size = ensemble.shape
        noise = white_noise((count, size + 1), ensemble.dtype, key=jax.random.fold_in(key, 1))
        return mirrored(self.update(ensemble, observed, self.surroundings, noise[:, :-1]), noise[:, -1])

    def at(self, surroundings: Surroundings) -> "LocalEnNF":
        """The same weights elsewhere: another grid, another observing network."""
        return LocalEnNF(self.update, surroundings)


class _Seen(eqx.Module):
    """What all variables see of an ensemble: one row a variable or an observation."""

    mean: Float[Array, "n"]
    anomalies: Float[Array, "n N"]
    spread: Float[Array, "n"]
    factor: Float[Array, "m N"]
    innovation: Float[Array, "m"]
    total: Float[Array, "m"]
    weight: Float[Array, "m"]
    mask: Bool[Array, "m"]
    facts: Float[Array, "m f"]
    kinds: Float[Array, "m q"]
    variables: Float[Array, "n p"]
    radius: Float[Array, ""]


class _Row(eqx.Module):
    """What belongs to single variables."""

    number: Int[Array, "b"]
    near: Links
    beside: Links
    noise: Float[Array, "b N"]


def _place(links: Links, here: Float[Array, "b p"], there: Float[Array, "_ q"]) -> Float[Array, "b k r"]:
    """Relative positions, as heights of bumps, which a network tells apart more easily than numbers; and both kinds."""
    centres = jnp.linspace(-1, 1, BUMPS)
    heights = jnp.exp(-0.5 * ((links.offset[..., None] - centres) * (BUMPS - 1) / 2) ** 2)
    parts = (heights.reshape(*links.indices.shape, BUMPS * links.offset.shape[-1]), here[:, None], there[links.indices])
    return jnp.concatenate([jnp.broadcast_to(p, (*links.indices.shape, p.shape[-1])) for p in parts], axis=-1)


def _each(network: MLP, *parts: Float[Array, "b k _"]) -> Float[Array, "b k q"]:
    """The network at every link; in parts, for where things are is the same for all ensembles and computed once."""
    return jax.vmap(jax.vmap(network))(*parts)


def _centred(rows: Float[Array, "b N"]) -> Float[Array, "b N"]:
    return rows - jnp.mean(rows, axis=1, keepdims=True)


def _in_chunks(function: Callable[[_Row], Float[Array, "b N"]], rows: _Row, chunk: int) -> Float[Array, "n N"]:
    """Apply a function to rows, at most `chunk` at a time."""
    size = rows.number.shape[0]
    if size <= chunk:
        return function(rows)
    chunks = -(-size // chunk)
    even = -(-size // chunks)

    def cut(x: Array) -> Array:
        padded = jnp.pad(x, [(0, chunks * even - size)] + [(0, 0)] * (x.ndim - 1))
        return padded.reshape(chunks, even, *x.shape[1:])

    parts = jax.lax.map(function, jax.tree.map(cut, rows))
    return parts.reshape(chunks * even, -1)[:size]
