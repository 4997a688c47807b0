"""Check the numbers in README.md and docs/*.md against docs/results; with ``--write`` put them in place.

A table stands between two comments, and so does a number in running text:

    <!-- numbers: lorenz63 metric=relative_rmse protocol=unseen method="EnKF|EnNF" N=2|4|8 -->
    <!-- end -->
    an error of <!-- number: lorenz63 metric=relative_rmse protocol=unseen method=EnNF N=2 -->0.094<!-- end -->

The first word names docs/results/STUDY.json. ``case``, ``method``, ``metric``, ``protocol`` and ``N`` choose rows of it; several
values are separated by ``|`` and shown in that order. ``rows=`` and ``columns=`` name the fields that run down and across, as in
``rows=protocol,method``; by default these are the methods, and the ensemble sizes or, where there are none, the cases.
Metrics that are neither share a cell, as in ``0.137 / -2.13``. ``form=.3f|.2f`` is Python's format of each metric, by default
that of the page.

``<!-- claims -->`` is the table of the paper's claims, each judged by docs/results.

A dash stands for what was not measured, a number in brackets for runs that were lost. The best of the methods shown is bold.
"""

import argparse
import difflib
import math
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from bieqno.lab.report.claims import Judged, judge_all
from bieqno.lab.report.kept import read_kept
from bieqno.lab.report.pivots import (
    FILTER_METRICS,
    NOT_COMPARED,
    PROTOCOL_NAMES,
    REGRESSION_METRICS,
    Metric,
    best_row,
    case_title,
    protocols,
)
from bieqno.lab.report.style import style_of
from bieqno.lab.results import Result, Row
from bieqno.lab.texts import did_you_mean

FIELDS = {"case": "case", "method": "method", "metric": "metric", "protocol": "protocol", "N": "ensemble_size"}
OPTIONS = ("rows", "columns", "form")
MARKED = re.compile(r"<!-- (numbers?|claims)(?:: )?(.*?) -->(.*?)<!-- end -->", re.DOTALL)
MISSING = "—"


class Choice(NamedTuple):
    """Rows of a study that a comment chose, and how they are to be shown."""

    result: Result
    rows: Sequence[Row]
    order: Mapping[str, list[str]]  # of the values of each field
    down: list[str]
    across: list[str]
    metrics: Mapping[str, Metric]

    def values(self, fields: Sequence[str]) -> list[tuple[str, ...]]:
        """Return what some fields of the rows hold, in order."""

        def place(values: tuple[str, ...]) -> list[int]:
            return [self.order[field].index(value) for field, value in zip(fields, values, strict=True)]

        return sorted({of(row, fields) for row in self.rows}, key=place)

    def text(self, row: Row) -> str:
        """Return the number of a row; bold if it is the best of the methods shown."""

        def plain(one: Row) -> str:
            return MISSING if math.isnan(one.value) else f"{one.value:{self.metrics[one.metric].form}}"

        alike = [other for other in self.rows if conditions(other) == conditions(row)]
        best = best_row(alike, self.metrics[row.metric])
        # At the digits shown there may be several best ones.
        wins = best is not None and (plain(row), row.diverged) == (plain(best), best.diverged)
        wins = wins and row.method not in NOT_COMPARED
        return f"**{plain(row)}**" if wins else plain(row)

    def cell(self, line: tuple[str, ...], column: tuple[str, ...]) -> str:
        """Return the numbers at a place of the table; ValueError if there are several of one metric."""
        rows = [row for row in self.rows if (of(row, self.down), of(row, self.across)) == (line, column)]
        if len({row.metric for row in rows}) < len(rows):
            further = sorted(f for f in FIELDS if len({of(row, [f]) for row in rows}) > 1 and f != "metric")
            raise ValueError(
                f"there are {len(rows)} numbers for {', '.join(line + column)}; choose by {', '.join(further)}"
            )
        by_metric = {row.metric: self.text(row) for row in rows}
        wanted = [m for (m,) in self.values(["metric"]) if "metric" not in self.down + self.across or m in by_metric]
        lost = max((row.diverged or 0 for row in rows), default=0)
        if not rows:
            return MISSING
        return " / ".join(by_metric.get(metric, MISSING) for metric in wanted) + (f" ({lost})" if lost else "")


