"""The pretrained ensemble neural filter: a local analysis that adapts itself, steered by a network that has seen many systems.

Nothing that it sees has a unit: innovations and spreads are in units of the observation error, distances in units of the
network of observations. The base is an LETKF whose radius follows from the sample correlations, whose inflation before the
analysis from the innovations of all observations and those near a variable, and after it from how much the spread shrank and
from the ensemble size. A network steers all of them for each variable; it begins at zero. Covariances are hybrid: anomalies of
earlier forecasts, a time-lagged ensemble, have a share of them. Observations that are held out correct this share and the
radius at last.
"""

import dataclasses
import hashlib
import math
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from bieqno import persistence
from bieqno.arguments import checked
from bieqno.assimilation.filters.learned.held_out import held_out
from bieqno.assimilation.filters.learned.local_features import asinh, without_padding
from bieqno.assimilation.filters.learned.memory import SHARES, Memory, bounded_squares
from bieqno.assimilation.filters.learned.scale_free import SEEN, TINY, ZERO, Moments, features, hybrid_weights, tapers
from bieqno.assimilation.filters.learned.surroundings import Surroundings
from bieqno.assimilation.filters.transform import local_transforms
from bieqno.assimilation.neighbourhoods import Candidates, Stencil
from bieqno.assimilation.observation import Observed
from bieqno.assimilation.system import Climate, System
from bieqno.operators import MLP, Standardiser, frozen
from bieqno.persistence import PersistenceError

SIZE = 10.0  # ensemble size at which the laws of the base are given; they vary with its logarithm
ANALYSED = 4  # numbers that the network sees of a variable after the base analysis
FAR = 2.0  # largest logarithm of a factor by which the network changes anything
MOST_RAISED = 3.0  # largest factor by which members get the spread of the analysis with earlier forecasts
LARGEST_SHARE = math.log(0.6)  # of shares of earlier forecasts
UNKNOWN = 1e6  # scale of what is seen before training: nothing is unfamiliar
BEYOND = 5.0  # standard deviations of training beyond which something seen counts as unfamiliar


