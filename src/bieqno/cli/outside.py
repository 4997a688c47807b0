"""Assimilation with a model outside JAX: ``--executor threads:8`` says where its members run, ``--resume`` continues."""

import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import typer

from bieqno.cli.output import alone, counting_bar, warn

EXECUTORS = "threads:8, processes:8, dask:ADDRESS, dask:local:4 or mpi"


@contextmanager
def open_executor(text: str | None) -> Iterator[Executor | Callable[[], Executor] | None]:
    """Yield what an option names: an executor or a function that makes one; None if there is no option.

    In a rank of MPI that works for another, wait until the run is over, and exit.

    Example:
        >>> with open_executor("threads:2") as make, make() as executor:
        ...     executor.submit(abs, -3).result()
        3
    """
    kind, _, rest = (text or "").partition(":")
    count = int(rest.rpartition(":")[2]) if re.fullmatch(r"(local:)?[1-9][0-9]*", rest) else None
    if text is None:
        yield None
    elif kind == "threads" and count and rest.isdigit():
        yield partial(ThreadPoolExecutor, count)
    elif kind == "processes" and count and rest.isdigit():
        # A process that was forked from one with threads, as JAX has them, may stand still.
        yield partial(ProcessPoolExecutor, count, mp_context=get_context("spawn"))
    elif kind == "dask" and rest:
        with _dask(rest, count if rest.startswith("local:") else None) as client:
            yield client.get_executor(pure=False)
    elif text == "mpi":
        with _mpi() as executor:
            if executor is not None:
                yield executor
        if executor is None:
            raise typer.Exit
    else:
        raise ValueError(f"an executor is {EXECUTORS}; got {text!r}")


@contextmanager
def _dask(address: str, workers: int | None) -> Iterator[Any]:
    """Yield a client of a running scheduler, or of workers on this machine."""
    try:
        from distributed import Client, LocalCluster
    except ImportError as error:
        raise ImportError('Dask is not installed: pip install "bieqno[dask]"') from error
    if workers is not None:
        about: dict[str, Any] = {"n_workers": workers, "threads_per_worker": 1, "dashboard_address": ":0"}
        with LocalCluster(**about) as cluster, Client(cluster, set_as_default=False) as client:
            yield client
        return
    try:
        client = Client(address, set_as_default=False)
    except (OSError, ValueError) as error:
        raise ValueError(f"there is no Dask scheduler at {address}: {error}") from error
    with client:
        yield client


def _mpi() -> Any:
    """Return the executor of all ranks that were started together; in all but the first, entering it gives None."""
    try:
        from mpi4py import MPI
        from mpi4py.futures import MPICommExecutor
    except (ImportError, RuntimeError) as error:
        raise ImportError(f'MPI is not installed: pip install "bieqno[mpi]" ({error})') from error
    if MPI.COMM_WORLD.Get_size() < 2:
        raise ValueError("MPI needs two processes or more: mpiexec -n 9 bieqno assimilate ... --executor mpi")
    return MPICommExecutor(MPI.COMM_WORLD, root=0)


def continuing(arguments: list[str]) -> str:
    """Return the command that continues this one.

    Example:
        >>> continuing(["assimilate", "my setup.toml"])
        "bieqno assimilate 'my setup.toml' --resume"
    """
    return shlex.join(["bieqno", *(word for word in arguments if word != "--resume"), "--resume"])


def cycle_members(
    filter: Any, system: Any, ensemble: Any, observations: Any, *, pool: Any, folder: Path, resume: bool, **how: Any
) -> Any:
    """Run `cycle_outside` with a bar, on the executor that was asked for or that of the model; windows are kept in a folder."""
    import equinox as eqx

    from bieqno.assimilation import Members, TooFewMembersError, cycle_outside

    model = system.model
    if pool is not None:
        model = Members(model.run_one, pool, model.retries, model.timeout, model.survivors)
    with alone(folder), counting_bar("assimilate") as show:
        for old in () if resume else folder.iterdir():
            shutil.rmtree(old) if old.is_dir() else old.unlink()

        def on_progress(p: Any) -> None:
            slowest = f"the last, {p.member}, after {p.seconds:.1f} s"
            show(p.window, p.windows, f"window {p.window + 1}: {p.done} of {p.members} members, {slowest}")

        try:
            moved = eqx.tree_at(lambda s: s.model, system, model)
            run = cycle_outside(filter, moved, ensemble, observations, folder=folder, on_progress=on_progress, **how)
        except TooFewMembersError as error:
            raise ValueError(f"{error}: {continuing(sys.argv[1:])}") from error
    lost = run.lost
    if int(lost.sum()):
        warn(f"{int(lost.sum())} members lost in {int((lost > 0).sum())} windows, and redrawn; their files: {folder}")
    return run
