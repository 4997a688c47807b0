"""Processes that are killed, interrupted, or write to one place at once.

A run that goes on after `kill -9`, SIGTERM or Ctrl-C ends with the same bits and leaves nothing behind; of two processes with
one `--out` one wins whole or is refused.
"""

import contextlib
import hashlib
import io
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

import numpy as np

from bieqno.assimilation import EnKF, Inflated, save_filter
from tables import Tally, run

COMMAND = (sys.executable, "-c", "from bieqno.cli import main; main()")  # as the script `bieqno` does
PATIENCE = 3600.0  # seconds after which a process hangs, also on a machine that is busy with much else

SETUP = """
seed = 1
[model]
object = "tiny:model"
state = "tiny:state"
places = "tiny:places"
[observation]
object = "tiny:observation"
[ensemble]
members = 4
[filter]
kind = "ennf"
width = 4
depth = 1
[training]
objective = "imitation"
steps = 40
truths = 2
windows = 5
teacher_members = 4
sizes = [4]
batch = 8
validate = false
[compare]
radius = [2.0]
"""
MODULE = """
from concurrent.futures import ThreadPoolExecutor
import jax.numpy as jnp
import numpy as np
from bieqno.assimilation import Lorenz96, Members, Observation, Places
model, state, places = Lorenz96(6), jnp.full(6, 8.0).at[0].add(0.1), Places.grid(6, period=6.0)
observation = Observation([0, 3], 1.0)

# A model outside JAX.
def run_one(state, *, seed, **about):
    noise = np.random.default_rng(seed).normal(size=state.shape)
    return 0.9 * state + 0.5 * np.roll(state, 1) * np.exp(-(state**2)) + 0.1 * noise

outside = Members(run_one, ThreadPoolExecutor(2))
"""


def prepare(folder: Path, *, fitted_only: bool = False) -> None:
    """Write a table with its model, and a small system with its observations and filter."""
    (folder / "setup.toml").write_text(SETUP)
    (folder / "outside.toml").write_text(SETUP.replace("tiny:model", "tiny:outside"))
    (folder / "tiny.py").write_text(MODULE)
    x = np.linspace(0, 1, 20)
    rows = "\n".join(f"{a},{b}" for a, b in zip(x, np.sin(6 * x), strict=True))
    (folder / "table.csv").write_text(f"x,y\n{rows}\n")
    fit = ("fit", "table.csv", "--target", "y", "--no-correction", "--out", "model.bieqno")
    simulate = ("simulate", "setup.toml", "--windows", "30", "--out", "obs.nc")
    for words in (fit,) if fitted_only else (fit, simulate):
        done = in_process(words, folder)
        if done.returncode:
            raise RuntimeError(done.stderr)
    save_filter(folder / "filter.bieqno", Inflated(EnKF(), 1.02))


ASSIMILATED = ("--observations", "obs.nc", "--filter", "filter.bieqno")
# What each command writes, at its end.
TASKS: dict[str, tuple[str, ...]] = {
    "assimilate": ("assimilate", "setup.toml", *ASSIMILATED, "--out", "analysis.nc"),
    "cycle_outside": ("assimilate", "outside.toml", *ASSIMILATED, "--resume", "--out", "outside.nc"),
    "train-filter": ("train-filter", "setup.toml", "--resume", "--out", "trained.bieqno"),
    "run": ("run", "linear-gaussian", "--preset", "smoke", "--resume", "--quiet", "--out", "runs"),
}

WRITTEN: dict[str, tuple[str, ...]] = {
    "assimilate": ("analysis.nc",),
    "cycle_outside": ("outside.nc",),
    "train-filter": ("trained.bieqno",),
    "run": ("runs/linear-gaussian/metrics.json",),
    "predict": ("out.csv",),
}