def of(row: Row, fields: Sequence[str]) -> tuple[str, ...]:
    """Return the values of some fields of a row as they stand in a comment."""
    return tuple(str(getattr(row, FIELDS[field])) for field in fields)


def conditions(row: Row) -> tuple[str, ...]:
    """Return all that a row has in common with those of other methods."""
    return of(row, [field for field in FIELDS if field != "method"])


def label(fields: Sequence[str], values: Sequence[str], metrics: Mapping[str, Metric]) -> str:
    """Return the heading of a line or column, in the words of the page."""
    words = {"method": lambda v: style_of(v).label, "metric": lambda v: metrics[v].name, "case": case_title}
    words |= {"protocol": lambda v: PROTOCOL_NAMES.get(v, v), "N": lambda v: f"N={v}"}
    return ", ".join(words[field](value) for field, value in zip(fields, values, strict=True))


def read(path: Path) -> Result:
    """Read what ``bieqno report --keep`` wrote of a study."""
    if not path.exists():
        raise ValueError(f"there is no {path.name} in docs/results; bieqno report runs --keep docs/results writes it")
    return read_kept(path)[0]


def choose(comment: str, results: Path) -> Choice:
    """Return what a comment asks for; ValueError if it names something that is not there."""
    study, *options = shlex.split(comment)
    result = read(results / f"{study}.json")
    given = {name: value for name, _, value in (option.partition("=") for option in options)}
    for name in given:
        if name not in (*FIELDS, *OPTIONS):
            raise ValueError(f"there is no option {name!r}; {did_you_mean(name, [*FIELDS, *OPTIONS])}")
    named = {field: given[field].split("|") for field in FIELDS if field in given}
    if "metric" not in named:
        raise ValueError("a metric is missing, such as metric=rmse")
    for field, values in named.items():
        there = {of(row, [field])[0] for row in result.rows}
        for value in values:
            if value not in there:
                raise ValueError(f"{study} has no {field} {value!r}; {did_you_mean(value, sorted(there))}")
    rows = [row for row in result.rows if all(of(row, [field])[0] in values for field, values in named.items())]
    if not rows:
        raise ValueError(f"{study} has no number that is all of this")
    known = REGRESSION_METRICS | FILTER_METRICS if protocols(result) else FILTER_METRICS | REGRESSION_METRICS
    forms = dict(zip(named["metric"], given["form"].split("|"), strict=False)) if "form" in given else {}
    metrics = {name: known.get(name, Metric(name.replace("_", " "), ".3g", None)) for name in named["metric"]}
    metrics = {name: metric._replace(form=forms.get(name, metric.form)) for name, metric in metrics.items()}
    sized = any(row.ensemble_size for row in rows)
    axes = (given.get("rows", "method").split(","), given.get("columns", "N" if sized else "case").split(","))
    for field in (*axes[0], *axes[1]):
        if field not in FIELDS:
            raise ValueError(f"there is no field {field!r}; {did_you_mean(field, FIELDS)}")
    order = {field: list(dict.fromkeys(of(row, [field])[0] for row in rows)) for field in FIELDS}
    order["N"] = list(dict.fromkeys(of(row, ["N"])[0] for row in sorted(rows, key=lambda row: row.ensemble_size or 0)))
    return Choice(result, rows, order | named, *axes, metrics)


def table(choice: Choice) -> str:
    """Return a table with its origin under it."""
    lines, columns = choice.values(choice.down), choice.values(choice.across)
    body = [[label(choice.down, line, choice.metrics), *(choice.cell(line, c) for c in columns)] for line in lines]
    head = ["", *(label(choice.across, column, choice.metrics) for column in columns)]
    written = [f"| {' | '.join(cells)} |".replace("|  |", "| |") for cells in (head, *body)]
    return "\n".join(["", "", written[0], "|---" * len(head) + "|", *written[1:], "", origin(choice), "", ""])


