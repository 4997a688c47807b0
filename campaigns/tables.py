"""What all campaigns share: counts of what happened, the table in docs/reliability.md, and the command line.

A campaign tells its progress to standard error every half minute. With `--write` the table of what was tried so far is put into
the page as often, so that one that is stopped, or killed, has left its table. `--workers` shares the count among processes.
With `--parts FOLDER` runs with different seeds are parts of one campaign: the page has the sum of those in the folder.
"""

import argparse
import json
import multiprocessing
import os
import re
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

PAGE = Path(__file__).parents[1] / "docs" / "reliability.md"
EVERY = 30.0  # seconds between two lines of progress
KEPT = 200  # failures that are kept as text
SEEDS = 1_000_000  # the distance of the seeds of two workers, for campaigns that use several seeds


def compile_quickly() -> None:
    """Ask the compiler, before JAX starts, for little optimization: some campaigns compile far more than they compute."""
    options = ("backend_optimization_level=0", "llvm_disable_expensive_passes=true", "cpu_use_fusion_emitters=false")
    os.environ.setdefault("XLA_FLAGS", " ".join(f"--xla_{option}" for option in options))


class Tally:
    """Counts outcomes by what was tried; those called `BAD` are failures, of which some are kept as text."""

    BAD = ("uncontrolled", "not finite", "hang", "lost", "leftover", "different bits", "traceback", "out of bounds")

    last: "Tally | None" = None  # the one that was begun last
    watch: "Callable[[Tally], None] | None" = None  # is shown the tally every now and then

    def __init__(self, expected: int = 0) -> None:
        Tally.last = self
        self.counts: dict[str, Counter[str]] = {}
        self.failures: list[str] = []
        self.expected, self.done = expected, 0  # steps of the campaign, each of which may try several things
        self.minutes = 0.0  # of the parts that have ended
        self._shown = time.monotonic()

    def add(self, what: str, outcome: str, detail: str = "", times: int = 1) -> None:
        """Count one outcome, or several that are the same."""
        self.counts.setdefault(what, Counter())[outcome] += times
        if outcome in self.BAD and len(self.failures) < KEPT:
            self.failures.append(f"{what}: {outcome}: {detail}")

    def step(self) -> None:
        """Count one step of those expected, and show the tally if it is time."""
        self.done += 1
        if Tally.watch is not None and time.monotonic() - self._shown > EVERY:
            self._shown = time.monotonic()
            Tally.watch(self)

    def tried(self) -> int:
        """Return how many outcomes were counted."""
        return sum(counts.total() for counts in self.counts.values())

    def failed(self) -> int:
        """Return how many of them are failures."""
        return sum(counts[outcome] for counts in self.counts.values() for outcome in self.BAD)

    def table(self) -> str:
        """Return the counts as a table in Markdown."""
        outcomes = sorted(
            {outcome for counts in self.counts.values() for outcome in counts}, key=lambda o: (o in self.BAD, o)
        )
        rows = [["", "tried", *outcomes], ["---"] * (len(outcomes) + 2)]
        for what, counts in sorted(self.counts.items()):
            rows.append([what, f"{counts.total():,}", *(f"{counts[outcome]:,}" for outcome in outcomes)])
        return "\n".join(f"| {' | '.join(row)} |" for row in rows)

    def save(self, path: Path) -> None:
        """Write the tally for the process that started this one, which may read it at any time."""
        part = path.with_suffix(".part")
        part.write_text(json.dumps([self.counts, self.failures, self.expected, self.done, self.minutes]))
        part.replace(path)

    @classmethod
    def merged(cls, paths: Iterable[Path]) -> "Tally":
        """Return the sum of the tallies that were written so far."""
        total = cls()
        for path in paths:
            if path.exists():
                counts, failures, expected, done, minutes = json.loads(path.read_text())
                for what, ends in counts.items():
                    total.counts.setdefault(what, Counter()).update(ends)
                total.failures += failures
                total.expected, total.done = total.expected + expected, total.done + done
                total.minutes += minutes
        return total


