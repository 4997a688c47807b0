"""How well rows that were held out were predicted: what a fit says about itself."""

from collections.abc import Mapping, Sequence

import equinox as eqx
import numpy as np
from jaxtyping import Float

from bieqno.regression import metrics
from bieqno.regression.trained.splits import RIGHT_ERRORS

PIT_BINS = 10
_ROUNDS = 100
"""Of finding a factor by which deviations and their bound are measured alike."""
_COVERAGES = tuple(f"coverage_{level * 100:g}" for level in metrics.COVERAGE_LEVELS)


class HeldOut(eqx.Module):
    """Predictions of rows that they did not know, in scaled units.

    Attributes:
        error: value minus mean.
        std: standard deviation.
    """

    error: Float[np.ndarray, "n"]
    std: Float[np.ndarray, "n"]

    def __check_init__(self) -> None:
        if self.error.ndim != 1 or self.error.shape != self.std.shape:
            raise ValueError(f"errors of shape {self.error.shape} do not go with deviations of {self.std.shape}")

    @classmethod
    def none(cls) -> "HeldOut":
        """Of no rows."""
        return cls(np.zeros(0), np.zeros(0))

    def log_losses(self) -> Float[np.ndarray, "n"]:
        """Negative log-density of each row, in scaled units.

        Example:
            >>> HeldOut(np.array([0.0, 1.0]), np.ones(2)).log_losses().round(2).tolist()
            [0.92, 1.42]
        """
        return 0.5 * (np.log(2 * np.pi * self.std**2) + (self.error / self.std) ** 2)

    def widening(self) -> float:
        """The factor of the variance, at least one, that the errors ask for: their mean square, with a few right ones.

        None counts for more than five widened deviations, so that one wild value among many does not blur all predictions.

        Example:
            >>> errors = np.random.default_rng(0).normal(size=100)
            >>> round(HeldOut(3 * errors, np.ones(100)).widening(), 1)
            8.0
            >>> round(HeldOut(np.append(errors, 1e6), np.ones(101)).widening(), 1)
            1.2
        """
        squares, factor = (self.error / self.std) ** 2, np.inf
        for _ in range(_ROUNDS):
            factor = (np.sum(np.minimum(squares, 25 * factor)) + RIGHT_ERRORS) / (len(squares) + RIGHT_ERRORS)
        return max(float(factor), 1.0)

    def scores(self, unit: float = 1.0) -> dict[str, np.ndarray]:
        """What a unit of these makes in the units of the data, and the scores there.

        Example:
            >>> errors = np.random.default_rng(0).normal(size=1000)
            >>> found = HeldOut(errors, np.ones(1000)).scores()
            >>> float(found["rows"]), float(found["coverage_95"]), found["pit"].shape
            (1000.0, 0.96, (10,))
        """
        mean, std, error = np.zeros(len(self.error)), self.std * unit, self.error * unit
        names = ["rmse", "nlpd", *_COVERAGES]
        if not len(error):
            return {"rows": np.zeros(()), **{name: np.asarray(np.nan) for name in names}, "pit": np.zeros(PIT_BINS)}
        scores = metrics.scores(mean, std, truth=error, values=error, noise=None)
        found = {"rows": np.asarray(float(len(error)))} | {name: np.asarray(scores[name]) for name in names}
        return found | {"pit": metrics.pit(mean, std, error, PIT_BINS)}


def stacked(scores: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """The scores of several outputs by their names, one row an output."""
    return {name: np.stack([own[name] for own in scores]) for name in scores[0]}


def as_text(scores: Mapping[str, np.ndarray], names: Sequence[str]) -> str:
    """A table of `stacked` scores, for the outputs of these names.

    Example:
        >>> print(as_text(stacked([HeldOut(np.array([0.1, -0.2, 0.3]), np.full(3, 0.2)).scores()]), ["y"]))
           rows   RMSE    NLPD  50 %  90 %  95 %  PIT, % in tenths
        y     3  0.216  -0.107    33   100   100  0 33 0 0 0 0 33 0 0 33
    """
    rows = [["", "rows", "RMSE", "NLPD", *(f"{name.removeprefix('coverage_')} %" for name in _COVERAGES)]]
    for i, name in enumerate(names):
        exact = [f"{scores['rows'][i]:.0f}", f"{scores['rmse'][i]:.3g}", f"{scores['nlpd'][i]:.3g}"]
        rows.append([name, *exact, *(f"{100 * scores[level][i]:.0f}" for level in _COVERAGES)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    last = ["PIT, % in tenths", *(" ".join(f"{100 * share:.0f}" for share in own) for own in scores["pit"])]
    return "\n".join(
        "  ".join([row[0].ljust(widths[0]), *(map(str.rjust, row[1:], widths[1:])), end])
        for row, end in zip(rows, last, strict=True)
    )
