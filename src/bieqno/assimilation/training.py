"""Training of a filter against the truth, on its own analyses: what it will meet when it is used is what it learns from.

Many truths run at once. In each step every ensemble is forecast, observed and analysed by the filter as it is now; the analyses
are scored against the truths, the weights improved, and the runs go on from these analyses. Nothing is differentiated
through time unless asked for. An ensemble that blows up begins anew, as a random few do in every step.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import lru_cache
from types import MappingProxyType

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from bieqno.assimilation.against_truth import OnPolicy, Runs, TruthLoss
from bieqno.assimilation.climate import Climate
from bieqno.assimilation.filters.learned.local import LocalEnNF
from bieqno.assimilation.filters.learned.local_update import LocalUpdate
from bieqno.assimilation.geometry import Places, Surroundings, find_surroundings
from bieqno.assimilation.models.forecast import Model
from bieqno.assimilation.observation import Observation
from bieqno.operators import Standardiser
from bieqno.training import FitResult, Progress, fit

# Each twice the one before: between them a filter finds its way, beyond them it was seen to as well.
SIZES = MappingProxyType({2: 40, 4: 32, 8: 20, 16: 10, 32: 5})
BEYOND = 1.25  # how far beyond the farthest state of the free runs an analysis may be


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
        begin: weights to begin with, for fine-tuning; None for new ones, with which the mean moves nearly as that of a
            Kalman filter with tapered covariances.
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
        ...     Lorenz63(window=0.25), Observation([0, 2], 1.0), state=jnp.array([-8.5, -7.0, 27.0]), sizes={4: 16},
        ...     steps=300, settings={"width": 16, "small": 8, "channels": 2}, key=jax.random.key(0),
        ... )
        >>> result.losses.shape, result.source_state[0].ensemble.shape
        ((300,), (16, 4, 3))
    """
    if not sizes or any(size < 1 or truths < 1 for size, truths in sizes.items()):
        raise ValueError(f"sizes name at least one ensemble size with its number of truths, got {dict(sizes)}")
    if not 0 <= missing[0] <= missing[1] <= 1:
        raise ValueError(f"the share of missing observations goes from low to high within 0 and 1, got {missing}")
    if begin is not None and settings:
        raise ValueError(f"weights to begin with have their settings, but {dict(settings)} were given, too")
    if unroll < 1:
        raise ValueError(f"at least one window is differentiated through, got unroll={unroll}")
    around = find_surroundings(
        observation, state.shape[0], variables=variables, observations=observations, radius=radius, reach=reach
    )
    climate_key, weight_key, start_key, fit_key = jax.random.split(key, 4)
    climate = Climate.of(model, jnp.asarray(state, float), key=climate_key)
    update = begin if begin is not None else _new(around, climate, observation, settings, weight_key)
    update.check(around)
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


def _new(
    around: Surroundings, climate: Climate, observation: Observation, settings: Mapping[str, int], key: PRNGKeyArray
) -> LocalUpdate:
    """New weights, standardised to the climate."""
    predicted = jax.vmap(observation.operator)(climate.states)
    kinds = np.asarray(around.variables)
    state = _by_kind(climate.states, kinds)
    far = np.asarray(jnp.max(jnp.abs(climate.states - state.mean[kinds]) / state.scale[kinds], axis=0))
    extent = [BEYOND * max(1.0, *far[kinds == kind]) for kind in range(len(state.mean))]
    return LocalUpdate(
        around.near.offset.shape[-1],
        state=state,
        extent=jnp.array(extent),
        predicted=_by_kind(predicted, np.asarray(around.observations)),
        radius=around.radius,
        reach=around.reach,
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
