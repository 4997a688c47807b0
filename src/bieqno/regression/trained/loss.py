"""Random splits of one data set, and the loss of a process on them (eq. 10 of the paper).

Each step predicts a random part of the data from the rest. Several members train at once, each with its own fold of the
data held out: the held-out loss decides when to stop, because the same points come back as targets thousands of times
and their noise is memorised otherwise.
"""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from bieqno.gaussian import LowRankGaussian
from bieqno.regression.data import Data
from bieqno.regression.metrics import RIGHT_ERRORS, joint_loss, log_losses
from bieqno.regression.trained.process import GeneralizedGaussianProcess

MAX_TARGETS = 32
_LOG_RANGE, _HALVINGS = 40.0, 36
"""Of the search for the factor of the variance: to the precision of a single-precision logarithm."""


class Split(eqx.Module):
    """A part of the data to be predicted from another part; rows that belong to neither are masked."""

    points: Data
    observed: Data

    def predicted(self, process: GeneralizedGaussianProcess) -> LowRankGaussian:
        """Return the prediction of the one part by a process, given the other."""
        return process.given(self.observed, self.points.inputs, self.points.mask)

    def negative_log_prob(self, process: GeneralizedGaussianProcess) -> Float[Array, ""]:
        """Return the joint negative log-probability per point (eq. 10 of the paper)."""
        gaussian = self.predicted(process)
        log_diag = jnp.logaddexp(gaussian.log_diag, jnp.log(jnp.maximum(self.points.noise_variance, 1e-30)))
        noisy = LowRankGaussian(gaussian.mean, gaussian.factor, log_diag)
        return joint_loss(noisy, self.points.targets, self.points.mask)


