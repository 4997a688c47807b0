"""Training of a filter against the truth, on its own analyses: what it will meet when it is used is what it learns from.

Many truths run at once. In each step every ensemble is forecast, observed and analysed by the filter as it is now; the analyses
are scored against the truths, the weights improved, and the runs go on from these analyses. Nothing is differentiated
through time unless asked for. An ensemble that blows up begins anew, as a random few do in every step.
"""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import lru_cache
from types import MappingProxyType

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from bieqno.assimilation.climate import Climate
from bieqno.assimilation.filters.local_ennf import LocalEnNF, LocalUpdate
from bieqno.assimilation.models.forecast import Model, forecast
from bieqno.assimilation.observation import Components, Observation
from bieqno.assimilation.surroundings import Places, Surroundings, spacing
from bieqno.operators import Standardiser
from bieqno.training import FitResult, Progress, fit

RESTARTED = 0.005  # share of the runs that begin anew in every step, so that beginnings are never forgotten
BEGINNINGS = (0.06, 0.75)  # spread of first ensembles, in units of the climate
LOST = 10.0  # standard deviations from the climate's mean at which a member has blown up
# Each twice the one before: between them a filter finds its way, beyond them it was seen to as well.
SIZES = MappingProxyType({2: 40, 4: 32, 8: 20, 16: 10, 32: 5})


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
            normals.append((truths, (1 + members) * size + self.windows * (self.values + members * size)))
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
            again = ~sound | (luck < RESTARTED) if window == 0 else ~sound
            truth = jnp.where(again[:, None], begun, truth)
            prior = jnp.where(again[:, None, None], begun_ensemble, prior)
            blown_up = blown_up + jnp.sum(~sound)
            error, noise = jnp.split(rest[:, window], [rest.shape[-1] - members * size], axis=1)
            mask = present[:, window] >= missing[:, None]
            ensemble = self._analyse(update, truth, prior, error, mask, noise.reshape(prior.shape))
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
        noise: Float[Array, "B N n"],
    ) -> Float[Array, "B N n"]:
        def one(truth: Array, prior: Array, error: Array, mask: Array, noise: Array) -> Array:
            clean = self.observation.operator(truth)
            value = clean + self.observation.error.colour(error[None], clean)[0]
            observed = self.observation.window(value, mask=mask, reference=clean)
            return update(prior, observed, self.surroundings, noise)

        return jax.vmap(one)(truth, prior, error, mask, noise)

    def _score(self, truth: Float[Array, "n"], ensemble: Float[Array, "N n"]) -> Float[Array, ""]:
        """Error of the mean over all variables, and their mean CRPS."""
        count = ensemble.shape[0]
        wrong = (ensemble - truth) / self.climate.deviation
        # The mean distance between members, from their order.
        ranks = (2 * jnp.arange(1, count + 1) - count - 1)[:, None]
        apart = jnp.sum(ranks * jnp.sort(wrong, axis=0), axis=0) / count**2
        crps = jnp.mean(jnp.mean(jnp.abs(wrong), axis=0) - apart)
        return jnp.sqrt(jnp.mean(jnp.mean(wrong, axis=0) ** 2) + 1e-10) + crps


def train_filter(
    model: Model,
    observation: Observation,
    *,
    state: Float[Array, "n"],
    variables: Places | None = None,
    observations: Places | None = None,
    radius: float | None = None,
    reach: float | None = None,
    begin: LocalUpdate | None = None,
    sizes: Mapping[int, int] = SIZES,
    steps: int = 2500,
    missing: tuple[float, float] = (0.0, 0.0),
    unroll: int = 1,
    learning_rate: float = 2e-3,
    settings: Mapping[str, int] = MappingProxyType({}),
    checkpoint: str | os.PathLike[str] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    key: PRNGKeyArray,
) -> FitResult[LocalEnNF]:
    """Train a `LocalEnNF` for a model and what is observed of it, against truths of the model's own.

    Args:
        model: the dynamics.
        observation: what is observed, and with which error.
        state: a state near the attractor, from which truths spin up.
        variables: where the variables are; None if they have no places (everything is then near everything).
        observations: where the observations are; None if components of the state are observed.
        radius: how far an observation can act; None for two and a half times the distance between observations.
        reach: how far each variable looks at others; None for three times their distance.
        begin: weights to begin with, for fine-tuning; None for new ones, which begin as a Kalman filter with
            tapered covariances.
        sizes: the ensemble sizes that it learns, with the number of truths of each.
        steps: number of optimizer steps.
        missing: least and largest share of observations that is missing in training.
        unroll: number of windows that are differentiated through.
        learning_rate: of Adam at the beginning; it falls to zero along a cosine.
        settings: `width`, `small` and `channels` of the `LocalUpdate`.
        checkpoint: see `fit`.
        on_progress: see `fit`.
        key: random key of everything.

    Returns:
        The filter and the story of its training; its `source_state` are the runs, with the number of blow-ups.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from bieqno.assimilation import Lorenz63
        >>> result = train_filter(
        ...     Lorenz63(), Observation([0, 2], 1.0), state=jnp.array([-8.5, -7.0, 27.0]), sizes={4: 4}, steps=4,
        ...     settings={"width": 8, "small": 8, "channels": 2}, key=jax.random.key(0),
        ... )
        >>> result.losses.shape, int(result.source_state[0].blown_up)
        ((4,), 0)
    """
    if not sizes or any(size < 1 or truths < 1 for size, truths in sizes.items()):
        raise ValueError(f"sizes name at least one ensemble size with its number of truths, got {dict(sizes)}")
    if not 0 <= missing[0] <= missing[1] <= 1:
        raise ValueError(f"the share of missing observations goes from low to high within 0 and 1, got {missing}")
    if unroll < 1:
        raise ValueError(f"at least one window is differentiated through, got unroll={unroll}")
    around = find_surroundings(
        observation, state.shape[0], variables=variables, observations=observations, radius=radius, reach=reach
    )
    climate_key, weight_key, start_key, fit_key = jax.random.split(key, 4)
    climate = Climate.of(model, jnp.asarray(state, float), key=climate_key)
    update = begin if begin is not None else _new(around, climate, observation, dict(settings), weight_key)
    loss = TruthLoss(model, observation, around, climate, missing, unroll)
    result = fit(
        update,
        loss,
        OnPolicy(around.observations.shape[0], unroll),
        steps=steps,
        optimizer=_optimizer(learning_rate, steps),
        source_state=_beginnings(climate, sizes, start_key),
        chunk_steps=min(50, steps),
        checkpoint=checkpoint,
        on_progress=on_progress,
        key=fit_key,
    )
    told = {field.name: getattr(result, field.name) for field in fields(result)}
    return FitResult(**{**told, "module": LocalEnNF(result.module, around)})


