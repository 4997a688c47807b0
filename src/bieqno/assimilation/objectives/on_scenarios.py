"""Training for real records, on simulations only: cycled runs of the student on many scenarios at once.

In each step every truth and every ensemble is carried on and observed, the forecast is scored by how well it predicts what is
observed, and the analysis against the truth. A model that draws counts has no derivative: then one window is differentiated.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from bieqno.assimilation.models.forecast import forecast
from bieqno.assimilation.objectives.against_truth import bounded_derivative
from bieqno.assimilation.objectives.objective import Task, check_learning_rate
from bieqno.assimilation.observation import Observed
from bieqno.assimilation.predictive import predicted_by
from bieqno.assimilation.protocols import Filter
from bieqno.assimilation.system import System
from bieqno.scores import crps
from bieqno.training import falling_adam

RESTARTED = 0.002  # share of the runs that begin anew in every window
WORST = 30.0  # largest score of a run in a window: one that has lost its truth teaches nothing
JUDGED = 100  # windows of the runs by which a student is validated
IDENTITY = "on scenarios 1"  # to be counted up when the loss or the source changes


class Scenarios(eqx.Module):
    """Systems with parameters of their own, what drives each, and states that it may begin with, stacked along a first axis.

    The systems differ in nothing but arrays: parameters of the model, of the operator and of the law. The inputs are those of a
    record or resampled ones, with one row per window, None for models that nothing drives. Truth and first ensemble are drawn
    from `states`.

    Example:
        >>> from bieqno.assimilation import Observation
        >>> grow = lambda rate, z, rain: rate * z + rain
        >>> def draw(key):
        ...     rate = 1 + 0.1 * jax.random.normal(key)
        ...     system = System(jax.tree_util.Partial(grow, rate), Observation([0], 1.0), jnp.ones(1))
        ...     return system, jnp.ones(5), jnp.ones((3, 1))
        >>> scenarios = Scenarios.of([draw(key) for key in jax.random.split(jax.random.key(0), 4)])
        >>> scenarios.count, scenarios.windows, scenarios.at(1)[0].state.shape
        (4, 5, (1,))
    """

    system: System  # with a first axis in all arrays
    inputs: PyTree[Any]
    states: Float[Array, "K s n"]
    count: int = eqx.field(static=True)
    windows: int = eqx.field(static=True)

    @classmethod
    def of(
        cls, drawn: Sequence[tuple[System, PyTree[Any], Float[Array, "s n"]]], windows: int | None = None
    ) -> "Scenarios":
        """Stack systems, inputs and first states; without inputs the number of windows is given."""
        if not drawn:
            raise ValueError("at least one scenario is drawn, got none")
        lengths = {leaf.shape[0] for _, inputs, _ in drawn for leaf in jax.tree.leaves(inputs)} or {windows}
        if len(lengths) > 1 or None in lengths:
            raise ValueError(f"all scenarios have one number of windows, got {sorted(map(str, lengths))}")
        parts = [eqx.partition(one, eqx.is_array) for one in drawn]
        if any(not eqx.tree_equal(parts[0][1], rest) for _, rest in parts[1:]):
            raise ValueError(
                "scenarios differ in nothing but arrays: give numbers that differ as jnp.asarray(...), and one function to all"
            )
        arrays = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(own for own, _ in parts))
        system, inputs, states = eqx.combine(arrays, parts[0][1])
        return cls(system, inputs, states, len(drawn), int(lengths.pop()))

    def at(
        self, number: int | Int[Array, ""], window: int | Int[Array, ""] | slice = slice(None)
    ) -> tuple[System, PyTree[Any], Float[Array, "s n"]]:
        """Return one of them, with the inputs of one window or of some."""

        def own(tree: PyTree[Any]) -> PyTree[Any]:
            return jax.tree.map(lambda leaf: leaf[number] if eqx.is_array(leaf) else leaf, tree)

        inputs = jax.tree.map(lambda leaf: leaf[number, window], self.inputs)
        return own(self.system), inputs, self.states[number]

    def begin(
        self, number: Int[Array, ""], members: int, *, key: PRNGKeyArray
    ) -> tuple[Float[Array, "n"], Float[Array, "N n"]]:
        """Draw a truth and an ensemble from the first states."""
        states = self.states[number]
        drawn = states[jax.random.randint(key, (1 + members,), 0, len(states))]
        return drawn[0], drawn[1:]


@dataclass(frozen=True)
class OnScenarios:
    """Train a student on truths with random parameters, random first states and the inputs of a record.

    Args:
        scenarios: what the truths are drawn from; the record itself is not among them.
        sizes: the ensemble sizes to learn, with the number of truths of each.
        coordinates: in which analyses are scored; None for the state as it is.
        floor: least spread, per coordinate, in whose units an analysis is scored: that of its forecast, but not less.
        unroll: number of windows that are differentiated through; more than one needs a model with derivatives.
        learning_rate: of Adam after a short warm-up; it falls to zero along a cosine.
    """

    scenarios: Scenarios
    sizes: Mapping[int, int]
    coordinates: Callable[[Float[Array, "n"]], Float[Array, "n"]] | None = None
    floor: Any = 1e-3
    unroll: int = 1
    learning_rate: float = 2e-3

    def __post_init__(self) -> None:
        if not self.sizes or min(*self.sizes, *self.sizes.values()) < 1:
            raise ValueError(f"sizes name ensemble sizes, each with its number of truths, got {self.sizes}")
        if self.unroll < 1:
            raise ValueError(f"at least one window is differentiated through, got unroll={self.unroll}")
        check_learning_rate(self.learning_rate)

    def task(self, student: Filter, system: System, *, key: PRNGKeyArray) -> Task:
        """Prepare the training: the first truths and ensembles."""
        keys = jax.random.split(key, len(self.sizes))
        begun = tuple(
            Runs.begin(self.scenarios, size, truths, key=k)
            for k, (size, truths) in zip(keys, self.sizes.items(), strict=True)
        )
        to = self.coordinates or (lambda state: state)
        loss = ScenarioLoss(self.scenarios, jnp.asarray(self.floor, float), to, self.unroll)
        optimizer = falling_adam(self.learning_rate, b2=0.99, clip=1.0, warm_up=100)
        judge = _Judge(loss, begun[:1], jax.random.fold_in(key, len(self.sizes)))
        return Task(loss, _runs_and_key, optimizer, IDENTITY, begun, judge=judge)


class Runs(eqx.Module):
    """Runs under way, of one ensemble size, or one of them: which scenario each has, and its next window."""

    truth: Float[Array, "*B n"]
    ensemble: Float[Array, "*B N n"]
    number: Int[Array, "*B"]
    window: Int[Array, "*B"]

    @classmethod
    def begin(cls, scenarios: Scenarios, members: int, truths: int, *, key: PRNGKeyArray) -> "Runs":
        """Draw a scenario and first states for each; runs begin at windows of their own, as if they had been under way."""
        number_key, window_key, state_key = jax.random.split(key, 3)
        number = jax.random.randint(number_key, (truths,), 0, scenarios.count)
        window = jax.random.randint(window_key, (truths,), 0, scenarios.windows)
        keys = jax.random.split(state_key, truths)
        truth, ensemble = jax.vmap(lambda k, own: scenarios.begin(k, members, key=own))(number, keys)
        return cls(truth, ensemble, number, window)


def _runs_and_key(key: PRNGKeyArray, runs: tuple[Runs, ...]) -> tuple[tuple[Runs, ...], PRNGKeyArray]:
    """Return the batch of a step: the runs as they are, and a key for their next windows."""
    return runs, key


class ScenarioLoss(eqx.Module):
    """Negative log score of the forecasts plus the CRPS of the analyses, in units of the forecast's spread.

    The units are known before the observation, so that the score stays proper. Beside the coordinates themselves a random
    rotation of them is scored, which tests their dependence.
    """

    scenarios: Scenarios
    floor: Float[Array, "..."]
    to: Callable[[Float[Array, "n"]], Float[Array, "n"]]
    windows: int = eqx.field(static=True)

    def __call__(
        self, student: Filter, batch: tuple[tuple[Runs, ...], PRNGKeyArray], *, key: PRNGKeyArray
    ) -> tuple[Float[Array, ""], tuple[Runs, ...]]:
        """Return the loss, and the runs after it."""
        groups, batch_key = batch
        found, after = [], []
        truths = sum(len(group.number) for group in groups)
        for group, own in zip(groups, jax.random.split(batch_key, len(groups)), strict=True):
            runs, total = group, jnp.zeros(())
            for number, window_key in enumerate(jax.random.split(own, self.windows)):
                if number:
                    runs = self._bounded(runs, truths)
                scores, runs = self._window(student, runs, window_key)
                total = total + jnp.sum(scores) / self.windows
            found.append(total)
            after.append(runs)
        return jnp.sum(jnp.stack(found)) / truths, jax.lax.stop_gradient(tuple(after))

    def _bounded(self, runs: Runs, truths: int) -> Runs:
        """Bound the derivative by each ensemble, in units of its spread: it grows without bound where a run lost its truth."""
        unit = jax.lax.stop_gradient(jnp.std(runs.ensemble, axis=1, keepdims=True) + 1)
        bound = 1 / (truths * math.sqrt(runs.ensemble[0].size))
        return eqx.tree_at(lambda r: r.ensemble, runs, bounded_derivative(runs.ensemble / unit, bound) * unit)

    def _window(self, student: Filter, runs: Runs, key: PRNGKeyArray) -> tuple[Float[Array, "B"], Runs]:
        keys = jax.random.split(key, len(runs.number))
        return jax.vmap(lambda run, k: self._one(student, run, k))(runs, keys)

    def _one(self, student: Filter, run: Runs, key: PRNGKeyArray) -> tuple[Float[Array, ""], Runs]:
        """Take one run through its next window."""
        model_key, error_key, filter_key, score_key, luck_key, start_key = jax.random.split(key, 6)
        system, inputs, _ = self.scenarios.at(run.number, run.window)
        everyone = jnp.concatenate([run.truth[None], run.ensemble])
        everyone = forecast(system.model, everyone, inputs, key=model_key)
        sound = jnp.all(jnp.abs(everyone) <= jnp.asarray(system.limit))
        everyone = jnp.where(sound, everyone, self.scenarios.states[run.number, 0])
        truth, prior = everyone[0], everyone[1:]
        observed = self._observe(system, truth, inputs, error_key)
        posterior = student(prior, observed, key=filter_key)
        missed = jnp.minimum(-predicted_by(student, prior, observed), WORST)
        missed = missed + jnp.minimum(self._analysis_score(truth, prior, posterior, score_key), WORST)
        lost = ~sound | ~jnp.all(jnp.isfinite(posterior))
        again = lost | (run.window + 1 >= self.scenarios.windows) | (jax.random.uniform(luck_key) < RESTARTED)
        number_key, state_key = jax.random.split(start_key)
        number = jnp.where(again, jax.random.randint(number_key, (), 0, self.scenarios.count), run.number)
        fresh = self.scenarios.begin(number, len(prior), key=state_key)
        truth, posterior = (jnp.where(again, new, old) for new, old in zip(fresh, (truth, posterior), strict=True))
        window = jnp.where(again, 0, run.window + 1)
        return jnp.where(lost, 0, missed), Runs(truth, posterior, number, window)

    def _observe(self, system: System, truth: Float[Array, "n"], inputs: Any, key: PRNGKeyArray) -> Observed:
        clean = system.observation.operator(truth)
        value = system.observation.error.draw(clean[None], key=key)[0]
        return system.observation.window(value, inputs=inputs)

    def _analysis_score(
        self, truth: Float[Array, "n"], prior: Float[Array, "N n"], posterior: Float[Array, "N n"], key: PRNGKeyArray
    ) -> Float[Array, ""]:
        to = jax.vmap(self.to)
        unit = jax.lax.stop_gradient(jnp.sqrt(jnp.var(to(prior), axis=0) + self.floor**2))
        target, members = self.to(truth) / unit, to(posterior) / unit
        rotation = jnp.linalg.qr(jax.random.normal(key, (target.size, target.size)))[0]
        turned = [(target, members), (rotation @ target, members @ rotation.T)]
        return jnp.mean(jnp.stack([crps(one[None], several[None]) for one, several in turned]))


class _Judge(eqx.Module):
    """Held-out loss: that of runs with random numbers of their own."""

    loss: ScenarioLoss
    runs: tuple[Runs, ...]
    key: PRNGKeyArray

    def __call__(self, student: Filter) -> Float[Array, ""]:
        def step(runs: tuple[Runs, ...], key: PRNGKeyArray) -> tuple[tuple[Runs, ...], Float[Array, ""]]:
            value, runs = self.loss(student, (runs, key), key=key)
            return runs, value

        return jnp.mean(jax.lax.scan(step, self.runs, jax.random.split(self.key, JUDGED))[1])
