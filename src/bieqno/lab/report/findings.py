"""What the rows of a study say of a claim of the paper, for one form of its methods: a verdict and the numbers behind it.

Where the paper leaves a measure open, the threshold is a constant of this module and is part of the finding.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple, TypeAlias

from bieqno.lab.report.pivots import PROTOCOL_NAMES, case_title, rank
from bieqno.lab.report.style import style_of
from bieqno.lab.results import Result, Row

STEADY = 1.5  # largest over smallest error of a filter that is called consistent across ensemble sizes
ALIKE = 1.2  # error of the student over that of its teacher, of what is called an emulation
ROLE = 1 / 3  # distance to the teacher over the typical distance between teachers, of what is called a role
# The finest wave covers a sixteenth of the square with a mean square of a quarter: this is the RMSE of missing it.
FINEST_WAVE = math.sqrt(1 / 16 / 4)

Verdict: TypeAlias = Literal["reproduced", "partly", "not reproduced", "not run"]


class Form(NamedTuple):
    """One form of the two methods, by their names in the rows."""

    name: str
    ggp: str
    ennf: str


PAPERS = Form("the paper's form", "ggp-paper", "EnNF, paper")
OURS = Form("bieqno's form", "ggp", "EnNF")


class Finding(NamedTuple):
    """The verdict on a claim, its number, further numbers, and the verdict against the best tuned opponent, if there is one."""

    verdict: Verdict
    number: str
    further: Sequence[str] = ()
    tuned: Verdict | None = None


def _verdict(wins: Iterable[bool]) -> Verdict:
    """Return the verdict if all, some or none were won; a KeyError if there was nothing to win."""
    found = list(wins)
    if not found:
        raise KeyError("number to judge by")
    return "reproduced" if all(found) else "partly" if any(found) else "not reproduced"


def _row(result: Result, case: str, method: str, metric: str, protocol: str | None = None) -> Row:
    """Return one row; a KeyError that names it for a reader if it is missing."""
    rows = result.select(case=case, method=method, metric=metric, protocol=protocol)
    if not rows:
        raise KeyError(f"{style_of(method).label} in {case}")
    return rows[0]


def _in_words(row: Row) -> str:
    """Return a number with its standard error and the number of diverged runs."""
    if math.isnan(row.value):
        return "all runs diverged"
    diverged = f" ({row.diverged} of {row.n + row.diverged} runs diverged)" if row.diverged else ""
    return f"{row.value:.3f}" + ("" if row.stderr is None else f" ± {row.stderr:.3f}") + diverged


def _against(ours: Row, theirs: Row) -> str:
    return f"{_in_words(ours)} against {_in_words(theirs)}"


class Compared(NamedTuple):
    """A form in a case, the opponent that the paper names, and the best tuned one."""

    ours: Row
    theirs: Row
    best: Row


def _cases(result: Result, form: Form, metric: str) -> dict[str, Compared]:
    """Return the rows of gGP, of the process with the paper's kernel and of the best tuned process, by case."""
    found = {}
    for case in dict.fromkeys(row.case for row in result.rows if row.metric == "rmse"):
        ours, theirs = (_row(result, case, method, metric) for method in (form.ggp, "gp-se"))
        tuned = [row for row in result.select(case=case, metric=metric) if row.method.startswith("gp-")]
        best = min((row for row in tuned if row.method != "gp-best"), key=lambda row: row.value)
        found[case] = Compared(ours, theirs, best)
    return found


def _epochs(result: Result, form: Form) -> list[str]:
    """Return for how many epochs a form was trained on the data at hand, if it was."""
    said = []
    for row in (row for row in result.rows if row.metric == "epochs" and row.method in form):
        case = "" if row.case == "training" else f"{case_title(row.case)}: "
        level = result.select(case=row.case, method=row.method, metric="levelled")
        flat = f"; its loss had levelled off in {level[0].value:.0%} of them" if level else ""
        sets = f", mean of {row.n} data sets" if row.n > 1 else ""
        said.append(f"{case}trained for {row.value:.0f} epochs{sets}{flat}")
    return said


