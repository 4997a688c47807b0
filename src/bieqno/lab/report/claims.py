"""The paper's claims, each judged by the rows of a study against the opponent that the paper names.

Regression is judged by the package's default form, with the paper's own form beside it; tuned opponents are among the further
numbers. Where the paper leaves a measure open, the threshold is a constant of this module and is part of the finding.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias

from bieqno.lab.report.pivots import PROTOCOL_NAMES, case_title, rank
from bieqno.lab.report.style import style_of
from bieqno.lab.results import Result, Row

STEADY = 1.5  # largest over smallest error of a filter that is called consistent across ensemble sizes
ALIKE = 1.2  # error of the student over that of its teacher, of what is called an emulation
SMOKE = "smoke"  # the preset that tests that everything runs; its numbers mean nothing
ROLE = 1 / 3  # distance to the teacher over the typical distance between teachers, of what is called a role
# The finest wave covers a sixteenth of the square with a mean square of a quarter: this is the RMSE of missing it.
FINEST_WAVE = math.sqrt(1 / 16 / 4)

Verdict: TypeAlias = Literal["reproduced", "partly", "not reproduced", "not run"]


class Finding(NamedTuple):
    """The verdict on a claim, its number, and further numbers."""

    verdict: Verdict
    number: str
    further: Sequence[str] = ()


class Claim(NamedTuple):
    """What the paper says of an experiment, and how it is judged."""

    experiment: str
    text: str
    judge: Callable[[Result], Finding]


class Judged(NamedTuple):
    """A claim with its finding, and the experiment and preset that measured it (None if none did)."""

    claim: Claim
    finding: Finding
    source: str | None = None
    preset: str | None = None


def judge_all(results: Iterable[Result]) -> list[Judged]:
    """Judge all claims: by a study's own result first, then by the same study within another, by preset smoke last."""
    ordered = sorted(results, key=lambda result: (result.preset == SMOKE, list(result.parts()) != [result.experiment]))
    return [_judge(claim, [result for result in ordered if claim.experiment in result.parts()]) for claim in CLAIMS]


def _judge(claim: Claim, results: Sequence[Result]) -> Judged:
    """Judge by the first result that has all that the claim needs: one of selected methods may lack it."""
    lacking = None
    for result in results:
        try:
            return Judged(claim, claim.judge(result.parts()[claim.experiment]), result.experiment, result.preset)
        except KeyError as missing:
            found = Finding("not run", f"there is no {missing.args[0]}")
            lacking = lacking or Judged(claim, found, result.experiment, result.preset)
    return lacking or Judged(claim, Finding("not run", f"bieqno run {claim.experiment}"))


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


def _pairs(result: Result, metric: str) -> dict[str, tuple[Row, Row]]:
    """Return the rows of gGP and of the process with the paper's kernel, by case."""
    cases = dict.fromkeys(row.case for row in result.rows if row.metric == "rmse")
    return {case: (_row(result, case, "ggp", metric), _row(result, case, "gp-se", metric)) for case in cases}


def _paper_form(result: Result, metrics: Mapping[str, str]) -> list[str]:
    """Return the scores of the paper's form, which is trained on the data alone; nothing if it was not run."""
    said = []
    for metric, name in metrics.items():
        ours = result.select(method="ggp-paper", metric=metric)
        pairs = [(row.value, _row(result, row.case, "gp-se", metric).value) for row in ours]
        numbers = ", ".join(f"{a:.3f} against {b:.3f}" for a, b in pairs)
        if pairs:
            wins = sum(a < b for a, b in pairs)
            said.append(f"{name} of gGP trained as in the paper: better in {wins} of {len(pairs)} ({numbers})")
    return said


