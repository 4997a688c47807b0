"""The static figures of a result, their names in its folder, and the texts of all figures on the page."""

import json

from matplotlib.figure import Figure

from bieqno.lab.report.filter_figures import filter_figures
from bieqno.lab.report.pivots import of_filters
from bieqno.lab.report.regression_figures import regression_figures
from bieqno.lab.report.style import asset
from bieqno.lab.results import Result


def study_figures(result: Result) -> dict[str, Figure]:
    """Return all figures of a result by name; those of a study that it took over begin with that study's name."""
    return {
        figure_name(result, name, figure): image
        for name, part in result.parts().items()
        for figure, image in (filter_figures if of_filters(part) else regression_figures)(part).items()
    }


def figure_name(result: Result, part: str, figure: str) -> str:
    """Return the name under which the figure of a part is stored."""
    return figure if part == result.experiment else f"{part}-{figure}"


def title_and_caption(figure: str) -> tuple[str, str]:
    """Return the texts of a figure, by the first word of its name; of an unknown one the name itself."""
    title, caption = json.loads(asset("figures.json")).get(figure.split("-")[0], (figure, figure))
    return title, caption
