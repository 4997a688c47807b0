"""The comparisons of a user's own system and table: all opponents take part, on the same unseen data."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bieqno.assimilation import EnKF, Lorenz63, Observation, System
from bieqno.lab.methods import classical_regressors
from bieqno.lab.user_comparisons import compare_filters_on, entries_dataset, entry_numbers, evaluate, split_rows
from bieqno.regression import PretrainedGGPRegressor


@pytest.fixture(scope="module")
def compared():
    system = System(Lorenz63(window=0.25), Observation([0, 2], 1.0), jnp.array([-8.5, -7.0, 27.0]), limit=1e3)
    heard = []
    few = {"sizes": (4,), "truths": 2, "windows": 8, "burn_in": 2, "tuning": (2, 6), "inflation": (1.0, 1.1)}
    filters = {"EnNF": EnKF(), "lost": lambda ensemble, observed, *, key: ensemble * 1e9}
    found = compare_filters_on(system, filters, **few, on_progress=lambda *p: heard.append(p), key=jax.random.key(0))
    return (*found, heard)


def test_all_filters_run_on_the_same_truths(compared):
    entries, truth, heard = compared
    names = [entry.method for entry in entries]
    assert names[:3] == ["baseline", "EnNF", "lost"]
    tuned = {"EnKF tuned", "ETKF tuned", "iterative EnKF tuned", "particle filter tuned", "serial EnSRF tuned"}
    assert set(names[3:]) == tuned
    assert [(done, total) for done, total, _ in heard] == [(k, len(names)) for k in range(len(names))]
    error = np.sqrt(((entries[1].kept[0]["mean"] - truth) ** 2).mean(axis=2))[:, 2:].mean(axis=1)
    np.testing.assert_allclose(entries[1].scores["rmse"], error, rtol=1e-4)
    assert entries[3].settings["inflation"] in (1.0, pytest.approx(1.1))


def test_lost_runs_are_counted(compared):
    lost = compared[0][2]
    assert np.isnan(lost.scores["rmse"]).all()
    numbers = entry_numbers(lost)
    assert (numbers["diverged"], numbers["truths"], numbers["members"]) == (2, 2, 4)
    assert np.isnan(numbers["rmse"])
    assert numbers["rmse_stderr"] is None


def test_the_dataset_holds_all_means(compared):
    data = entries_dataset(compared[0], compared[1], window=0.25)
    assert data["mean"].dims == ("entry", "run", "time", "state")
    assert data["time"].values[:2].tolist() == [0.25, 0.5]


def test_what_was_predicted_of_the_observations_is_scored(compared):
    entries, truth, _ = compared
    data = entries_dataset(entries, truth)
    assert data["log_score"].dims == ("entry", "run", "time")
    assert data["pit"].dims == data["crps"].dims == ("entry", "run", "time", "observation")
    for number, entry in enumerate(entries):
        numbers = entry_numbers(entry)["predicted"]
        if entry.method == "lost":
            assert np.isnan(list(numbers.values())).all()
            continue
        kept, sound = data.isel(entry=number, time=slice(2, None)), entry.scores["diverged"] < 0
        inside = (kept["pit"].values > 0.025) & (kept["pit"].values < 0.975)
        assert numbers["log_score"] == pytest.approx(kept["log_score"].values[sound].mean(), rel=1e-5)
        assert numbers["crps"] == pytest.approx(kept["crps"].values[sound].mean(), rel=1e-5)
        assert numbers["coverage_95"] == pytest.approx(inside[sound].mean())


def test_a_table_is_evaluated_on_rows_that_no_method_saw(monkeypatch):
    monkeypatch.setattr(classical_regressors, "_CLIMBS", 3)
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(40, 1))
    y = np.sin(6 * X[:, 0]) + 0.1 * rng.normal(size=40)
    splits = [split_rows(40, held_out=0.25, most=25, seed=seed) for seed in range(2)]
    found = evaluate(X, y, splits, ggp=PretrainedGGPRegressor(correction=False))
    classical = {"ggp", *(f"gp-{kernel}" for kernel in classical_regressors.KERNELS), "trees"}
    assert set(found.forecasts) >= classical  # packages of boosted trees join where they are installed
    assert (len(found.observed), found.trained) == (20, 25)
    assert found.opponent.startswith("gp-")
    scores = found.scores("ggp")
    assert scores["rmse"] < 0.5 * y.std()
    assert scores["nlpd_stderr"] > 0
    assert found.difference()["crps"] == pytest.approx(scores["crps"] - found.scores(found.opponent)["crps"])
    assert found.reliability("trees").shape == (19,)
