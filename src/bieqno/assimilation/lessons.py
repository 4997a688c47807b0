"""What a teacher shows a learned filter: priors, perturbed observations and posteriors of any filter's runs."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from bieqno.assimilation.filters.learned.ennf import EnNF
from bieqno.assimilation.observation import Observation
from bieqno.assimilation.protocols import Filter
from bieqno.assimilation.system import System
from bieqno.assimilation.trials import Trials, run_trials
from bieqno.assimilation.twin import keep_triples
from bieqno.scores import relative_rmse

ARRAYS = ("prior", "posterior", "perturbed", "value", "mask", "reference", "teacher")


class Lessons(eqx.Module):
    """Analyses of a teacher, each ensemble stored once, whatever the number of its variables.

    Predicted observations are not stored: they follow from the prior. A pair of the paper is one variable of one lesson.
    Value, mask and reference are as in `Observations`.
    """

    prior: Float[Array, "L N n"]
    posterior: Float[Array, "L N n"]
    perturbed: Float[Array, "L N m"]  # the perturbed observations that the teacher drew, or would have drawn
    value: Float[Array, "L m"]
    mask: Bool[Array, "L m"]
    reference: Float[Array, "L m"]
    teacher: Int[Array, "L"]  # number of the teacher, where there are several
    observation: Observation
    runs: int = eqx.field(static=True)  # number of runs that the lessons are from
    discarded: int = eqx.field(static=True)  # further runs that diverged or lost the truth, without a lesson

    @property
    def pairs(self) -> int:
        """Number of (prior, posterior) pairs of single variables, as the paper counts."""
        return self.prior.shape[0] * self.prior.shape[2]

    def standardise(self, student: EnNF) -> EnNF:
        """Return a student that is standardised to these lessons."""
        predicted = jax.vmap(jax.vmap(self.observation.operator))(self.prior)
        # As the student will see them: a missing value is what each member predicts.
        perturbed = jnp.where(self.mask[:, None], self.perturbed, predicted)
        return student.standardised(self.prior, self.posterior, predicted, perturbed)

    @classmethod
    def together(cls, *several: "Lessons") -> "Lessons":
        """Return the lessons of several teachers of one observing system, numbered in the order given."""
        for other in several[1:]:
            kinds = [(x.prior.shape[0] // x.runs, *x.prior.shape[1:]) for x in (several[0], other)]
            if kinds[0] != kinds[1]:
                raise ValueError(
                    f"lessons have one (windows, members, variables) for all, got {kinds[0]} and {kinds[1]}"
                )
            if not eqx.tree_equal(several[0].observation, other.observation):
                raise ValueError("lessons of different observing systems cannot be joined; use the same one")
        numbered = [eqx.tree_at(lambda x: x.teacher, x, jnp.full_like(x.teacher, k)) for k, x in enumerate(several)]
        return cls(
            **{name: jnp.concatenate([getattr(x, name) for x in numbered]) for name in ARRAYS},
            observation=several[0].observation,
            runs=sum(x.runs for x in several),
            discarded=sum(x.discarded for x in several),
        )


def teach(filter: Filter, system: System, trials: Trials, *, lost: float = 0.5, key: PRNGKeyArray) -> Lessons:
    """Run a teacher on all trials and keep its analyses, except those of runs that went wrong.

    A run with a relative error of more than `lost` over all windows has lost the truth. A ValueError if no run is left.

    Example:
        >>> from bieqno.assimilation import EnKF, Lorenz63, make_trials
        >>> system = System(Lorenz63(), Observation([0, 2], 1.0), jnp.ones(3))
        >>> trials = make_trials(system, 20, truths=2, members=50, key=jax.random.key(0))
        >>> lessons = teach(EnKF(), system, trials, key=jax.random.key(1))
        >>> lessons.prior.shape, lessons.pairs, lessons.discarded
        ((40, 50, 3), 120, 0)
    """
    runs = run_trials(filter, system, trials, record=keep_triples, key=key)
    means = jnp.mean(runs.kept["posterior"], axis=2)
    errors = np.asarray(jax.vmap(relative_rmse)(trials.twins.truth, means))
    sound = np.flatnonzero((np.asarray(runs.diverged) < 0) & (errors <= lost))
    if not sound.size:
        raise ValueError(f"all {len(errors)} runs of the teacher diverged or lost the truth: none is left to imitate")

    def kept(series: Array) -> Array:
        return series[sound].reshape(sound.size * series.shape[1], *series.shape[2:])

    seen = trials.twins.observations
    return Lessons(
        **{name: kept(runs.kept[name]) for name in ("prior", "posterior", "perturbed")},
        **{name: kept(getattr(seen, name)) for name in ("value", "mask", "reference")},
        teacher=jnp.zeros(sound.size * seen.value.shape[1], int),
        observation=system.observation,
        runs=int(sound.size),
        discarded=int(len(errors) - sound.size),
    )
