"""Training on what a teacher did, with the posterior of each member as the target (section 2.3 of the paper).

Two things make the student work when it is cycled, and not only on the teacher's priors. It sees priors that are worse
than the teacher's, with the target unchanged: forecasts from displaced starts, whose errors look like a forecast's.
And it sees small ensembles: members drawn from the teacher's many, with the teacher's own analyses of these members.
"""

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from bieqno.assimilation.lessons import Lessons
from bieqno.assimilation.models.forecast import Model, forecast
from bieqno.assimilation.objectives.objective import Task, check_learning_rate
from bieqno.assimilation.observation import Observation
from bieqno.assimilation.system import System
from bieqno.training import falling_adam

IDENTITY = "imitation 3"  # to be counted up when the loss or the source changes


@dataclass(frozen=True)
class Imitation:
    """Train a student to analyse as the teacher of some lessons did, member by member.

    Args:
        sizes: the sizes of the sub-ensembles that are shown.
        members: number of members of each size in a batch: ``members / size`` examples.
        rerun: displace members at the start of the window and run the system's model again, instead of at its end.
        shift: how far a prior is displaced as a whole, in units of the climate's standard deviation.
        noise: how far its members are displaced each by itself.
        translation: how far a lesson is displaced with all that belongs to it; Kalman analyses move along, and the student
            cannot recognise windows by their place.
        learning_rate: of Adam at the beginning; it falls to zero along a cosine.
        microbatches: see `fit`.
    """

    lessons: Lessons
    sizes: tuple[int, ...] = (2, 16)
    members: int = 512
    rerun: bool = True
    shift: float = 0.1
    noise: float = 0.05
    translation: float = 0.0
    learning_rate: float = 2e-3
    microbatches: int = 1

    def __post_init__(self) -> None:
        check_learning_rate(self.learning_rate)
        for name in ("shift", "noise", "translation"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"a displacement is not negative, got {name}={getattr(self, name)}")

    def task(self, student: Any, system: System, *, key: PRNGKeyArray) -> Task:
        """Prepare the training; the key is not needed."""
        lessons = self.lessons
        _check(student, lessons)
        scales = (self.shift, self.noise, self.translation)
        climate = jnp.std(lessons.posterior, axis=(0, 1))
        source = LessonSource(lessons, climate, system.model if self.rerun else None, self.sizes, self.members, *scales)
        # Where the teacher moved nothing, as with nothing observed, its increments give no unit.
        moved = jnp.std(lessons.posterior - lessons.prior)
        loss = ImitationLoss(lessons.observation, jnp.where(moved > 0, moved, 1))
        return Task(loss, source, falling_adam(self.learning_rate), IDENTITY, microbatches=self.microbatches)


class Example(eqx.Module):
    """Sub-ensembles of lessons, stacked along a first axis: the prior as the student sees it, the target posterior."""

    prior: Float[Array, "b N n"] | Float[Array, "N n"]
    posterior: Float[Array, "b N n"] | Float[Array, "N n"]
    perturbed: Float[Array, "b N m"] | Float[Array, "N m"]
    value: Float[Array, "*b m"]
    mask: Bool[Array, "*b m"]
    reference: Float[Array, "*b m"]
    teacher: Int[Array, "*b"]


