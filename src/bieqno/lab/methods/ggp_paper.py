"""The generalized Gaussian process in the paper's form (section 3.1): trained on stored pairs of the one data set alone.

A pair is a random subset D' of the data, to be predicted from all other rows. Nothing is held out, no noise is known, and the
variance ``exp(D)`` has no floor but the one that single precision needs. The stored pairs are used in mini-batches,
epoch by epoch, until the training loss (eq. 10) levels off. Where the paper is silent: Adam, whose rate decays.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from bieqno.gaussian import LowRankGaussian
from bieqno.operators.networks import apply_linear
from bieqno.regression import metrics
from bieqno.regression.data import MIN_NOISE, Scaling, floats
from bieqno.regression.trained.process import GeneralizedGaussianProcess
from bieqno.training import EpochLoss, Epochs, StoredData, fit

BATCH = 64  # pairs in a mini-batch
LEVEL = 0.01  # share of its whole fall by which a loss may still fall and be called level
LEAST_EPOCHS = 40  # before them nothing is called level
_DRAWN = 1000  # pairs drawn at a time, to bound the memory


@dataclass(frozen=True)
class PaperTraining:
    """What the form is trained on: so many `pairs`, each with so many `targets` (the paper's M'), for at most so many `epochs`.

    The learning rate halves every `halving` epochs. `shape` has width, depth and rank of the networks.
    """

    pairs: int
    targets: int
    epochs: int
    halving: int
    learning_rate: float = 1e-3
    shape: Mapping[str, Any] = field(default_factory=dict)


class PairLoss(eqx.Module):
    """Equation 10 per point, averaged over pairs; each point and observation is embedded once for all pairs."""

    inputs: Float[Array, "m d"]
    values: Float[Array, "m"]

    def __call__(
        self, process: GeneralizedGaussianProcess, chosen: Int[Array, "b t"], *, key: PRNGKeyArray
    ) -> Float[Array, ""]:
        """Return the loss of pairs, given the rows that each is to predict."""
        rows, (pairs, targets) = len(self.values), chosen.shape
        inside: Any = process.operator.inputs
        fitting: Any = process.operator.fit
        network, observed = fitting.network, jnp.concatenate([self.inputs, self.values[:, None]], axis=1)
        own, interaction = (jax.vmap(net)(self.inputs) for net in (inside.embed_self, inside.interaction.embed))
        seen = jax.vmap(process.operator.observations.embed)(observed)
        begun = (own @ network.layers[0].weight[:, : own.shape[1]].T)[chosen]
        predicted = jnp.zeros((pairs, rows)).at[jnp.arange(pairs)[:, None], chosen].set(1.0)
        shared = predicted @ interaction / targets, (1 - predicted) @ seen / (rows - targets)

        def point(begun: Float[Array, "w"], *shared: Float[Array, "w"]) -> Float[Array, "q"]:
            return apply_linear(network.layers[-1], network.before_last(*shared, begun=begun))

        results = jax.vmap(jax.vmap(point, (0, None, None)))(begun, *shared)
        log_probs = jax.vmap(lambda out, y: process.distribution(out).log_prob(y))(results, self.values[chosen])
        return -jnp.mean(log_probs) / targets


def draw_pairs(rows: int, training: PaperTraining, *, rng: np.random.Generator) -> Int[np.ndarray, "pairs t"]:
    """Draw subsets of the rows, all of them different.

    Example:
        >>> draw_pairs(5, PaperTraining(pairs=10, targets=2, epochs=1, halving=1), rng=np.random.default_rng(0)).shape
        (10, 2)
    """
    pairs, targets = training.pairs, training.targets
    if not 0 < targets < rows or math.comb(rows, targets) < pairs:
        raise ValueError(f"of {rows} rows there are no {pairs} different subsets of {targets} that leave some over")
    found = np.empty((0, targets), np.int32)
    while len(found) < pairs:
        orders = rng.permuted(np.tile(np.arange(rows, dtype=np.int32), (_DRAWN, 1)), axis=1)
        found = np.unique(np.concatenate([found, np.sort(orders[:, :targets], axis=1)]), axis=0)
    return rng.permutation(found)[:pairs]


def levelled(losses: Float[np.ndarray, "epochs"]) -> bool:
    """Return whether the loss fell by less than `LEVEL` of its whole fall between the last two quarters of the epochs.

    Medians, for single epochs leap up while the learning rate is high; and never before `LEAST_EPOCHS`.

    Example:
        >>> levelled(-np.arange(80.0)), levelled(np.ones(80)), levelled(np.ones(8))
        (False, True, False)
    """
    if len(losses) < LEAST_EPOCHS:
        return False
    quarter = len(losses) // 4
    before, last = (float(np.median(part)) for part in (losses[-2 * quarter : -quarter], losses[-quarter:]))
    return before - last <= LEVEL * abs(float(losses[0]) - last)


@dataclass(frozen=True)
class PaperFit:
    """The trained process with its data: predictions at all points asked for together, in units of the data."""

    process: GeneralizedGaussianProcess
    scaling: Scaling
    loss: PairLoss

    def posterior(self, points: Float[np.ndarray, "n d"]) -> LowRankGaussian:
        """Return the joint distribution of noisy values at points."""
        asked, scaling = floats(self.scaling.inputs(points)), self.scaling
        found = _predict(self.process, asked, self.loss.inputs, self.loss.values)
        return found.affine(floats(scaling.target_scale), floats(scaling.target_shift))


def fit_paper_form(
    x: Float[np.ndarray, "m d"],
    y: Float[np.ndarray, "m"],
    training: PaperTraining,
    *,
    points: Float[np.ndarray, "n d"],
    truth: Float[np.ndarray, "n"],
    values: Float[np.ndarray, "n"],
    seed: int,
) -> tuple[PaperFit, Float[np.ndarray, "epochs 3"]]:
    """Train on the pairs of a data set; return the process, and training loss, RMSE and NLPD after each epoch.

    The scores at `points` are recorded and decide nothing: the training ends when its own loss has levelled off, or after the
    last epoch.
    """
    scaling = Scaling.of(x, y)
    loss = PairLoss(floats(scaling.inputs(x)), floats(scaling.targets(y)))
    chosen = jnp.asarray(draw_pairs(len(y), training, rng=np.random.default_rng(seed)))
    source = Epochs(StoredData(chosen, min(BATCH, training.pairs)))
    start_key, fit_key = jax.random.split(jax.random.key(seed))
    form: dict[str, Any] = {"set_interaction": True, "noise": MIN_NOISE, **training.shape}
    process = GeneralizedGaussianProcess(x.shape[1], **form, key=start_key)
    history: list[tuple[float, float, float]] = []

    def watch(process: GeneralizedGaussianProcess, losses: Float[np.ndarray, "steps"]) -> bool:
        gaussian = PaperFit(process, scaling, loss).posterior(points)
        mean, std = (np.asarray(part, np.float64) for part in (gaussian.mean, gaussian.std))
        last = float(np.nanmean(losses[-source.batches :]))
        history.append((last, metrics.rmse(mean, truth), metrics.nlpd(mean, std, values)))
        return levelled(np.array(history)[:, 0])

    result = fit(
        process,
        EpochLoss(loss),
        source,
        steps=training.epochs * source.batches,
        chunk_steps=source.batches,
        optimizer=_optimizer(training.learning_rate, training.halving * source.batches),
        source_state=source.start,
        watch=watch,
        key=fit_key,
    )
    return PaperFit(result.module, scaling, loss), np.array(history)


@eqx.filter_jit
def _predict(process: GeneralizedGaussianProcess, points: Array, inputs: Array, values: Array) -> LowRankGaussian:
    return process(points, inputs, values)


@cache
def _optimizer(learning_rate: float, halving: int) -> optax.GradientTransformation:
    """Return one object for equal arguments, so that trainings of equal shape share one compilation."""
    return optax.adam(optax.exponential_decay(learning_rate, halving, 0.5))
