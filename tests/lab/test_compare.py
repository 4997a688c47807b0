"""The paired comparison: same trials for all, means with errors, divergence as data, nothing computed twice."""

import numpy as np
import pytest

from bieqno.lab.compare import SETTING, Case, Method, compare
from bieqno.lab.study import Cases, Run


def numbers(repetition):
    """A trial for tests: some random numbers."""
    return np.random.default_rng(repetition).normal(size=3)


CASE = Case("numbers", numbers, 4, about={"ensemble_size": 2, "protocol": "unseen"})


def score(trial, found):
    return {"error": abs(found["guess"] - trial.mean())}


def guess(name, value):
    return Method(name, lambda trial: {"guess": trial.mean() + value, "trial": trial})


def test_every_method_gets_the_same_trials():
    first, second = compare(Run(), [(CASE, guess("a", 1.0)), (CASE, guess("b", 2.0))], score, keep=("trial",))
    for one, other in zip(first.kept, second.kept, strict=True):
        np.testing.assert_array_equal(one["trial"], other["trial"])
    np.testing.assert_allclose(second.scores["error"] - first.scores["error"], 1.0)
    assert len(np.unique([kept["trial"][0] for kept in first.kept])) == 4


def test_rows_are_means_over_trials_with_errors():
    (outcome,) = compare(Run(), [(CASE, Method("a", lambda trial: {"guess": 0.0}))], score)
    (row,) = outcome.rows()
    errors = [abs(numbers(k).mean()) for k in range(4)]
    assert (row.case, row.method, row.metric, row.n) == ("numbers", "a", "error", 4)
    assert row.value == pytest.approx(np.mean(errors))
    assert row.stderr == pytest.approx(np.std(errors, ddof=1) / 2)
    assert (row.ensemble_size, row.protocol, row.diverged) == (2, "unseen", None)


def test_a_trial_may_hold_many_repetitions_and_those_that_diverged_are_counted():
    method = Method("a", lambda trial: {"errors": np.array([1.0, np.inf, 3.0]), "at": np.array([-1, 7, -1])})
    case = Case("three", lambda repetition: None, 2)
    plan = [(case, method)]
    (outcome,) = compare(Run(), plan, lambda _, found: {"error": found["errors"], "diverged": found["at"]})
    (row,) = outcome.rows()
    assert (row.value, row.n, row.diverged) == (2.0, 4, 2)


def test_only_wanted_methods_run_and_progress_counts_them():
    heard = []
    run = Run(only=("b",), on_progress=heard.append)
    outcomes = compare(run, [(CASE, guess("a", 1.0)), (CASE, guess("b", 2.0))], score)
    assert [outcome.method for outcome in outcomes] == ["b"]
    assert [(p.done, p.total) for p in heard] == [(k, 4) for k in range(4)]
    assert heard[0].part == "numbers, b, trial 1 of 4"


def test_finished_trials_are_read_with_what_was_to_be_kept(tmp_path):
    calls = []

    def run(trial):
        calls.append(trial)
        return {"guess": np.array(1.0), "large": np.zeros(1000), SETTING + "inflation": np.array(1.1)}

    plan = [(CASE, Method("a", run))]
    first, again = (compare(Run(cases=Cases(tmp_path / "cases")), plan, score) for _ in range(2))
    assert len(calls) == 4
    assert again[0].rows() == first[0].rows()
    assert again[0].settings == {"inflation": pytest.approx(1.1)}
    assert set(again[0].kept[0]) == {"score.error", "setting.inflation"}
