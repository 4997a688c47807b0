"""An ensemble of processes trained on one data set with one output: members, stopping and recalibration."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int

from bieqno.arguments import refuse_fork
from bieqno.gaussian import LowRankGaussian
from bieqno.operators import EquivariantOperator
from bieqno.regression.data import MIN_NOISE, Data, Scaling, floats, round_up
from bieqno.regression.metrics import HeldOut
from bieqno.regression.predictive import LowRankPredictive
from bieqno.regression.trained import loss
from bieqno.regression.trained.loss import HeldOutLoss, RandomSplits, Split
from bieqno.regression.trained.process import GeneralizedGaussianProcess, combine
from bieqno.training import FitResult, Progress, fit

CHUNK = 8192  # test points per compiled call: the memory beyond the result itself stays bounded
_CHUNK_STEPS = 50
_adam = lru_cache(optax.adam)  # the same object for the same rate, so that what was compiled is used again


class FittedEnsemble(LowRankPredictive):
    """Members of an ensemble, the observations they are conditioned on, and the recalibration of their variance."""

    members: tuple[GeneralizedGaussianProcess, ...]
    data: Data
    scaling: Scaling
    variance_factor: Float[Array, ""]
    held_out: HeldOut

    def __check_init__(self) -> None:
        if not self.members or any(not isinstance(member, GeneralizedGaussianProcess) for member in self.members):
            raise ValueError("a fitted ensemble has members, each a generalized Gaussian process")
        parts = (self.data, Data), (self.scaling, Scaling), (self.held_out, HeldOut)
        if not all(isinstance(part, kind) for part, kind in parts) or self.variance_factor.shape != ():
            raise ValueError(
                "a fitted ensemble has data, a scaling, held-out predictions and one factor of its variance"
            )
        sizes = {self.members[0].operator.in_size, self.data.inputs.shape[1], len(self.scaling.input_shift)}
        if len(sizes) > 1:
            raise ValueError(f"members, data and scaling differ in their number of inputs: {sorted(sizes)}")

    def conditioned(self, X: np.ndarray, y: np.ndarray, variances: np.ndarray) -> "FittedEnsemble":
        """Return the same ensemble given other observations, each with the variance of its own noise."""
        if variances.any() and not self.members[0].uncertain:
            raise ValueError("this process was fitted without one alpha per row, so it cannot weigh observations by it")
        return eqx.tree_at(lambda process: process.data, self, Data.scaled(self.scaling, X, y, variances))

    def in_chunks(self, X: np.ndarray) -> Iterator[tuple[LowRankGaussian, Int[np.ndarray, "n"]]]:
        """Yield the distribution at one chunk of points after another, each with the rows that it belongs to."""
        refuse_fork()
        # With a set interaction all points belong together. Otherwise the observations are embedded anew in each chunk, so a
        # chunk has more points than there are observations.
        together = isinstance(self.members[0].operator.inputs, EquivariantOperator)
        most = len(X) if together else max(CHUNK, 4 * len(self.data.mask))
        size = min(round_up(len(X)), round_up(most))
        scaled = self.scaling.inputs(X)
        for start in range(0, len(X), size):
            rows = start + np.arange(size)
            rows[rows >= len(X)] = -1
            points = floats(np.where(rows[:, None] < 0, 0, scaled[rows]))
            yield _predict(self.members, self.data, self.variance_factor, points, jnp.asarray(rows >= 0)), rows


@eqx.filter_jit
def _predict(
    members: tuple[GeneralizedGaussianProcess, ...],
    data: Data,
    factor: Float[Array, ""],
    points: Float[Array, "n d"],
    mask: Bool[Array, "n"],
) -> LowRankGaussian:
    def of_member(process: GeneralizedGaussianProcess) -> tuple[LowRankGaussian, Array]:
        return process.given(data, points, mask), process.log_floor

    gaussians, log_floors = eqx.filter_vmap(of_member)(stack(members))
    joint = combine(gaussians)
    # The recalibration may narrow predictions, but not below the noise.
    log_diag = jnp.maximum(joint.log_diag + jnp.log(factor), jax.nn.logsumexp(log_floors) - math.log(len(members)))
    return LowRankGaussian(joint.mean, jnp.sqrt(factor) * joint.factor, log_diag)


def stack(members: tuple[GeneralizedGaussianProcess, ...]) -> GeneralizedGaussianProcess:
    """Stack the arrays of members of equal shape along a first axis, to be trained and applied by `vmap`."""
    return jax.tree.map(lambda *x: jnp.stack(x), *members)


@eqx.filter_jit
def unstack(stacked: GeneralizedGaussianProcess) -> tuple[GeneralizedGaussianProcess, ...]:
    """Return the members one by one."""
    return tuple(jax.tree.map(itemgetter(i), stacked) for i in range(stacked.log_noise.shape[0]))


@dataclass(kw_only=True, eq=False, repr=False)
class TrainingSettings:
    """Settings of the networks and their training; `GGPRegressor` says what they mean."""

    noise: float | None = None
    rank: int = 8
    width: int = 64
    depth: int = 3
    members: int = 5
    set_interaction: bool = False
    targets: int | None = None
    observations: int | None = 256
    max_steps: int = 2000
    batch_size: int = 16
    patience: int = 12
    learning_rate: float = 1e-3


def fit_ensemble(
    X: Float[np.ndarray, "n d"],
    y: Float[np.ndarray, "n"],
    noise_variance: Float[np.ndarray, "n"],
    settings: TrainingSettings,
    *,
    uncertain: bool,
    seed: int,
    fold_seed: int,
    start: FittedEnsemble | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> tuple[FittedEnsemble, FitResult[GeneralizedGaussianProcess]]:
    """Train members on at least `LEAST_ROWS` rows, each with its own fold held out; stop and recalibrate by the held-out points.

    An `uncertain` process sees the `noise_variance` of each row as a part of the observation. `start` is a fit to continue from,
    with its `fold_seed`, so that nothing held out has been trained on.
    """
    scaling = Scaling.of(X, y)
    data = Data.scaled(scaling, X, y, noise_variance)
    members = min(settings.members, len(y))
    if members > 1 and len(y) - math.ceil(len(y) / members) < 2:
        members = len(y)  # leave one out: two rows must remain to learn from
    member_key, fit_key = jax.random.split(jax.random.key(seed))
    noise = None if settings.noise is None else max(settings.noise / float(scaling.target_scale), MIN_NOISE)
    shape = {name: getattr(settings, name) for name in ("rank", "width", "depth", "set_interaction")}
    keys = jax.random.split(member_key, members)
    module = _make_members(X.shape[1], shape, uncertain, None if noise is None else floats(noise), keys)
    if start is not None:
        module = _continued(stack(start.members), module)
    folds = np.full(data.mask.shape, -1)
    if members > 1:
        folds[: len(y)] = np.random.default_rng(fold_seed).permutation(len(y)) % members
    targets = None if settings.targets is None else min(settings.targets, len(y) - 1)
    source = RandomSplits(data, jnp.asarray(folds), members, targets, settings.observations, settings.batch_size)
    validation = loss.held_out(data, jnp.asarray(folds), members) if members > 1 else None
    result = fit(
        module,
        loss.split_loss,
        source,
        steps=settings.max_steps,
        chunk_steps=min(_CHUNK_STEPS, settings.max_steps),
        optimizer=_adam(settings.learning_rate),
        validate=None if validation is None else HeldOutLoss(validation),
        patience=None if validation is None else settings.patience,
        key=fit_key,
        on_progress=on_progress,
    )
    factor, predictions = jnp.ones(()), HeldOut(np.zeros(0), np.zeros(0))
    if validation is not None:
        factor, error, std = _recalibrated(result.module, validation)
        there = np.asarray(validation.points.mask)
        predictions = HeldOut(*(np.asarray(values, np.float64)[there] for values in (error, std)))
    fitted = FittedEnsemble(
        members=unstack(result.module), data=data, scaling=scaling, variance_factor=factor, held_out=predictions
    )
    return fitted, result


@eqx.filter_jit
def _recalibrated(members: GeneralizedGaussianProcess, split: Split) -> tuple[Array, Array, Array]:
    """Return the factor of the variance; error and recalibrated deviation of each held-out point."""
    error, variance = loss.ensemble_errors(members, split)
    factor = loss.recalibration(error, variance, split.points.noise_variance, split.points.mask)
    return factor, error, jnp.sqrt(factor * variance + split.points.noise_variance)


@eqx.filter_jit
def _make_members(
    in_size: int, shape: dict[str, Any], uncertain: bool, noise: Float[Array, ""] | None, keys: Array
) -> GeneralizedGaussianProcess:
    """Make members with their own initial weights, stacked."""

    def make(key: Array) -> GeneralizedGaussianProcess:
        return GeneralizedGaussianProcess(in_size, noise=noise, uncertain=uncertain, **shape, key=key)

    return eqx.filter_vmap(make)(keys)


def _continued(old: GeneralizedGaussianProcess, new: GeneralizedGaussianProcess) -> GeneralizedGaussianProcess:
    """Return the old weights, under the noise that is known now."""
    # Trees of shapes compare in structure and in every array.
    if not eqx.tree_equal(*(jax.tree.map(lambda leaf: leaf.shape, module) for module in (old, new))):
        raise ValueError(
            "warm_start cannot continue: the columns of X or a setting of the network (rank, width, depth, members, "
            "set_interaction, noise known or learned, alpha per row or not) differ from the previous fit; "
            "use warm_start=False"
        )
    return eqx.tree_at(lambda p: p.log_noise, old, new.log_noise) if new.noise_known else old
