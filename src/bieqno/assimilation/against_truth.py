"""One step of training against the truth: runs that go on, the random numbers they need, and how wrong their analyses are."""

import math
from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from bieqno.assimilation.climate import Climate
from bieqno.assimilation.filters.learned.local_update import LocalUpdate
from bieqno.assimilation.filters.rotation import mirrored
from bieqno.assimilation.geometry import Surroundings
from bieqno.assimilation.models.forecast import Model, forecast
from bieqno.assimilation.observation import Observation

RESTARTED = 0.005  # share of the runs that begin anew in every step, so that beginnings are never forgotten
BEGINNINGS = (0.06, 0.75)  # spread of first ensembles, in units of the climate
LOST = 10.0  # standard deviations from the climate's mean at which a member has blown up


class Runs(eqx.Module):
    """Twin experiments under way with one ensemble size.

    Args:
        truth: where each truth is.
        ensemble: the last analyses.
        blown_up: number of ensembles so far that blew up and began anew.
    """

    truth: Float[Array, "B n"]
    ensemble: Float[Array, "B N n"]
    blown_up: Int[Array, ""]


class Draws(eqx.Module):
    """All that is random in a step of one group of runs, but for model error."""

    uniform: Float[Array, "B u"]
    normal: Float[Array, "B v"]
    model_key: PRNGKeyArray


class OnPolicy(eqx.Module):
    """A living batch source: the runs as they are, and the random numbers for their next windows."""

    values: int = eqx.field(static=True)
    windows: int = eqx.field(static=True)

    def __call__(self, key: PRNGKeyArray, runs: tuple[Runs, ...]) -> tuple[tuple[Runs, Draws], ...]:
        """Draw for every group of runs."""
        # In two draws for all groups: the code of random numbers is most of what there is to compile.
        uniform_key, normal_key, model_key = jax.random.split(key, 3)
        uniforms = [(len(group.truth), 4 + self.windows * self.values) for group in runs]
        normals = []
        for group in runs:
            truths, members, size = group.ensemble.shape
            normals.append((truths, (1 + members) * size + self.windows * (self.values + members * (size + 1))))
        dealt = (
            _dealt(jax.random.uniform(uniform_key, (sum(map(math.prod, uniforms)),)), uniforms),
            _dealt(jax.random.normal(normal_key, (sum(map(math.prod, normals)),)), normals),
        )
        keys = jax.random.split(model_key, len(runs))
        return tuple((group, Draws(u, v, k)) for group, u, v, k in zip(runs, *dealt, keys, strict=True))


