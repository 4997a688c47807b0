"""The commands that campaigns run, on a small table and a small system, and three ways to run one.

Most of a short command is the import of its modules. Many processes are therefore forked from one that has imported them and
has not used JAX; others are new, as users start them; and where nothing is interrupted, this process does.
"""

import contextlib
import gc
import hashlib
import io
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

import numpy as np

from bieqno.assimilation import EnKF, Inflated, save_filter
from bieqno.compilation import compilation_cache
from tables import compile_quickly

compile_quickly()
COMMAND = (sys.executable, "-c", "from bieqno.cli import main; main()")  # as the script `bieqno` does
PATIENCE = 3600.0  # seconds after which a process hangs, also on a machine that is busy with much else
IMPORTED = (
    *(
        "bieqno.cli.__main__",
        "bieqno.cli.table_files",
        "bieqno.lab.studies",
        "bieqno.lab.report.page",
        "bieqno.regression",
    ),
    *("bieqno.lab.system_files.training", "bieqno.lab.system_files.series", "bieqno.lab.report.tables"),
    *("bieqno.lab.user_comparisons", "h5netcdf", "pandas", "xarray", "h5py", "distributed", "dask.array"),
    *("pydantic.main", "typer.core", "scipy.fftpack"),
)
_forks = multiprocessing.get_context("spawn" if sys.platform == "win32" else "forkserver")
_forks.set_forkserver_preload(list(IMPORTED))

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
    "run": ("run", "coverage", "--preset", "smoke", "--resume", "--quiet", "--out", "runs"),
}

WRITTEN: dict[str, tuple[str, ...]] = {
    "assimilate": ("analysis.nc",),
    "cycle_outside": ("outside.nc",),
    "train-filter": ("trained.bieqno",),
    "run": ("runs/coverage/metrics.json",),
    "predict": ("out.csv",),
}


class Process:
    """A command that runs in a process of its own: a new one, or one that is forked."""

    def __init__(self, words: Sequence[str], folder: Path, log: Path, *, new: bool = False) -> None:
        self.log = log
        if new:
            with log.open("wb") as file:
                self.started = subprocess.Popen(
                    [*COMMAND, *words], cwd=folder, stdout=file, stderr=file, env=_environment()
                )
            return
        if folder_of_programs := compilation_cache():  # JAX reads it where it is imported
            os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(folder_of_programs))
            os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
        os.environ.update(_environment())
        begun = _forks.Event()
        self.started = _forks.Process(target=_command, args=(list(words), folder, log, begun), daemon=True)
        self.started.start()
        if not begun.wait(PATIENCE):
            raise subprocess.TimeoutExpired(list(words), PATIENCE)

    def end(self, seconds: float = PATIENCE) -> int | None:
        """Wait for the end and return the code; None if it runs on."""
        if isinstance(self.started, subprocess.Popen):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.started.wait(seconds)
            return self.started.returncode
        self.started.join(seconds)
        return self.started.exitcode

    def ended(self) -> tuple[int, str]:
        """Return the code and what was printed; a TimeoutExpired of one that hangs, which is killed."""
        code = self.end()
        if code is None:
            self.send(signal.SIGKILL)
            raise subprocess.TimeoutExpired(str(self.log), PATIENCE)
        return code, self.log.read_text()

    def send(self, sign: signal.Signals) -> None:
        """Send a signal, if the process has not ended."""
        if self.end(0) is None and self.started.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.started.pid, sign)


def _command(words: list[str], folder: Path, log: Path, begun: "multiprocessing.synchronize.Event") -> None:
    """Run a command as a new process would, in one that is forked."""
    from bieqno.cli import main

    gc.disable()  # a short command does not need it, and looking through all imported modules takes long
    os.chdir(folder)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.path.insert(0, "")  # as for `python -c`
    sys.argv = ["bieqno", *words]
    begun.set()
    main()


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
