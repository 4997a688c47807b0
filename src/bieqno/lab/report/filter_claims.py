"""How the claims about filters are judged."""

import math
from collections.abc import Iterable

from bieqno.lab.report.findings import Finding, in_words, row_of, verdict_of
from bieqno.lab.report.pivots import PROTOCOL_NAMES
from bieqno.lab.studies import Result, Row

STEADY = 1.5  # largest error over smallest, of what is called consistent across sizes
ALIKE = 1.2  # error of the student over that of its teacher, of what is called an emulation
ROLE = 1 / 3  # distance to the teacher over the typical distance between teachers, of what is called a role


def _sizes(result: Result) -> list[int]:
    rows = result.select(method="EnNF", metric="relative_rmse", protocol="paper")
    if not rows:
        raise KeyError("EnNF")
    return sorted(row.ensemble_size for row in rows if row.ensemble_size)


def _error(result: Result, method: str, size: int, protocol: str = "paper") -> Row:
    return row_of(result, f"N={size}", method, "relative_rmse", protocol)


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
    """Whether an error is lower. Who loses fewer runs is better, whatever the error of the rest: a lost run has no bound."""
    if math.isnan(ours.value) or math.isnan(theirs.value):
        return not math.isnan(ours.value)
    return (ours.diverged or 0, ours.value) < (theirs.diverged or 0, theirs.value)


def _works(row: Row, free: Row) -> bool:
    """Whether a filter loses no run and has less than half the error of no assimilation."""
    return not row.diverged and row.value < free.value / 2


def works_with_two(result: Result) -> Finding:
    """Whether at the smallest size EnNF is better than EnKF, and works where EnKF does not."""
    size = _sizes(result)[0]
    ours, theirs = _error(result, "EnNF", size), _error(result, "EnKF", size)
    free = row_of(result, "N=1", "baseline", "relative_rmse", "paper")
    further = [
        f"on unseen truths: {in_words(_error(result, 'EnNF', size, 'unseen'))} against "
        f"{in_words(_error(result, 'EnKF', size, 'unseen'))}",
        *(_tuned(result, [size], protocol) for protocol in PROTOCOL_NAMES),
    ]
    number = f"relative RMSE with N = {size}: {in_words(ours)} against {in_words(theirs)}; without assimilation {in_words(free)}"
    lower = _lower(ours, theirs)
    return Finding(verdict_of([lower, _works(ours, free), lower and not _works(theirs, free)]), number, further)


def lower_at_all_sizes(result: Result) -> Finding:
    """Whether EnNF has the lower error at every size of the paper's test."""
    sizes = _sizes(result)

    def lost(protocol: str) -> list[str]:
        pairs = {n: (_error(result, "EnNF", n, protocol), _error(result, "EnKF", n, protocol)) for n in sizes}
        return [f"N = {n} ({in_words(a)} against {in_words(b)})" for n, (a, b) in pairs.items() if not _lower(a, b)]

    def said(protocol: str) -> str:
        at = lost(protocol)
        return f"at {len(sizes) - len(at)} of {len(sizes)} sizes" + (f"; not at {', '.join(at)}" if at else "")

    wins = len(sizes) - len(lost("paper"))
    return Finding(
        verdict_of(k < wins for k in range(len(sizes))), said("paper"),
        [f"on unseen truths {said('unseen')}", *(_tuned(result, sizes, protocol) for protocol in PROTOCOL_NAMES)],
    )  # fmt: skip


def steady(result: Result) -> Finding:
    """Whether the error is nearly the same at all sizes; where runs are lost it has no bound."""

    def spread(protocol: str) -> float:
        rows = [_error(result, "EnNF", size, protocol) for size in _sizes(result)]
        errors = [math.inf if row.diverged or math.isnan(row.value) else row.value for row in rows]
        return max(errors) / min(errors) if math.isfinite(min(errors)) else math.inf

    paper, unseen = spread("paper"), spread("unseen")
    return Finding(
        verdict_of([paper <= STEADY, unseen <= STEADY]),
        f"largest error over smallest: {paper:.2f}, on unseen truths {unseen:.2f}",
        [f"consistent is called what is at most {STEADY}, without a lost run, on the paper's truth and on unseen ones"],
    )


def emulates(result: Result) -> Finding:
    """Whether EnNF is as good as its teacher at the largest size."""
    size = _sizes(result)[-1]
    found = [
        (_error(result, "EnNF", size, protocol), _error(result, "EnKF", size, protocol)) for protocol in PROTOCOL_NAMES
    ]
    said = [f"{in_words(ours)} against {in_words(theirs)}" for ours, theirs in found]
    return Finding(
        verdict_of(
            ours.value <= ALIKE * theirs.value and (ours.diverged or 0) <= (theirs.diverged or 0)
            for ours, theirs in found
        ),
        f"relative RMSE with N = {size}: {said[0]}, on unseen truths {said[1]}",
        [f"as well is called what is at most {ALIKE} times the teacher's error"],
    )


def plays_roles(result: Result) -> Finding:
    """Whether the student in each role is close to the teacher that it is told to follow."""
    rows = [row for row in result.rows if row.metric == "share_of_typical"]
    said = ", ".join(f"{row.method.removeprefix('EnNF as ')} {row.value:.2f}" for row in rows)
    return Finding(
        verdict_of(row.value <= ROLE for row in rows),
        f"distance to the teacher over the typical distance between teachers: {said}",
        [f"a role is called what is at most {ROLE:.2f}"],
    )
