"""Figures and pages from stored results."""

from bieqno.lab.report.run_figures import plot_rank_histogram, plot_run, plot_spread_error

__all__ = ["plot_rank_histogram", "plot_run", "plot_spread_error"]
