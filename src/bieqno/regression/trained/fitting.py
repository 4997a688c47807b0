"""Training an ensemble of processes on one data set with one output: members, stop and calibration."""

import math
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from bieqno.regression.held_out import HeldOut
from bieqno.regression.scaling import Scaling
from bieqno.regression.trained.fitted import FittedProcess, make_data, stack, unstack
from bieqno.regression.trained.process import MIN_NOISE, GeneralizedGaussianProcess
from bieqno.regression.trained.splits import (
    HeldOutLoss,
    RandomSplits,
    Split,
    calibration,
    held_out,
    left_out_errors,
    split_loss,
)
from bieqno.training import FitResult, Progress, fit

LEAST_ROWS = 3
"""Two to learn from, one to hold out."""

_CHUNK_STEPS = 50
# The same object for the same rate, so that what was compiled is used again.
_OPTIMIZERS: dict[float, optax.GradientTransformation] = {}


class TrainingSettings(NamedTuple):
    """What `GGPRegressor` sets of the networks and their training."""

    noise: float | None
    rank: int
    width: int
    depth: int
    members: int
    set_interaction: bool
    targets: int | None
    observations: int | None
    max_steps: int
    batch_size: int
    patience: int
    learning_rate: float


def fit_process(
    X: Float[np.ndarray, "n d"],
    y: Float[np.ndarray, "n"],
    noise_variance: Float[np.ndarray, "n"],
    settings: TrainingSettings,
    *,
    uncertain: bool,
    seed: int,
    fold_seed: int,
    start: FittedProcess | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> tuple[FittedProcess, FitResult[GeneralizedGaussianProcess]]:
    """Train members, each with its own fold held out, stop and calibrate by the held-out points.

    Args:
        X: inputs, at least `LEAST_ROWS` of them.
        y: targets.
        noise_variance: further noise of each row.
        settings: what to train and how.
        uncertain: whether the process shall see `noise_variance` as a part of the observations.
        seed: of weights and splits.
        fold_seed: of the folds; the same in a warm start, so that nothing held out has been trained on.
        start: a fit to go on from.
        on_progress: as in `bieqno.fit`.
    """
    scaling = Scaling.of(X, y)
    data = make_data(scaling, X, y, noise_variance)
    members = min(settings.members, len(y))
    if members > 1 and len(y) - math.ceil(len(y) / members) < 2:
        members = len(y)  # leave one out: two rows must remain to learn from
    member_key, fit_key = jax.random.split(jax.random.key(seed))
    noise = None if settings.noise is None else max(settings.noise / float(scaling.target_scale), MIN_NOISE)
    module = _make_members(
        X.shape[1], settings.rank, settings.width, settings.depth, settings.set_interaction, noise is None, uncertain,
        jnp.asarray(noise or 0.0, jnp.zeros(()).dtype), jax.random.split(member_key, members),
    )  # fmt: skip
    if start is not None:
        module = _continued(stack(start.members), module)
    folds = np.full(data.mask.shape, -1)
    if members > 1:
        folds[: len(y)] = np.random.default_rng(fold_seed).permutation(len(y)) % members
    targets = None if settings.targets is None else min(settings.targets, len(y) - 1)
    splits = RandomSplits(data, jnp.asarray(folds), members, targets, settings.observations, settings.batch_size)
    validation = held_out(data, jnp.asarray(folds), members) if members > 1 else None
    result = fit(
        module,
        split_loss,
        splits,
        steps=settings.max_steps,
        chunk_steps=min(_CHUNK_STEPS, settings.max_steps),
        optimizer=_OPTIMIZERS.setdefault(settings.learning_rate, optax.adam(settings.learning_rate)),
        validate=None if validation is None else HeldOutLoss(validation),
        patience=None if validation is None else settings.patience,
        key=fit_key,
        on_progress=on_progress,
    )
    factor, left_out = jnp.ones(()), HeldOut.none()
    if validation is not None:
        factor, error, std = _calibrated(result.module, validation)
        there = np.asarray(validation.point_mask)
        left_out = HeldOut(*(np.asarray(values, np.float64)[there] for values in (error, std)))
    fitted = FittedProcess(
        members=unstack(result.module), data=data, scaling=scaling, variance_factor=factor, held_out=left_out
    )
    return fitted, result


@eqx.filter_jit
def _calibrated(members: GeneralizedGaussianProcess, split: Split) -> tuple[Array, Array, Array]:
    """Factor of the variance; error and calibrated deviation of each held-out point."""
    error, variance = left_out_errors(members, split)
    factor = calibration(error, variance, split.noise_variance, split.point_mask)
    return factor, error, jnp.sqrt(factor * variance + split.noise_variance)


@eqx.filter_jit
def _make_members(
    in_size: int, rank: int, width: int, depth: int, set_interaction: bool, learn_noise: bool, uncertain: bool,
    noise: Float[Array, ""], keys: Array,
) -> GeneralizedGaussianProcess:  # fmt: skip
    """Members with their own initial weights, stacked."""
    return eqx.filter_vmap(
        lambda key: GeneralizedGaussianProcess(
            in_size, rank=rank, width=width, depth=depth, set_interaction=set_interaction,
            noise=None if learn_noise else noise, uncertain=uncertain, key=key,
        )
    )(keys)  # fmt: skip


def _continued(old: GeneralizedGaussianProcess, new: GeneralizedGaussianProcess) -> GeneralizedGaussianProcess:
    """The old weights, under the noise that is known now."""
    # As trees of shapes, these compare in structure and in every array.
    if not eqx.tree_equal(*(jax.tree.map(lambda leaf: leaf.shape, module) for module in (old, new))):
        raise ValueError(
            "warm_start cannot go on: the columns of X or a setting of the network (rank, width, depth, members, "
            "set_interaction, noise known or learned, alpha per row or not) differ from the previous fit; "
            "use warm_start=False"
        )
    return eqx.tree_at(lambda p: p.log_noise, old, new.log_noise) if new.noise_known else old
