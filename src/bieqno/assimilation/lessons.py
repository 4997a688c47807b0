"""What a teacher shows a learned filter: priors, perturbed observations and posteriors of any filter's runs."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from bieqno.assimilation.filters.filter import Filter
from bieqno.assimilation.filters.learned.ennf import EnNF
from bieqno.assimilation.models.forecast import Model
from bieqno.assimilation.observation import Observation
from bieqno.assimilation.records import keep_triples
from bieqno.assimilation.trials import Trials, sweep
from bieqno.assimilation.twin import Run, cycle
from bieqno.scores import relative_rmse


class Lessons(eqx.Module):
    """Analyses of a teacher, each ensemble stored once, whatever the number of its variables.

    Predicted observations are not stored: they follow from the prior. A pair of the paper is one variable of one lesson.

    Args:
        prior: the ensembles that the teacher was given.
        posterior: what it made of them.
        perturbed: the perturbed observations that it drew, or would have drawn.
        value: what was observed.
        mask: which of it was there.
        reference: the values at which the error law was evaluated.
        teacher: the number of the teacher, where there are several.
        observation: what was observed, and with which error.
        runs: number of runs that the lessons are from.
        left_out: number of further runs that diverged or lost the truth, of which there is no lesson.
    """

    prior: Float[Array, "L N n"]
    posterior: Float[Array, "L N n"]
    perturbed: Float[Array, "L N m"]
    value: Float[Array, "L m"]
    mask: Bool[Array, "L m"]
    reference: Float[Array, "L m"]
    teacher: Int[Array, "L"]
    observation: Observation
    runs: int = eqx.field(static=True)
    left_out: int = eqx.field(static=True)

    @property
    def pairs(self) -> int:
        """Number of (prior, posterior) pairs of single variables, as the paper counts."""
        return self.prior.shape[0] * self.prior.shape[2]

    def standardise(self, student: EnNF) -> EnNF:
        """A student that is standardised to these lessons."""
        predicted = jax.vmap(jax.vmap(self.observation.operator))(self.prior)
        # As the student will see them: a missing value is what each member predicts.
        perturbed = jnp.where(self.mask[:, None], self.perturbed, predicted)
        return student.standardised(self.prior, self.posterior, predicted, perturbed)

    @classmethod
    def together(cls, *several: "Lessons") -> "Lessons":
        """The lessons of several teachers of one observing system, numbered in the order given.

        Raises:
            ValueError: if the lessons are of different observing systems, ensemble sizes or lengths of runs.
        """
        for other in several[1:]:
            kinds = [(x.prior.shape[0] // x.runs, *x.prior.shape[1:]) for x in (several[0], other)]
            if kinds[0] != kinds[1]:
                raise ValueError(
                    f"lessons have one (windows, members, variables) for all, got {kinds[0]} and {kinds[1]}"
                )
            if not eqx.tree_equal(several[0].observation, other.observation):
                raise ValueError(
                    "lessons of different observing systems cannot be put together: teach each with the same one"
                )
        numbered = [eqx.tree_at(lambda x: x.teacher, x, jnp.full_like(x.teacher, k)) for k, x in enumerate(several)]
        arrays = ("prior", "posterior", "perturbed", "value", "mask", "reference", "teacher")
        return cls(
            **{name: jnp.concatenate([getattr(x, name) for x in numbered]) for name in arrays},
            observation=several[0].observation,
            runs=sum(x.runs for x in several),
            left_out=sum(x.left_out for x in several),
        )


class _Showing(eqx.Module):
    """One run of a teacher, as a value: runs with teachers of one kind share one compilation."""

    filter: Filter
    model: Model
    observation: Observation
    limit: float = eqx.field(static=True)
    key: PRNGKeyArray

    def __call__(self, trial: Trials) -> tuple[Run, Float[Array, ""]]:
        """All analyses of the run, and its relative error."""
        done = cycle(
            self.filter,
            self.model,
            self.observation,
            trial.ensembles,
            trial.twins.observations,
            record=keep_triples,
            limit=self.limit,
            key=jax.random.fold_in(self.key, trial.numbers),
        )
        return done, relative_rmse(trial.twins.truth, jnp.mean(done.kept["posterior"], axis=1))


def teach(
    filter: Filter,
    model: Model,
    observation: Observation,
    trials: Trials,
    *,
    lost: float = 0.5,
    limit: float = 1e3,
    key: PRNGKeyArray,
) -> Lessons:
    """Run a teacher through all trials and keep its analyses, except those of runs that went wrong.

    Args:
        filter: the teacher.
        model: the dynamics.
        observation: how states are observed.
        trials: truths with their observations, and first ensembles.
        lost: a run whose relative error over all windows exceeds this has lost the truth.
        limit: see `cycle`.
        key: for the analyses; runs are told apart by their numbers.

    Raises:
        ValueError: if no run is left.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from bieqno.assimilation import EnKF, Lorenz63, Observation, make_trials
        >>> model, observation = Lorenz63(), Observation([0, 2], 1.0)
        >>> trials = make_trials(
        ...     model, observation, 20, state=jnp.ones(3), truths=2, members=50, key=jax.random.key(0)
        ... )
        >>> lessons = teach(EnKF(), model, observation, trials, key=jax.random.key(1))
        >>> lessons.prior.shape, lessons.pairs, lessons.left_out
        ((40, 50, 3), 120, 0)
    """
    runs, errors = sweep(_Showing(filter, model, observation, limit, key), trials)
    sound = np.flatnonzero((np.asarray(runs.diverged) < 0) & (np.asarray(errors) <= lost))
    if not sound.size:
        raise ValueError(f"all {len(errors)} runs of the teacher diverged or lost the truth: it has nothing to teach")

    def kept(series: Array) -> Array:
        return series[sound].reshape(-1, *series.shape[2:])

    seen = trials.twins.observations
    windows = int(sound.size) * seen.value.shape[1]
    return Lessons(
        **{name: kept(runs.kept[name]) for name in ("prior", "posterior", "perturbed")},
        value=kept(seen.value),
        mask=kept(seen.mask),
        reference=kept(seen.reference),
        teacher=jnp.zeros(windows, int),
        observation=observation,
        runs=int(sound.size),
        left_out=int(len(errors) - sound.size),
    )
