"""Training of the pretrained filter on random worlds: on its own analyses, against their truths, all worlds alike.

The loss is the mean logarithm of the score of a world, so that a per cent counts the same whether errors are large or
small. Where all is observed well the score hardly sees that an ensemble loses its spread, until much later it loses the
truth: the ratio of error and spread counts by itself.
"""

import dataclasses
import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from bieqno.assimilation import forecast
from bieqno.assimilation.filters.learned.memory import Memory
from bieqno.assimilation.filters.learned.pretrained import PretrainedEnNF
from bieqno.assimilation.objectives.against_truth import bounded_derivative, mean_and_crps
from bieqno.lab.filter_pretraining.families import (
    advection,
    burgers,
    cells,
    lorenz96,
    lorenz2005,
    turbulence,
    two_scale,
    waves,
)
from bieqno.lab.filter_pretraining.families.family import Family
from bieqno.lab.filter_pretraining.worlds import World, draw_worlds
from bieqno.operators import Standardiser
from bieqno.training import FitResult, falling_muon, fit

LEARNED = (
    lorenz96.FAMILY,
    lorenz2005.FAMILY,
    burgers.FAMILY,
    advection.FAMILY,
    two_scale.FAMILY,
    turbulence.FAMILY,
    waves.FAMILY,
)
JUDGED = (cells.FAMILY, *LEARNED)
"""Families to learn from, and those of the worlds that choose the best weights: the first is left out of training altogether."""
SIZES = ((3, 20), (21, 64))  # of ensembles, in two groups: all of a group are padded to its largest
WORLDS, HELD_OUT, TAKEN = (60, 20), (3, 1), (10, 2)  # of each group: of a family to learn from, to judge by; of a step
WINDOWS = 5  # that are differentiated through
RESTARTED = 0.002  # share of the runs that begin anew in every window
LOST = 10.0  # standard deviations from the climate's mean at which a member has blown up
CALIBRATION = 0.1  # weight of the squared logarithm of error variance over spread variance
SEEN_AFTER = (0, 5, 40)  # windows after which it is noted what is seen in training
SPREADS = (0.06, 0.75)  # of first ensembles, in units of the climate


class Runs(eqx.Module):
    """Twin experiments under way, one in each world."""

    truth: Float[Array, "*w n"]
    ensemble: Float[Array, "*w N n"]
    memory: Memory


class WorldLoss(eqx.Module):
    """Score of the analyses of the next windows, in some random worlds of each group."""

    worlds: tuple[World, ...]
    taken: tuple[int, ...] = eqx.field(static=True, default=TAKEN)
    windows: int = eqx.field(static=True, default=WINDOWS)

    def __call__(
        self, student: PretrainedEnNF, batch: tuple[tuple[Runs, ...], PRNGKeyArray], *, key: PRNGKeyArray
    ) -> tuple[Float[Array, ""], tuple[Runs, ...]]:
        """Return the loss, and the runs after it."""
        runs, batch_key = batch
        keys = jax.random.split(batch_key, len(runs))
        parts = [self._of_group(student, *group) for group in zip(self.worlds, runs, self.taken, keys, strict=True)]
        loss = jnp.mean(jnp.concatenate([losses for losses, _ in parts]))
        return loss, jax.lax.stop_gradient(tuple(after for _, after in parts))

    def _of_group(
        self, student: PretrainedEnNF, worlds: World, runs: Runs, taken: int, key: PRNGKeyArray
    ) -> tuple[Float[Array, "w"], Runs]:
        which_key, window_key = jax.random.split(key)
        chosen = jax.random.choice(which_key, len(runs.truth), (taken,), replace=False)
        some = jax.tree.map(lambda leaf: leaf[chosen], (worlds, runs))
        # One by one: a world runs the model of its own family alone.
        play_one = partial(play, student, self.windows)
        scores, ended = jax.lax.map(lambda one: play_one(*one), (*some, jax.random.split(window_key, taken)))
        return _loss(scores), jax.tree.map(lambda old, new: old.at[chosen].set(new), runs, ended)


