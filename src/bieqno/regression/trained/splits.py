"""Training a process on random splits of one data set (section 2.2 of the paper, 'Training').

Each step predicts a random part of the data from the rest. Several members train at once, each with its own fold of the
data held out: the held-out loss decides when to stop, because the same points come back as targets thousands of times
and their noise is memorised otherwise.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from bieqno.gaussian import LowRankGaussian
from bieqno.regression.trained.process import GeneralizedGaussianProcess

MAX_TARGETS = 32


class Data(eqx.Module):
    """One data set in scaled units, padded to a size that many data sets share."""

    inputs: Float[Array, "m d"]
    targets: Float[Array, "m"]
    noise_variance: Float[Array, "m"]
    mask: Bool[Array, "m"]

    def __check_init__(self) -> None:
        rows = {name: getattr(self, name).shape for name in ("targets", "noise_variance", "mask")}
        if self.inputs.ndim != 2 or any(shape != self.inputs.shape[:1] for shape in rows.values()):
            raise ValueError(f"inputs of shape {self.inputs.shape} do not go with {rows}")


class Split(eqx.Module):
    """A part of the data to be predicted from another part."""

    points: Float[Array, "t d"]
    values: Float[Array, "t"]
    noise_variance: Float[Array, "t"]
    point_mask: Bool[Array, "t"]
    inputs: Float[Array, "s d"]
    targets: Float[Array, "s"]
    observed_variance: Float[Array, "s"]
    observation_mask: Bool[Array, "s"]

    def predicted(self, process: GeneralizedGaussianProcess) -> LowRankGaussian:
        """What a process says about the one part, given the other."""
        return process(
            self.points, self.inputs, self.targets, self.observed_variance,
            point_mask=self.point_mask, observation_mask=self.observation_mask,
        )  # fmt: skip

    def negative_log_prob(self, process: GeneralizedGaussianProcess) -> Float[Array, ""]:
        """Joint negative log-probability per point (eq. 9 of the paper)."""
        return -masked_log_prob(self.predicted(process), self) / jnp.maximum(jnp.sum(self.point_mask), 1)


def masked_log_prob(gaussian: LowRankGaussian, split: Split) -> Float[Array, ""]:
    """Log-probability of the points that the mask keeps; the others become independent and cost nothing."""
    mask = split.point_mask
    log_diag = jnp.logaddexp(gaussian.log_diag, jnp.log(jnp.maximum(split.noise_variance, 1e-30)))
    kept = LowRankGaussian(
        jnp.where(mask, gaussian.mean, 0),
        jnp.where(mask[:, None], gaussian.factor, 0),
        # With this variance a value at its mean has density one, hence log-density zero.
        jnp.where(mask, log_diag, -jnp.log(2 * jnp.pi)),
    )
    return kept.log_prob(jnp.where(mask, split.values, 0))


class RandomSplits(eqx.Module):
    """The batch source: for each member, random splits of the data outside its fold.

    Attributes:
        data: all the data.
        folds: which member holds out which row; -1 for none.
        members: number of members.
        targets: points to be predicted in each split (M' of the paper); None draws their number.
        observations: most observations of a split; None takes all others.
        batch_size: splits of each member.
    """

    data: Data
    folds: Int[Array, "m"]
    members: int = eqx.field(static=True)
    targets: int | None = eqx.field(static=True)
    observations: int | None = eqx.field(static=True)
    batch_size: int = eqx.field(static=True)

    def __call__(self, key: PRNGKeyArray) -> Split:
        """Draw splits, stacked as (member, batch)."""
        keys = jax.random.split(key, (self.members, self.batch_size))
        draw = jax.vmap(self._draw, in_axes=(None, 0))
        return jax.vmap(draw)(jnp.arange(self.members), keys)

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
            largest = jnp.clip((4 * count) // 5, 1, most)
            size = jax.random.randint(size_key, (), 1, largest + 1)
        else:
            size = jnp.minimum(self.targets, count - 1)
        place = jnp.arange(seen)
        return _split(self.data, order[:most], place[:most] < size, order, (place >= size) & (place < count))


@eqx.filter_jit
def held_out(data: Data, folds: Int[Array, "m"], members: int) -> Split:
    """For each member, its fold to be predicted from the rest of the data; stacked along a first axis."""
    rows = jnp.arange(data.mask.shape[0])

    def of_member(member: Int[Array, ""]) -> Split:
        own = folds == member
        return _split(data, rows, data.mask & own, rows, data.mask & ~own)

    return jax.vmap(of_member)(jnp.arange(members))


class HeldOutLoss(eqx.Module):
    """The validation: negative log-probability of the held-out points, after the best common scaling of their variance.

    The scaling is applied to the finished process as well (`calibration`). Without it the loss would rise, and stop the
    training, as soon as the predictions become too sure, long before the mean is at its best.
    """

    split: Split

    def __call__(self, members: GeneralizedGaussianProcess) -> Float[Array, ""]:
        """Mean over all held-out points of all members."""
        error, variance = _held_out_errors(members, self.split)
        mask, further = self.split.point_mask, self.split.noise_variance
        variance = calibration(error, variance, further, mask) * variance + further
        terms = 0.5 * (jnp.log(2 * jnp.pi * variance) + error**2 / variance)
        return jnp.sum(jnp.where(mask, terms, 0)) / jnp.sum(mask)


def left_out_errors(
    members: GeneralizedGaussianProcess, split: Split
) -> tuple[Float[Array, "k m"], Float[Array, "k m"]]:
    """Error of each held-out point, and the variance that the ensemble will predict for it.

    The variance is that of all members together, the error that of the one member that never saw the point. With the
    variance of single members their spread would count twice.
    """

    def of_fold(fold: tuple[Int[Array, ""], Split]) -> tuple[Array, Array]:
        own, part = fold

        def moments(process: GeneralizedGaussianProcess) -> tuple[Array, Array]:
            gaussian = part.predicted(process)
            return gaussian.mean, gaussian.variance

        mean, variance = eqx.filter_vmap(moments)(members)
        return part.values - mean[own], jnp.mean(variance, axis=0) + jnp.var(mean, axis=0)

    # One fold after the other: of many rows, all at once would take much memory.
    return jax.lax.map(of_fold, (jnp.arange(split.values.shape[0]), split))


RIGHT_ERRORS = 5
"""Errors of the size that they should have, beside those that were found: a handful decides nothing."""


def calibration(
    error: Float[Array, "*m"], variance: Float[Array, "*m"], further: Float[Array, "*m"], mask: Bool[Array, "*m"]
) -> Float[Array, ""]:
    """Factor of the variance under which held-out errors are as large as they should be.

    The mean square of errors over deviations, drawn towards one by a few of the right size. The further noise of a row is
    known and not scaled.
    """
    relative = jnp.maximum(error**2 - further, 0) / variance
    return (jnp.sum(jnp.where(mask, relative, 0)) + RIGHT_ERRORS) / (jnp.sum(mask) + RIGHT_ERRORS)


def _held_out_errors(
    members: GeneralizedGaussianProcess, split: Split
) -> tuple[Float[Array, "k m"], Float[Array, "k m"]]:
    """Error of each held-out point, and its predicted variance."""

    def of_member(process: GeneralizedGaussianProcess, split: Split) -> tuple[Array, Array]:
        gaussian = split.predicted(process)
        return split.values - gaussian.mean, gaussian.variance

    return eqx.filter_vmap(of_member)(members, split)


def split_loss(members: GeneralizedGaussianProcess, batch: Split, *, key: PRNGKeyArray) -> Float[Array, ""]:
    """The training loss: mean over members and splits."""

    def of_member(process: GeneralizedGaussianProcess, splits: Split) -> Float[Array, ""]:
        return jnp.mean(jax.vmap(lambda split: split.negative_log_prob(process))(splits))

    return jnp.mean(eqx.filter_vmap(of_member)(members, batch))


def _split(
    data: Data, points: Int[Array, "t"], point_mask: Array, observed: Int[Array, "s"], observation_mask: Array
) -> Split:
    return Split(
        data.inputs[points],
        data.targets[points],
        data.noise_variance[points],
        point_mask,
        data.inputs[observed],
        data.targets[observed],
        data.noise_variance[observed],
        observation_mask,
    )