def origin(choice: Choice) -> str:
    """Return how many repetitions numbers are means of, and which command made them and when."""
    counts = sorted({row.n + (row.diverged or 0) for row in choice.rows if "(published)" not in row.method})
    sizes = any(row.ensemble_size for row in choice.result.rows)  # filters have them: one record or truth, several runs
    unit = "runs" if sizes or protocols(choice.result) else "data sets"
    means = f"Means of {counts[0]}{f' to {counts[-1]}' if len(counts) > 1 else ''} {unit}" if counts[-1:] > [1] else ""
    lost = ", in brackets the runs that were lost" if any(row.diverged for row in choice.rows) else ""
    config = choice.result.config
    # The methods were chosen by --only to be run apart; a run of all has the same numbers.
    command = config.get("command", choice.result.experiment).partition(" --only")[0]
    days = sorted({part.get("started", "?")[:10] for part in (config, *config.get("parts", ()))})
    made = f"Made by `{command}` on {' and '.join(days)}"
    return f"{means}{lost}. {made}." if means else f"{made}."


def number(choice: Choice) -> str:
    """Return the one number that was chosen."""
    if len(choice.rows) != 1:
        raise ValueError(f"{len(choice.rows)} numbers are all of this, not one")
    (row,) = choice.rows
    return choice.cell(of(row, choice.down), of(row, choice.across))


def claims(results: Path) -> str:
    """Return the table of the paper's claims, each with the verdict on both forms."""

    def verdict(judged: Judged) -> str:
        told = "" if judged.finding.verdict == "not run" else f": {judged.finding.number} (preset {judged.preset})"
        return f"{judged.finding.verdict}{told}".replace("|", "\\|")

    head = ["| claim | study | the paper's form | bieqno's form |", "|---|---|---|---|"]
    judged = judge_all(read(path) for path in sorted(results.glob("*.json")))
    rows = (
        f"| {one.claim.text} | `{one.claim.experiment}` | {verdict(one)} | {verdict(one.ours or one)} |"
        for one in judged
    )
    return "\n".join(["", "", *head, *rows, "", ""])


def revised(text: str, results: Path) -> Iterator[tuple[int, str, str, str | ValueError]]:
    """Yield of every marked place its position, comment, old text, and new text or why there is none."""
    for found in MARKED.finditer(text):
        kind, comment, old = found.groups()
        try:
            if "<!-- number" in old:
                raise ValueError("there is no <!-- end --> before the next comment")
            if kind == "claims":
                yield found.start(3), "claims", old, claims(results)
                continue
            yield found.start(3), comment, old, (table if kind == "numbers" else number)(choose(comment, results))
        except ValueError as error:
            yield found.start(3), comment, old, error


def check(root: Path, write: bool = False) -> list[str]:
    """Return what is wrong or differs, each with file and line; with `write`, put in place what can be."""
    wrong = []
    for path in (root / "README.md", *sorted((root / "docs").glob("*.md"))):
        text = path.read_text(encoding="utf-8")
        name, fresh, at = path.relative_to(root).as_posix(), "", 0
        marks = (len(re.findall(r"<!-- (?:numbers?:|claims )", text)), text.count("<!-- end -->"))
        if marks[0] != marks[1]:
            wrong.append(f"{name}: {marks[0]} comments begin numbers and {marks[1]} end them")
        for place, comment, old, new in revised(text, root / "docs" / "results"):
            where = f"{name}:{text.count(chr(10), 0, place) + 1}: {' '.join(comment.split())}"
            if isinstance(new, ValueError):
                wrong.append(f"{where}\n  {new}")
                continue
            fresh, at = fresh + text[at:place] + new, place + len(old)
            if old != new and not write:
                changes = difflib.unified_diff(
                    old.splitlines(), new.splitlines(), "in the text", "in docs/results", "", "", 0
                )
                wrong.append(
                    "\n  ".join([where, *(line.rstrip() for line in changes if line.strip() and line[:2] != "@@")])
                )
        if write and fresh + text[at:] != text:
            path.write_text(fresh + text[at:], encoding="utf-8")
    return wrong


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Check the numbers in README.md and docs/*.md against docs/results.")
    parser.add_argument("--write", action="store_true", help="put the numbers of docs/results in place")
    write = parser.parse_args().write
    found = check(Path(__file__).parents[1], write)
    print("\n\n".join(found) if found else "the numbers in README.md and docs/*.md are those of docs/results")
    if found and not write:
        print("\npython docs/check_numbers.py --write puts the numbers of docs/results in place")
    sys.exit(bool(found))
