"""What is found about a claim, and how it is put into words."""

import math
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, TypeAlias

from bieqno.lab.report.style import style_of
from bieqno.lab.studies import Result, Row

Verdict: TypeAlias = Literal["reproduced", "partly", "not reproduced", "not run"]


class Finding(NamedTuple):
    """What was found about a claim: the verdict, its number, and further numbers beside it."""

    verdict: Verdict
    number: str
    further: Sequence[str] = ()


def verdict_of(wins: Iterable[bool]) -> Verdict:
    """All won, some, or none; a KeyError if there was nothing to win."""
    found = list(wins)
    if not found:
        raise KeyError("number to judge by")
    return "reproduced" if all(found) else "partly" if any(found) else "not reproduced"


def row_of(result: Result, case: str, method: str, metric: str, protocol: str | None = None) -> Row:
    """One row of a result; a KeyError that names it for a reader if it is not there."""
    for row in result.select(case=case, method=method, metric=metric):
        if row.protocol == protocol:
            return row
    raise KeyError(f"{style_of(method).label} in {case}")


def in_words(row: Row) -> str:
    """A number with its standard error, and how many runs are not in it."""
    if math.isnan(row.value):
        return "all runs lost"
    lost = f" ({row.diverged} of {row.n + row.diverged} runs lost)" if row.diverged else ""
    return f"{row.value:.3f}" + ("" if row.stderr is None else f" ± {row.stderr:.3f}") + lost