def beats(**metrics: str) -> Callable[[Result, Form], Finding]:
    """Judge whether gGP has lower scores than the tuned process with the paper's kernel, in every case and metric."""

    def judge(result: Result, form: Form) -> Finding:
        wins, tuned, said = [], [], []
        for metric, name in metrics.items():
            for case, (ours, theirs, best) in _cases(result, form, metric).items():
                wins.append(ours.value < theirs.value)
                tuned.append(ours.value < best.value)
                opponent = f"best opponent: {style_of(best.method).label}, {best.value:.3f}"
                said.append(f"{name}, {case_title(case)}: {_against(ours, theirs)} ({opponent})")
        number = f"better in {sum(wins)} of {len(wins)} comparisons, than the best opponent in {sum(tuned)}"
        return Finding(_verdict(wins), f"{number}. {said[0]}", [*said[1:], *_epochs(result, form)], _verdict(tuned))

    return judge


def most_with_few(result: Result, form: Form) -> Finding:
    """Judge whether the ratio of errors is smaller with 30 observations than with 100."""
    cases = _cases(result, form, "rmse")
    wins: dict[str, list[bool]] = {"theirs": [], "best": []}
    said = []
    for layout in dict.fromkeys(case.split("-")[0] for case in cases):
        pair = cases[f"{layout}-30"], cases[f"{layout}-100"]
        for opponent, won in wins.items():
            few, many = (one.ours.value / getattr(one, opponent).value for one in pair)
            won.append(few < min(many, 1))
            named = "process's" if opponent == "theirs" else "best opponent's"
            said.append(f"{layout} points: RMSE {few:.2f} of the {named} with 30 observations, {many:.2f} with 100")
    return Finding(_verdict(wins["theirs"]), said[0], [*said[1:], *_epochs(result, form)], _verdict(wins["best"]))


def finds_the_scales(result: Result, form: Form) -> Finding:
    """Judge whether gGP resolves the finest waves, and the tuned process does not."""
    wins, tuned, said = [], [], []
    for case, (ours, theirs, best) in _cases(result, form, "rmse").items():
        wins += [ours.value < FINEST_WAVE, theirs.value >= FINEST_WAVE]
        tuned += [ours.value < FINEST_WAVE, best.value >= FINEST_WAVE]
        opponent = f"{style_of(best.method).label}: {best.value:.3f}"
        said.append(f"{case_title(case)}: RMSE {ours.value:.3f}, of the tuned process {theirs.value:.3f} ({opponent})")
    said.append(f"A prediction without the finest waves has an RMSE of at least {FINEST_WAVE}")
    return Finding(_verdict(wins), said[0], [*said[1:], *_epochs(result, form)], _verdict(tuned))


def _sizes(result: Result, form: Form) -> list[int]:
    rows = result.select(method=form.ennf, metric="relative_rmse", protocol="paper")
    if not rows:
        raise KeyError(form.ennf)
    return sorted(row.ensemble_size for row in rows if row.ensemble_size)


def _errors(result: Result, form: Form, size: int, protocol: str) -> tuple[Row, Row]:
    ours, theirs = (_row(result, f"N={size}", name, "relative_rmse", protocol) for name in (form.ennf, "EnKF"))
    return ours, theirs


def _best(result: Result, size: int, protocol: str) -> Row | None:
    """Return the best tuned opponent of a size, None if there is none; fewer diverged runs count first."""
    rows = result.select(case=f"N={size}", metric="relative_rmse", protocol=protocol)
    tuned = [row for row in rows if row.method.endswith("tuned") and not math.isnan(row.value)]
    return min(tuned, key=rank, default=None)


def _tuned(result: Result, sizes: Iterable[int]) -> list[str]:
    """Return the best tuned opponent of each size, for each protocol."""
    lines = []
    for protocol, name in PROTOCOL_NAMES.items():
        said = []
        for best in (row for size in sizes if (row := _best(result, size, protocol))):
            diverged = f" ({best.diverged} runs diverged)" if best.diverged else ""
            said.append(f"N = {best.ensemble_size}: {best.method.removesuffix(' tuned')} {best.value:.3f}{diverged}")
        lines.append(f"best tuned opponents, {name}: {', '.join(said) or 'not run at these sizes'}")
    return lines


def _lower(ours: Row, theirs: Row) -> bool:
    """Return whether an error is lower; where all runs diverged it has no bound."""
    return not math.isnan(ours.value) and (math.isnan(theirs.value) or rank(ours) < rank(theirs))


