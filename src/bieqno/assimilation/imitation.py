"""Training of the ensemble neural filter on what its teachers show.

Two things make it work when it is cycled, and not only on the teacher's priors. It sees priors that are worse than the
teacher's, with the posterior to aim at unchanged: forecasts from displaced starts, whose errors look like a forecast's.
And it sees small ensembles: members drawn from the teacher's many, with the teacher's own analyses of these members.
"""

import math
import os
from collections.abc import Callable
from functools import lru_cache
from typing import TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from bieqno.assimilation.filters.learned.ennf import EnNF
from bieqno.assimilation.filters.learned.learned_gain import LearnedGain
from bieqno.assimilation.lessons import Lessons
from bieqno.assimilation.models.forecast import Model, forecast
from bieqno.assimilation.observation import Observation
from bieqno.training import FitResult, Progress, fit

Student = TypeVar("Student", EnNF, LearnedGain)


class Example(eqx.Module):
    """Sub-ensembles of lessons, stacked along a first axis: the prior as the student sees it, the posterior to aim at."""

    prior: Float[Array, "b N n"] | Float[Array, "N n"]
    posterior: Float[Array, "b N n"] | Float[Array, "N n"]
    perturbed: Float[Array, "b N m"] | Float[Array, "N m"]
    value: Float[Array, "*b m"]
    mask: Bool[Array, "*b m"]
    reference: Float[Array, "*b m"]
    teacher: Int[Array, "*b"]