def play(
    student: PretrainedEnNF, windows: int, world: World, run: Runs, key: PRNGKeyArray
) -> tuple[Float[Array, "T 3"], Runs]:
    """Take one world through some windows; return score, error and spread of each, in units of the climate."""
    student = dataclasses.replace(student, around=world.around)
    mean, deviation = world.operator.mean, world.operator.deviation
    present = jnp.arange(run.ensemble.shape[0]) < world.members

    def window(run: Runs, key: PRNGKeyArray) -> tuple[Runs, Float[Array, "3"]]:
        truth_key, model_key, start_key, seen_key, filter_key = jax.random.split(key, 5)
        # Derivatives through a run that has lost its truth grow without bound and mean nothing.
        size = jax.lax.stop_gradient(jnp.sqrt(jnp.mean(((run.ensemble - run.truth) / deviation) ** 2)) + 1e-6)
        unit = deviation * size
        carried = bounded_derivative((run.ensemble / unit)[None], 1 / math.sqrt(run.ensemble.size))[0] * unit
        truth = forecast(world.truth, run.truth[None], key=truth_key)[0]
        prior = forecast(world.model, carried, key=model_key)
        near = jnp.abs(prior - mean) <= LOST * deviation
        sound = jnp.all(near | ~present[:, None]) & jnp.all(jnp.isfinite(truth))
        again = ~sound | (jax.random.uniform(start_key) < RESTARTED)
        begun = begin(world, run.ensemble.shape[0], start_key)
        truth, prior = (jnp.where(jnp.isfinite(x), x, 0) for x in (truth, prior))
        run = jax.tree.map(partial(jnp.where, again), begun, Runs(truth, prior, run.memory))
        observed = world.observe(run.truth, key=seen_key)
        ensemble, memory = student.step(run.memory, run.ensemble, observed, present, key=filter_key)
        scores = mean_and_crps((ensemble - run.truth) / deviation, present)
        variance = jnp.var(ensemble / deviation, axis=0, ddof=1, where=present[:, None])
        spread = jnp.sqrt(jnp.mean(variance) + 1e-10)
        return Runs(run.truth, ensemble, memory), jnp.stack([sum(scores), scores[0], spread])

    run, scores = jax.lax.scan(window, run, jax.random.split(key, windows))
    return scores, run


def _loss(scores: Float[Array, "w T 3"]) -> Float[Array, "w"]:
    """Return the loss of each world, from score, error and spread of its windows."""
    score, error, spread = jnp.moveaxis(scores, -1, 0)
    ratio = jnp.log(jnp.mean(error**2, axis=1) / jnp.mean(spread**2, axis=1))
    return jnp.log(jnp.mean(score, axis=1)) + CALIBRATION * ratio**2


def begin(world: World, members: int, key: PRNGKeyArray) -> Runs:
    """Draw a truth of the climate of a world and an ensemble about it, of log-uniform spread."""
    which_key, width_key, noise_key = jax.random.split(key, 3)
    truth = world.states[jax.random.randint(which_key, (), 0, len(world.states))]
    low, high = (math.log(end) for end in SPREADS)
    width = jnp.exp(jax.random.uniform(width_key, minval=low, maxval=high)) * world.operator.deviation
    noise = jax.random.normal(noise_key, (1 + members, truth.shape[0]))
    kinds = world.around.kinds
    return Runs(truth, truth + width * (noise[:1] + noise[1:]), Memory.new(truth.shape[0], kinds[0] * kinds[1]))


def draw_groups(
    families: Sequence[Family], counts: Sequence[int], sizes: Sequence[tuple[int, int]], seed: int
) -> tuple[World, ...]:
    """Draw worlds of each group of ensemble sizes, so many of each family."""
    rng = np.random.default_rng(seed)
    return tuple(draw_worlds(families, count, size, rng) for count, size in zip(counts, sizes, strict=True))


def begin_all(worlds: tuple[World, ...], sizes: Sequence[tuple[int, int]], key: PRNGKeyArray) -> tuple[Runs, ...]:
    """Begin a run in each of the worlds of each group."""
    keys = jax.random.split(key, len(worlds))
    return tuple(
        jax.vmap(lambda one, k, most=most: begin(one, most, k))(group, jax.random.split(k, len(group.members)))
        for group, (_, most), k in zip(worlds, sizes, keys, strict=True)
    )


