"""Which figures and tables a result has: those of regression, of filters, or of the studies that it took over."""

from matplotlib.figure import Figure
from rich.table import Table

from bieqno.lab.report.filter_figures import filter_figures
from bieqno.lab.report.filter_tables import filter_tables
from bieqno.lab.report.regression_figures import regression_figures
from bieqno.lab.report.tables import tables
from bieqno.lab.studies import Result


def of_filters(result: Result) -> bool:
    """Whether filters were compared."""
    return any(row.protocol for row in result.rows)


def study_figures(result: Result) -> dict[str, Figure]:
    """All figures of a result by name; those of a part have its name first."""
    parts = result.parts()
    figures: dict[str, Figure] = {}
    for name, part in parts.items():
        figures |= {figure_name(result, name, figure): image for figure, image in _figures_of(part).items()}
    return figures


def _figures_of(part: Result) -> dict[str, Figure]:
    return filter_figures(part) if of_filters(part) else regression_figures(part)


def figure_name(result: Result, part: str, figure: str) -> str:
    """The name under which the figure of a part is stored."""
    return figure if part == result.experiment else f"{part}-{figure}"


def study_tables(result: Result) -> list[Table]:
    """All tables of a result for a terminal."""
    return [
        table for part in result.parts().values() for table in (filter_tables if of_filters(part) else tables)(part)
    ]