def bieqno(words: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        [*COMMAND, *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
        env=_environment(),
    )


def in_process(words: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command to its end in this process, without the seconds that a new one takes to start."""
    from bieqno.cli import main

    out, err, before, code = io.StringIO(), io.StringIO(), Path.cwd(), 0
    os.chdir(folder)
    try:
        argv = mock.patch.object(sys, "argv", ["bieqno", *words])
        with argv, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
    except SystemExit as end:
        code = int(end.code or 0)
    except Exception:  # what a user would see as a traceback
        code = 1
        err.write(traceback.format_exc())
    finally:
        os.chdir(before)
    return subprocess.CompletedProcess(list(words), code, out.getvalue(), err.getvalue())


def _environment() -> dict[str, str]:
    source = str(Path(__file__).parents[1] / "src")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([source, os.environ.get("PYTHONPATH", "")])}


def digests(folder: Path, task: str) -> dict[str, str]:
    """Return digests of what a command wrote; of results the numbers only, for they also hold the time."""
    paths = [folder / name for name in WRITTEN[task]]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths if path.exists()}


def remove(folder: Path, task: str) -> None:
    """Remove what a command wrote; the folder of a study as a whole, for one without numbers is in the way of the next run."""
    for path in (folder / name for name in WRITTEN[task]):
        shutil.rmtree(path.parent, ignore_errors=True) if task == "run" else path.unlink(missing_ok=True)


def leftovers(folder: Path) -> list[str]:
    """Return hidden files and folders that no finished command leaves."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob(".*") if "__pycache__" not in path.parts)


def signals(count: int, chance: random.Random) -> list[signal.Signals]:
    """Return in a random order what processes are sent: `kill -9` to two of three, SIGTERM and Ctrl-C to the others."""
    kinds = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGKILL, signal.SIGKILL, signal.SIGINT)
    chosen = [kinds[number % len(kinds)] for number in range(count)]
    chance.shuffle(chosen)
    return chosen


def interrupted(count: int, seed: int) -> Tally:
    """Interrupt commands `count` times, each at a random moment, go on, and compare with one that ran through."""
    tally, chance = Tally(count), random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder)
        expected, seconds = {}, {}
        for task, words in list(TASKS.items())[:count]:
            begun = time.monotonic()
            done = bieqno(words, folder)
            expected[task], seconds[task] = digests(folder, task), time.monotonic() - begun
            assert done.returncode == 0, done.stderr
        for number, sign in enumerate(signals(count, chance)):
            task = list(TASKS)[number % len(TASKS)]
            what = f"{task}, {sign.name}"
            remove(folder, task)
            try:
                killed = interrupt(TASKS[task], folder, chance.uniform(0.1, 1.0) * seconds[task], sign)
                done = bieqno(TASKS[task], folder)
            except subprocess.TimeoutExpired as error:
                tally.add(what, "hang", str(error))
                continue
            if done.returncode or "Traceback" in killed + done.stderr:
                tally.add(what, "traceback", (killed + done.stderr)[-300:])
            elif digests(folder, task) != expected[task]:
                tally.add(what, "different bits", task)
            elif leftovers(folder):
                tally.add(what, "leftover", str(leftovers(folder)))
            else:
                tally.add(what, "same bits")
            tally.step()
    return tally


def interrupt(words: Sequence[str], folder: Path, after: float, sign: signal.Signals) -> str:
    """Start a command and send it a signal after some seconds; return what it wrote to standard error."""
    with tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen([*COMMAND, *words], cwd=folder, stdout=err, stderr=err, env=_environment())
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(after)
        process.send_signal(sign)
        ended(process)
        err.seek(0)
        return err.read()


def together(count: int, seed: int) -> Tally:
    """Start two processes with one `--out`, `count` times: the file is whole, and each process succeeds or says why not."""
    tally, chance = Tally(count), random.Random(seed)
    tasks = {"predict": ("predict", "model.bieqno", "table.csv", "--out", "out.csv"), **TASKS}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder)
        whole = {}
        for task, words in list(tasks.items())[:count]:
            assert bieqno(words, folder).returncode == 0
            whole[task] = digests(folder, task)
        for number in range(count):
            task = list(tasks)[number % len(tasks)]
            remove(folder, task)
            pair = [started(tasks[task], folder, pause) for pause in (0.0, chance.uniform(0, 1.5))]
            try:
                ends = [(ended(process), log.read_text()) for process, log in pair]
            except subprocess.TimeoutExpired as error:
                tally.add(task, "hang", str(error))
                continue
            finally:
                for _, log in pair:
                    log.unlink()
            found = digests(folder, task)
            refused = [text for code, text in ends if code]
            if len(refused) == 2 or any("Traceback" in text for _, text in ends):
                tally.add(task, "traceback", str(ends)[-300:])
            elif found != whole[task]:
                tally.add(task, "different bits", task)
            else:
                tally.add(task, "one was refused" if refused else "both ended well")
            tally.step()
    return tally


def ended(process: subprocess.Popen[bytes]) -> int:
    """Wait for the end of a process and return its code; one that hangs is killed."""
    try:
        return process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise


def started(words: Sequence[str], folder: Path, pause: float) -> tuple[subprocess.Popen[bytes], Path]:
    time.sleep(pause)
    descriptor, log = tempfile.mkstemp()
    process = subprocess.Popen([*COMMAND, *words], cwd=folder, stdout=descriptor, stderr=descriptor, env=_environment())
    os.close(descriptor)
    return process, Path(log)


if __name__ == "__main__":
    chosen = {"interrupted": (interrupted, 150), "together": (together, 40)}
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in chosen:
        sys.exit(f"say which: {', '.join(chosen)}")
    run(name, chosen[name][0], count=chosen[name][1], arguments=sys.argv[2:])
