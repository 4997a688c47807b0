"""The study of neural processes' functions: the published set-up, the oracle as a bound, published numbers beside."""

import numpy as np
import pytest

from bieqno.lab.papers import NEURAL_PROCESSES
from bieqno.lab.studies import neural_process as study

RNG = np.random.default_rng


@pytest.mark.parametrize("family", [*study.FAMILIES, "mixture"])
def test_tasks_are_those_of_the_publication(family):
    for where, (context, target) in study.RANGES.items():
        tasks = [study.draw(RNG(seed), family, where) for seed in range(40)]
        assert {len(task.values) for task in tasks} == {study.TARGETS[family]}
        counts = [len(task.x) for task in tasks]
        assert 0 <= min(counts) < 8
        assert 23 < max(counts) <= 30
        for task in tasks:
            for places, (low, high) in ((task.x, context), (task.targets, target)):
                assert ((low <= places) & (places <= high)).all()
    assert len({task.family for task in tasks}) == (4 if family == "mixture" else 1)


def test_gaussian_families_have_variance_one_beside_the_noise():
    for family in study.KERNELS:
        np.testing.assert_allclose(np.diag(study.covariance(family, np.linspace(-2, 2, 5))), 1.05)
    values = np.concatenate([study.draw(RNG(seed), "sawtooth", "inside").values for seed in range(5)])
    assert 0 <= values.min() < 0.05
    assert 0.95 < values.max() < 1


def test_nobody_beats_the_oracle_on_average():
    tasks = [study.draw(RNG(seed), "eq", "inside") for seed in range(12)]
    gaps = np.array([study.oracle(task) - study.pretrained(task) for task in tasks])
    assert gaps.mean() > 0


def test_published_numbers_stand_beside():
    settings = study.Settings("tiny", 1, ("sawtooth", "mixture"), ("inside",))
    result = study.EXPERIMENT.run(settings, only=["AR ConvCNP (published)", "GNP (published)"])
    assert result.value("sawtooth, inside", "AR ConvCNP (published)", study.METRIC) == 3.62
    assert result.value("mixture, inside", "GNP (published)", study.METRIC) == -0.69
    assert NEURAL_PROCESSES["mixture, extrapolation"]["AR ConvCNP"] == 0.34


def test_the_study_scores_the_regressor_and_the_oracle_on_the_same_tasks():
    result = study.EXPERIMENT.run("smoke")
    assert {(row.case, row.method) for row in result.rows if row.n > 1} == {
        ("eq, inside", "ggp"),
        ("eq, inside", "gp-true"),
        ("sawtooth, inside", "ggp"),
    }
    assert all(np.isfinite(row.value) for row in result.rows)