class LessonSource(eqx.Module):
    """A batch source over lessons: random lessons, random members of them, and a random displacement of the prior."""

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
            raise ValueError("a window is rerun from the one before it, but the runs have one window: set rerun=False")
        for size in self.sizes:
            if not 1 <= size <= min(available, self.members):
                raise ValueError(
                    f"sub-ensembles have 1 to {min(available, self.members)} members "
                    f"(lessons of {available}, batches of {self.members}), got {size}"
                )

    def __call__(self, key: PRNGKeyArray) -> tuple[Example, ...]:
        """Draw a batch: examples of each size."""
        keys = jax.random.split(key, len(self.sizes))
        return tuple(self._examples(size, k) for size, k in zip(self.sizes, keys, strict=True))

    def _draw(self, count: int, key: PRNGKeyArray) -> Int[Array, "b"]:
        """Draw numbers of lessons; the first of a run is left out where the window before it is needed."""
        first = 0 if self.model is None else 1
        run_key, window_key = jax.random.split(key)
        windows = self.lessons.prior.shape[0] // self.lessons.runs
        run = jax.random.randint(run_key, (count,), 0, self.lessons.runs)
        return run * windows + jax.random.randint(window_key, (count,), first, windows)

    def _examples(self, size: int, key: PRNGKeyArray) -> Example:
        """Draw lessons, members of each, and how far they are displaced."""
        given, model, count = self.lessons, self.model, self.members // size
        lesson_key, member_key, scale_key, shift_key, noise_key, together_key, model_key = jax.random.split(key, 7)
        lesson = self._draw(count, lesson_key)
        _, available, variables = given.prior.shape
        chosen = jax.lax.top_k(jax.random.uniform(member_key, (count, available)), size)[1]
        members = (lesson[:, None], chosen)
        # From not at all to badly: how far priors are displaced is itself drawn for each example.
        shift_scale, noise_scale = jax.random.normal(scale_key, (2, count, 1, 1))
        shift = self.shift * shift_scale * jax.random.normal(shift_key, (count, 1, variables))
        noise = self.noise * noise_scale * jax.random.normal(noise_key, (count, size, variables))
        displacement = (shift + noise) * self.climate
        prior = given.prior[members] + displacement
        if model is not None:
            # Each posterior is where the next window of its run begins.
            start = given.posterior[lesson[:, None] - 1, chosen] + displacement
            keys = jax.random.split(model_key, count)
            prior = jax.vmap(lambda members, k: forecast(model, members, key=k))(start, keys)
        together = self.translation * jax.random.normal(together_key, (count, variables)) * self.climate
        # What the observations move by when the state does, to first order.
        moved = jax.vmap(lambda z, t: jax.jvp(given.observation.operator, (z,), (t,))[1])(
            given.prior[lesson, 0], together
        )
        return Example(
            prior + together[:, None],
            given.posterior[members] + together[:, None],
            given.perturbed[members] + moved[:, None],
            given.value[lesson] + moved,
            given.mask[lesson],
            given.reference[lesson],
            given.teacher[lesson],
        )


class ImitationLoss(eqx.Module):
    """Mean squared distance to the teacher's posterior, over all sizes alike."""

    observation: Observation
    unit: Float[Array, ""]

    def __call__(self, student: Any, batch: tuple[Example, ...], *, key: PRNGKeyArray) -> Float[Array, ""]:
        """Return the loss of a batch; the perturbed observations are those that the teacher drew."""

        def distance(example: Example) -> Float[Array, "N n"]:
            observed = self.observation.window(
                example.value, mask=example.mask, reference=example.reference, perturbed=example.perturbed
            )
            filter = student.acting_as(example.teacher) if getattr(student, "teachers", 0) else student
            return filter(example.prior, observed, key=key) - example.posterior

        losses = [jnp.mean((jax.vmap(distance)(part) / self.unit) ** 2) for part in batch]
        return jnp.mean(jnp.stack(losses))


def _check(student: Any, lessons: Lessons) -> None:
    """Refuse a student that cannot imitate member by member, or has no code for so many teachers."""
    lesson = int(jnp.argmax(jnp.any(lessons.mask, axis=1)))
    seen = lessons.value[lesson], lessons.mask[lesson], lessons.reference[lesson], lessons.perturbed[lesson, :2]
    observed = lessons.observation.window(seen[0], mask=seen[1], reference=seen[2], perturbed=seen[3])
    analyse = eqx.filter_jit(lambda key: student(lessons.prior[lesson, :2], observed, key=key))
    if not jnp.array_equal(*(analyse(jax.random.key(k)) for k in (0, 1))):
        raise ValueError(
            f"{type(student).__name__} moves members at random, and not by the perturbed observations of a teacher alone: "
            "there is no analysis of a member to imitate; train it by AgainstTruth, or choose EnNF or LearnedGain"
        )
    known, count = getattr(student, "teachers", 0), int(jnp.max(lessons.teacher)) + 1
    if count > max(known, 1):
        raise ValueError(f"the lessons are of {count} teachers, the filter has {known}: make it with teachers={count}")
