"""The paper's form of gGP: its pairs, its loss, and when its training ends."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bieqno.lab.methods import ggp_paper
from bieqno.lab.methods.ggp_paper import PairLoss, PaperTraining, draw_pairs, fit_paper_form
from bieqno.regression.data import Data
from bieqno.regression.trained.loss import Split
from bieqno.regression.trained.process import GeneralizedGaussianProcess

KEY = jax.random.key(0)


def test_the_loss_is_that_of_each_pair_by_itself():
    """Equation 10 by the process itself, given all rows that are not predicted."""
    x, y = jax.random.normal(KEY, (9, 2)), jnp.arange(9.0)
    process = GeneralizedGaussianProcess(2, set_interaction=True, rank=3, width=8, key=KEY)
    chosen = jnp.array([[0, 3, 5, 8], [2, 1, 4, 7]])

    def alone(rows):
        asked = jnp.isin(jnp.arange(9), rows)
        parts = (Data(x, y, jnp.zeros(9), mask) for mask in (asked, ~asked))
        return Split(*parts).negative_log_prob(process)

    expected = np.mean([alone(rows) for rows in chosen])
    assert float(PairLoss(x, y)(process, chosen, key=KEY)) == pytest.approx(expected, rel=1e-5)


def test_pairs_are_different_subsets():
    pairs = draw_pairs(6, PaperTraining(pairs=20, targets=3, epochs=1, halving=1), rng=np.random.default_rng(0))
    assert len({tuple(sorted(row)) for row in pairs.tolist()}) == 20  # all that there are
    assert all(len(set(row)) == 3 for row in pairs.tolist())


@pytest.mark.parametrize("training", [PaperTraining(21, 3, 1, 1), PaperTraining(1, 6, 1, 1)])
def test_too_many_pairs_are_refused(training):
    with pytest.raises(ValueError, match="of 6 rows there are no"):
        draw_pairs(6, training, rng=np.random.default_rng(0))


def test_training_ends_when_its_loss_is_level(monkeypatch):
    """Decided by the training loss alone, after every epoch."""
    seen = []

    def level(losses):
        seen.append(losses.copy())
        return len(losses) == 3

    monkeypatch.setattr(ggp_paper, "levelled", level)
    x = np.linspace(0, 1, 12)[:, None]
    y = np.sin(6 * x[:, 0])
    training = PaperTraining(pairs=64, targets=4, epochs=9, halving=3, shape={"width": 8, "depth": 2, "rank": 2})
    fitted, history = fit_paper_form(x, y, training, points=x, truth=y, values=y, seed=0)
    assert [len(losses) for losses in seen] == [1, 2, 3]
    assert history.shape == (3, 3)
    assert history[2, 1] == pytest.approx(float(np.sqrt(np.mean((fitted.posterior(x).mean - y) ** 2))), rel=1e-4)
