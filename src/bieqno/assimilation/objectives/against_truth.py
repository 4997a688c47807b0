"""Training against the truth, on the student's own analyses: it learns from what it will meet when it is used.

Many truths run at once. In each step every ensemble is forecast, observed and analysed by the student as it is now; the
analyses of a few windows are scored against the truths and differentiated through these windows, the weights improved, and
the runs continue from these analyses. An ensemble that blows up begins anew, as a random few do in every window.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from bieqno.assimilation.models.forecast import forecast
from bieqno.assimilation.objectives.objective import Task, check_learning_rate
from bieqno.assimilation.protocols import Filter, PaddedFilter, StatefulFilter, analysed, begin
from bieqno.assimilation.system import Climate, System
from bieqno.training import falling_muon

# Each about twice the one before: between them a filter interpolates, beyond them it extrapolates in log N.
SIZES = (3, 5, 10, 20)
VALUES = 160  # variables of all truths of one size, where their number is not given
# Windows that are differentiated through where the model can be: an analysis is scored by its successors, too. At
# equal cost 8 windows of half the truths were better than 4 on dense networks (0.231 for 0.238 at N = 5), and equal on sparse.
UNROLL = 8
SHARED = 4  # sizes within this factor of the smallest are padded to one shape, which compiles once
# Share of the runs that begin anew in every window, so that beginnings are never forgotten; few, for errors are large there.
RESTARTED = 0.001
BEGINNINGS = (0.06, 0.75)  # spread of first ensembles, in units of the climate
SMALL = 50_000  # values of ensembles in training, each with some kilobytes of its analysis, that fit into memory
LOST = 10.0  # standard deviations from the climate's mean at which a member has blown up
LEVER = 1.0  # largest derivative by an ensemble of all later scores, in units of that of its own score
BEHIND = 1e6  # an error, in units of the climate, that is larger than any
# Weight of the Dawid-Sebastiani score, in units of the error. Errors have heavier tails than members, and the CRPS cares
# little for tails: alone it leaves a spread of 0.85 of the error on sparse networks, with it 0.95 to 0.98 at an error
# equal within 2 %.
CALIBRATION = 0.1
SURPRISED = 16.0  # times the variance beyond which a square error says only that the truth is lost
IDENTITY = "against truth 7"  # to be counted up when the loss or the source changes


@dataclass(frozen=True)
class AgainstTruth:
    """Train on the error of the student's own analyses, in cycled runs on truths of the system's model.

    Args:
        sizes: the ensemble sizes to learn, with the number of truths of each or without: then 4 to 32, fewer for larger states.
        missing: least and largest share of observations that is missing in training.
        unroll: number of windows that are differentiated through: the analysis learns what serves the next forecasts. None
            for 8 where the model can be differentiated, else 1.
        learning_rate: of Muon (Adam for vectors) after a short warm-up; it falls to zero along a cosine.
    """

    sizes: Mapping[int, int] | Sequence[int] = SIZES
    missing: tuple[float, float] = (0.0, 0.0)
    unroll: int | None = None
    learning_rate: float = 3e-3

    def __post_init__(self) -> None:
        if not isinstance(self.sizes, Mapping | Sequence):
            raise TypeError(f"sizes are several ensemble sizes, such as (5, 10, 20), got {self.sizes!r}")
        truths = list(self.sizes.values()) if isinstance(self.sizes, Mapping) else []
        if not self.sizes or min(*self.sizes, *truths, 1) < 1:
            raise ValueError(
                f"sizes name at least one ensemble size, or each with its number of truths, got {self.sizes}"
            )
        if not isinstance(self.missing, Sequence) or len(self.missing) != 2:
            raise TypeError(f"missing is two shares, such as (0.0, 0.5), got {self.missing!r}")
        if not 0 <= self.missing[0] <= self.missing[1] <= 1:
            raise ValueError(f"the share of missing observations is (low, high) within 0 and 1, got {self.missing}")
        if self.unroll is not None and self.unroll < 1:
            raise ValueError(f"at least one window is differentiated through, got unroll={self.unroll}")
        check_learning_rate(self.learning_rate)

    def task(self, student: Filter, system: System, *, key: PRNGKeyArray) -> Task:
        """Prepare the training: free runs for the climate, and the first ensembles."""
        climate_key, start_key = jax.random.split(key)
        climate = Climate.of(system, key=climate_key)
        each = min(32, max(4, VALUES // system.size))
        sizes = self.sizes if isinstance(self.sizes, Mapping) else dict.fromkeys(self.sizes, each)
        groups = _groups(sizes, isinstance(student, PaddedFilter | StatefulFilter))
        keys = jax.random.split(start_key, len(groups))
        begun = tuple(_begin(student, climate, group, k) for k, group in zip(keys, groups, strict=True))
        unroll = self.unroll or (UNROLL if differentiable(system) else 1)
        loss = TruthLoss(system, climate, self.missing, unroll)
        # The analyses of later steps depend on the weights of earlier ones: a short memory of gradients is the better one.
        optimizer = falling_muon(self.learning_rate, b2=0.99, clip=1.0, warm_up=100)
        return Task(loss, runs_and_key, optimizer, IDENTITY, begun)


def differentiable(system: System) -> bool:
    """Return whether model and operator of a system can be differentiated: those outside JAX cannot."""

    def total(state: Float[Array, "n"]) -> Float[Array, ""]:
        carried = forecast(system.model, state[None], key=jax.random.key(0))[0]
        return jnp.sum(carried) + jnp.sum(system.observation.operator(carried))

    try:
        jax.eval_shape(jax.grad(total), system.state)
    except (ValueError, TypeError, NotImplementedError):
        return False
    return True


def _groups(sizes: Mapping[int, int], padded: bool) -> list[dict[int, int]]:
    """Return sizes that share a shape: all within a factor of the smallest if members may be padding, else one by one."""
    groups: list[dict[int, int]] = []
    for size in sorted(sizes):
        if not (groups and padded and size <= SHARED * min(groups[-1])):
            groups.append({})
        groups[-1][size] = sizes[size]
    return groups


class Runs(eqx.Module):
    """Twin experiments under way, padded to one ensemble size."""

    truth: Float[Array, "B n"]
    ensemble: Float[Array, "B N n"]
    present: Bool[Array, "B N"]
    blown_up: Int[Array, ""]
    state: PyTree[Any] = None  # of a student that has one


def runs_and_key(key: PRNGKeyArray, runs: tuple[Runs, ...]) -> tuple[tuple[Runs, ...], PRNGKeyArray]:
    """Return the batch of a step: the runs as they are, and a key for their next windows."""
    return runs, key


class TruthLoss(eqx.Module):
    """Error of the analyses of the next windows: of the mean, of the distribution, and of the spread, in units of the climate.

    The sum of RMSE, CRPS, and the Dawid-Sebastiani score times the RMSE and its weight. The CRPS is that of the ensemble as it
    is. The mean of a trained ensemble does not scatter by chance, and the score that is fair to random members would have too
    much spread: twice as much as the error at N = 3, unbounded at 2.
    """

    system: System
    climate: Climate
    missing: tuple[float, float] = eqx.field(static=True)
    windows: int = eqx.field(static=True)

    def __call__(
        self, student: Filter, batch: tuple[tuple[Runs, ...], PRNGKeyArray], *, key: PRNGKeyArray
    ) -> tuple[Float[Array, ""], tuple[Runs, ...]]:
        """Return the loss, and the runs after it."""
        groups, batch_key = batch
        keys = jax.random.split(batch_key, len(groups))
        values, runs = zip(*(self._continue(student, *group) for group in zip(groups, keys, strict=True)), strict=True)
        truths = [len(group.truth) for group in groups]  # each counts alike, whatever shape it shares with others
        return jnp.average(jnp.stack(values), weights=jnp.array(truths, float)), jax.lax.stop_gradient(runs)

    def _continue(self, student: Filter, runs: Runs, key: PRNGKeyArray) -> tuple[Float[Array, ""], Runs]:
        """Take all runs of one shape through the next windows."""
        share_key, window_key = jax.random.split(key)
        share = jax.random.uniform(share_key, (len(runs.truth),))
        missing = self.missing[0] + share * (self.missing[1] - self.missing[0])

        def window(runs: Runs, key: PRNGKeyArray) -> tuple[Runs, Float[Array, ""]]:
            model_key, start_key, analysis_key = jax.random.split(key, 3)
            # In units of the climate, in which the derivative of a score has a norm of about 1 / sqrt(N n), shared by all runs.
            scale = LEVER / math.sqrt(runs.ensemble.size)
            carried = bounded_derivative(runs.ensemble / self.climate.deviation, scale / math.sqrt(len(runs.truth)))
            runs = eqx.tree_at(lambda r: r.ensemble, runs, carried * self.climate.deviation)
            runs = self._restarted(*self._forecast(runs, model_key), runs, begin(student), start_key)
            ensemble, state = self._analyse(student, runs, missing, analysis_key)
            scores = jax.vmap(self._score)(runs.truth, ensemble, runs.present)
            return Runs(runs.truth, ensemble, runs.present, runs.blown_up, state), jnp.mean(scores)

        if self.windows == 1:  # a model outside JAX has no derivative, not even in a loop of one step
            runs, score = window(runs, jax.random.split(window_key, 1)[0])
            return score, runs
        # Of large ensembles only those between windows are kept in memory, and the rest computed again on the way back.
        kept = window if runs.ensemble.size <= SMALL else jax.checkpoint(window)
        runs, scores = jax.lax.scan(kept, runs, jax.random.split(window_key, self.windows))
        return jnp.mean(scores), runs

    def _restarted(
        self,
        truth: Float[Array, "B n"],
        prior: Float[Array, "B N n"],
        runs: Runs,
        begun_state: PyTree[Any],
        key: PRNGKeyArray,
    ) -> Runs:
        """Return the runs a window later; those that blew up and a random few begin anew."""
        start_key, luck_key = jax.random.split(key)
        begun, begun_ensemble = _beginnings(self.climate, prior.shape[0], prior.shape[1], BEGINNINGS, start_key)
        near = jnp.abs(prior - self.climate.mean) <= LOST * self.climate.deviation
        sound = jnp.all(near | ~runs.present[..., None], axis=(1, 2)) & jnp.all(jnp.isfinite(truth), axis=1)
        again = ~sound | (jax.random.uniform(luck_key, sound.shape) < RESTARTED)
        # Where a state is not finite even a derivative of zero would be lost, unless it is cut off first.
        truth, prior = (jnp.where(jnp.isfinite(x), x, 0) for x in (truth, prior))
        truth = jnp.where(again[:, None], begun, truth)
        prior = jnp.where(again[:, None, None], begun_ensemble, prior)
        first = jax.vmap(jnp.where, (0, None, 0))
        state = jax.tree.map(lambda new, old: first(again, new, old), begun_state, runs.state)
        return Runs(truth, prior, runs.present, runs.blown_up + jnp.sum(~sound), state)

    def _forecast(self, runs: Runs, key: PRNGKeyArray) -> tuple[Float[Array, "B n"], Float[Array, "B N n"]]:
        """Return truths and members a window later, forecast together: to the model a truth is one more member."""
        everyone = jnp.concatenate([runs.truth[:, None], runs.ensemble], axis=1)
        carried = forecast(self.system.model, everyone.reshape(-1, everyone.shape[2]), key=key).reshape(everyone.shape)
        return carried[:, 0], carried[:, 1:]

    def _analyse(
        self, student: Filter, runs: Runs, missing: Float[Array, "B"], key: PRNGKeyArray
    ) -> tuple[Float[Array, "B N n"], PyTree[Any]]:
        """Observe every truth, each value missing with the run's probability, and let the student analyse."""
        observation = self.system.observation
        mask_key, error_key, filter_key = jax.random.split(key, 3)
        shape = (len(runs.truth), self.system.observed)
        mask = jax.random.uniform(mask_key, shape) >= missing[:, None]
        mask = mask & self.system.present(len(mask), key=jax.random.fold_in(mask_key, 1))
        clean = jax.vmap(observation.operator)(runs.truth)
        value = observation.error.draw(clean, key=error_key)

        def one(state: Any, ensemble: Array, present: Array, *seen: Any) -> tuple[Array, PyTree[Any]]:
            clean, value, mask, key = seen
            observed = observation.window(value, mask=mask, reference=clean)
            return analysed(student, state, ensemble, observed, present, key=key)

        keys = jax.random.split(filter_key, len(value))
        return jax.vmap(one)(runs.state, runs.ensemble, runs.present, clean, value, mask, keys)

    def _score(
        self, truth: Float[Array, "n"], ensemble: Float[Array, "N n"], present: Bool[Array, "N"]
    ) -> Float[Array, ""]:
        """Return the error of the mean over all variables, plus their mean CRPS and the weighted score of the spread."""
        wrong = (ensemble - truth) / self.climate.deviation
        error, crps = mean_and_crps(wrong, present)
        return error + crps + CALIBRATION * jax.lax.stop_gradient(error) * dawid_sebastiani(wrong, present)


