"""The examples run, and a fraction of their training already brings them most of the way to exact Bayes."""

import importlib.util
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def load(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.long
def test_prior_to_posterior():
    """A fortieth of the training takes a third of the divergence from the exact posterior, on sizes never seen too."""
    example = load("prior_to_posterior")
    example.BATCH = 16
    operator = example.train(steps=400)
    for samples, observations in [(24, 6), (512, 6)]:
        before, after, exact = example.evaluate(operator, samples, observations)
        assert exact < after < 0.67 * before


@pytest.mark.long
def test_coordinates_to_distribution():
    """After a tenth of the training the learned posterior beats the exact prior, and cannot beat the exact posterior."""
    example = load("coordinates_to_distribution")
    operator = example.train(steps=300)
    for points, observations in [(24, 16), (50, 24)]:
        prior, learned, exact = example.evaluate(operator, points, observations)
        assert learned < exact
        if points == example.POINTS:
            assert learned > prior