class RandomSplits(eqx.Module):
    """The batch source: for each member, random splits of the data outside its fold."""

    data: Data
    folds: Int[Array, "m"]  # which member holds out which row; -1 for none
    members: int = eqx.field(static=True)
    targets: int | None = eqx.field(static=True)  # points to predict (M' of the paper); None draws their number
    observations: int | None = eqx.field(static=True)  # most observations of a split; None takes all others
    batch_size: int = eqx.field(static=True)

    def __call__(self, key: PRNGKeyArray) -> Split:
        """Draw splits, stacked as (member, batch)."""
        keys = jax.random.split(key, (self.members, self.batch_size))
        return jax.vmap(jax.vmap(self._draw, in_axes=(None, 0)))(jnp.arange(self.members), keys)

    def _draw(self, member: Int[Array, ""], key: PRNGKeyArray) -> Split:
        order_key, size_key = jax.random.split(key)
        usable = self.data.mask & (self.folds != member)
        count = jnp.sum(usable)
        rows = self.data.mask.shape[0]
        most = min(MAX_TARGETS if self.targets is None else self.targets, rows)
        seen = rows if self.observations is None else min(rows, most + self.observations)
        # The first rows of a random order in which the usable ones come first; no need to sort the rest.
        _, order = jax.lax.top_k(jnp.where(usable, jax.random.uniform(order_key, usable.shape), -1.0), seen)
        if self.targets is None:
            size = jax.random.randint(size_key, (), 1, jnp.clip((4 * count) // 5, 1, most) + 1)
        else:
            size = jnp.minimum(self.targets, count - 1)
        place = jnp.arange(seen)
        points = _take(self.data, order[:most], place[:most] < size)
        return Split(points, _take(self.data, order, (place >= size) & (place < count)))


@eqx.filter_jit
def held_out(data: Data, folds: Int[Array, "m"], members: int) -> Split:
    """Return, for each member, its fold to be predicted from the rest of the data; stacked along a first axis."""

    def of_member(member: Int[Array, ""]) -> Split:
        own = folds == member
        return Split(*(dataclasses.replace(data, mask=data.mask & part) for part in (own, ~own)))

    return jax.vmap(of_member)(jnp.arange(members))


class HeldOutLoss(eqx.Module):
    """The validation: negative log-probability of the held-out points, after the best common scaling of their variance.

    Without the scaling, which the finished process has as well, the loss would rise and stop the training as soon as the
    predictions become overconfident, long before the mean is at its best.
    """

    split: Split

    def __call__(self, members: GeneralizedGaussianProcess) -> Float[Array, ""]:
        """Return the mean over all held-out points of all members."""
        gaussian = eqx.filter_vmap(lambda process, split: split.predicted(process))(members, self.split)
        error, variance = self.split.points.targets - gaussian.mean, jax.vmap(lambda own: own.variance)(gaussian)
        mask, own_noise = self.split.points.mask, self.split.points.noise_variance
        variance = recalibration(error, variance, own_noise, mask) * variance + own_noise
        return jnp.mean(log_losses(error, variance), where=mask)


def ensemble_errors(
    members: GeneralizedGaussianProcess, split: Split
) -> tuple[Float[Array, "k m"], Float[Array, "k m"]]:
    """Return the error of the member that never saw a held-out point, and the variance that all members together predict.

    With the variance of single members their spread would count twice.
    """

    def of_fold(fold: tuple[Int[Array, ""], Split]) -> tuple[Array, Array]:
        own, part = fold
        gaussian = eqx.filter_vmap(part.predicted)(members)
        variance = jnp.mean(jax.vmap(lambda own: own.variance)(gaussian), axis=0) + jnp.var(gaussian.mean, axis=0)
        return part.points.targets - gaussian.mean[own], variance

    # One fold after the other: of many rows, all at once would take much memory.
    return jax.lax.map(of_fold, (jnp.arange(len(split.points.targets)), split))


def recalibration(
    error: Float[Array, "*m"], variance: Float[Array, "*m"], own_noise: Float[Array, "*m"], mask: Bool[Array, "*m"]
) -> Float[Array, ""]:
    """Return the factor of the variance under which held-out errors are most likely.

    Their variances are ``factor * variance + own_noise``, and `RIGHT_ERRORS` more errors have the expected size. Without
    `own_noise` (a row's `alpha`), the factor is the mean square of errors over deviations.

    Example:
        >>> error, ones = jnp.array([2.0, -2.0]), jnp.ones(2)
        >>> round(float(recalibration(error, ones, 0 * ones, ones > 0)), 3)  # (4 + 4 + 5) / (2 + 5)
        1.857
    """

    def slope(log_factor: Float[Array, ""]) -> Float[Array, ""]:
        scaled = jnp.exp(log_factor) * variance
        total = scaled + own_noise
        terms = scaled / total * (1 - error**2 / total)
        return jnp.sum(jnp.where(mask, terms, 0)) + RIGHT_ERRORS * (1 - jnp.exp(-log_factor))

    def halve(_: Any, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        middle = (ends[0] + ends[1]) / 2
        low = slope(middle) < 0
        return jnp.where(low, middle, ends[0]), jnp.where(low, ends[1], middle)

    # The negative log-likelihood falls at the one end and rises at the other: bisection finds where it turns.
    ends = jnp.asarray(-_LOG_RANGE, error.dtype), jnp.asarray(_LOG_RANGE, error.dtype)
    return jnp.exp(jnp.mean(jnp.stack(jax.lax.fori_loop(0, _HALVINGS, halve, ends))))


def split_loss(members: GeneralizedGaussianProcess, batch: Split, *, key: PRNGKeyArray) -> Float[Array, ""]:
    """Return the training loss: the mean over members and splits."""

    def of_member(process: GeneralizedGaussianProcess, splits: Split) -> Float[Array, ""]:
        return jnp.mean(jax.vmap(lambda split: split.negative_log_prob(process))(splits))

    return jnp.mean(eqx.filter_vmap(of_member)(members, batch))


def _take(data: Data, rows: Int[Array, "t"], mask: Bool[Array, "t"]) -> Data:
    return Data(data.inputs[rows], data.targets[rows], data.noise_variance[rows], mask)
