"""Filters as methods: scores by their definitions, classical filters that fit the system, tuned once."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bieqno import assimilation
from bieqno.assimilation import EnKF, Lorenz63, Lorenz96, Observation, Places, System, keep_ensembles, make_trials
from bieqno.lab.methods.filters import Tuned, TwinTest, classical_filters, run_filter, score_filter, tuned
from bieqno.lab.study import Run
from bieqno.scores import energy_score

KEY = jax.random.key(0)
SYSTEM = System(Lorenz63(window=0.25), Observation([0, 2], 1.0), jnp.array([-8.5, -7.0, 27.0]), limit=1e3)
RING = System(Lorenz96(8), Observation(range(0, 8, 2), 1.0), jnp.full(8, 8.0), Places.grid(8, period=8.0), 1e3)


def a_test(system=SYSTEM, members=4, **more):
    trials = make_trials(system, 6, truths=2, members=members, spin=5, key=KEY)
    return TwinTest(system, trials, lambda: (trials, 1), KEY, **more)


def test_scores_are_what_they_are_called():
    test = a_test(burn_in=2)
    found = run_filter(EnKF(), test)
    truth, mean, spread = np.asarray(test.trials.twins.truth), found["mean"], found["spread"]
    scores = score_filter(test, found)
    gap, wide = (truth - mean)[:, 2:], spread[:, 2:] * np.sqrt(5 / 4)
    expected = {
        "rmse": np.sqrt((gap**2).mean(axis=2)).mean(axis=1),
        "relative_rmse": np.sqrt((gap**2).sum(axis=(1, 2)) / (truth[:, 2:] ** 2).sum(axis=(1, 2))),
        "spread_error_ratio": np.sqrt((wide**2).mean(axis=(1, 2)) / (gap**2).mean(axis=(1, 2))),
        "coverage_90": (np.abs(gap) <= 1.645 * wide).mean(axis=(1, 2)),
    }
    for name, values in expected.items():
        np.testing.assert_allclose(scores[name], values, rtol=1e-4, err_msg=name)
    assert scores["diverged"].tolist() == [-1, -1]


def test_the_energy_score_is_that_of_whole_states():
    test = a_test(burn_in=2, energy=True)
    found = run_filter(EnKF(), test)
    plain = run_filter(EnKF(), replace(test, energy=False))
    np.testing.assert_array_equal(found["mean"], plain["mean"])
    members = run_filter(EnKF(), replace(test, energy=False, record=keep_ensembles))["posterior"]
    expected = jax.vmap(energy_score)(test.trials.twins.truth, jnp.asarray(members))[:, 2:].mean(axis=1)
    np.testing.assert_allclose(score_filter(test, found)["energy_score"], expected, rtol=1e-5)


def test_what_comes_after_a_divergence_is_missing():
    found = run_filter(lambda ensemble, observed, *, key: ensemble * 1e9, a_test())
    assert found["diverged"].tolist() == [0, 0]
    assert np.isnan(found["mean"]).all()


@pytest.mark.parametrize("system", [SYSTEM, RING], ids=["nowhere", "ring"])
def test_all_classical_filters_of_a_system_run(system):
    filters = classical_filters(system, radius=(2.0, 4.0))
    assert ("LETKF tuned" in filters) == (system.places is not None)
    test = a_test(system, members=5)
    for opponent in filters.values():
        filter = opponent.build(**{name: jnp.asarray(values[-1]) for name, values in opponent.grid.items()})
        assert np.isfinite(run_filter(filter, test)["mean"]).all(), opponent.name


def test_tests_of_one_label_are_tuned_once(monkeypatch):
    tune, calls = assimilation.tune, []
    monkeypatch.setattr(assimilation, "tune", lambda *args, **more: calls.append(1) or tune(*args, **more))
    opponent = classical_filters(SYSTEM)["EnKF tuned"]
    method = tuned(Tuned("EnKF tuned", opponent.build, {"inflation": (1.0, 1.1)}), Run())
    for label in ("N=4", "N=4", "N=8"):
        found = method.run(a_test(label=label))
    assert len(calls) == 2
    assert float(found["setting.inflation"]) in (1.0, pytest.approx(1.1))