def beats(**metrics: str) -> Callable[[Result], Finding]:
    """Judge whether gGP has lower scores than the tuned process with the paper's kernel, in every case and metric."""

    def judge(result: Result) -> Finding:
        wins, said = [], []
        for metric, name in metrics.items():
            for case, (ours, theirs) in _pairs(result, metric).items():
                wins.append(ours.value < theirs.value)
                tuned = [row for row in result.select(case=case, metric=metric) if row.method.startswith("gp-")]
                best = min((row for row in tuned if row.method != "gp-best"), key=lambda row: row.value)
                opponent = f"best opponent: {style_of(best.method).label}, {best.value:.3f}"
                said.append(f"{name}, {case_title(case)}: {_against(ours, theirs)} ({opponent})")
        verdict, paper = _verdict(wins), _paper_form(result, metrics)
        return Finding(verdict, f"better in {sum(wins)} of {len(wins)} comparisons. {said[0]}", [*paper, *said[1:]])

    return judge


def most_with_few(result: Result) -> Finding:
    """Judge whether the ratio of errors is smaller with 30 observations than with 100."""
    ratios = {case: ours.value / theirs.value for case, (ours, theirs) in _pairs(result, "rmse").items()}
    wins, said = [], []
    for layout in dict.fromkeys(case.split("-")[0] for case in ratios):
        few, many = ratios[f"{layout}-30"], ratios[f"{layout}-100"]
        wins.append(few < min(many, 1))
        said.append(f"{layout} points: RMSE {few:.2f} of the process's with 30 observations, {many:.2f} with 100")
    return Finding(_verdict(wins), said[0], [*_paper_form(result, {"rmse": "RMSE"}), *said[1:]])


def finds_the_scales(result: Result) -> Finding:
    """Judge whether gGP resolves the finest waves, and the tuned process does not."""
    wins, said = [], []
    for case, (ours, theirs) in _pairs(result, "rmse").items():
        wins += [ours.value < FINEST_WAVE, theirs.value >= FINEST_WAVE]
        said.append(f"{case_title(case)}: RMSE of gGP {ours.value:.3f}, of the tuned process {theirs.value:.3f}")
    said.append(f"A prediction without the finest waves has an RMSE of at least {FINEST_WAVE}")
    return Finding(_verdict(wins), said[0], [*_paper_form(result, {"rmse": "RMSE"}), *said[1:]])


def _sizes(result: Result) -> list[int]:
    rows = result.select(method="EnNF", metric="relative_rmse", protocol="paper")
    if not rows:
        raise KeyError("EnNF")
    return sorted(row.ensemble_size for row in rows if row.ensemble_size)


def _errors(result: Result, size: int, protocol: str) -> tuple[Row, Row]:
    ours, theirs = (_row(result, f"N={size}", name, "relative_rmse", protocol) for name in ("EnNF", "EnKF"))
    return ours, theirs


def _tuned(result: Result, sizes: Iterable[int]) -> list[str]:
    """Return the best tuned opponent of each size, for each protocol; fewer diverged runs count first."""
    lines = []
    for protocol, name in PROTOCOL_NAMES.items():
        said = []
        for size in sizes:
            rows = result.select(case=f"N={size}", metric="relative_rmse", protocol=protocol)
            tuned = [row for row in rows if row.method.endswith("tuned") and not math.isnan(row.value)]
            for best in sorted(tuned, key=rank)[:1]:
                diverged = f" ({best.diverged} runs diverged)" if best.diverged else ""
                said.append(f"N = {size}: {best.method.removesuffix(' tuned')} {best.value:.3f}{diverged}")
        lines.append(f"best tuned opponents, {name}: {', '.join(said) or 'not run at these sizes'}")
    return lines


def _lower(ours: Row, theirs: Row) -> bool:
    """Return whether an error is lower; where all runs diverged it has no bound."""
    return not math.isnan(ours.value) and (math.isnan(theirs.value) or rank(ours) < rank(theirs))


def works_with_two(result: Result) -> Finding:
    """Judge whether at the smallest size EnNF is better than EnKF, and works where EnKF does not."""
    size = _sizes(result)[0]
    ours, theirs = _errors(result, size, "paper")
    free = _row(result, "N=1", "baseline", "relative_rmse", "paper")
    # A filter works if no run diverges and its error is less than half of that without assimilation.
    works, other_works = (not row.diverged and row.value < free.value / 2 for row in (ours, theirs))
    further = [f"on unseen truths: {_against(*_errors(result, size, 'unseen'))}", *_tuned(result, [size])]
    number = f"relative RMSE with N = {size}: {_against(ours, theirs)}; without assimilation {_in_words(free)}"
    lower = _lower(ours, theirs)
    return Finding(_verdict([lower, works, lower and not other_works]), number, further)


