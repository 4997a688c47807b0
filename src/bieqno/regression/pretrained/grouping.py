"""Test points in groups of one size that share a station, so that one decomposition serves a whole group."""

import numpy as np
from jaxtyping import Int

SIZES = (1, 4, 12)
"""Points of a group: each size is a program of its own, and what a group lacks is padding."""

FEW = 1024
"""So many points are as quickly predicted one by one as another program is compiled."""


def group(stations: Int[np.ndarray, "n"], few: int = FEW) -> tuple[Int[np.ndarray, "g"], Int[np.ndarray, "g q"]]:
    """Put points into groups.

    Args:
        stations: the station of each point.
        few: up to so many points are left alone.

    Returns:
        The station of each group, and its points, -1 where there are no more.

    Example:
        >>> own, points = group(np.array([7, 3, 3, 7, 3, 3, 3, 3, 7]), few=0)
        >>> own.tolist(), points.tolist()
        ([3, 3, 7], [[1, 2, 4, 5], [6, 7, -1, -1], [0, 3, 8, -1]])
    """
    order = np.argsort(stations, kind="stable")
    own, first, count = np.unique(stations[order], return_index=True, return_counts=True)
    typical = len(stations) / max(len(own), 1) if len(stations) > few else 1
    size = max(size for size in SIZES if size == 1 or size <= typical)
    groups = -(-count // size)
    begin = np.cumsum(groups) - groups
    which = np.repeat(np.arange(len(own)), count)
    place = np.arange(len(stations)) - first[which]
    points = np.full((groups.sum(), size), -1)
    points[begin[which] + place // size, place % size] = order
    return np.repeat(own, groups), points
