"""Pictures of a square domain at some times of a run: truth, analysis mean and spread, for the figures of a study."""

from collections.abc import Sequence

import numpy as np
import xarray as xr

from bieqno.lab.compare import Arrays, Method, Outcome
from bieqno.lab.methods.filters import TwinTest, entry_labels

PICTURE = "picture"
TIMES, POINTS = 9, 33  # at most so many times, and points a side: a page holds the numbers of all
_SHOWN = ("truth", "mean", "spread")


def pictured(method: Method[TwinTest], side: int) -> Method[TwinTest]:
    """Return a method that also keeps pictures of its first run, of windows and grid points that are evenly spaced."""

    def run(test: TwinTest) -> Arrays:
        found = dict(method.run(test))
        series = np.stack([np.asarray(test.trials.twins.truth)[0], *(found[name][0] for name in _SHOWN[1:])])
        windows, points = _spaced(series.shape[1], TIMES), _spaced(side, POINTS)
        squares = series[:, windows].reshape(len(_SHOWN), len(windows), side, side)
        return {**found, PICTURE: squares[:, :, points][..., points]}

    return Method(method.name, run)


def fields(outcomes: Sequence[Outcome[TwinTest]], windows: int, side: int) -> xr.Dataset:
    """Return the pictures of all methods, each with the number of its window and its places on the grid."""
    kept = np.stack([outcome.kept[0][PICTURE] for outcome in outcomes])
    places = _spaced(side, POINTS)
    labels = {**entry_labels(outcomes), "window": _spaced(windows, TIMES) + 1, "y": places, "x": places}
    axes = ("entry", "window", "y", "x")
    return xr.Dataset({name: (axes, kept[:, k]) for k, name in enumerate(_SHOWN)}, labels)


def _spaced(count: int, most: int) -> np.ndarray:
    """Return at most so many numbers, evenly spaced, with the last."""
    step = -(-count // most)
    return np.arange(count - 1, -1, -step)[::-1]
