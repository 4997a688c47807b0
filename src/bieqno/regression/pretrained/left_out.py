"""Each observation predicted from the others: what a local process can be judged by without a row to spare."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Int
from scipy.spatial import KDTree

from bieqno.regression.pretrained.local_process import Stations
from bieqno.regression.pretrained.neighbourhood import NEIGHBOURS, search_rows

MOST = 2048
"""Observations that are left out in turn; of more, a random choice."""


def leave_out(tree: KDTree, rows: Int[np.ndarray, "n"]) -> Stations:
    """Observations as points to be predicted, each from the station next to it and without itself.

    Only the units of the data set, its noise, the shares of the experts and, as it is one of the observations that others are
    predicted from, the trust in the network still know of it.

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


def judges(
    tree: KDTree,
    judged: Int[np.ndarray, "j"],
    centres: Int[np.ndarray, "n"],
    without: Int[np.ndarray, "n"] | None = None,
) -> Int[np.ndarray, "n k"]:
    """The nearest round each station of the observations that were left out once, -1 where there are no more.

    Args:
        tree: of all observations.
        judged: those that were left out.
        centres: of the stations.
        without: an observation for each station that is not to be among them.

    Example:
        >>> tree = KDTree([[0.0], [1.0], [3.0], [3.5]])
        >>> judges(tree, np.array([3, 0]), np.array([1, 2]))[:, :3].tolist()
        [[0, 3, -1], [3, 0, -1]]
        >>> judges(tree, np.array([3, 0]), np.array([1, 2]), without=np.array([0, 0]))[:, :3].tolist()
        [[3, -1, -1], [3, -1, -1]]
    """
    if not len(judged):
        return np.full((len(centres), NEIGHBOURS), -1)
    near = search_rows(KDTree(tree.data[judged]), tree.data[centres], NEIGHBOURS + 1)
    rows = np.where(near >= 0, judged[near], -1)
    return (rows if without is None else _without(rows, without))[:, :NEIGHBOURS]


def _without(found: Int[np.ndarray, "n k"], rows: Int[np.ndarray, "n"]) -> Int[np.ndarray, "n k"]:
    """What was found, in its order, without one row each, in whose place -1 comes last."""
    own = found == rows[:, None]
    order = np.argsort(own, axis=1, kind="stable")
    return np.take_along_axis(np.where(own, -1, found), order, axis=1)


def choose(count: int) -> Int[np.ndarray, "n"]:
    """Which of so many observations to leave out in turn, in random order; none if there is only one."""
    return np.random.default_rng(0).permutation(count)[: MOST if count > 1 else 0]
