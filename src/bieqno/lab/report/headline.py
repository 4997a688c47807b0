"""The first screen: one figure and its summary for filters, and one for regression, computed from the results.

"Ours" are the methods that the package trains; the paper's own forms are scored among the claims. In each case the best of ours
is compared with the best tuned opponent, on data that no method was trained or tuned on. Diverged runs count before the error.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from bieqno.lab.methods import boosting
from bieqno.lab.report import pivots
from bieqno.lab.report.charts import Chart
from bieqno.lab.report.claims import SMOKE
from bieqno.lab.report.filter_charts import errors
from bieqno.lab.report.regression_charts import bands
from bieqno.lab.report.style import style_of
from bieqno.lab.results import Result, Row
from bieqno.lab.studies import EXPERIMENTS

_STEP = "step-1d"
_NOT_TUNED = ("gp-best", "gp-true", "gp-paper")  # the row of another, an oracle, and a process with one start only
_TREES = ("trees", *boosting.METHODS)
_ORACLES = ("particle filter", "Kalman filter, exact", "limit", "ggp-known-noise")
_NEITHER = ("baseline", "EnKF", "teacher", *_ORACLES)


class Duel(NamedTuple):
    """The best of ours and the best tuned opponent in one case of a study."""

    study: str
    case: str
    metric: str
    ours: Row
    theirs: Row

    @property
    def won(self) -> bool:
        """Return whether ours is better."""
        return _rank(self.ours) < _rank(self.theirs)

    @property
    def equal(self) -> bool:
        """Return whether the two are within two standard errors of their difference, with as many diverged runs."""
        spread = math.hypot(self.ours.stderr or 0.0, self.theirs.stderr or 0.0)
        return math.isfinite(self.change) and abs(self.ours.value - self.theirs.value) <= 2 * spread

    @property
    def change(self) -> float:
        """Return our error relative to theirs, less one; without bound where diverged runs decide."""
        if (self.ours.diverged or 0) != (self.theirs.diverged or 0):
            return -math.inf if self.won else math.inf
        return self.ours.value / self.theirs.value - 1

    def __str__(self) -> str:
        ours, theirs = (style_of(row.method).label for row in (self.ours, self.theirs))
        if not math.isfinite(self.change):
            lost = f"{ours} has {self.ours.diverged or 0} diverged runs, {theirs} {self.theirs.diverged or 0}"
            return f"{lost} ({self.case})"
        relation = f"{1 + self.change:.1f} times" if self.change > 1 else f"{_percent(self)} than"
        return f"the {self.metric} of {ours} is {relation} that of {theirs} ({self.case})"


class Headline(NamedTuple):
    """What the first screen says and shows of filters or of regression; the study may be a part of another result."""

    title: str
    sentence: str
    rest: str
    losses: Sequence[str]
    study: str
    chart: Chart | None


def headlines(results: Iterable[Result]) -> Iterator[Headline]:
    """Yield what can be said of filters and of regression; nothing of a half that met no tuned opponent."""
    ordered = sorted(results, key=lambda result: (result.preset == SMOKE, list(result.parts()) != [result.experiment]))
    studies: dict[str, Result] = {}
    for result in ordered:
        for name, part in result.parts().items():
            studies.setdefault(name, part)
    duels = {name: list(_filter_duels(part)) for name, part in studies.items() if pivots.protocols(part)}
    if any(duels.values()):
        first = max((name for name in duels if duels[name]), key=lambda name: _breadth(studies[name]))
        chart = errors(studies[first], [_unseen(studies[first])[0].protocol or ""], 340)
        half = _headline("Filters", first, duels, chart)
        published = list(_filter_duels(studies[first], _published))
        yield half._replace(sentence=half.sentence + _beside_published(published))
    rest = {name: part for name, part in studies.items() if not pivots.protocols(part)}
    # Real records are scored by what filters predict, beside other predictions; they are no regression.
    duels = {name: list(_regression_duels(part)) for name, part in rest.items() if not part.select(metric="calibrated")}
    if any(duels.values()):
        first = _STEP if duels.get(_STEP) else max(duels, key=lambda name: len(duels[name]))
        yield _headline("Regression", first, duels, _step(studies[first], duels[first][0]))


def _headline(title: str, first: str, duels: Mapping[str, Sequence[Duel]], chart: Chart | None) -> Headline:
    every = [duel for each in duels.values() for duel in each]
    own = sorted((duel for duel in duels[first] if duel.metric == duels[first][0].metric), key=_gain)
    about = _title(first)
    clear = [duel for duel in own if duel.won and math.isfinite(duel.change)]
    if clear:
        ends = [f"{-100 * duel.change:.0f} % ({duel.case})" for duel in (clear[-1], clear[0])]
        names, others = (_names(rows) for rows in zip(*((duel.ours, duel.theirs) for duel in clear), strict=True))
        best = f"the best tuned opponent ({others})"
        said = f"the {own[0].metric} of {names} is {' to '.join(dict.fromkeys(ends))} lower than that of {best}"
    else:
        said = str(own[0])
    if not own[-1].won and own[-1] is not own[0]:
        said += f"; it loses {sum(not duel.won for duel in own)} of {len(own)}, at worst {own[-1]}"
    equal, worst = sum(duel.equal for duel in every), max(every, key=_gain)
    won = sum(duel.won and not duel.equal for duel in every)
    rest = f"In all {len(every)} cases, each against the best tuned opponent: {won} won, "
    rest += f"{equal} tied (within two standard errors), {len(every) - won - equal} lost."
    if equal and won + equal == len(every) and not worst.won:
        rest += f" The least favourable tie: {worst}, in {worst.study}."
    if alone := [name for name, each in duels.items() if not each]:
        rest += f" Without a tuned opponent, so not counted: {', '.join(alone)}."
    return Headline(title, f"{about}: {said}.", rest, list(_losses(duels)), first, chart)


def _losses(duels: Mapping[str, Sequence[Duel]]) -> Iterator[str]:
    """Yield for each study with losses how many there are and the worst."""
    for name, each in duels.items():
        if lost := [duel for duel in each if not (duel.won or duel.equal)]:
            yield f"{_title(name)}, {len(lost)} of {len(each)}; at worst {max(lost, key=_gain)}"


def _title(study: str) -> str:
    return EXPERIMENTS[study].description.title if study in EXPERIMENTS else study


def _beside_published(duels: Sequence[Duel]) -> str:
    """Return a sentence on the best published numbers of each case, if there are any."""
    if not duels:
        return ""
    best, worst = min(duels, key=_gain), max(duels, key=_gain)
    ends = dict.fromkeys(f"{_percent(duel)} ({duel.case})" for duel in (best, worst))
    return f" Against the best published numbers ({_names(duel.theirs for duel in duels)}): {' to '.join(ends)}."


def _percent(duel: Duel) -> str:
    if not math.isfinite(duel.change):
        return "better, by diverged runs" if duel.won else "worse, by diverged runs"
    return f"{100 * abs(duel.change):.0f} % {'lower' if duel.change < 0 else 'higher'}"


def _names(rows: Iterable[Row]) -> str:
    return " or ".join(dict.fromkeys(style_of(row.method).label for row in rows))


def _gain(duel: Duel) -> tuple[int, float]:
    """Return a sort key: clear wins first, then those that diverged runs decide, then losses."""
    change = duel.change
    return (0 if change < 0 else 2, change) if math.isfinite(change) else (1 if duel.won else 3, 0.0)


def _rank(row: Row) -> tuple[int, float]:
    return (row.diverged or 0, math.inf) if math.isnan(row.value) else pivots.rank(row)


def _duel(study: str, case: str, metric: str, rows: Sequence[Row], tuned: Callable[[str], bool]) -> Iterator[Duel]:
    """Yield the duel of a case, if both sides were run and some runs of either did not diverge."""
    theirs = [row for row in rows if tuned(row.method)]
    ours = [row for row in rows if _ours(row.method)]
    if ours and theirs:
        pair = min(ours, key=_rank), min(theirs, key=_rank)
        if not all(math.isnan(row.value) for row in pair):
            yield Duel(study, case, metric, *pair)


def _ours(method: str) -> bool:
    other = method.endswith(("tuned", "(published)")) or _tuned_process(method) or "paper" in method
    return not (other or method in (*_NOT_TUNED, *_NEITHER)) or method.endswith("fine-tuned")


def _unseen(part: Result) -> list[Row]:
    """Return the errors on truths that no filter was trained on."""
    metric = pivots.error_metric(part)
    return [row for row in part.rows if row.protocol not in (None, "paper") and row.metric == metric]


def _filter_duels(part: Result, opponent: Callable[[str], bool] | None = None) -> Iterator[Duel]:
    rows, metric = _unseen(part), pivots.FILTER_METRICS[pivots.error_metric(part)].name
    for protocol, size, case in dict.fromkeys((row.protocol, row.ensemble_size, row.case) for row in rows):
        own = [row for row in rows if (row.protocol, row.ensemble_size, row.case) == (protocol, size, case)]
        named = [f"N = {size}", *([protocol] if protocol != "unseen" else []), *([case] if case[:1] == "n" else [])]
        yield from _duel(part.experiment, ", ".join(map(str, named)), metric, own, opponent or _tuned_filter)


def _breadth(part: Result) -> tuple[bool, int, int]:
    """Return whether others have published on a study, and the largest numbers of tuned and published points in one chart."""
    rows = _unseen(part)
    kinds = [[row for row in rows if kind(row.method)] for kind in (_tuned_filter, _published)]
    tuned, published = (Counter(row.protocol for row in some).values() for some in kinds)
    return any(published), max(tuned, default=0), max(published, default=0)


def _published(method: str) -> bool:
    return method.endswith("(published)")


def _tuned_filter(method: str) -> bool:
    return method.endswith("tuned") and not method.endswith("fine-tuned")


def _regression_duels(part: Result) -> Iterator[Duel]:
    for case in dict.fromkeys(row.case for row in part.rows):
        for metric in ("crps", "rmse"):
            rows, name = part.select(case=case, metric=metric), pivots.REGRESSION_METRICS[metric].name
            yield from _duel(part.experiment, pivots.case_title(case), name, rows, _tuned_process)


def _tuned_process(method: str) -> bool:
    return method in _TREES or (method.startswith("gp-") and method not in _NOT_TUNED)


def _step(part: Result, duel: Duel) -> Chart | None:
    """Return both bands in one case of a function of one variable; None if none is stored."""
    arrays = part.arrays.get(duel.ours.case)
    if arrays is None or "noise" not in arrays.attrs or arrays.sizes["input"] != 1:
        return None
    both = (duel.ours.method, duel.theirs.method)
    shown = [method for method in arrays["method"].values if method in (*both, "ggp", "ggp-paper", "gp-se")]
    case = duel.ours.case
    static = [f"bands-{case.split('-')[0]}"]
    return bands({case: arrays.sel({"method": shown})}, static=static, first=both, height=340)
