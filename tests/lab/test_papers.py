"""The short version of `make validate`: a few cases, short series, wide margins."""

import jax
import numpy as np
import pytest

from bieqno.lab.papers import paper_lorenz63, paper_lorenz96, paper_score, published_scores, score

# Settings that the long run finds; the short one need not tune.
SETTINGS = {
    "ETKF N=24": {"inflation": 1.02},
    "EnKF N=40": {"inflation": 1.06},
    "LETKF N=7": {"inflation": 1.04, "radius": 14.5},
    "iterative EnKF N=10": {"inflation": 1.02},
}


@pytest.mark.parametrize("case", [c for c in published_scores() if c.method in SETTINGS], ids=lambda c: c.method)
def test_published_scores(case):
    trials = case.trials(400, 2, key=jax.random.key(11))
    errors = score(case.build(**SETTINGS[case.method]), case.system, trials, burn_in=100, key=jax.random.key(1))
    # Two truths of 300 windows scatter by some 5 % of the score; the long run has the published tolerance.
    assert np.isfinite(errors).all()
    assert abs(errors.mean() - case.expected) < 0.15 * case.expected


def test_the_papers_enkf_on_lorenz63_needs_members():
    few, many = (paper_score(paper_lorenz63(), members, runs=5, key=jax.random.key(3)) for members in (2, 50))
    # The paper's curve falls from 0.65 to 0.06; five runs scatter by about a tenth of the first and half the second.
    assert 0.5 < few.mean() < 0.85
    assert np.median(many) < 0.12


def test_the_papers_enkf_on_lorenz96_diverges_when_small():
    errors = paper_score(paper_lorenz96(), 8, runs=5, key=jax.random.key(3))
    assert not (errors < 1).any()
