"""Leave-one-out: each observation predicted from the others decides how far the correction is used.

What was learned from many functions is wrong about some. Each observation is predicted from the others with the correction and
without it; the difference of the log-densities is its log Bayes factor. The posterior odds of the correction at a centre,
its prior odds times the Bayes factors of the nearest observations that were left out, weigh the mixture of both predictions.
"""

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.spatial import KDTree
from scipy.special import expit

from bieqno.regression.pretrained.mixture import Pair
from bieqno.regression.pretrained.neighbours import NEIGHBOURS, search_rows

MOST_ROWS = 1024  # observations that are left out in turn; of more, a random choice
PRIOR_LOG_ODDS = 2.0  # of the correction: seven to one, for it was trained to be the better one
_MOST_AT_A_PLACE = 16  # observations at one place that are left out together
MOST_LOG_BAYES_FACTOR = 3.0
"""No observation alone counts for more: next to a jump that nothing announced, densities differ without bound."""


def choose_rows(count: int, seed: int) -> Int[np.ndarray, "n"]:
    """Choose which of so many observations to leave out in turn, in random order; none if there is only one."""
    return np.random.default_rng(seed).permutation(count)[: MOST_ROWS if count > 1 else 0]


def leave_out(tree: KDTree, rows: Int[np.ndarray, "n"]) -> tuple[Int[np.ndarray, "n"], Int[np.ndarray, "n k"]]:
    """Return the centre of each row among the observations at other places, and the neighbours of that centre likewise.

    Observations at the place of the row are left out with it: they would tell its value. The units of the data set, its noise
    and the prior weights of the experts still know of the row.

    Example:
        >>> centres, around = leave_out(KDTree([[0.0], [1.0], [3.0], [3.5], [3.5]]), np.array([1, 3]))
        >>> centres.tolist(), around[:, :2].tolist()
        ([0, 2], [[0, 2], [2, 1]])
    """
    rows = rows % tree.n
    own, nearest = tree.data[rows], search_rows(tree, tree.data[rows], _MOST_AT_A_PLACE)
    apart = (nearest >= 0) & np.any(tree.data[nearest] != own[:, None], axis=2)
    # Where all that are near lie at the place itself, the row alone is left out.
    apart = np.where(apart.any(axis=1, keepdims=True), apart, (nearest >= 0) & (nearest != rows[:, None]))
    centres = np.take_along_axis(nearest, np.argmax(apart, axis=1)[:, None], axis=1)[:, 0]
    around = search_rows(tree, tree.data[centres], NEIGHBOURS + _MOST_AT_A_PLACE)
    same = np.all(tree.data[around] == own[:, None], axis=2) & (np.any(tree.data[centres] != own, axis=1))[:, None]
    return centres, _without_those(around, same | (around == rows[:, None]))[:, :NEIGHBOURS]


def left_out_neighbours(
    tree: KDTree,
    left_out: Int[np.ndarray, "j"],
    places: Float[np.ndarray, "n d"],
    without: Int[np.ndarray, "n"] | None = None,
) -> Int[np.ndarray, "n k"]:
    """Return the nearest of the rows `left_out`, whose `tree` is given, round each place, but one row `without`; padded by -1.

    Example:
        >>> tree, places = KDTree([[3.5], [0.0]]), np.array([[1.0], [3.0]])
        >>> left_out_neighbours(tree, np.array([3, 0]), places)[:, :3].tolist()
        [[0, 3, -1], [3, 0, -1]]
        >>> left_out_neighbours(tree, np.array([3, 0]), places, without=np.array([0, 0]))[:, :3].tolist()
        [[3, -1, -1], [3, -1, -1]]
    """
    near = search_rows(tree, places, NEIGHBOURS + 1)
    rows = np.where(near >= 0, left_out[near], -1)
    return (rows if without is None else _without_those(rows, rows == without[:, None]))[:, :NEIGHBOURS]


def log_bayes_factors(values: Float[np.ndarray, "n"], pair: Pair) -> Float[np.ndarray, "n"]:
    """Return by how much the correction raises the log-density of each value that was left out, within bounds.

    Example:
        >>> from bieqno.regression.pretrained.mixture import Moments
        >>> pair = Pair(Moments(np.zeros(2), np.full(2, 0.1)), Moments(np.zeros(2), np.ones(2)))
        >>> log_bayes_factors(np.array([0.1, 2.0]), pair).round(2).tolist()
        [1.11, -3.0]
    """
    corrected, experts = (-0.5 * (np.log(variance) + (values - mean) ** 2 / variance) for mean, variance in pair)
    return np.clip(corrected - experts, -MOST_LOG_BAYES_FACTOR, MOST_LOG_BAYES_FACTOR)


def correction_weight(factors: Float[np.ndarray, "m"], rows: Int[np.ndarray, "s k"]) -> Float[np.ndarray, "s"]:
    """Return the posterior probability of the correction, given the log Bayes factors of some rows, padded by -1.

    Example:
        >>> correction_weight(np.array([1.0, -5.0, 0.0]), np.array([[0, 1], [2, -1]])).round(2).tolist()
        [0.12, 0.88]
    """
    return expit(PRIOR_LOG_ODDS + np.sum(np.where(rows >= 0, factors[rows], 0), axis=-1))


def _without_those(found: Int[np.ndarray, "n k"], own: Bool[np.ndarray, "n k"]) -> Int[np.ndarray, "n k"]:
    """Take rows out of what was found, keeping the order; -1 comes last in their place."""
    order = np.argsort(own | (found < 0), axis=1, kind="stable")
    return np.take_along_axis(np.where(own, -1, found), order, axis=1)
