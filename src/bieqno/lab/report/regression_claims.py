"""How the claims about regression are judged: by the package's default form, with the paper's own beside it."""

import math
from collections.abc import Callable, Mapping

from bieqno.lab.report.findings import Finding, in_words, row_of, verdict_of
from bieqno.lab.report.html_tables import case_title
from bieqno.lab.report.style import style_of
from bieqno.lab.studies import Result

# The finest wave fills a sixteenth of the square with a mean square of a quarter: who misses it has at least this RMSE.
FINEST_WAVE = math.sqrt(1 / 16 / 4)


def _regression_cases(result: Result) -> list[str]:
    return list(dict.fromkeys(row.case for row in result.rows if row.metric == "rmse"))


def _best_opponent(result: Result, case: str, metric: str) -> str:
    """The tuned process with the lowest score."""
    rows = [row for row in result.select(case=case, metric=metric) if row.method.startswith("gp-")]
    best = min((row for row in rows if row.method != "gp-best"), key=lambda row: row.value)
    return f"best opponent: {style_of(best.method).label}, {best.value:.3f}"


def _in_the_papers_form(result: Result, metrics: Mapping[str, str]) -> list[str]:
    """What the form of the paper, trained on the data alone, comes to; nothing if it was not run.

    It goes first: the default form has learned from random functions before, which the paper's has not.
    """
    said = []
    for metric, name in metrics.items():
        found = {row.case: row.value for row in result.select(method="ggp-paper", metric=metric)}
        theirs = {case: row_of(result, case, "gp-se", metric).value for case in found}
        numbers = ", ".join(f"{found[case]:.3f} against {theirs[case]:.3f}" for case in found)
        wins = sum(found[case] < theirs[case] for case in found)
        if found:
            said.append(f"{name} of gGP trained as in the paper: better in {wins} of {len(found)} ({numbers})")
    return said


def beats_the_process(metrics: Mapping[str, str]) -> Callable[[Result], Finding]:
    """Whether gGP has lower scores than the tuned process with the paper's kernel, in every case and metric."""

    def judge(result: Result) -> Finding:
        wins, said = [], []
        for metric, name in metrics.items():
            for case in _regression_cases(result):
                ours, theirs = (row_of(result, case, method, metric) for method in ("ggp", "gp-se"))
                wins.append(ours.value < theirs.value)
                best = _best_opponent(result, case, metric)
                said.append(f"{name}, {case_title(case)}: {in_words(ours)} against {in_words(theirs)} ({best})")
        verdict, beside = verdict_of(wins), _in_the_papers_form(result, metrics)
        return Finding(verdict, f"better in {sum(wins)} of {len(wins)} comparisons. {said[0]}", [*beside, *said[1:]])

    return judge


def most_with_few(result: Result) -> Finding:
    """Whether the ratio of errors is smaller with 30 observations than with 100."""
    wins, said = [], []
    for layout in dict.fromkeys(case.split("-")[0] for case in _regression_cases(result)):
        few, many = (
            row_of(result, f"{layout}-{m}", "ggp", "rmse").value
            / row_of(result, f"{layout}-{m}", "gp-se", "rmse").value
            for m in (30, 100)
        )
        wins.append(few < min(many, 1))
        said.append(f"{layout} points: RMSE {few:.2f} of the process's with 30 observations, {many:.2f} with 100")
    return Finding(verdict_of(wins), said[0], [*_in_the_papers_form(result, {"rmse": "RMSE"}), *said[1:]])


def finds_the_scales(result: Result) -> Finding:
    """Whether gGP finds the finest waves, and the tuned process does not."""
    wins, said = [], []
    for case in _regression_cases(result):
        ours, theirs = (row_of(result, case, method, "rmse").value for method in ("ggp", "gp-se"))
        wins += [ours < FINEST_WAVE, theirs >= FINEST_WAVE]
        said.append(f"{case_title(case)}: RMSE of gGP {ours:.3f}, of the tuned process {theirs:.3f}")
    said.append(f"Who misses the finest waves has an RMSE of {FINEST_WAVE} or more")
    return Finding(verdict_of(wins), said[0], [*_in_the_papers_form(result, {"rmse": "RMSE"}), *said[1:]])
