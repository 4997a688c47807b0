"""Disks that are full or read-only: every command says so in one line, and what was there before is still there."""

import contextlib
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from commands import TASKS, in_process, prepare
from tables import Tally, run


def campaign(count: int, seed: int) -> Tally:
    """Let commands write to a full disk and to one that cannot be written, `count` times; what was there stays."""
    tally, chance = Tally(count), random.Random(seed)
    if why_no_disk():
        tally.add(why_no_disk(), "skipped")
        return tally
    tasks = {
        "fit": ("fit", "table.csv", "--target", "y", "--no-correction", "--out", "{}/out"),
        "predict": ("predict", "model.bieqno", "table.csv", "--out", "{}/out"),
        "simulate": ("simulate", "setup.toml", "--windows", "30", "--out", "{}/out"),
        "assimilate": (*TASKS["assimilate"][:-1], "{}/out"),
        "evaluate": ("evaluate", "table.csv", "--target", "y", "--no-correction", "--out", "{}/out"),
        "init": ("init", "{}/example"),
        "run": ("run", "coverage", "--preset", "smoke", "--quiet", "--out", "{}/runs"),
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder)
        for number in range(count):
            task, full = list(tasks)[number % len(tasks)], (number // len(tasks)) % 2 == 0
            with small_disk(folder / f"disk{number}", full, chance) as disk:
                before = {path.name: path.read_bytes() for path in disk.iterdir() if path.is_file()}
                done = in_process([word.format(disk) for word in tasks[task]], folder)
                after = {path.name: path.read_bytes() for path in disk.iterdir() if path.is_file()}
            what = f"{task}, {'full' if full else 'read-only'}"
            if "Traceback" in done.stderr:
                tally.add(what, "traceback", done.stderr[-300:])
            elif done.returncode == 0:
                tally.add(what, "fitted in")
            elif before != after:
                tally.add(what, "lost", f"{sorted(before)} became {sorted(after)}")
            else:
                tally.add(what, "one line, all as it was")
            tally.step()
    return tally


def why_no_disk() -> str:
    """Return why no small disk can be mounted here; nothing if it can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "mounting a small disk needs root on Linux"
    with tempfile.TemporaryDirectory() as name:
        tried = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", name], capture_output=True, check=False
        )
        if tried.returncode:
            return "mounting a small disk is not allowed here"
        subprocess.run(["umount", name], check=True)
    return ""


@contextlib.contextmanager
def small_disk(path: Path, full: bool, chance: random.Random) -> Iterator[Path]:
    """Mount a disk with an old file on it, with a few kilobytes to spare or read-only."""
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(path)], check=True)
    try:
        (path / "out").write_bytes(b"what was there")
        if full:
            (path / "filler").write_bytes(b"x" * 4096 * chance.choice([13, 14]))
        else:
            subprocess.run(["mount", "-o", "remount,ro", str(path)], check=True)
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=True)


if __name__ == "__main__":
    run("disks", campaign, count=28)
