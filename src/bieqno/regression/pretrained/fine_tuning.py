"""Fine-tuning a prior on one data set, where observations that were left out say that it helps.

Every observation is predicted from the others, and the weights go down the loss of these predictions. Four members each
leave a fold of the rows aside, which tells when to stop; a fifth one, whose weights are used, learns from all of them. The
decompositions are made once: only the network learns, and a step costs little. Single predictions are what it learns from, not
how they hang together.
"""

import dataclasses
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from bieqno.regression.pretrained.experts import Opinions
from bieqno.regression.pretrained.left_out import choose, leave_out
from bieqno.regression.pretrained.local_process import Circumstances, LocalProcess, Stations, asked
from bieqno.regression.pretrained.neighbourhood import Neighbourhood
from bieqno.regression.pretrained.trust import Compared, Moments
from bieqno.regression.pretrained.zero_shot import ZeroShot, one_thread
from bieqno.regression.trained.splits import Data
from bieqno.training import Progress, fit

FOLDS = 4
STEPS, PATIENCE = 60, 4
_OPTIMIZER = optax.adam(3e-4)
_LEAST_ROWS, _MOST_ROWS = 40, 512
"""With fewer, each fold has less than ten, which decide nothing; more would take minutes."""


class LeftOut(eqx.Module):
    """What is seen by observations that are left out in turn, each with its value and its fold."""

    seen: Neighbourhood
    opinions: Opinions
    circumstances: Circumstances
    values: Float[Array, "n"]
    folds: Int[Array, "n"]

    def __call__(self, key: PRNGKeyArray) -> "LeftOut":
        """As a source of batches: always all of them."""
        return self

    def compared(self, process: LocalProcess) -> Compared:
        """How each is predicted from the others, with the correction and without it."""
        return process.compare(self.seen, self.opinions, self.circumstances)

    def losses(self, process: LocalProcess) -> Float[Array, "n"]:
        """Negative log-density of each."""
        return _losses(self.values, self.compared(process).corrected)


class FoldLoss(eqx.Module):
    """The validation: each row is judged by the member that has not learned from it."""

    rows: LeftOut

    def compared(self, members: LocalProcess) -> Compared:
        """How that member predicts each row, with the correction and without it."""
        every = eqx.filter_vmap(self.rows.compared)(members)
        return jax.tree.map(lambda x: jnp.take_along_axis(x, self.rows.folds[None], axis=0)[0], every)

    def __call__(self, members: LocalProcess) -> Float[Array, ""]:
        """Mean loss of the rows."""
        return jnp.mean(_losses(self.rows.values, self.compared(members).corrected))


def fine_tune(start: ZeroShot, *, on_progress: Callable[[Progress], None] | None = None) -> ZeroShot:
    """Fine-tune the process of a conditioned prior on its observations.

    Args:
        start: the conditioned prior.
        on_progress: as in `bieqno.fit`.

    Returns:
        The tuned one, judged by the members that had not learned from a row; or `start` itself where these do not predict
        better by more than two standard errors, or where there are few rows.
    """
    tree = start.tree()
    chosen = choose(tree.n)[:_MOST_ROWS]
    if len(chosen) < _LEAST_ROWS:
        return start
    stations, circumstances = leave_out(tree, chosen), start.circumstances(tree)
    with one_thread():
        seen, opinions = jax.block_until_ready(_asked(stations, start.data, circumstances))
    folds = jnp.asarray(np.random.default_rng(0).permutation(len(chosen)) % FOLDS)
    rows = LeftOut(seen, opinions, circumstances, start.data.targets[chosen], folds)
    members = jax.tree.map(
        lambda x: jnp.broadcast_to(x, (FOLDS + 1, *x.shape)) if eqx.is_array(x) else x, start.process
    )
    held_out = FoldLoss(rows)
    result = fit(
        members, member_loss, rows, steps=STEPS, chunk_steps=5, optimizer=_OPTIMIZER, validate=held_out,
        patience=PATIENCE, key=jax.random.key(0), on_progress=on_progress,
    )  # fmt: skip
    last = jax.tree.map(lambda x: x[-1] if eqx.is_array(x) else x, result.module)
    tuned = dataclasses.replace(start, process=last, steps=int(result.best_step))
    # Both by the same rows, of which `start` may have seen more.
    before, tuned = (
        one.judged(chosen, stations.centres, _compared(held_out, own, start.scaled_noise))
        for one, own in ((start, members), (tuned, result.module))
    )
    gain = before.held_out.log_losses() - tuned.held_out.log_losses()
    return tuned if gain.mean() > 2 * gain.std() / np.sqrt(len(gain)) else start


def member_loss(members: LocalProcess, batch: LeftOut, *, key: PRNGKeyArray) -> Float[Array, ""]:
    """The training loss: each member learns from the rows that are not of its fold, the last one from all."""
    losses = eqx.filter_vmap(batch.losses)(members)
    own = batch.folds[None] != jnp.arange(FOLDS + 1)[:, None]
    return jnp.mean(jnp.sum(jnp.where(own, losses, 0), axis=1) / jnp.sum(own, axis=1))


@eqx.filter_jit
def _asked(stations: Stations, data: Data, circumstances: Circumstances) -> tuple[Neighbourhood, Opinions]:
    return asked(stations, data, circumstances.units)


@eqx.filter_jit
def _compared(held_out: FoldLoss, members: LocalProcess, noise: Float[Array, ""] | None) -> Compared:
    return held_out.compared(members).at_least(noise)


def _losses(values: Float[Array, "n"], found: Moments) -> Float[Array, "n"]:
    return 0.5 * (jnp.log(2 * jnp.pi * found.variance) + (values - found.mean) ** 2 / found.variance)
