"""Batches of lessons: what belongs together stays together, and what cannot be taught is refused."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bieqno.assimilation import EnNF, Imitation, LearnedGain, Lessons, LocalEnNF, Observation, System, train_filter
from bieqno.assimilation.objectives.imitation import LessonSource

KEY = jax.random.key(0)
RUNS, WINDOWS, MEMBERS = 2, 3, 5
OBSERVATION = Observation([1], 0.5)
SYSTEM = System(lambda z: 0.9 * z, OBSERVATION, jnp.ones(2))


def lessons(runs=RUNS, windows=WINDOWS, observation=OBSERVATION):
    """Posteriors that tell where they are from: 100 for each lesson, 1 for each member, 0.1 for each variable."""
    count = runs * windows
    posterior = (
        100 * jnp.arange(count)[:, None, None] + jnp.arange(MEMBERS)[:, None] + jnp.array([0.0, 0.1])
    )  # a lesson, a member, a variable
    value = 100.0 * jnp.arange(count)[:, None]
    return Lessons(
        posterior - 7,
        posterior,
        posterior[..., 1:] + 3,
        value,
        jnp.ones(value.shape, bool),
        value,
        jnp.zeros(count, int),
        observation,
        runs,
        0,
    )


def source(model=None, **scales):
    scales = {"shift": 0.0, "noise": 0.0, "translation": 0.0, **scales}
    return LessonSource(lessons(), jnp.ones(2), model, (2, 3), 24, **scales)


def test_members_keep_their_analyses_and_observations():
    small, large = source()(KEY)
    assert (small.prior.shape, large.prior.shape) == ((12, 2, 2), (8, 3, 2))
    for part in (small, large):
        np.testing.assert_allclose(part.posterior - part.prior, 7, atol=1e-3)
        np.testing.assert_allclose(part.perturbed, part.posterior[..., 1:] + 3, atol=1e-3)
        np.testing.assert_array_equal(part.value, 100 * jnp.round(part.posterior[:, 0, :1] / 100))
        members = np.round(np.asarray(part.posterior)[:, :, 0] % 100)
        assert all(len(set(row)) == len(row) for row in members)  # nobody is drawn twice


def test_windows_run_anew_begin_where_the_same_members_were_left():
    for part in source(model=lambda z: 2 * z)(KEY):
        np.testing.assert_allclose(part.prior, 2 * (part.posterior - 100), atol=1e-3)
        # The first window of a run has none before it: the one stored there is of another run.
        assert np.all(np.asarray(part.value) // 100 % WINDOWS > 0)


def test_a_translation_moves_all_alike_and_a_displacement_the_prior_only():
    for part in source(translation=1.0)(KEY):
        np.testing.assert_allclose(part.posterior - part.prior, 7, atol=1e-3)
        np.testing.assert_allclose(part.perturbed, part.posterior[..., 1:] + 3, atol=1e-3)
        assert np.std(np.asarray(part.value) % 100) > 0.1
    for part in source(shift=1.0)(KEY):
        moved = part.prior - (part.posterior - 7)
        np.testing.assert_allclose(moved, jnp.broadcast_to(moved[:, :1], moved.shape), atol=1e-3)
        assert jnp.std(moved) > 0.1
        np.testing.assert_array_equal(part.value % 100, 0)


def test_missing_values_do_not_enter_the_standardisation():
    """They are stored as zeros, which may be far from anything observed."""
    whole = lessons()
    mask = jnp.arange(RUNS * WINDOWS)[:, None] > 0
    gaps = eqx.tree_at(lambda x: (x.mask, x.perturbed), whole, (mask, whole.perturbed.at[0].set(-1e6)))
    innovation = gaps.standardise(EnNF(1, width=4, depth=1, key=KEY)).scaling.innovation
    assert 0 < innovation.mean[0] <= 10  # every innovation is ten, or nothing where missing
    assert 0 < innovation.scale[0] <= 10


def test_what_cannot_be_put_together_is_refused():
    both = Lessons.together(lessons(), lessons(runs=1))
    assert (both.runs, both.teacher.tolist()) == (3, [0] * 6 + [1] * 3)
    with pytest.raises(ValueError, match=r"got \(3, 5, 2\) and \(2, 5, 2\)"):
        Lessons.together(lessons(), lessons(windows=2))
    with pytest.raises(ValueError, match="different observing systems"):
        Lessons.together(lessons(), lessons(observation=Observation([1], 0.7)))


def test_what_cannot_be_taught_is_refused():
    both = Lessons.together(lessons(), lessons())
    for filter in (EnNF(1, width=4, depth=1, key=KEY), LearnedGain(1, width=4, depth=1, teachers=1, key=KEY)):
        with pytest.raises(ValueError, match=f"are of 2 teachers, the filter has {filter.teachers}"):
            train_filter(filter, SYSTEM, Imitation(both, sizes=(2,)), steps=1, key=KEY)
    with pytest.raises(ValueError, match="the runs have one window"):
        LessonSource(lessons(windows=1), jnp.ones(2), lambda z: z, (2,), 8, 0.0, 0.0, 0.0)
    for wrong in ({"learning_rate": -1.0}, {"shift": -0.1}, {"noise": -0.1}, {"translation": -0.1}):
        ((name, value),) = wrong.items()
        with pytest.raises(ValueError, match=f"got {name}={value}"):
            Imitation(lessons(), **wrong)
    with pytest.raises(ValueError, match="1 to 5 members"):
        LessonSource(lessons(), jnp.ones(2), None, (6,), 8, 0.0, 0.0, 0.0)


def test_a_filter_that_moves_members_at_random_cannot_imitate_them():
    student = LocalEnNF.untrained(SYSTEM, width=8, channels=2, key=KEY)
    # The model's climate is a point, to which every analysis would be cut.
    student = eqx.tree_at(lambda s: s.extent, student, jnp.full(2, 1e9))
    with pytest.raises(ValueError, match=r"LocalEnNF moves members at random.*train it by AgainstTruth"):
        train_filter(student, SYSTEM, Imitation(lessons(), sizes=(2,)), steps=1, key=KEY)


def test_a_teacher_that_moves_nothing_can_be_learned_from():
    """With nothing observed there is no increment to measure distances in."""
    still = lessons()
    still = eqx.tree_at(lambda x: (x.prior, x.mask), still, (still.posterior, jnp.zeros_like(still.mask)))
    student = still.standardise(EnNF(1, width=4, depth=1, key=KEY))
    objective = Imitation(still, sizes=(2,), members=8, rerun=False, shift=0.0, noise=0.0)
    trained = train_filter(student, SYSTEM, objective, steps=2, validate=None, key=KEY)
    np.testing.assert_array_equal(trained.losses, 0)
