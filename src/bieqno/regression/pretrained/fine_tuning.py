"""Fine-tuning the correction on one data set, kept where rows that neither trained nor stopped it say that it helps.

Every observation is predicted from the others. Several members train side by side: three each leave out one of the first
three folds, which decide when to stop; one trains on all three and is tested on the last fold, which decides whether the
result is accepted; the last, whose weights are used, trains on all rows. The decompositions are made once, so that a step
costs little. Single predictions are trained, not their correlations.
"""

import dataclasses
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from bieqno.regression.data import floats
from bieqno.regression.metrics import HeldOut, log_losses
from bieqno.regression.pretrained import experts
from bieqno.regression.pretrained.correction import Correction
from bieqno.regression.pretrained.experts import ExpertPredictions
from bieqno.regression.pretrained.mixture import Context, Pair
from bieqno.regression.pretrained.neighbours import Neighbourhood
from bieqno.regression.pretrained.process import LocalProcess, widened
from bieqno.training import Progress, fit

STOPPING_FOLDS = 3
FOLDS = STOPPING_FOLDS + 1  # the last fold accepts or refuses
STEPS, PATIENCE = 60, 4
_OPTIMIZER = optax.adam(3e-4)
_predict_by_experts = eqx.filter_jit(experts.predict)
_LEAST_ROWS, _MOST_ROWS = 40, 512
"""With fewer, each fold has less than ten, which decide nothing; more would take minutes."""


class LeaveOneOutRows(eqx.Module):
    """Observations that are left out in turn, each with its neighbourhood, value and fold."""

    seen: Neighbourhood
    predictions: ExpertPredictions
    context: Context
    values: Float[Array, "n"]
    folds: Int[Array, "n"]

    def __call__(self, key: PRNGKeyArray) -> "LeaveOneOutRows":
        """Return the batch: always all rows."""
        return self

    def compare(self, correction: Correction) -> Pair:
        """Predict each row from the others, with the correction and without it."""
        return correction.compare(self.seen, self.predictions, self.context)

    def compare_held_out(self, members: Correction) -> Pair:
        """Predict each row by the member that has not trained on its fold."""
        every = eqx.filter_vmap(self.compare)(members)
        return jax.tree.map(lambda x: jnp.take_along_axis(x, self.folds[None], axis=0)[0], every)

    def losses(self, found: Pair) -> Float[Array, "n"]:
        """Return the loss of each row with the correction."""
        return log_losses(self.values - found.corrected.mean, found.corrected.variance)


class StoppingLoss(eqx.Module):
    """The validation: mean loss of the rows of the stopping folds, each by the member that has not trained on it."""

    rows: LeaveOneOutRows

    def __call__(self, members: Correction) -> Float[Array, ""]:
        """Return the mean loss."""
        losses = self.rows.losses(self.rows.compare_held_out(members))
        return jnp.mean(losses, where=self.rows.folds < STOPPING_FOLDS)


def trained_on(folds: Int[Array, "n"]) -> Bool[Array, "members n"]:
    """Return which rows each member trains on.

    Example:
        >>> trained_on(jnp.arange(4)).astype(int).tolist()
        [[0, 1, 1, 0], [1, 0, 1, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]
    """
    member = jnp.arange(FOLDS + 1)[:, None]
    return (member == FOLDS) | ((folds[None] != member) & (folds[None] < STOPPING_FOLDS))


def member_loss(members: Correction, batch: LeaveOneOutRows, *, key: PRNGKeyArray) -> Float[Array, ""]:
    """Return the training loss: the mean over the members of the mean over their rows."""
    losses = eqx.filter_vmap(lambda own: batch.losses(batch.compare(own)))(members)
    return jnp.mean(jnp.mean(losses, axis=1, where=trained_on(batch.folds)))


def fine_tune(start: LocalProcess, *, on_progress: Callable[[Progress], None] | None = None) -> LocalProcess:
    """Return the process with its correction fine-tuned, validated by the members that had not trained on a row.

    It is `start` itself where the last fold is not predicted better by two standard errors, or where there are few rows.
    """
    chosen = np.sort(np.random.default_rng(start.seed).permutation(len(start.inputs))[:_MOST_ROWS])
    if len(chosen) < _LEAST_ROWS:
        return start
    gathered, centres = start.leave_out(chosen)
    around = widened(gathered)
    folds = np.random.default_rng(start.seed).permutation(len(chosen)) % FOLDS
    values = jnp.asarray(start.targets[chosen], around.values.dtype)
    rows = LeaveOneOutRows(*_predict_by_experts(around, start.context.units), start.context, values, jnp.asarray(folds))
    members = jax.tree.map(
        lambda x: jnp.broadcast_to(x, (FOLDS + 1, *x.shape)) if eqx.is_array(x) else x, start.correction
    )
    result = fit(
        members, member_loss, rows, steps=STEPS, chunk_steps=5, optimizer=_OPTIMIZER, validate=StoppingLoss(rows),
        patience=PATIENCE, key=jax.random.key(start.seed), on_progress=on_progress,
    )  # fmt: skip
    last = jax.tree.map(lambda x: x[-1] if eqx.is_array(x) else x, result.module)
    tuned = dataclasses.replace(start, correction=last, steps=int(result.best_step))
    noise = None if start.noise is None else floats(start.noise)
    # Both by the same rows, of which `start` may have seen more.
    before, tuned = (
        one.validated(chosen, centres, _compare_held_out(rows, own, noise))
        for one, own in ((start, members), (tuned, result.module))
    )
    better = accepting_losses(before, folds) - accepting_losses(tuned, folds)
    return tuned if better.mean() > 2 * better.std() / np.sqrt(len(better)) else start


def accepting_losses(validated: LocalProcess, folds: Int[np.ndarray, "n"]) -> Float[np.ndarray, "k"]:
    """Return the losses of the rows of the last fold, with a variance that the other folds alone recalibrate."""
    found, last = validated.held_out, folds == FOLDS - 1
    plain = HeldOut(found.error, found.std / np.sqrt(validated.variance_factor))
    factor = HeldOut(plain.error[~last], plain.std[~last]).recalibration()
    return np.asarray(log_losses(plain.error[last], factor * plain.std[last] ** 2))


@eqx.filter_jit
def _compare_held_out(rows: LeaveOneOutRows, members: Correction, noise: Float[Array, ""] | None) -> Pair:
    return rows.compare_held_out(members).at_least(noise)
