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
from bieqno.regression.process import GeneralizedGaussianProcess

MAX_OBSERVATIONS = 256
MAX_TARGETS = 32


class Data(eqx.Module):
    """One data set in scaled units, padded to a size that many data sets share."""

    inputs: Float[Array, "m d"]
    targets: Float[Array, "m"]
    noise_variance: Float[Array, "m"]
    mask: Bool[Array, "m"]


class Split(eqx.Module):
    """A part of the data to be predicted from another part."""

    points: Float[Array, "t d"]
    values: Float[Array, "t"]
    noise_variance: Float[Array, "t"]
    point_mask: Bool[Array, "t"]
    inputs: Float[Array, "s d"]
    targets: Float[Array, "s"]
    observation_mask: Bool[Array, "s"]

    def negative_log_prob(self, process: GeneralizedGaussianProcess) -> Float[Array, ""]:
        """Joint negative log-probability per point (eq. 9 of the paper)."""
        gaussian = process(
            self.points, self.inputs, self.targets, point_mask=self.point_mask, observation_mask=self.observation_mask
        )
        return -masked_log_prob(gaussian, self) / jnp.maximum(jnp.sum(self.point_mask), 1)


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
    """The batch source: for each member, random splits of the data outside its fold."""

    data: Data
    folds: Int[Array, "m"]
    members: int = eqx.field(static=True)
    targets: int | None = eqx.field(static=True)
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
        # A random order in which the usable rows come first.
        rows = jnp.argsort(jnp.where(usable, jax.random.uniform(order_key, usable.shape), 2.0))
        most = MAX_TARGETS if self.targets is None else self.targets
        most = min(most, self.data.mask.shape[0])
        if self.targets is None:
            largest = jnp.clip((4 * count) // 5, 1, most)
            size = jax.random.randint(size_key, (), 1, largest + 1)
        else:
            size = jnp.minimum(self.targets, count - 1)
        seen = min(self.data.mask.shape[0], most + MAX_OBSERVATIONS)
        place = jnp.arange(seen)
        return _split(self.data, rows[:most], place[:most] < size, rows[:seen], (place >= size) & (place < count))


def held_out(data: Data, folds: Int[Array, "m"], members: int) -> Split:
    """For each member, its fold to be predicted from the rest of the data; stacked along a first axis."""
    rows = jnp.arange(data.mask.shape[0])

    def of_member(member: Int[Array, ""]) -> Split:
        own = folds == member
        return _split(data, rows, data.mask & own, rows, data.mask & ~own)

    return jax.vmap(of_member)(jnp.arange(members))


class HeldOutLoss(eqx.Module):
    """The validation: negative log-probability of the held-out points, after the best common scaling of their sd.

    The scaling is applied to the finished process as well (`calibration`). Without it the loss would rise, and stop the
    training, as soon as the predictions become too sure, long before the mean is at its best.
    """

    split: Split

    def __call__(self, members: GeneralizedGaussianProcess) -> Float[Array, ""]:
        """Mean over all held-out points of all members."""
        score, std = standard_scores(members, self.split)
        mask = self.split.point_mask
        count = jnp.sum(mask)
        log_std = jnp.sum(jnp.where(mask, jnp.log(std), 0)) / count
        return log_std + 0.5 * jnp.log(calibration(score, mask)) + 0.5 * (1 + jnp.log(2 * jnp.pi))


def calibration(score: Float[Array, "k m"], mask: Bool[Array, "k m"]) -> Float[Array, ""]:
    """Factor of the variance under which the held-out errors are as large as they should be.

    Their mean square, drawn towards one by five errors of the right size, so that a handful of points decides nothing.
    """
    return (jnp.sum(jnp.where(mask, score**2, 0)) + 5) / (jnp.sum(mask) + 5)


def standard_scores(
    members: GeneralizedGaussianProcess, split: Split
) -> tuple[Float[Array, "k m"], Float[Array, "k m"]]:
    """Error of each held-out point over its predicted standard deviation, and that deviation."""

    def of_member(process: GeneralizedGaussianProcess, split: Split) -> tuple[Array, Array]:
        gaussian = process(
            split.points,
            split.inputs,
            split.targets,
            point_mask=split.point_mask,
            observation_mask=split.observation_mask,
        )
        std = jnp.sqrt(gaussian.variance + split.noise_variance)
        return (split.values - gaussian.mean) / std, std

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
        observation_mask,
    )
