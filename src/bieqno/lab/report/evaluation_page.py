"""The page of ``bieqno evaluate``: which method predicts the held-out rows of a table best, and whether it is calibrated."""

import numpy as np
from matplotlib.figure import Figure

from bieqno.lab.report.markup import drawing, plain_page, table
from bieqno.lab.report.regression_figures import draw_reliability
from bieqno.lab.report.style import style_of
from bieqno.lab.user_comparisons import LEVELS, Evaluation

_SCORES = {"rmse": "RMSE", "nlpd": "NLPD", "crps": "CRPS"}
_CALIBRATION = (
    "Share of held-out values inside central intervals against the nominal coverage. Below the diagonal a method is "
    "overconfident, above it underconfident. The grey band is two standard errors of a calibrated method."
)


def evaluation_page(found: Evaluation, *, source: str, target: str, inputs: list[str], command: str) -> str:
    """Return one self-contained page."""
    scores = f"{source}: trained on {found.trained} rows, scored on {len(found.observed)} others."
    scatter = "Held-out values against their predicted mean, with bars of two standard deviations."
    parts = {
        "scores": table(*score_rows(found), caption=scores),
        "calibration": drawing(_calibration(found), caption=_CALIBRATION),
        "scatter": drawing(_scatter(found), caption=scatter),
    }
    title = f"How well is {target} predicted from {', '.join(inputs)}?"
    return plain_page("evaluation.html", title, parts, verdict=verdict(found), command=command)


def verdict(found: Evaluation) -> str:
    """Return the comparison with the chosen Gaussian process in a sentence."""
    gap = found.difference()
    by, error = gap["crps"], gap["crps_stderr"]
    ours, theirs = style_of("ggp").label, style_of(found.opponent).label
    if abs(by) <= 2 * error:
        said = f"do not differ significantly: difference in CRPS {by:+.3g} ± {error:.2g}"
    else:
        said = f"differ: the CRPS of the {ours} is {'lower' if by < 0 else 'higher'} by {abs(by):.3g} ± {error:.2g}"
    return f"On {len(found.observed)} held-out rows {ours} and the best Gaussian process ({theirs}) {said}."


def score_rows(found: Evaluation) -> tuple[list[str], list[list[str]], list[tuple[int, int]]]:
    """Return headings, rows and the best cells of the table of scores."""
    scores = {name: found.scores(name) for name in found.forecasts}
    coverages = [key for key in next(iter(scores.values())) if key.startswith("coverage")]
    headings = ["method", *_SCORES.values(), *(f"{key.removeprefix('coverage_')} %" for key in coverages), "seconds"]
    rows = []
    for name, own in scores.items():
        label = style_of(name).label + (" *" if name == found.opponent else "")
        errors = {key: f" ± {own[f'{key}_stderr']:.2g}" for key in _SCORES if f"{key}_stderr" in own}
        values = [f"{own[key]:.3g}{errors.get(key, '')}" for key in _SCORES]
        rows.append([label, *values, *(f"{own[key]:.2f}" for key in coverages), f"{own['seconds']:.1f}"])
    best = [(int(np.argmin([own[key] for own in scores.values()])), 1 + j) for j, key in enumerate(_SCORES)]
    return headings, rows, best


def _calibration(found: Evaluation) -> Figure:
    figure = Figure(figsize=(6.6, 4.2), layout="constrained")
    axes = figure.subplots()
    error = 2 * np.sqrt(LEVELS * (1 - LEVELS) / len(found.observed))
    axes.fill_between(LEVELS, LEVELS - error, LEVELS + error, color="0.88", linewidth=0, label="two standard errors")
    draw_reliability(axes, LEVELS, {name: found.reliability(name) for name in found.forecasts})
    figure.legend(loc="outside right center", frameon=False, fontsize=9)
    return figure


def _scatter(found: Evaluation) -> Figure:
    shown = ["ggp", found.opponent]
    figure = Figure(figsize=(8.4, 4.0), layout="constrained")
    panels = figure.subplots(1, len(shown), sharex=True, sharey=True)
    ends = [float(np.min(found.observed)), float(np.max(found.observed))]
    part = slice(0, 300)  # more bars would be illegible, and the page large
    for axes, name in zip(panels, shown, strict=True):
        forecast, style = found.forecasts[name], style_of(name)
        axes.plot(ends, ends, color="black", linewidth=0.8)
        look = {"fmt": style.marker, "color": style.color, "markersize": 4, "elinewidth": 0.6, "alpha": 0.8}
        axes.errorbar(forecast.mean[part], found.observed[part], xerr=2 * forecast.std[part], **look)
        axes.set(title=style.label, xlabel="predicted")
    panels[0].set_ylabel("observed")
    return figure