class LessonSource(eqx.Module):
    """A batch source over lessons: random lessons, random members of them, and a random worsening of the prior.

    Args:
        lessons: what was taught.
        climate: standard deviation of each state variable.
        sizes: the sizes of sub-ensembles; each batch has examples of all.
        members: how many members a batch has of each size: ``members / size`` examples.
        model: the dynamics, if displaced members are to be run through the window; None to displace them at its end.
        shift: scale of a random displacement that all members of an example share, in units of `climate`.
        noise: scale of a random displacement of each member by itself, likewise.
        translation: scale of a displacement of prior, observations and posterior alike, with which Kalman
            analyses move along: keeps the student from knowing windows by the place where they are.
    """

    lessons: Lessons
    climate: Float[Array, "n"]
    model: Model | None
    sizes: tuple[int, ...] = eqx.field(static=True)
    members: int = eqx.field(static=True)
    shift: float = eqx.field(static=True)
    noise: float = eqx.field(static=True)
    translation: float = eqx.field(static=True)

    def __check_init__(self) -> None:
        available = self.lessons.prior.shape[1]
        if self.model is not None and self.lessons.prior.shape[0] == self.lessons.runs:
            raise ValueError(
                "running a window anew takes the one before it, but the runs have one window; leave out model"
            )
        for size in self.sizes:
            if not 1 <= size <= min(available, self.members):
                raise ValueError(
                    f"sub-ensembles have 1 to {min(available, self.members)} members "
                    f"(lessons of {available}, batches of {self.members}), got {size}"
                )

    def __call__(self, key: PRNGKeyArray) -> tuple[Example, ...]:
        """A batch: examples of each size."""
        counts = [self.members // size for size in self.sizes]
        _, available, variables = self.lessons.prior.shape
        # All random numbers of a batch in three draws: their code is most of what there is to compile.
        lesson_key, member_key, normal_key, model_key = jax.random.split(key, 4)
        lessons = self._draw(sum(counts), lesson_key)
        draws = jax.random.uniform(member_key, (sum(counts), available))
        needed = sum(counts) * (2 + 2 * variables) + self.members * len(self.sizes) * variables
        normals = _dealt(jax.random.normal(normal_key, (needed,)))
        # From not at all to badly: how far priors are displaced is itself drawn for each example.
        shift_scale, noise_scale = normals((2, sum(counts), 1, 1))
        shift = self.shift * shift_scale * normals((sum(counts), 1, variables)) * self.climate
        together = self.translation * normals((sum(counts), 1, variables)) * self.climate
        examples, start = [], 0
        for size, count in zip(self.sizes, counts, strict=True):
            part = slice(start, start + count)
            noise = self.noise * noise_scale[part] * normals((count, size, variables)) * self.climate
            chosen = jax.lax.top_k(draws[part], size)[1]
            keyed = jax.random.fold_in(model_key, size)
            examples.append(self._example(lessons[part], chosen, shift[part] + noise, together[part], keyed))
            start += count
        return tuple(examples)

    def _draw(self, count: int, key: PRNGKeyArray) -> Int[Array, "b"]:
        """Numbers of random lessons; the first of a run is left out where it matters what was before."""
        left_out = 0 if self.model is None else 1
        run_key, window_key = jax.random.split(key)
        windows = self.lessons.prior.shape[0] // self.lessons.runs
        run = jax.random.randint(run_key, (count,), 0, self.lessons.runs)
        return run * windows + jax.random.randint(window_key, (count,), left_out, windows)

    def _example(
        self,
        lesson: Int[Array, "b"],
        chosen: Int[Array, "b N"],
        displacement: Float[Array, "b N n"],
        together: Float[Array, "b 1 n"],
        key: PRNGKeyArray,
    ) -> Example:
        given = self.lessons
        members = (lesson[:, None], chosen)
        prior = given.prior[members] + displacement
        model = self.model
        if model is not None:
            # Each posterior is where the next window of its run begins.
            start = given.posterior[lesson[:, None] - 1, chosen] + displacement
            keys = jax.random.split(key, len(lesson))
            prior = jax.vmap(lambda members, k: forecast(model, members, key=k))(start, keys)
        # What the observations move by when the state does, to first order.
        _, moved = jax.vmap(lambda z, t: jax.jvp(given.observation.operator, (z,), (t,)))(
            given.prior[lesson, 0], together[:, 0]
        )
        moved = moved[:, None]
        return Example(
            prior + together,
            given.posterior[members] + together,
            given.perturbed[members] + moved,
            given.value[lesson] + moved[:, 0],
            given.mask[lesson],
            given.reference[lesson],
            given.teacher[lesson],
        )


class ImitationLoss(eqx.Module):
    """Mean squared distance to the teacher's posterior, over all sizes alike.

    Args:
        observation: how the lessons' states were observed.
        unit: what distances are measured in.
    """

    observation: Observation
    unit: Float[Array, ""]

    def __call__(
        self, filter: EnNF | LearnedGain, batch: tuple[Example, ...], *, key: PRNGKeyArray
    ) -> Float[Array, ""]:
        """The loss of a batch."""

        def distance(example: Example) -> Float[Array, "N n"]:
            observed = self.observation.window(example.value, mask=example.mask, reference=example.reference)
            student = filter.acting_as(example.teacher) if filter.teachers else filter
            return student.update(example.prior, observed, example.perturbed) - example.posterior

        losses = [jnp.mean((jax.vmap(distance)(part) / self.unit) ** 2) for part in batch]
        return jnp.mean(jnp.stack(losses))


def imitate(
    filter: Student,
    lessons: Lessons,
    *,
    steps: int,
    model: Model | None = None,
    sizes: tuple[int, ...] = (2, 16),
    members: int = 512,
    shift: float = 0.1,
    noise: float = 0.05,
    translation: float = 0.0,
    learning_rate: float = 2e-3,
    microbatches: int = 1,
    checkpoint: str | os.PathLike[str] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    key: PRNGKeyArray,
) -> FitResult[Student]:
    """Train a filter to do what the teacher of the lessons did.

    A filter with stacked weights (`EnNF.stacked`) is fine-tuned for each variable, all at once.

    Args:
        filter: the student; standardise an `EnNF` first, by `Lessons.standardise`.
        lessons: what the teacher did.
        steps: number of optimizer steps.
        model: the dynamics: priors are then worsened by displacing the members at the start of the window and
            running it anew; None displaces them at its end.
        sizes: the sizes of the sub-ensembles it is shown.
        members: how many members a batch has of each size.
        shift: how far a prior is displaced as a whole, in units of the climate's standard deviation.
        noise: how far its members are displaced each by itself.
        translation: how far a lesson is displaced with all that belongs to it.
        learning_rate: of Adam at the beginning; it falls to zero along a cosine.
        microbatches: see `fit`.
        checkpoint: see `fit`.
        on_progress: see `fit`.
        key: random key of the training.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from bieqno.assimilation import EnKF, Lorenz63, make_trials, teach
        >>> model, observation = Lorenz63(), Observation([0, 2], 1.0)
        >>> trials = make_trials(
        ...     model, observation, 20, state=jnp.ones(3), truths=2, members=50, key=jax.random.key(0)
        ... )
        >>> lessons = teach(EnKF(), model, observation, trials, key=jax.random.key(1))
        >>> student = lessons.standardise(EnNF(2, width=8, key=jax.random.key(2)))
        >>> result = imitate(student, lessons, steps=50, sizes=(4,), members=32, key=jax.random.key(3))
        >>> bool(result.losses[-1] < result.losses[0])
        True
    """
    teachers = int(jnp.max(lessons.teacher)) + 1
    if teachers > max(filter.teachers, 1):
        raise ValueError(
            f"the lessons are of {teachers} teachers, the filter has {filter.teachers}: make it with teachers={teachers}"
        )
    # Where the teacher moved nothing, as with nothing observed, there is no unit to be had from it.
    moved = jnp.std(lessons.posterior - lessons.prior)
    source = LessonSource(
        lessons, jnp.std(lessons.posterior, axis=(0, 1)), model, sizes, members, shift, noise, translation
    )
    return fit(
        filter,
        ImitationLoss(lessons.observation, jnp.where(moved > 0, moved, 1)),
        source,
        steps=steps,
        optimizer=_decaying_adam(learning_rate, steps),
        microbatches=microbatches,
        checkpoint=checkpoint,
        on_progress=on_progress,
        key=key,
    )


@lru_cache
def _decaying_adam(learning_rate: float, steps: int) -> optax.GradientTransformation:
    """One object for equal arguments, so that runs of equal shape share one compilation."""
    return optax.adam(optax.cosine_decay_schedule(learning_rate, steps))


def _dealt(numbers: Float[Array, "k"]) -> Callable[[tuple[int, ...]], Float[Array, "..."]]:
    """A function that hands out the numbers in arrays of the shapes that are asked for, one after another."""
    position = 0

    def take(shape: tuple[int, ...]) -> Float[Array, "..."]:
        nonlocal position
        begin, position = position, position + math.prod(shape)
        return numbers[begin:position].reshape(shape)

    return take