class WorldErrors(eqx.Module):
    """Held-out loss: that of long runs in worlds that are not trained on.

    Long, because an ensemble that loses its spread slowly loses the truth much later.
    """

    worlds: tuple[World, ...]
    key: PRNGKeyArray
    sizes: tuple[tuple[int, int], ...] = eqx.field(static=True, default=SIZES)
    windows: int = eqx.field(static=True, default=200)
    burn_in: int = eqx.field(static=True, default=50)

    def __call__(self, student: PretrainedEnNF) -> Float[Array, ""]:
        """Return the mean over all worlds."""
        return jnp.mean(_loss(self.scores(student)))

    def of_family(self, number: int) -> "WorldErrors":
        """Return the same on the worlds of one of the families that are judged by."""
        worlds = jax.tree.map(lambda leaf: leaf[number :: len(JUDGED)], self.worlds)
        return dataclasses.replace(self, worlds=worlds)

    def errors(self, student: PretrainedEnNF) -> Float[Array, "w 2"]:
        """Return error and spread in each world, averaged over windows after the burn-in."""
        return jnp.sqrt(jnp.mean(self.scores(student)[..., 1:] ** 2, axis=1))

    def scores(self, student: PretrainedEnNF) -> Float[Array, "w T 3"]:
        """Return score, error and spread of each window after the burn-in, in each world."""
        key, run_key = jax.random.split(self.key)
        parts, play_one = [], partial(play, student, self.windows)
        for worlds, begun in zip(self.worlds, begin_all(self.worlds, self.sizes, key), strict=True):
            keys = jax.random.split(run_key, len(worlds.members))
            parts.append(jax.lax.map(lambda one: play_one(*one), (worlds, begun, keys))[0])
        scores = jnp.concatenate(parts)
        return jnp.clip(jnp.nan_to_num(scores[:, self.burn_in :], nan=3.0), 1e-5, 3.0)


def judge_of(worlds: Sequence[int] = HELD_OUT, seed: int = 1, **settings: Any) -> WorldErrors:
    """Return the validation, on worlds of its own; every eighth is of the family that is left out."""
    return WorldErrors(draw_groups(JUDGED, worlds, SIZES, seed), jax.random.key(seed), **settings)


def pretrain(
    student: PretrainedEnNF,
    *,
    judge: WorldErrors,
    worlds: Sequence[int] = WORLDS,
    learning_rate: float = 3e-3,
    key: PRNGKeyArray,
    **options: Any,
) -> FitResult[PretrainedEnNF]:
    """Train weights; `options` are those of `fit`, such as `budget`, `checkpoint` and `on_progress`."""
    run_key, fit_key = jax.random.split(key)
    drawn = draw_groups(LEARNED, worlds, SIZES, 0)
    optimizer = falling_muon(learning_rate, b2=0.99, clip=1.0, warm_up=100)
    options |= {"optimizer": optimizer, "validate": judge, "source_state": begin_all(drawn, SIZES, run_key)}
    return fit(student.trusting(), WorldLoss(drawn), _runs_and_key, key=fit_key, **options)


def _runs_and_key(key: PRNGKeyArray, runs: tuple[Runs, ...]) -> tuple[tuple[Runs, ...], PRNGKeyArray]:
    return runs, key


def with_units(student: PretrainedEnNF, *, worlds: Sequence[int] = (12, 4)) -> PretrainedEnNF:
    """Return the same, which knows what it sees in worlds of training: what is far from it is unfamiliar."""
    drawn, key = draw_groups(LEARNED, worlds, SIZES, 2), jax.random.key(2)
    seen = []
    for group, runs in zip(drawn, begin_all(drawn, SIZES, key), strict=True):
        keys = jax.random.split(key, len(group.members))
        for windows in SEEN_AFTER:
            found = np.asarray(eqx.filter_jit(_seen)(student.trusting(), windows, group, runs, keys))
            seen.append(np.moveaxis(found, 1, 0).reshape(found.shape[1], -1))
    return dataclasses.replace(student, units=Standardiser.of(jnp.asarray(np.concatenate(seen, axis=1)), axis=1))


def _seen(
    student: PretrainedEnNF, windows: int, worlds: World, runs: Runs, keys: PRNGKeyArray
) -> Float[Array, "w f n"]:
    """Return what the filter sees after some windows in each world."""

    def one(world: World, run: Runs, key: PRNGKeyArray) -> Float[Array, "f n"]:
        play_key, model_key, seen_key = jax.random.split(key, 3)
        run = play(student, windows, world, run, play_key)[1]
        here = dataclasses.replace(student, around=world.around)
        observed = world.observe(run.truth, key=seen_key)
        present = jnp.arange(run.ensemble.shape[0]) < world.members
        prior = forecast(world.model, run.ensemble, key=model_key)
        close = world.around.near.among(observed.mask)
        return here.look(run.memory, prior, observed, present, close)[0].features

    return jax.lax.map(lambda each: one(*each), (worlds, runs, keys))
