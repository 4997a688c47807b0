"""The page of ``bieqno evaluate``: who predicts the held-out rows of a table best, and whose spread is honest."""

import numpy as np
from matplotlib.figure import Figure

from bieqno.lab.evaluation import LEVELS, Evaluation
from bieqno.lab.report.plain_page import drawing, heading, paragraph, plain_page, table, verbatim
from bieqno.lab.report.style import style_of

_SCORES = {"rmse": "RMSE", "nlpd": "NLPD", "crps": "CRPS"}


def own_data_page(found: Evaluation, *, source: str, target: str, inputs: list[str], command: str) -> str:
    """One self-contained page."""
    return plain_page(
        f"How well is {target} predicted from {', '.join(inputs)}?",
        [
            paragraph(verdict(found)),
            heading("Scores on held-out rows"),
            _table(found, f"{source}: learned from {found.trained} rows, scored on {len(found.observed)} others."),
            paragraph(
                "RMSE: error of the mean. NLPD: negative log-density of what came, CRPS: distance of the predicted "
                "distribution from what came; both ± their standard error. For all three less is better. The columns in "
                "per cent give the share of values inside intervals that promise so much. * is the Gaussian process "
                "(GP) with the highest marginal likelihood, the one that one would choose without the held-out rows; the "
                "noise of all is learned. gGP is bieqno's regressor."
            ),
            heading("Is the stated uncertainty honest?"),
            drawing(
                _calibration(found),
                caption="Share of held-out values inside central intervals against the share promised. On the diagonal "
                "the spread is honest; below it the method is too sure of itself, above it too careful. The grey band is what "
                "chance allows with so many rows.",
            ),
            heading("Predicted and observed"),
            drawing(
                _scatter(found),
                caption="Held-out values against their predicted mean, with bars of two standard deviations.",
            ),
            heading("Made by"),
            verbatim(command),
        ],
    )


def verdict(found: Evaluation) -> str:
    """The comparison with the chosen Gaussian process in a sentence."""
    gap = found.difference()
    by, error = gap["crps"], gap["crps_stderr"]
    ours, theirs = style_of("ggp").label, style_of(found.opponent).label
    if abs(by) <= 2 * error:
        said = f"do not differ by more than chance allows: CRPS {by:+.3g} ± {error:.2g}"
    else:
        said = f"differ: the CRPS of the {ours} is {'lower' if by < 0 else 'higher'} by {abs(by):.3g} ± {error:.2g}"
    return f"On {len(found.observed)} held-out rows {ours} and the best Gaussian process ({theirs}) {said}."


def score_rows(found: Evaluation) -> tuple[list[str], list[list[str]], list[tuple[int, int]]]:
    """Headings, rows and the best cells of the table of scores."""
    names = list(found.forecasts)
    scores = {name: found.scores(name) for name in names}
    coverages = [key for key in scores[names[0]] if key.startswith("coverage")]
    headings = ["method", *_SCORES.values(), *(f"{key.removeprefix('coverage_')} %" for key in coverages), "seconds"]
    rows = []
    for name in names:
        found_here = scores[name]
        errors = {key: f" ± {found_here[f'{key}_stderr']:.2g}" for key in _SCORES if f"{key}_stderr" in found_here}
        rows.append([
            style_of(name).label + (" *" if name == found.opponent else ""),
            *(f"{found_here[key]:.3g}{errors.get(key, '')}" for key in _SCORES),
            *(f"{found_here[key]:.2f}" for key in coverages),
            f"{found_here['seconds']:.1f}",
        ])  # fmt: skip
    best = [(int(np.argmin([scores[name][key] for name in names])), 1 + j) for j, key in enumerate(_SCORES)]
    return headings, rows, best


def _table(found: Evaluation, caption: str) -> str:
    headings, rows, best = score_rows(found)
    return table(headings, rows, caption=caption, best=best)


def _calibration(found: Evaluation) -> Figure:
    figure = Figure(figsize=(6.6, 4.2), layout="constrained")
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], color="black", linewidth=0.8)
    chance = 2 * np.sqrt(LEVELS * (1 - LEVELS) / len(found.observed))  # two standard errors of a share
    axes.fill_between(LEVELS, LEVELS - chance, LEVELS + chance, color="0.88", linewidth=0, label="chance")
    for name in found.forecasts:
        style = style_of(name)
        axes.plot(
            LEVELS, found.reliability(name), color=style.color, linestyle=style.line, marker=style.marker,
            markersize=4, markevery=3, linewidth=1.3, label=style.label,
        )  # fmt: skip
    axes.set(xlim=(0, 1), ylim=(0, 1.02), aspect="equal", xlabel="promised", ylabel="found")
    figure.legend(loc="outside right center", frameon=False, fontsize=9)
    return figure


def _scatter(found: Evaluation) -> Figure:
    shown = ["ggp", found.opponent]
    figure = Figure(figsize=(8.4, 4.0), layout="constrained")
    panels = figure.subplots(1, len(shown), sharex=True, sharey=True)
    ends = [float(np.min(found.observed)), float(np.max(found.observed))]
    # Many bars make a black field, and a page of many megabytes.
    part = slice(0, 300)
    for axes, name in zip(panels, shown, strict=True):
        forecast, style = found.forecasts[name], style_of(name)
        axes.plot(ends, ends, color="black", linewidth=0.8)
        axes.errorbar(
            forecast.mean[part], found.observed[part], xerr=2 * forecast.std[part], fmt=style.marker,
            color=style.color, markersize=4, elinewidth=0.6, alpha=0.8,
        )  # fmt: skip
        axes.set(title=style.label, xlabel="predicted")
    panels[0].set_ylabel("observed")
    return figure
