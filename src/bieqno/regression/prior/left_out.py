"""Each observation predicted from the others: what a local process can be judged by without a row to spare."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Int
from scipy.spatial import KDTree

from bieqno.regression.prior.local_process import Stations
from bieqno.regression.prior.neighbourhood import NEIGHBOURS, search_rows

MOST = 2048
"""Observations that are left out in turn; of more, a random choice."""


def leave_out(tree: KDTree, rows: Int[np.ndarray, "n"]) -> Stations:
    """Observations as points to be predicted, each from the station next to it and without itself.

    Only the units of the data set, its noise and the shares of the experts still know of it.

    Args:
        tree: of all observations, at least two.
        rows: the observations to leave out; -1 is the last one.

    Example:
        >>> stations = leave_out(KDTree([[0.0], [1.0], [3.0], [3.5]]), np.array([1, 3]))
        >>> stations.centres.tolist(), stations.rows[:, :4].tolist()
        ([0, 2], [[0, 2, 3, -1], [2, 1, 0, -1]])
    """
    rows = rows % tree.n
    points = tree.data[rows]
    near = _without(tree.query(points, k=2)[1], rows)[:, 0]
    # One more than is needed, for one of them may be left out.
    around = _without(search_rows(tree, tree.data[near], NEIGHBOURS + 1), rows)
    return Stations(jnp.asarray(near), jnp.asarray(around[:, :NEIGHBOURS]), jnp.asarray(points[:, None]))


def _without(found: Int[np.ndarray, "n k"], rows: Int[np.ndarray, "n"]) -> Int[np.ndarray, "n k"]:
    """What was found, in its order, without one row each, in whose place -1 comes last."""
    own = found == rows[:, None]
    order = np.argsort(own, axis=1, kind="stable")
    return np.take_along_axis(np.where(own, -1, found), order, axis=1)


def choose(count: int) -> Int[np.ndarray, "n"]:
    """Which of so many observations to leave out in turn, in random order; none if there is only one."""
    return np.random.default_rng(0).permutation(count)[: MOST if count > 1 else 0]
