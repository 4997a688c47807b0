"""Processes that are killed, interrupted, or write to one place at once.

A run that goes on after `kill -9`, SIGTERM or Ctrl-C ends with the same bits and leaves nothing behind; of two processes with
one `--out` one wins whole or is refused.
"""

import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from commands import TASKS, Process, digests, leftovers, prepare, remove
from tables import Tally, run

NEW = 7  # every seventh process that is interrupted is a new one, so that imports are interrupted, too
# Commands that take longer are interrupted less often.
ORDER = (
    "assimilate",
    "cycle_outside",
    "train-filter",
    "assimilate",
    "cycle_outside",
    "run",
    "assimilate",
    "cycle_outside",
)


def signals(count: int, chance: random.Random) -> list[signal.Signals]:
    """Return in a random order what processes are sent: `kill -9` to two of three, SIGTERM and Ctrl-C to the others."""
    kinds = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGKILL, signal.SIGKILL, signal.SIGINT)
    chosen = [kinds[number % len(kinds)] for number in range(count)]
    chance.shuffle(chosen)
    return chosen


def timed(task: str, folder: Path, log: Path, *, new: bool = False) -> float:
    """Run a command to its end, which must be good, and return its seconds."""
    begun = time.monotonic()
    code, text = Process(TASKS[task], folder, log, new=new).ended()
    if code:
        raise RuntimeError(f"{task} ended with {code}: {text}")
    return time.monotonic() - begun


def interrupted(count: int, seed: int) -> Tally:
    """Interrupt commands `count` times, each at a random moment, go on, and compare with one that ran through."""
    tally, chance = Tally(count), random.Random(seed)
    with tempfile.TemporaryDirectory() as name, tempfile.TemporaryDirectory() as logs:
        folder, log = Path(name), Path(logs, "log")
        prepare(folder)
        expected, seconds, importing = {}, {}, 0.0
        for task in sorted(set(ORDER[:count])):
            timed(task, folder, log)
            expected[task] = digests(folder, task)
            remove(folder, task)
            seconds[task] = timed(task, folder, log)  # what was compiled is kept now
            if expected[task] != digests(folder, task):
                tally.add(f"{task}, run again", "different bits", task)
        if count >= NEW:
            remove(folder, "assimilate")
            importing = max(0.0, timed("assimilate", folder, log, new=True) - seconds["assimilate"])
        for number, sign in enumerate(signals(count, chance)):
            task, new = ORDER[number % len(ORDER)], number % NEW == NEW - 1
            what = f"{task}, {sign.name}" + ", new process" * new
            remove(folder, task)
            try:
                process = Process(TASKS[task], folder, log, new=new)
                process.end(chance.uniform(0.05, 1.0) * (seconds[task] + new * importing))
                process.send(sign)
                code, killed = process.ended()
                over = code == 0
                code, text = Process(TASKS[task], folder, log).ended()
            except subprocess.TimeoutExpired as error:
                tally.add(what, "hang", str(error))
                continue
            if code or "Traceback" in killed + text:
                tally.add(what, "traceback", (killed + text)[-300:])
            elif digests(folder, task) != expected[task]:
                tally.add(what, "different bits", task)
            elif leftovers(folder):
                tally.add(what, "leftover", str(leftovers(folder)))
            else:
                tally.add(what, "had ended before" if over else "same bits")
            tally.step()
    return tally


def together(count: int, seed: int) -> Tally:
    """Start two processes with one `--out`, `count` times: the file is whole, and each process succeeds or says why not."""
    tally, chance = Tally(count), random.Random(seed)
    tasks = {"predict": ("predict", "model.bieqno", "table.csv", "--out", "out.csv"), **TASKS}
    with tempfile.TemporaryDirectory() as name, tempfile.TemporaryDirectory() as logs:
        folder, paths = Path(name), [Path(logs, "first"), Path(logs, "second")]
        prepare(folder)
        whole, seconds = {}, {}
        for task, words in list(tasks.items())[:count]:
            for _ in range(2):  # the second one has compiled programs
                remove(folder, task)
                begun = time.monotonic()
                code, text = Process(words, folder, paths[0]).ended()
                if code:
                    raise RuntimeError(f"{task} ended with {code}: {text}")
                whole[task], seconds[task] = digests(folder, task), time.monotonic() - begun
        for number in range(count):
            task = list(tasks)[number % len(tasks)]
            remove(folder, task)
            try:
                first = Process(tasks[task], folder, paths[0])
                time.sleep(chance.uniform(0, 0.5) * seconds[task])
                second = Process(tasks[task], folder, paths[1])
                ends = [first.ended(), second.ended()]
            except subprocess.TimeoutExpired as error:
                tally.add(task, "hang", str(error))
                continue
            refused = [text for code, text in ends if code]
            if len(refused) == 2 or any("Traceback" in text for _, text in ends):
                tally.add(task, "traceback", str(ends)[-300:])
            elif digests(folder, task) != whole[task]:
                tally.add(task, "different bits", task)
            elif leftovers(folder):
                tally.add(task, "leftover", str(leftovers(folder)))
            else:
                tally.add(task, "one was refused" if refused else "both ended well")
            tally.step()
    return tally


if __name__ == "__main__":
    chosen = {"interrupted": (interrupted, 150), "together": (together, 40)}
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in chosen:
        sys.exit(f"say which: {', '.join(chosen)}")
    run(name, chosen[name][0], count=chosen[name][1], arguments=sys.argv[2:])
