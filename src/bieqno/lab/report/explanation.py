"""A picture of an explained analysis: what each observation moved each variable by, beside innovations and increments."""

import io

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from bieqno.assimilation import Explanation


def explanation_picture(found: Explanation, *, title: str) -> bytes:
    """Return a PNG: contributions as a map of variables and observations, with the sums along both sides."""
    parts, increment, innovation = (
        np.asarray(part) for part in (found.contribution, found.increment, found.innovation)
    )
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplot_mosaic([["innovation", "."], ["map", "increment"]], width_ratios=(4, 1), height_ratios=(1, 4))
    bound = float(np.abs(parts).max(initial=0)) or 1.0
    shown = axes["map"].imshow(
        parts, aspect="auto", cmap=matplotlib.colormaps["RdBu_r"], vmin=-bound, vmax=bound, interpolation="nearest"
    )
    axes["map"].set(xlabel="observation", ylabel="variable")
    figure.colorbar(shown, ax=axes["map"], label="contribution", location="left")
    axes["innovation"].bar(np.arange(len(innovation)), innovation, color="0.4")
    axes["innovation"].set(ylabel="innovation", xlim=(-0.5, len(innovation) - 0.5), title=title)
    axes["increment"].barh(np.arange(len(increment)), increment, color="0.4")
    axes["increment"].set(xlabel="increment", ylim=(len(increment) - 0.5, -0.5))
    stream = io.BytesIO()
    figure.savefig(stream, dpi=120)
    return stream.getvalue()