class PretrainedEnNF(eqx.Module):
    """Analyses each variable by what was observed near it, with settings that it finds by itself, window by window.

    `at` places it: one object of weights serves any system, ensemble size and observing network. `cycle` carries its `Memory`.
    """

    # Of the base: the value at SIZE members and the slope in log N.
    log_radius: Float[Array, "2"]
    log_relaxation: Float[Array, "2"]
    log_doubt: Float[Array, ""]  # deviation of the logarithm of the variance ratio near a variable from that of all
    before: MLP
    after: MLP
    units: Standardiser
    around: Surroundings | None = frozen()
    # Of earlier forecasts in the covariances; filters that were saved before there were any have none.
    log_share: Float[Array, "2"] = eqx.field(default_factory=lambda: jnp.array([-30.0, 0.0]))

    @classmethod
    def untrained(cls, *, width: int = 32, key: PRNGKeyArray) -> "PretrainedEnNF":
        """Return new weights: the base alone."""
        keys = jax.random.split(key)
        shape: Any = {"width": width, "depth": 3, "activation": jax.nn.silu}
        networks = [MLP(SEEN, 3, **shape, key=keys[0]), MLP(SEEN + ANALYSED, 2, **shape, key=keys[1])]
        last = [jax.tree.map(jnp.zeros_like, mlp.layers[-1]) for mlp in networks]
        before, after = (eqx.tree_at(lambda m: m.layers[-1], *pair) for pair in zip(networks, last, strict=True))
        return cls(
            log_radius=jnp.zeros(2),
            log_relaxation=jnp.array([jnp.log(0.25), -0.8]),
            log_doubt=jnp.log(0.2),
            before=before,
            after=after,
            units=_anything(),
            around=None,
            log_share=jnp.array([jnp.log(0.03), -1.3]),
        )

    def trusting(self) -> "PretrainedEnNF":
        """Return the same without knowledge of what training had: nothing is unfamiliar."""
        return dataclasses.replace(self, units=_anything())

    def at(self, system: System, climate: Climate | None = None) -> "PretrainedEnNF":
        """Return the same weights at a system's places.

        Members are kept within the extent of the `climate`, by default of short free runs; of a model that is driven, outside JAX
        or very large they are kept within nothing unless a climate is given.
        """
        return dataclasses.replace(self, around=Surroundings.of(system, None if climate is None else climate.states))

    def begin(self) -> Memory:
        """Return the memory before the first window."""
        around = self._known()
        return Memory.new(len(around.variables), around.kinds[0] * around.kinds[1])

    def _known(self) -> Surroundings:
        if self.around is None:
            raise ValueError("a pretrained filter is used at a system: LocalEnNF.pretrained().at(system)")
        return self.around

    @checked()
    def __call__(self, ensemble: Float[Array, "N n"], observed: Observed, *, key: PRNGKeyArray) -> Float[Array, "N n"]:
        """Analyse one window by itself, without memory."""
        return self.step(self.begin(), ensemble, observed, key=key)[0]

    def step(
        self,
        state: Memory,
        ensemble: Float[Array, "N n"],
        observed: Observed,
        present: Bool[Array, "N"] | None = None,
        *,
        key: PRNGKeyArray,
    ) -> tuple[Float[Array, "N n"], Memory]:
        """Analyse one window, of members of which some may be padding; return the memory for the next."""
        around = self._known()
        observed.check_known(ensemble, len(around.variables), len(around.observations))
        close = around.near.among(observed.mask)
        if not close.indices.shape[1]:
            return ensemble, state
        here = jnp.ones(ensemble.shape[0], bool) if present is None else present
        look, state = self.look(state, ensemble, observed, here, close)
        prior, seen = look.prior, look.features
        state = state.with_forecast(look.whole.A[: len(ensemble)], here, observed.mask, key=jax.random.fold_in(key, 5))
        outside = jnp.abs(seen - self.units.mean[:, None]) / self.units.scale[:, None]
        state = state.with_strange(jnp.mean(jnp.maximum(jnp.max(outside, axis=0) / BEYOND - 1, 0)), observed.mask)
        # In doubt the base alone.
        trust = FAR * jnp.exp(-state.unfamiliar)
        steered = trust * jnp.tanh(self.before(seen) / FAR)
        # The base analysis.
        inflation, log_radius = jnp.exp(0.5 * look.ratio + steered[0]), look.log_radius + steered[1]
        taper = tapers(close, log_radius + look.log_factor, look.known)
        fixed, settings = jax.lax.stop_gradient((look, (log_radius, inflation)))
        kinds, where = (around.variables, around.observations), jax.random.fold_in(key, 4)
        sums = held_out(fixed.whole, fixed.tried, close, look.known, kinds, *settings, key=where)
        state = state.with_held_out(sums)
        weight = jnp.sqrt(taper + TINY).T * inflation[:, None]
        anomalies, shift = local_transforms(inflation * prior.A, prior.S, prior.innovation, close.indices, weight)
        shift = shift / inflation
        deviation, after = (jnp.sqrt(jnp.sum(a**2, axis=0) + ZERO) for a in (inflation * prior.A, anomalies))
        # What the network makes of it.
        shrunk = jnp.log(deviation / after)
        analysed = jnp.stack([shrunk, asinh((shift / deviation) ** 2), steered[0], steered[1]])
        corrected = trust * jnp.tanh(self.after(seen, analysed) / FAR)
        relaxation = jnp.exp(_law(self.log_relaxation, prior.count) + steered[2])
        stretch = jnp.exp(relaxation * shrunk + corrected[0])
        members = prior.root * stretch * _with_deviation(after, anomalies[: len(ensemble)], here)
        members = _mixed(members, here, key=jax.random.fold_in(key, 3))
        values = around.within(prior.mean + shift * jnp.exp(corrected[1]) + members, ensemble, here)
        left = jax.lax.stop_gradient(jnp.where(jnp.any(observed.mask), stretch * after, prior.deviation))
        state = eqx.tree_at(lambda m: m.spread, state, left)
        return observed.or_prior(values.astype(ensemble.dtype), ensemble), state

    def look(
        self,
        memory: Memory,
        ensemble: Float[Array, "N n"],
        observed: Observed,
        present: Bool[Array, "N"],
        close: Stencil,
    ) -> tuple["Look", Memory]:
        """Return what is known of a window before its analysis, and what is remembered after it."""
        around, near = self._known(), close.indices.T
        own = Moments.of(ensemble, present, observed)
        log_share, log_factor = memory.log_factors()
        tried = _law(self.log_share, own.count) + jnp.stack([log_share, *jnp.log(jnp.asarray(SHARES))])
        share = jnp.where(memory.windows > 0, jnp.exp(jnp.minimum(tried, LARGEST_SHARE)), 0)
        member_weights = hybrid_weights(share, *(len(x) for x in (ensemble, memory.lagged)))
        whole = own.joined(
            memory.lagged_anomalies(), without_padding(ensemble, present, observed)[1], member_weights[0]
        )
        prior, known = whole.weighted(member_weights[0]), own.known(close, observed.mask)
        pair = around.variables * around.kinds[1] + around.observations[near]
        memory = jax.lax.stop_gradient(memory.with_correlations(own.related(close), known, pair, close))
        log_radius = jnp.log(memory.reach(own.count) + 1e-3)[pair] + _law(self.log_radius, own.count)
        taper = tapers(close, log_radius, known)
        squares = bounded_squares(prior.innovation, prior.expected)
        of_each = jnp.ones_like(prior.expected), squares, prior.expected
        number, squared, variance = (jnp.sum(taper * x[near], axis=0) for x in of_each)
        sums = number, squared, variance
        ratio, doubt = memory.variance_ratio(jnp.exp(self.log_doubt))
        seen = features(prior, own.tails(), memory, sums, (ratio, doubt), jnp.max(log_radius, axis=0))
        memory = memory.with_pooled(squares, prior.expected, observed.mask)
        after = jax.lax.stop_gradient(memory.with_innovations(*sums))
        return Look(known, whole, prior, member_weights[1:], seen, ratio, log_radius, log_factor), after