def works_with_two(result: Result, form: Form) -> Finding:
    """Judge whether at the smallest size EnNF is better than the opponent, and works where that does not."""
    size = _sizes(result, form)[0]
    ours, theirs = _errors(result, form, size, "paper")
    free = _row(result, "N=1", "baseline", "relative_rmse", "paper")

    def works(row: Row) -> bool:  # no run diverges, and the error is less than half of that without assimilation
        return not row.diverged and row.value < free.value / 2

    def judge(other: Row) -> Verdict:
        lower = _lower(ours, other)
        return _verdict([lower, works(ours), lower and not works(other)])

    further = [f"on unseen truths: {_against(*_errors(result, form, size, 'unseen'))}", *_tuned(result, [size])]
    number = f"relative RMSE with N = {size}: {_against(ours, theirs)}; without assimilation {_in_words(free)}"
    best = _best(result, size, "paper")
    return Finding(judge(theirs), number, [*further, *_epochs(result, form)], None if best is None else judge(best))


def lower_at_all_sizes(result: Result, form: Form) -> Finding:
    """Judge whether EnNF has the lower error at every size of the paper's test, or at every one with a tuned opponent."""
    sizes, said = _sizes(result, form), {}
    for protocol in PROTOCOL_NAMES:
        pairs = {n: _errors(result, form, n, protocol) for n in sizes}
        wins = [_lower(*pair) for pair in pairs.values()]
        others = [f"N = {n} ({_against(*pair)})" for n, pair in pairs.items() if not _lower(*pair)]
        text = f"at {sum(wins)} of {len(sizes)} sizes" + (f"; not at {', '.join(others)}" if others else "")
        said[protocol] = (_verdict(wins), text)
    bests = {n: best for n in sizes if (best := _best(result, n, "paper"))}
    tuned = [_lower(_errors(result, form, n, "paper")[0], best) for n, best in bests.items()]
    further = [f"on unseen truths {said['unseen'][1]}", *_tuned(result, sizes), *_epochs(result, form)]
    return Finding(*said["paper"], further, _verdict(tuned) if tuned else None)


def steady(result: Result, form: Form) -> Finding:
    """Judge whether the error is nearly the same at all sizes; where runs diverged it has no bound."""

    def spread(protocol: str) -> float:
        rows = [_row(result, f"N={size}", form.ennf, "relative_rmse", protocol) for size in _sizes(result, form)]
        errors = [math.inf if row.diverged or math.isnan(row.value) else row.value for row in rows]
        return max(errors) / min(errors) if math.isfinite(min(errors)) else math.inf

    paper, unseen = spread("paper"), spread("unseen")
    number = f"largest error over smallest: {paper:.2f}, on unseen truths {unseen:.2f}"
    further = f"threshold: at most {STEADY}, with no diverged run, on the paper's truth and on unseen truths"
    return Finding(_verdict([paper <= STEADY, unseen <= STEADY]), number, [further, *_epochs(result, form)])


def emulates(result: Result, form: Form) -> Finding:
    """Judge whether EnNF is as good as its teacher at the largest size."""
    size = _sizes(result, form)[-1]
    pairs = [_errors(result, form, size, protocol) for protocol in PROTOCOL_NAMES]
    wins = (a.value <= ALIKE * b.value and (a.diverged or 0) <= (b.diverged or 0) for a, b in pairs)
    number = f"relative RMSE with N = {size}: {_against(*pairs[0])}, on unseen truths {_against(*pairs[1])}"
    further = [f"threshold: at most {ALIKE} times the teacher's error", *_epochs(result, form)]
    return Finding(_verdict(wins), number, further)


def plays_roles(result: Result, form: Form) -> Finding:
    """Judge whether the student in each role is close to the teacher of that role."""
    role = f"{form.ennf} as "
    rows = [row for row in result.rows if row.metric == "share_of_typical" and row.method.startswith(role)]
    if not rows:
        raise KeyError(f"{style_of(form.ennf).label} in the roles of its teachers")
    said = ", ".join(f"{row.method.removeprefix(role)} {row.value:.2f}" for row in rows)
    number = f"distance to the teacher over the typical distance between teachers: {said}"
    return Finding(_verdict(row.value <= ROLE for row in rows), number, [f"threshold: at most {ROLE:.2f}"])