def run(
    name: str, campaign: Callable[[int, int], Tally], *, count: int, arguments: Sequence[str] | None = None
) -> None:
    """Run a campaign from the command line; `count` is the default. Ends with code 1 if anything failed."""
    parser = argparse.ArgumentParser(description=campaign.__doc__)
    parser.add_argument("--count", type=int, default=count)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1, help="processes that share the count, each with its seed")
    parser.add_argument("--write", action="store_true", help="put the table into docs/reliability.md")
    parser.add_argument("--parts", type=Path, metavar="FOLDER", help="keep the counts there, and tell the sum of all")
    chosen = parser.parse_args(arguments)
    workers = f" --workers {chosen.workers}" * (chosen.workers > 1)
    begun = time.monotonic()

    def told(tally: Tally, state: str) -> str:
        tally.minutes, seeds = (time.monotonic() - begun) / 60, [str(chosen.seed)]
        if chosen.parts:
            chosen.parts.mkdir(parents=True, exist_ok=True)
            tally.save(chosen.parts / f"{chosen.seed}.json")
            seeds = sorted((path.stem for path in chosen.parts.glob("*.json")), key=int)
            tally = Tally.merged(chosen.parts / f"{seed}.json" for seed in seeds)
        words = f"`--count {chosen.count} --seed {', '.join(seeds)}{workers}`, {tally.minutes:.1f} minutes{state}"
        about = f"{time.strftime('%Y-%m-%d')}, {words}, {tally.tried():,} tried"
        return f"{about}, {tally.failed()} failures.\n\n{tally.table()}"

    def watch(tally: Tally) -> None:
        print(f"{name}: {progress(tally, time.monotonic() - begun)}", file=sys.stderr, flush=True)
        if chosen.write and tally.counts:
            write(name, told(tally, ", not ended"))

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # in the background of a shell it is ignored, also by children
    Tally.watch = watch
    state = ""
    try:
        tally = campaign(chosen.count, chosen.seed) if chosen.workers == 1 else shared(campaign, chosen, watch)
    except KeyboardInterrupt:  # what was tried by then is told
        if Tally.last is None:
            raise
        tally, state = Tally.last, ", stopped early"
    finally:
        Tally.watch = None  # a tally of something else is not part of this campaign
    text = told(tally, state)
    print(text)
    for failure in tally.failures[:50]:
        print(failure[:400], file=sys.stderr)
    if chosen.write:
        write(name, text)
    sys.exit(1 if tally.failed() else 0)


def progress(tally: Tally, seconds: float) -> str:
    """Return a line on how far a campaign is and when it will have ended, if it goes on as it did."""
    line = f"{tally.done:,} of {tally.expected:,}, {tally.failed()} failures, {seconds / 60:.1f} minutes"
    if 0 < tally.done < tally.expected:
        line += f", about {seconds / 60 * (tally.expected - tally.done) / tally.done:.1f} more"
    return line


def shared(campaign: Callable[[int, int], Tally], chosen: argparse.Namespace, watch: Callable[[Tally], None]) -> Tally:
    """Run a campaign in several processes, each with its part of the count and a seed of its own."""
    parts = [chosen.count // chosen.workers + (k < chosen.count % chosen.workers) for k in range(chosen.workers)]
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, f"{k}.json") for k in range(chosen.workers)]
        # Not forked: JAX may hang in a fork.
        start = multiprocessing.get_context("spawn").Process
        jobs = [(campaign, part, chosen.seed + k * SEEDS, paths[k]) for k, part in enumerate(parts)]
        workers = [start(target=work, args=job) for job in jobs]
        for worker in workers:
            worker.start()
        try:
            while any(worker.is_alive() for worker in workers):
                workers[0].join(EVERY) if workers[0].is_alive() else time.sleep(1)
                watch(Tally.merged(paths))
        except KeyboardInterrupt:
            for worker in workers:
                worker.terminate()
            for worker in workers:
                worker.join()
            Tally.merged(paths)  # becomes the last, of which `run` tells
            raise
        tally = Tally.merged(paths)
        for k, worker in enumerate(workers):
            if worker.exitcode:  # a crash of the interpreter is what no call may cause
                tally.add(f"worker {k}", "lost", f"ended with {worker.exitcode}")
        return tally


def work(campaign: Callable[[int, int], Tally], count: int, seed: int, path: Path) -> None:
    """Run one part of a campaign, and write its tally at the end and on the way."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    Tally.watch = lambda tally: tally.save(path)
    try:
        campaign(count, seed).save(path)
    except KeyboardInterrupt:
        if Tally.last is not None:
            Tally.last.save(path)


def write(name: str, text: str) -> None:
    """Put the text of a campaign between its marks in the page."""
    marks = (f"<!-- campaign: {name} -->", "<!-- end of campaign -->")
    with PAGE.open("r+", encoding="utf-8") as file:
        if fcntl is not None:  # several campaigns may run at once
            fcntl.flock(file, fcntl.LOCK_EX)
        page = file.read()
        found = re.search(f"{re.escape(marks[0])}.*?{re.escape(marks[1])}", page, re.DOTALL)
        if found is None:
            raise ValueError(f"{PAGE} has no marks for the campaign {name}")
        file.seek(0)
        file.truncate()
        file.write(page[: found.start()] + f"{marks[0]}\n{text}\n{marks[1]}" + page[found.end() :])