def mean_and_crps(wrong: Float[Array, "N n"], present: Bool[Array, "N"]) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Return the error of the mean over all variables and their mean CRPS, from the errors of members."""
    here, count = present[:, None], jnp.sum(present, dtype=wrong.dtype)
    wrong = jnp.where(here, wrong, 0)
    # Half the mean distance between members, from their order; padding comes last and counts nothing.
    number = jnp.arange(1, len(present) + 1, dtype=wrong.dtype)
    ranks = jnp.where(number <= count, 2 * number - count - 1, 0)[:, None]
    ordered = jnp.sort(jnp.where(here, wrong, BEHIND), axis=0)
    apart = jnp.sum(ranks * ordered, axis=0) / count**2
    crps = jnp.mean(jnp.sum(jnp.abs(wrong), axis=0) / count - apart)
    return jnp.sqrt(jnp.mean((jnp.sum(wrong, axis=0) / count) ** 2) + 1e-10), crps


def dawid_sebastiani(wrong: Float[Array, "N n"], present: Bool[Array, "N"]) -> Float[Array, ""]:
    """Return the Dawid-Sebastiani score of mean and mean variance of all variables, less its least value for the error.

    It is the logarithmic score of a normal distribution, and least where the spread equals the error. One member has none.

    Example:
        >>> spread_of_one = jnp.array([[-1.0], [1.0]]) / jnp.sqrt(2.0)
        >>> scores = [dawid_sebastiani(spread_of_one + error, jnp.array([True, True])) for error in (0.5, 1.0, 2.0)]
        >>> [round(float(score), 3) for score in scores]
        [0.318, 0.0, 0.807]
    """
    here, count = present[:, None], jnp.sum(present, dtype=wrong.dtype)
    wrong = jnp.where(here, wrong, 0)
    mean = jnp.sum(wrong, axis=0) / count
    variance = jnp.sum(jnp.where(here, (wrong - mean) ** 2, 0), axis=0) / jnp.maximum(count - 1, 1)
    square, variance = jnp.mean(mean**2) + 1e-10, jnp.mean(variance) + 1e-10
    # The logarithm is that of the variance: what is taken off for the error has no derivative.
    ratio, known = square / variance, jax.lax.stop_gradient(square) / variance
    score = 0.5 * (jnp.minimum(ratio, SURPRISED) - 1 - jnp.log(jnp.minimum(known, SURPRISED)))
    return jnp.where(count > 1, score, 0)


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def bounded_derivative(ensembles: Float[Array, "B N n"], bound: float) -> Float[Array, "B N n"]:
    """Return ensembles as they are, and derivatives through them with a norm of at most the bound for each run.

    A run that has lost its truth is chaotic: derivatives through its windows grow without bound and mean nothing.
    """
    return ensembles


def _bounded_backward(bound: float, kept: None, derivative: Float[Array, "B N n"]) -> tuple[Float[Array, "B N n"]]:
    norm = jnp.sqrt(jnp.sum(derivative**2, axis=(1, 2), keepdims=True))
    shrunk = derivative * (bound / jnp.maximum(norm, bound))
    return (jnp.where(jnp.isfinite(norm), shrunk, 0),)


bounded_derivative.defvjp(lambda ensembles, bound: (ensembles, None), _bounded_backward)


def _begin(student: Filter, climate: Climate, sizes: Mapping[int, int], key: PRNGKeyArray) -> Runs:
    """Return first runs of some ensemble sizes, padded to the largest."""
    counts = jnp.repeat(jnp.array(list(sizes)), jnp.array(list(sizes.values())))
    truth, ensemble = _beginnings(climate, len(counts), max(sizes), (0.5, 0.5), key)
    state = jax.tree.map(lambda leaf: jnp.repeat(leaf[None], len(counts), axis=0), begin(student))
    return Runs(truth, ensemble, jnp.arange(max(sizes)) < counts[:, None], jnp.zeros((), int), state)


def _beginnings(
    climate: Climate, truths: int, members: int, spread: tuple[float, float], key: PRNGKeyArray
) -> tuple[Float[Array, "B n"], Float[Array, "B N n"]]:
    """Draw truths of the climate, each with an ensemble about it; its spread is log-uniform, in units of the climate."""
    which_key, width_key, noise_key = jax.random.split(key, 3)
    truth = climate.states[jax.random.randint(which_key, (truths,), 0, len(climate.states))]
    low, high = (math.log(end) for end in spread)
    width = jnp.exp(jax.random.uniform(width_key, (truths, 1, 1), minval=low, maxval=high))
    noise = jax.random.normal(noise_key, (truths, 1 + members, truth.shape[1]))
    return truth, truth[:, None] + width * climate.deviation * (noise[:, :1] + noise[:, 1:])