class Look(NamedTuple):
    """What is known of a window before its analysis."""

    known: Bool[Array, "k n"]  # which of the observations near each variable there are
    whole: Moments  # anomalies of the members and of earlier forecasts
    prior: Moments  # the same, weighted by the share of the earlier ones
    tried: Float[Array, "s l"]  # weights of anomalies for the shares of which held-out observations say which is best
    features: Float[Array, "f n"]
    ratio: Float[Array, "n"]  # logarithm of the forecasts' error variance over the ensemble's
    log_radius: Float[Array, "k n"]
    log_factor: Float[Array, ""]  # of the radius, from what was held out


def _with_deviation(
    deviation: Float[Array, "n"], anomalies: Float[Array, "N n"], present: Bool[Array, "N"]
) -> Float[Array, "N n"]:
    """Return the members' anomalies with a mean of zero and the deviation of all: what they do not span is in their spread."""
    there = present[:, None]
    centred = jnp.where(there, anomalies - jnp.sum(jnp.where(there, anomalies, 0), axis=0) / jnp.sum(present), 0)
    return jnp.minimum(deviation / jnp.sqrt(jnp.sum(centred**2, axis=0) + ZERO), MOST_RAISED) * centred


def _anything() -> Standardiser:
    return Standardiser(jnp.zeros(SEEN), jnp.full(SEEN, UNKNOWN))


def _mixed(anomalies: Float[Array, "N n"], present: Bool[Array, "N"], *, key: PRNGKeyArray) -> Float[Array, "N n"]:
    """Mix the members that are present by one random reflection, which shares out what one of few drifts away."""
    drawn = jnp.where(present, jax.random.normal(key, present.shape, anomalies.dtype), 0)
    direction = jnp.where(present, drawn - jnp.sum(drawn) / jnp.sum(present), 0)
    return anomalies - (2 / jnp.maximum(direction @ direction, TINY)) * direction[:, None] * (direction @ anomalies)


def _law(law: Float[Array, "2"], count: Float[Array, ""]) -> Float[Array, ""]:
    return law[0] + law[1] * jnp.log(count / SIZE)


PARTS = (PretrainedEnNF, Surroundings, Stencil, Candidates)
"""Classes that a file of such a filter may hold."""
SHIPPED = Path(__file__).with_name("pretrained.bieqno")


@cache
def shipped_filter() -> PretrainedEnNF:
    """Return the weights that ship with the package; `make filter-prior` trains them."""
    if not SHIPPED.exists():
        raise PersistenceError(f"the pretrained weights are not in {SHIPPED}; train them with `make filter-prior`")
    content, digest = SHIPPED.read_bytes(), SHIPPED.with_suffix(".sha256").read_text(encoding="ascii").strip()
    if hashlib.sha256(content).hexdigest() != digest:
        raise PersistenceError(f"{SHIPPED} is damaged: its checksum is not that of {SHIPPED.with_suffix('.sha256')}")
    return persistence.from_bytes(content, known=PARTS, source=str(SHIPPED))


def store(path: Path, filter: PretrainedEnNF) -> None:
    """Write weights, and their checksum beside them."""
    persistence.save(path, filter, known=PARTS)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    path.with_suffix(".sha256").write_text(f"{digest}\n", encoding="ascii")
