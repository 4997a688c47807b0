"""What all campaigns share: counts of what happened, the table in docs/reliability.md, and the command line."""

import argparse
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "reliability.md"


class Tally:
    """Counts outcomes by what was tried; those called `BAD` are failures, of which a few are kept as text."""

    BAD = ("uncontrolled", "not finite", "hang", "lost", "leftover", "different bits", "traceback", "out of bounds")

    last: "Tally | None" = None  # the one that was begun last

    def __init__(self) -> None:
        Tally.last = self
        self.counts: dict[str, Counter[str]] = {}
        self.failures: list[str] = []

    def add(self, what: str, outcome: str, detail: str = "") -> None:
        """Count one outcome."""
        self.counts.setdefault(what, Counter())[outcome] += 1
        if outcome in self.BAD:
            self.failures.append(f"{what}: {outcome}: {detail}")

    def table(self) -> str:
        """Return the counts as a table in Markdown."""
        outcomes = sorted(
            {outcome for counts in self.counts.values() for outcome in counts}, key=lambda o: (o in self.BAD, o)
        )
        rows = [["", "tried", *outcomes], ["---"] * (len(outcomes) + 2)]
        for what, counts in sorted(self.counts.items()):
            rows.append([what, f"{counts.total():,}", *(f"{counts[outcome]:,}" for outcome in outcomes)])
        return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def run(
    name: str, campaign: Callable[[int, int], Tally], *, count: int, arguments: Iterable[str] | None = None
) -> None:
    """Run a campaign from the command line; `count` is the default. Ends with code 1 if anything failed."""
    parser = argparse.ArgumentParser(description=campaign.__doc__)
    parser.add_argument("--count", type=int, default=count)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", action="store_true", help="put the table into docs/reliability.md")
    chosen = parser.parse_args(arguments)
    begun = time.perf_counter()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    stopped = ""
    try:
        tally = campaign(chosen.count, chosen.seed)
    except KeyboardInterrupt:  # what was tried by then is told
        if Tally.last is None:
            raise
        tally, stopped = Tally.last, "stopped early, "
    minutes = (time.perf_counter() - begun) / 60
    about = (
        f"{time.strftime('%Y-%m-%d')}, `--count {chosen.count} --seed {chosen.seed}`, {minutes:.1f} minutes, {stopped}"
    )
    about += f"{len(tally.failures)} failures."
    text = f"{about}\n\n{tally.table()}"
    print(text)
    for failure in tally.failures[:50]:
        print(failure[:400], file=sys.stderr)
    if chosen.write:
        write(name, text)
    sys.exit(1 if tally.failures else 0)


def write(name: str, text: str) -> None:
    """Put the text of a campaign between its marks in the page."""
    page, marks = PAGE.read_text(encoding="utf-8"), (f"<!-- campaign: {name} -->", "<!-- end of campaign -->")
    found = re.search(f"{re.escape(marks[0])}.*?{re.escape(marks[1])}", page, re.DOTALL)
    if found is None:
        raise ValueError(f"{PAGE} has no marks for the campaign {name}")
    PAGE.write_text(page[: found.start()] + f"{marks[0]}\n{text}\n{marks[1]}" + page[found.end() :], encoding="utf-8")