def lower_at_all_sizes(result: Result) -> Finding:
    """Judge whether EnNF has the lower error at every size of the paper's test."""
    sizes, said = _sizes(result), {}
    for protocol in PROTOCOL_NAMES:
        pairs = {n: _errors(result, n, protocol) for n in sizes}
        wins = [_lower(*pair) for pair in pairs.values()]
        others = [f"N = {n} ({_against(*pair)})" for n, pair in pairs.items() if not _lower(*pair)]
        text = f"at {sum(wins)} of {len(sizes)} sizes" + (f"; not at {', '.join(others)}" if others else "")
        said[protocol] = (_verdict(wins), text)
    return Finding(*said["paper"], [f"on unseen truths {said['unseen'][1]}", *_tuned(result, sizes)])


def steady(result: Result) -> Finding:
    """Judge whether the error is nearly the same at all sizes; where runs diverged it has no bound."""

    def spread(protocol: str) -> float:
        rows = [_row(result, f"N={size}", "EnNF", "relative_rmse", protocol) for size in _sizes(result)]
        errors = [math.inf if row.diverged or math.isnan(row.value) else row.value for row in rows]
        return max(errors) / min(errors) if math.isfinite(min(errors)) else math.inf

    paper, unseen = spread("paper"), spread("unseen")
    number = f"largest error over smallest: {paper:.2f}, on unseen truths {unseen:.2f}"
    further = f"threshold: at most {STEADY}, with no diverged run, on the paper's truth and on unseen truths"
    return Finding(_verdict([paper <= STEADY, unseen <= STEADY]), number, [further])


def emulates(result: Result) -> Finding:
    """Judge whether EnNF is as good as its teacher at the largest size."""
    size = _sizes(result)[-1]
    pairs = [_errors(result, size, protocol) for protocol in PROTOCOL_NAMES]
    wins = (a.value <= ALIKE * b.value and (a.diverged or 0) <= (b.diverged or 0) for a, b in pairs)
    number = f"relative RMSE with N = {size}: {_against(*pairs[0])}, on unseen truths {_against(*pairs[1])}"
    return Finding(_verdict(wins), number, [f"threshold: at most {ALIKE} times the teacher's error"])


def plays_roles(result: Result) -> Finding:
    """Judge whether the student in each role is close to the teacher of that role."""
    rows = [row for row in result.rows if row.metric == "share_of_typical"]
    said = ", ".join(f"{row.method.removeprefix('EnNF as ')} {row.value:.2f}" for row in rows)
    number = f"distance to the teacher over the typical distance between teachers: {said}"
    return Finding(_verdict(row.value <= ROLE for row in rows), number, [f"threshold: at most {ROLE:.2f}"])


_BETTER = "gGP predicts a function with jumps better than a Gaussian process with the squared exponential kernel."
_SMOOTHS = "gGP captures the jumps that the Gaussian process smooths."
_FILTERS = {
    "EnNF works with two members, where EnKF does not.": works_with_two,
    "EnNF has lower errors than EnKF at every ensemble size.": lower_at_all_sizes,
    "Its accuracy hardly depends on the ensemble size.": steady,
}
CLAIMS = (
    Claim("step-1d", _BETTER, beats(rmse="RMSE", nlpd="NLPD")),
    Claim("step-1d", _SMOOTHS, beats(rmse_near_jump="RMSE near jumps")),
    Claim("step-1d", "Its advantage is largest with few observations.", most_with_few),
    Claim("trig-2d", "gGP predicts the function of four scales better than the Gaussian process.", beats(rmse="RMSE")),
    Claim("trig-2d", "gGP finds all four scales, the Gaussian process at best three.", finds_the_scales),
    *(Claim(name, text, judge) for text, judge in _FILTERS.items() for name in ("lorenz63", "lorenz96")),
    Claim("lorenz63", "Trained on EnKF, EnNF does as well as its teacher where the teacher does well.", emulates),
    Claim("super-filter", "One EnNF can represent a series of ensemble filters.", plays_roles),
)
