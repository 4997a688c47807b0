"""The paper's form of the neural filter: equation 13 as it stands, on whole ensembles of the teacher."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bieqno.assimilation as da
from bieqno.assimilation.lessons import ARRAYS
from bieqno.lab.methods import ennf_paper
from bieqno.lab.methods.ennf_paper import train_paper_form
from bieqno.lab.study import Run

KEY = jax.random.key(0)
SYSTEM = da.System(da.Lorenz63(window=0.1), da.Observation([0, 2], 1.0), jnp.array([-8.5, -7.0, 27.0]))


@pytest.fixture(scope="module")
def lessons():
    trials = da.make_trials(SYSTEM, 6, truths=2, members=5, key=KEY)
    return da.teach(da.EnKF(), SYSTEM, trials, lost=9.0, key=KEY)


def train(lessons, **epochs):
    return train_paper_form(Run(), SYSTEM, lessons, **epochs, student={"width": 8, "depth": 2}, key=KEY)


def test_it_is_equation_13(lessons):
    """One operator for all variables, from values to values, with nothing computed from them but their units."""
    filter, _ = train(lessons, epochs=1)
    ensemble, perturbed = lessons.prior[0], lessons.perturbed[0]
    observed = lessons.observation.window(lessons.value[0], mask=lessons.mask[0], perturbed=perturbed)
    scaling, operator = filter.scaling, filter.operator
    seen = [scaling.predicted(values) for values in (jax.vmap(lessons.observation.operator)(ensemble), perturbed)]
    columns = [
        scaling.state.undo(operator(jnp.concatenate([scaling.state(z)[:, None], *seen], axis=1))[:, 0])
        for z in ensemble.T
    ]
    found = filter(ensemble, observed, key=KEY)
    np.testing.assert_allclose(found, jnp.stack(columns, axis=1), rtol=1e-4, atol=1e-4)


def test_the_distance_that_is_told_is_that_of_whole_ensembles(lessons, monkeypatch):
    """With one mini-batch in an epoch, the loss of the first is that of the untrained filter on all lessons as they are."""
    monkeypatch.setattr(ennf_paper, "BATCH", len(lessons.value))
    _, facts = train(lessons, epochs=1)
    assert (facts["epochs"], facts["fine_tuning_epochs"]) == (1, 0)
    student_key = jax.random.split(KEY, 3)[0]
    form = {"increment": False, "anomalies": False, "innovation": False, "width": 8, "depth": 2}
    untrained = lessons.standardise(da.EnNF(2, **form, key=student_key))

    def moved(prior, posterior, perturbed, value, mask, reference, teacher):
        observed = lessons.observation.window(value, mask=mask, reference=reference, perturbed=perturbed)
        return untrained(prior, observed, key=KEY) - posterior

    distances = jax.vmap(moved)(*(getattr(lessons, name) for name in ARRAYS))
    expected = jnp.sqrt(jnp.mean(distances**2)) / jnp.std(lessons.posterior - lessons.prior)
    assert facts["distance_to_teacher"] == pytest.approx(float(expected), rel=1e-4)


def test_each_variable_may_have_weights_of_its_own_in_the_end(lessons):
    shared, _ = train(lessons, epochs=2)
    own, facts = train(lessons, epochs=2, fine_tuning=2)
    assert not shared.is_stacked
    assert own.is_stacked
    assert facts["fine_tuning_epochs"] == 2
    weights = own.weights[0]
    assert weights.shape[0] == 3
    assert not jnp.allclose(weights[0], weights[1])