def find_surroundings(
    observation: Observation,
    size: int,
    *,
    variables: Places | None = None,
    observations: Places | None = None,
    radius: float | None = None,
    reach: float | None = None,
) -> Surroundings:
    """The surroundings that `train_filter` works with when told so much.

    Args:
        observation: what is observed.
        size: number of state variables.
        variables: see `train_filter`, as for the others.
        observations: where the observations are.
        radius: how far an observation can act.
        reach: how far each variable looks at others.
    """
    places = Places.apart(size) if variables is None else variables
    if len(places.positions) != size:
        raise ValueError(f"places are known of {len(places.positions)} variables, the state has {size}")
    if observations is None:
        if not isinstance(observation.operator, Components):
            raise ValueError(
                "where the observations are follows only from observed components; "
                "give `observations=Places(...)` for any other operator"
            )
        observations = places.at(observation.operator.indices)
    values = observation.size(size)
    if len(observations.positions) != values:
        raise ValueError(f"places are known of {len(observations.positions)} observations, {values} are observed")
    return Surroundings.of(
        places,
        observations,
        radius=2.5 * spacing(observations) if radius is None else radius,
        reach=3.0 * spacing(places) if reach is None else reach,
    )


def _new(
    around: Surroundings, climate: Climate, observation: Observation, settings: Mapping[str, int], key: PRNGKeyArray
) -> LocalUpdate:
    """New weights, standardised to the climate."""
    predicted = jax.vmap(observation.operator)(climate.states)
    return LocalUpdate(
        around.near.offset.shape[-1],
        state=_by_kind(climate.states, np.asarray(around.variables)),
        predicted=_by_kind(predicted, np.asarray(around.observations)),
        **settings,
        key=key,
    )


def _by_kind(values: Float[Array, "r n"], kinds: Int[np.ndarray, "n"]) -> Standardiser:
    """Mean and standard deviation of the values of each kind."""
    found = [
        Standardiser.of(values[:, kinds == kind]) if np.any(kinds == kind) else Standardiser.unit()
        for kind in range(int(kinds.max(initial=0)) + 1)
    ]
    return Standardiser(jnp.stack([s.mean for s in found]), jnp.stack([s.scale for s in found]))


def _beginnings(climate: Climate, sizes: Mapping[int, int], key: PRNGKeyArray) -> tuple[Runs, ...]:
    """Runs at truths of the climate, each with an ensemble of half the climate's spread about it."""
    runs = []
    for size, truths in sizes.items():
        which_key, first_key = jax.random.split(jax.random.fold_in(key, size))
        truth = climate.states[jax.random.randint(which_key, (truths,), 0, len(climate.states))]
        noise = jax.random.normal(first_key, (truths, 1 + size, truth.shape[1]))
        ensemble = truth[:, None] + 0.5 * climate.deviation * (noise[:, :1] + noise[:, 1:])
        runs.append(Runs(truth, ensemble, jnp.zeros((), int)))
    return tuple(runs)


@lru_cache
def _optimizer(learning_rate: float, steps: int) -> optax.GradientTransformation:
    """One object for equal arguments, so that runs of equal shape share one compilation."""
    schedule = optax.warmup_cosine_decay_schedule(0.0, learning_rate, min(100, steps // 2), steps)
    # The analyses of later steps depend on the weights of earlier ones: a short memory of gradients is the better one.
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adam(schedule, b2=0.99))


def _dealt(numbers: Float[Array, "k"], shapes: Sequence[tuple[int, int]]) -> list[Float[Array, "..."]]:
    """The numbers in arrays of the given shapes, one after another."""
    ends = np.cumsum([math.prod(shape) for shape in shapes]).tolist()
    return [part.reshape(shape) for part, shape in zip(jnp.split(numbers, ends[:-1]), shapes, strict=True)]