class TruthLoss(eqx.Module):
    """How wrong the analyses of the next windows are: error of the mean and CRPS, in units of the climate.

    The CRPS is that of the ensemble as it is. The mean of a trained ensemble does not scatter by chance, and the score
    that is fair to random members would have too much spread: twice as much as the error at N = 3, and no end of it at 2.

    Args:
        model: the dynamics.
        observation: what is observed.
        surroundings: where everything is.
        climate: where truths begin.
        missing: least and largest share of the values that is missing; the share of a run is drawn anew in each step.
        windows: number of windows that are differentiated through.
    """

    model: Model
    observation: Observation
    surroundings: Surroundings
    climate: Climate
    missing: tuple[float, float] = eqx.field(static=True)
    windows: int = eqx.field(static=True)

    def __call__(
        self, update: LocalUpdate, batch: tuple[tuple[Runs, Draws], ...], *, key: PRNGKeyArray
    ) -> tuple[Float[Array, ""], tuple[Runs, ...]]:
        """The loss, and the runs after it."""
        values, runs = zip(*(self._go_on(update, *group) for group in batch), strict=True)
        return jnp.mean(jnp.stack(values)), jax.lax.stop_gradient(runs)

    def _go_on(self, update: LocalUpdate, runs: Runs, draws: Draws) -> tuple[Float[Array, ""], Runs]:
        truths, members, size = runs.ensemble.shape
        which, wide, luck, share = draws.uniform[:, :4].T
        present = draws.uniform[:, 4:].reshape(truths, self.windows, -1)
        first = draws.normal[:, : (1 + members) * size].reshape(truths, 1 + members, size)
        rest = draws.normal[:, (1 + members) * size :].reshape(truths, self.windows, -1)
        begun = self.climate.states[(which * len(self.climate.states)).astype(int)]
        low, high = (math.log(end) for end in BEGINNINGS)
        spread = jnp.exp(low + wide * (high - low))[:, None, None] * self.climate.deviation
        begun_ensemble = begun[:, None] + spread * (first[:, :1] + first[:, 1:])
        missing = self.missing[0] + share * (self.missing[1] - self.missing[0])
        truth, ensemble, blown_up, loss = runs.truth, runs.ensemble, runs.blown_up, jnp.zeros(())
        for window in range(self.windows):
            truth, prior = self._forecast(truth, ensemble, jax.random.fold_in(draws.model_key, window))
            sound = jnp.all(jnp.abs(prior - self.climate.mean) <= LOST * self.climate.deviation, axis=(1, 2))
            sound = sound & jnp.all(jnp.isfinite(truth), axis=1)
            again = ~sound | (luck < RESTARTED) if window == 0 else ~sound
            truth = jnp.where(again[:, None], begun, truth)
            prior = jnp.where(again[:, None, None], begun_ensemble, prior)
            blown_up = blown_up + jnp.sum(~sound)
            error, noise = jnp.split(rest[:, window], [rest.shape[-1] - members * (size + 1)], axis=1)
            mask = present[:, window] >= missing[:, None]
            ensemble = self._analyse(update, truth, prior, error, mask, noise.reshape(truths, members, size + 1))
            loss = loss + jnp.mean(jax.vmap(self._score)(truth, ensemble))
        return loss / self.windows, Runs(truth, ensemble, blown_up)

    def _forecast(
        self, truth: Float[Array, "B n"], ensemble: Float[Array, "B N n"], key: PRNGKeyArray
    ) -> tuple[Float[Array, "B n"], Float[Array, "B N n"]]:
        """Truths and members a window later, carried together: to the model a truth is one more member."""
        everyone = jnp.concatenate([truth[:, None], ensemble], axis=1)
        carried = forecast(self.model, everyone.reshape(-1, truth.shape[1]), key=key).reshape(everyone.shape)
        return carried[:, 0], carried[:, 1:]

    def _analyse(
        self,
        update: LocalUpdate,
        truth: Float[Array, "B n"],
        prior: Float[Array, "B N n"],
        error: Float[Array, "B m"],
        mask: Array,
        noise: Float[Array, "B N n+1"],
    ) -> Float[Array, "B N n"]:
        def one(truth: Array, prior: Array, error: Array, mask: Array, noise: Array) -> Array:
            clean = self.observation.operator(truth)
            value = clean + self.observation.error.colour(error[None], clean)[0]
            observed = self.observation.window(value, mask=mask, reference=clean)
            return mirrored(update(prior, observed, self.surroundings, noise[:, :-1]), noise[:, -1])

        return jax.vmap(one)(truth, prior, error, mask, noise)

    def _score(self, truth: Float[Array, "n"], ensemble: Float[Array, "N n"]) -> Float[Array, ""]:
        """Error of the mean over all variables, and their mean CRPS."""
        count = ensemble.shape[0]
        wrong = (ensemble - truth) / self.climate.deviation
        # Half the mean distance between members, from their order.
        ranks = (2 * jnp.arange(1, count + 1) - count - 1)[:, None]
        apart = jnp.sum(ranks * jnp.sort(wrong, axis=0), axis=0) / count**2
        crps = jnp.mean(jnp.mean(jnp.abs(wrong), axis=0) - apart)
        return jnp.sqrt(jnp.mean(jnp.mean(wrong, axis=0) ** 2) + 1e-10) + crps


def _dealt(numbers: Float[Array, "k"], shapes: Sequence[tuple[int, int]]) -> list[Float[Array, "..."]]:
    """The numbers in arrays of the given shapes, one after another."""
    ends = np.cumsum([math.prod(shape) for shape in shapes]).tolist()
    return [part.reshape(shape) for part, shape in zip(jnp.split(numbers, ends[:-1]), shapes, strict=True)]
