"""The paper's claims, each judged by numbers that were measured here.

A claim is judged against the opponent that the paper names; how the tuned ones did is said beside it. Where the paper's words
leave a measure open, the measure is written down with the claim.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from bieqno.experiments import Result, Row
from bieqno.report.html_tables import PROTOCOL_NAMES, case_title
from bieqno.report.style import style_of

Verdict: TypeAlias = Literal["reproduced", "partly", "not reproduced", "not run"]

# The finest wave fills a sixteenth of the square with a mean square of a quarter: who misses it has at least this RMSE.
FINEST_WAVE = math.sqrt(1 / 16 / 4)
STEADY = 1.5  # largest error over smallest, of what is called consistent across sizes
ALIKE = 1.2  # error of the student over that of its teacher, of what is called an emulation
ROLE = 1 / 3  # distance to the teacher over the typical distance between teachers, of what is called a role


class Finding(NamedTuple):
    """What was found about a claim: the verdict, its number, and further numbers beside it."""

    verdict: Verdict
    number: str
    further: Sequence[str] = ()


@dataclass(frozen=True)
class Claim:
    """What the paper says of an experiment, and how it is judged."""

    experiment: str
    text: str
    judge: Callable[[Result], Finding]


@dataclass(frozen=True)
class Judged:
    """A claim with what was found, and the experiment that measured it (None if none did)."""

    claim: Claim
    finding: Finding
    source: str | None


def judge_all(results: Iterable[Result]) -> list[Judged]:
    """All claims; a study of its own counts before the same study within another."""
    sources: dict[str, tuple[Result, str]] = {}
    for result in sorted(results, key=lambda result: list(result.parts()) != [result.experiment]):
        for name, part in result.parts().items():
            sources.setdefault(name, (part, result.experiment))
    judged = []
    for claim in CLAIMS:
        if claim.experiment not in sources:
            judged.append(Judged(claim, Finding("not run", f"bieqno run {claim.experiment}"), None))
            continue
        part, source = sources[claim.experiment]
        try:
            judged.append(Judged(claim, claim.judge(part), source))
        except KeyError as missing:  # a run of chosen methods or cases only
            judged.append(Judged(claim, Finding("not run", f"there is no {missing.args[0]}"), source))
    return judged


def _verdict(wins: Iterable[bool]) -> Verdict:
    found = list(wins)
    return "reproduced" if all(found) else "partly" if any(found) else "not reproduced"


def _row(result: Result, case: str, method: str, metric: str, protocol: str | None = None) -> Row:
    for row in result.select(case=case, method=method, metric=metric):
        if row.protocol == protocol:
            return row
    raise KeyError(f"{style_of(method).label} in {case}")


def _said(row: Row) -> str:
    if math.isnan(row.value):
        return "all runs lost"
    return f"{row.value:.3f}" + ("" if row.stderr is None else f" ± {row.stderr:.3f}")


def _regression_cases(result: Result) -> list[str]:
    return list(dict.fromkeys(row.case for row in result.rows if row.metric == "rmse"))


def _best_opponent(result: Result, case: str, metric: str) -> str:
    """The tuned process with the lowest score."""
    rows = [row for row in result.select(case=case, metric=metric) if row.method.startswith("gp-")]
    best = min((row for row in rows if row.method != "gp-best"), key=lambda row: row.value)
    return f"best opponent: {style_of(best.method).label}, {best.value:.3f}"


def _beats_the_process(metrics: Mapping[str, str]) -> Callable[[Result], Finding]:
    def judge(result: Result) -> Finding:
        wins, said = [], []
        for metric, name in metrics.items():
            for case in _regression_cases(result):
                ours, theirs = (_row(result, case, method, metric) for method in ("ggp", "gp-se"))
                wins.append(ours.value < theirs.value)
                best = _best_opponent(result, case, metric)
                said.append(f"{name}, {case_title(case)}: {_said(ours)} against {_said(theirs)} ({best})")
        return Finding(_verdict(wins), f"better in {sum(wins)} of {len(wins)} comparisons. {said[0]}", said[1:])

    return judge


def _most_with_few(result: Result) -> Finding:
    wins, said = [], []
    for layout in dict.fromkeys(case.split("-")[0] for case in _regression_cases(result)):
        few, many = (
            _row(result, f"{layout}-{m}", "ggp", "rmse").value / _row(result, f"{layout}-{m}", "gp-se", "rmse").value
            for m in (30, 100)
        )
        wins.append(few < min(many, 1))
        said.append(f"{layout} points: RMSE {few:.2f} of the process's with 30 observations, {many:.2f} with 100")
    return Finding(_verdict(wins), said[0], said[1:])


def _finds_the_scales(result: Result) -> Finding:
    wins, said = [], []
    for case in _regression_cases(result):
        ours, theirs = (_row(result, case, method, "rmse").value for method in ("ggp", "gp-se"))
        wins += [ours < FINEST_WAVE, theirs >= FINEST_WAVE]
        said.append(f"{case_title(case)}: RMSE of gGP {ours:.3f}, of the tuned process {theirs:.3f}")
    return Finding(
        _verdict(wins), said[0], [*said[1:], f"Who misses the finest waves has an RMSE of {FINEST_WAVE} or more"]
    )


def _sizes(result: Result) -> list[int]:
    rows = result.select(method="EnNF", metric="relative_rmse", protocol="paper")
    if not rows:
        raise KeyError("EnNF")
    return sorted(row.ensemble_size for row in rows if row.ensemble_size)


def _error(result: Result, method: str, size: int, protocol: str = "paper") -> Row:
    return _row(result, f"N={size}", method, "relative_rmse", protocol)


def _tuned(result: Result, sizes: Iterable[int], protocol: str) -> str:
    """The best tuned opponent of each size; one that lost runs comes after one that lost fewer."""
    said = []
    for size in sizes:
        rows = result.select(case=f"N={size}", metric="relative_rmse", protocol=protocol)
        sound = [row for row in rows if row.method.endswith("tuned") and not math.isnan(row.value)]
        if sound:
            best = min(sound, key=lambda row: (row.diverged or 0, row.value))
            lost = f" ({best.diverged} runs lost)" if best.diverged else ""
            said.append(f"N = {size}: {best.method.removesuffix(' tuned')} {best.value:.3f}{lost}")
    return f"best tuned opponents, {PROTOCOL_NAMES[protocol]}: {', '.join(said) or 'not run at these sizes'}"


def _lower(ours: Row, theirs: Row) -> bool:
    """Whether an error is lower; a filter that lost all runs has none."""
    return not math.isnan(ours.value) and not ours.value >= theirs.value


def _works_with_two(result: Result) -> Finding:
    size = _sizes(result)[0]
    ours, theirs = _error(result, "EnNF", size), _error(result, "EnKF", size)
    free = _row(result, "N=1", "baseline", "relative_rmse", "paper")
    further = [
        f"on unseen truths: {_said(_error(result, 'EnNF', size, 'unseen'))} against "
        f"{_said(_error(result, 'EnKF', size, 'unseen'))}",
        *(_tuned(result, [size], protocol) for protocol in PROTOCOL_NAMES),
    ]
    number = f"relative RMSE with N = {size}: {_said(ours)} against {_said(theirs)}; without assimilation {_said(free)}"
    return Finding(_verdict([_lower(ours, theirs), ours.value < free.value / 2]), number, further)


def _lower_at_all_sizes(result: Result) -> Finding:
    sizes = _sizes(result)

    def lost(protocol: str) -> list[str]:
        pairs = {n: (_error(result, "EnNF", n, protocol), _error(result, "EnKF", n, protocol)) for n in sizes}
        return [f"N = {n} ({_said(a)} against {_said(b)})" for n, (a, b) in pairs.items() if not _lower(a, b)]

    def said(protocol: str) -> str:
        at = lost(protocol)
        return f"at {len(sizes) - len(at)} of {len(sizes)} sizes" + (f"; not at {', '.join(at)}" if at else "")

    wins = len(sizes) - len(lost("paper"))
    return Finding(
        _verdict(k < wins for k in range(len(sizes))), said("paper"),
        [f"on unseen truths {said('unseen')}", *(_tuned(result, sizes, protocol) for protocol in PROTOCOL_NAMES)],
    )  # fmt: skip


def _steady(result: Result) -> Finding:
    def spread(protocol: str) -> float:
        errors = [_error(result, "EnNF", size, protocol).value for size in _sizes(result)]
        return max(errors) / min(errors)

    paper, unseen = spread("paper"), spread("unseen")
    return Finding(
        _verdict([paper <= STEADY, unseen <= STEADY]),
        f"largest error over smallest: {paper:.2f}, on unseen truths {unseen:.2f}",
        [f"consistent is called what is at most {STEADY}"],
    )


def _emulates(result: Result) -> Finding:
    size = _sizes(result)[-1]
    found = [
        (_error(result, "EnNF", size, protocol), _error(result, "EnKF", size, protocol)) for protocol in PROTOCOL_NAMES
    ]
    said = [f"{_said(ours)} against {_said(theirs)}" for ours, theirs in found]
    return Finding(
        _verdict(ours.value <= ALIKE * theirs.value for ours, theirs in found),
        f"relative RMSE with N = {size}: {said[0]}, on unseen truths {said[1]}",
        [f"as well is called what is at most {ALIKE} times the teacher's error"],
    )


def _plays_roles(result: Result) -> Finding:
    rows = [row for row in result.rows if row.metric == "share_of_typical"]
    said = ", ".join(f"{row.method.removeprefix('EnNF as ')} {row.value:.2f}" for row in rows)
    return Finding(
        _verdict(row.value <= ROLE for row in rows),
        f"distance to the teacher over the typical distance between teachers: {said}",
        [f"a role is called what is at most {ROLE:.2f}"],
    )


_FILTERS = ("lorenz63", "lorenz96")
CLAIMS = (
    Claim("step-1d", "gGP predicts a function with jumps better than a Gaussian process with the squared exponential kernel.",
          _beats_the_process({"rmse": "RMSE", "nlpd": "NLPD"})),
    Claim("step-1d", "gGP captures the jumps that the Gaussian process smooths.",
          _beats_the_process({"rmse_near_jump": "RMSE near jumps"})),
    Claim("step-1d", "Its advantage is largest with few observations.", _most_with_few),
    Claim("trig-2d", "gGP predicts the function of four scales better than the Gaussian process.",
          _beats_the_process({"rmse": "RMSE"})),
    Claim("trig-2d", "gGP finds all four scales, the Gaussian process at best three.", _finds_the_scales),
    *(Claim(name, "EnNF works with two members, where EnKF does not.", _works_with_two) for name in _FILTERS),
    *(Claim(name, "EnNF has lower errors than EnKF at every ensemble size.", _lower_at_all_sizes) for name in _FILTERS),
    *(Claim(name, "Its accuracy hardly depends on the ensemble size.", _steady) for name in _FILTERS),
    Claim("lorenz63", "Trained on EnKF, EnNF does as well as its teacher where the teacher does well.", _emulates),
    Claim("super-filter", "One EnNF can represent a series of ensemble filters.", _plays_roles),
)  # fmt: skip
