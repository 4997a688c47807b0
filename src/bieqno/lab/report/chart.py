"""A figure to explore on the page: what its data look like, and how they are made small.

A chart has views (of which one is picked), and series that belong to a method and perhaps to an ensemble size (picked with a
slider). ``null`` is where a run has diverged.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

# The rest can be switched on; where curves or images would crowd, the paper's two alone come first.
FIRST_SHOWN = ("ggp", "gp-se", "gp-matern12", "EnNF", "EnKF", "LETKF tuned", "ETKF tuned")
PAPERS_TWO = ("ggp", "gp-se", "EnNF", "EnKF")


@dataclass(frozen=True)
class Chart:
    """A figure to explore: its text, the data that the script draws, and the names of the figures that stand for it in print."""

    name: str
    title: str
    caption: str
    data: dict[str, Any]
    static: tuple[str, ...]


def plot_data(views: dict[str, Any], x: str, y: str, limits: list[float] | None = None, **more: Any) -> dict[str, Any]:
    """The data of lines over two axes."""
    return {"kind": "plot", "x": {"label": x}, "y": {"label": y, "limits": limits}, "views": views, **more}


def thin(count: int, most: int) -> np.ndarray:
    """Indices of at most about `most` of `count` places, the first and the last among them."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int))


def short(values: np.ndarray, digits: int = 4) -> list[float | None]:
    """Numbers with few digits, in one list; None for what is not finite."""
    return [float(f"{value:.{digits}g}") if np.isfinite(value) else None for value in np.ravel(values).tolist()]
