"""How a filter does on trials: the error of its mean, and whether its spread tells that error.

How often an interval holds the truth is asked of the normal law with the ensemble's mean and spread. Few random draws of a
perfect law would fall short of it; what a filter makes of few members is no random draw.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from bieqno.assimilation import Filter, Observation, Places, Trials, cycle, sweep
from bieqno.assimilation.models import Lorenz63, Lorenz96
from bieqno.scores import relative_rmse, rmse

SCORES = ("rmse", "relative_rmse", "spread_error_ratio", "coverage_90", "diverged")
NORMAL_90 = 1.645  # half the width of the central 90 % of a normal law


class System(NamedTuple):
    """What is to be filtered.

    Attributes:
        model: the dynamics.
        observation: what is observed.
        state: a state near the attractor.
        places: where the variables are; None if they have no places.
        limit: absolute value beyond which a run has diverged.
    """

    model: Lorenz63 | Lorenz96
    observation: Observation
    state: Float[Array, "n"]
    places: Places | None
    limit: float = 1e3


class _Scored(eqx.Module):
    """One run and its scores, as a value: runs with filters of one kind share one compilation."""

    filter: Filter
    model: Lorenz63 | Lorenz96
    observation: Observation
    limit: float = eqx.field(static=True)
    burn_in: int = eqx.field(static=True)
    key: PRNGKeyArray

    def __call__(self, trial: Trials) -> Float[Array, "5"]:
        run = cycle(
            self.filter, self.model, self.observation, trial.ensembles, trial.twins.observations, limit=self.limit,
            key=jax.random.fold_in(self.key, trial.numbers),
        )  # fmt: skip
        truth, mean = trial.twins.truth[self.burn_in :], run.kept["mean"][self.burn_in :]
        count = trial.ensembles.shape[0]
        # The spread that exchangeable members would need to have on average for the error of their mean.
        spread = run.kept["spread"][self.burn_in :] * jnp.sqrt((count + 1) / count)
        error = jnp.abs(truth - mean)
        return jnp.stack(
            [
                jnp.mean(rmse(truth, mean)),
                relative_rmse(truth, mean),
                jnp.sqrt(jnp.mean(spread**2) / jnp.mean(error**2)),
                jnp.mean(error <= NORMAL_90 * spread),
                run.diverged.astype(truth.dtype),
            ]
        )


def scores_of(
    system: System, filter: Filter, trials: Trials, burn_in: int, key: PRNGKeyArray
) -> dict[str, Float[np.ndarray, "r"]]:
    """For each truth the error of the mean, the spread over the error, and how often a normal 90 % interval holds the truth."""
    run = _Scored(filter, system.model, system.observation, system.limit, burn_in, key)
    return dict(zip(SCORES, np.asarray(sweep(run, trials)).T, strict=True))
