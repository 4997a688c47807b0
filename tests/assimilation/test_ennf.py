"""The ensemble neural filter: the paper's four requirements, options, files, and that it learns."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from catalogue import analyse, update
from hypothesis import given
from hypothesis import strategies as st

from bieqno import PersistenceError
from bieqno.assimilation import (
    EnKF,
    EnNF,
    Imitation,
    Inflated,
    Lorenz63,
    Observation,
    System,
    load_filter,
    make_trials,
    save_filter,
    teach,
    train_filter,
)

KEY = jax.random.key(3)
OBSERVATION = Observation([0, 2], 0.5)
SYSTEM = System(Lorenz63(), OBSERVATION, jnp.ones(3), limit=1e3)
STATES = jax.random.normal(KEY, (40, 3)) * 5 + 2


def student(**options):
    made = EnNF(2, width=8, depth=2, key=KEY, **options)
    groups = STATES.reshape(8, 5, 3)
    predicted = groups[..., jnp.array([0, 2])]
    return made.standardised(groups, groups * 0.9, predicted, predicted[::-1])


STUDENTS = {
    "increment": student(),
    "full value": student(increment=False),
    "the paper's letter": student(anomalies=False),
    "error input": student(error_input=True),
    "code": student(teachers=2).acting_as(1),
    "stacked": student().stacked(3),
}


@pytest.mark.parametrize("members", [1, 2, 7])
def test_requirement_1_any_ensemble_size(members):
    filter = STUDENTS["stacked"]
    posterior = analyse(filter, STATES[:members], OBSERVATION.window(jnp.array([1.0, 2.0])), KEY)
    assert posterior.shape == (members, 3)
    assert jnp.all(jnp.isfinite(posterior))


@pytest.mark.parametrize("filter", STUDENTS.values(), ids=STUDENTS)
@given(order=st.permutations(range(5)))
def test_requirement_2_members_are_equivariant(filter, order):
    order = jnp.array(order)
    observed = OBSERVATION.window(jnp.array([1.0, 2.0]))
    perturbed = observed.perturb(5, key=KEY)
    straight = update(filter, STATES[:5], observed, perturbed)
    permuted = update(filter, STATES[:5][order], observed, perturbed[order])
    np.testing.assert_allclose(permuted, straight[order], atol=1e-4)  # sums in another order


@given(order=st.permutations(range(3)))
def test_requirement_3_every_variable_has_the_same_operator(order):
    """Renaming the variables renames the results: the operator does not know which variable it moves."""
    place = jnp.argsort(jnp.array(order))  # where each variable has gone
    matrix = jnp.eye(3)[jnp.array([0, 2])]
    observed = Observation(matrix, 0.5).window(jnp.array([1.0, 2.0]))
    renamed = Observation(matrix[:, jnp.array(order)], 0.5).window(jnp.array([1.0, 2.0]))
    perturbed = observed.perturb(5, key=KEY)
    straight = update(student(), STATES[:5], observed, perturbed)
    moved = update(student(), STATES[:5][:, jnp.array(order)], renamed, perturbed)
    np.testing.assert_allclose(moved[:, place], straight, atol=1e-4)


def test_requirement_4_only_observation_space_beside_the_variable_itself():
    """The analysis of a variable does not depend on the unobserved ones beside it."""
    observed = OBSERVATION.window(jnp.array([1.0, 2.0]))
    perturbed = observed.perturb(5, key=KEY)
    slopes = jax.jacobian(lambda hidden: update(student(), STATES[:5].at[:, 1].set(hidden), observed, perturbed))(
        STATES[:5, 1]
    )
    assert jnp.all(slopes[:, jnp.array([0, 2])] == 0)
    assert jnp.any(slopes[:, 1] != 0)


def test_work_on_observations_is_done_once():
    """Ten times the variables cost less than ten times as much: the layers over observations do not depend on j."""

    def operations(variables):
        filter = EnNF(200, width=8, depth=1, key=KEY)
        observed = Observation(lambda z: jnp.resize(z, 200), 1.0).window(jnp.zeros(200))
        compiled = analyse.lower(filter, jnp.zeros((4, variables)), observed, KEY).compile()
        return compiled.compiled.cost_analysis()["flops"]

    first_layers = 2 * 2 * 4 * 400 * 8  # two embeddings of 4 members: 400 values to 8
    assert operations(11) - operations(1) < first_layers


def test_a_stacked_filter_begins_as_the_shared_one():
    observed = OBSERVATION.window(jnp.array([1.0, 2.0]))
    shared, own = (analyse(f, STATES[:5], observed, KEY) for f in (student(), student().stacked(3)))
    np.testing.assert_allclose(own, shared, atol=1e-4)


def test_the_code_changes_the_answer():
    observed = OBSERVATION.window(jnp.array([1.0, 2.0]))
    both = student(teachers=2)
    first, second = (analyse(both.acting_as(k), STATES[:5], observed, KEY) for k in (0, 1))
    assert not jnp.allclose(first, second)
    with pytest.raises(ValueError, match="has 2 teachers, counted from 0; got 2"):
        both.acting_as(2)
    with pytest.raises(ValueError, match="has 0 teachers"):
        student().acting_as(0)


@pytest.mark.parametrize("filter", STUDENTS.values(), ids=STUDENTS)
def test_saved_and_loaded_are_the_same(filter, tmp_path):
    save_filter(tmp_path / "filter.bieqno", Inflated(filter, 1.1))
    assert eqx.tree_equal(load_filter(tmp_path / "filter.bieqno"), Inflated(filter, 1.1), typematch=True)


@pytest.mark.parametrize("code", [jnp.zeros(2, int), jnp.array(0.5)])
def test_a_forged_code_is_refused(code, tmp_path):
    forged = eqx.tree_at(lambda f: f.teacher, STUDENTS["code"], code)

    def save_and_load():
        save_filter(tmp_path / "filter.bieqno", forged)
        load_filter(tmp_path / "filter.bieqno")

    with pytest.raises(PersistenceError, match=r"one whole number|not what it is declared with"):
        save_and_load()


def test_functions_are_not_saved(tmp_path):
    with pytest.raises(PersistenceError, match="modules"):
        save_filter(tmp_path / "f.bieqno", lambda ensemble, observed, *, key: ensemble)


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="takes 2 observed values, got 1"):
        student()(STATES[:5], Observation([0], 1.0).window(jnp.zeros(1)), key=KEY)
    with pytest.raises(ValueError, match="weights for 2 variables, the state has 3"):
        student().stacked(2)(STATES[:5], OBSERVATION.window(jnp.zeros(2)), key=KEY)
    with pytest.raises(ValueError, match="need an operator of sizes"):
        eqx.tree_at(lambda f: f.operator, student(), EnNF(3, width=8, key=KEY).operator).__check_init__()


@pytest.fixture(scope="module")
def lessons():
    return teach(EnKF(centred=False), SYSTEM, make_trials(SYSTEM, 30, truths=3, members=20, key=KEY), key=KEY)


def test_lessons_are_what_the_teacher_did(lessons):
    assert lessons.prior.shape == (90, 20, 3)
    assert lessons.pairs == 270
    k = 17
    observed = OBSERVATION.window(lessons.value[k], reference=lessons.reference[k])
    again = update(EnKF(centred=False), lessons.prior[k], observed, lessons.perturbed[k])
    np.testing.assert_allclose(again, lessons.posterior[k], atol=1e-4)


def test_runs_that_went_wrong_are_left_out_and_counted():
    trials = make_trials(SYSTEM, 30, truths=3, members=20, key=KEY)
    spoiled = eqx.tree_at(lambda t: t.ensembles, trials, trials.ensembles.at[1].set(1e9))
    found = teach(EnKF(centred=False), SYSTEM, spoiled, key=KEY)
    assert (found.runs, found.discarded, found.prior.shape[0]) == (2, 1, 60)
    with pytest.raises(ValueError, match="all 3 runs of the teacher"):
        teach(EnKF(centred=False), SYSTEM, spoiled, lost=0.0, key=KEY)


def test_it_learns_and_standardisation_stays(lessons):
    filter = lessons.standardise(EnNF(2, width=16, depth=2, key=KEY))
    objective = Imitation(lessons, sizes=(4,), members=64, rerun=False)
    trained = train_filter(filter, SYSTEM, objective, steps=60, validate=None, key=KEY)
    # A filter that learned nothing would stay where it began.
    assert np.mean(trained.losses[-10:]) < 0.5 * np.mean(trained.losses[:5])
    assert eqx.tree_equal(trained.module.scaling, filter.scaling)
    tuned = train_filter(trained.module.stacked(3), SYSTEM, objective, steps=20, validate=None, key=KEY)
    weights = jax.tree.leaves(eqx.filter(trained.module.operator, eqx.is_array))
    for own, shared in zip(tuned.module.weights, weights, strict=True):
        assert own.shape == (3, *shared.shape)
    assert not jnp.allclose(tuned.module.weights[0][0], tuned.module.weights[0][1])
    assert eqx.tree_equal(tuned.module.operator, trained.module.operator)
