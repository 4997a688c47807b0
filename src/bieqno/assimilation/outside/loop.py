"""`cycle_outside`: the loop on the host that assimilates with a model outside JAX, and keeps every window in a file."""

import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

import bieqno.assimilation.twin as twin
from bieqno.arguments import checked
from bieqno.assimilation.models.forecast import AbstractEnsembleModel, fewest_survivors
from bieqno.assimilation.outside.members import Forecast, Members, member_seeds
from bieqno.assimilation.protocols import Filter, begin
from bieqno.assimilation.system import System
from bieqno.assimilation.twin import Observations, Record, Run, cycle, keep_moments
from bieqno.persistence.tensorfile import PARTIAL_SUFFIX, PersistenceError, read_tensors, write_tensors
from bieqno.training.checkpoint import fingerprint

_KIND = "assimilated window"


class TooFewMembersError(RuntimeError):
    """Fewer members came back than a run can continue with; what was assimilated before is kept."""


class Progress(NamedTuple):
    """How far a run is: the window and the members that are back; the one that came last and how long it took."""

    window: int
    windows: int
    done: int
    members: int
    member: int
    seconds: float


@checked("ensemble", finite=False)
def cycle_outside(
    filter: Filter,
    system: System,
    ensemble: Float[Array, "N n"],
    observations: Observations,
    *,
    folder: str | Path,
    inputs: PyTree[Any] = None,
    record: Record = keep_moments,
    first_window: int = 0,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    key: PRNGKeyArray,
) -> Run:
    """Take an ensemble through a series of observations, as `cycle` does, by a model of `Members`.

    The forecast runs on the model's executor, the analysis is compiled. Each window is written to a file in `folder`, at
    once or not at all: after a crash, Ctrl-C or ``kill -9`` the same call continues after the last of them, and ends with the
    same numbers. New observations at the end of the series continue a run that was complete. Members that fail are redrawn
    from the others; where too few are left, `TooFewMembersError` is raised, the files of the windows before stay, and the folders
    of the members that failed, too.

    Example:
        >>> import tempfile
        >>> from concurrent.futures import ThreadPoolExecutor
        >>> from bieqno.assimilation import EnKF, Observation
        >>> def run_one(state, *, inputs, member, window, seed, folder):
        ...     return 0.9 * state + 0.1 * np.random.default_rng(seed).normal(size=state.shape)
        >>> start, seen = jax.random.normal(jax.random.key(0), (8, 1)), Observations.of(jnp.ones((3, 1)))
        >>> with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as executor:
        ...     system = System(Members(run_one, executor), Observation([0], 0.1), jnp.ones(1))
        ...     run = cycle_outside(EnKF(), system, start, seen, folder=folder, key=jax.random.key(1))
        >>> run.kept["mean"].shape, run.lost.tolist()
        ((3, 1), [0, 0, 0])
    """
    model = system.model
    if not isinstance(model, Members):
        raise TypeError(f"cycle_outside runs a model of Members, got {type(model).__name__}; use cycle for a JAX model")
    twin.check_inputs(inputs, len(observations.value))
    system.check_present(observations.mask)
    twin.check_values(filter, system, observations)
    ensemble = jnp.asarray(ensemble, jnp.result_type(ensemble, float))
    given = eqx.tree_at(lambda s: s.model, system, _Given(ensemble))
    if not len(observations.value):
        return cycle(filter, given, ensemble, observations, record=record, key=key)
    step = _Analysis(filter, given, record, model.survivors, key)
    on_host = jax.tree.map(np.asarray, observations)
    rows = [jax.tree.map(lambda leaf, k=k: leaf[k : k + 1], on_host) for k in range(len(observations.value))]
    # Whatever does not fit together is found here, before the model has run for hours.
    state = begin(filter)
    shape = eqx.filter_eval_shape(step, first_window, ensemble, ensemble, rows[0], state)
    # How many have to survive changes nothing in windows that are finished: it may be lowered to continue.
    about = (filter, system.observation, system.limit, record, ensemble, first_window, key)
    files = _Files(Path(folder).resolve(), shape, fingerprint(version("bieqno"), *about))
    last, diverged = ensemble, -1
    kept: list[PyTree[Any]] = []
    lost: list[Array] = []
    numbers = np.arange(first_window, first_window + len(rows) + 1, dtype=jnp.result_type(int))
    # What is done between two windows keeps the workers waiting: while the members of one run, that before is written, and
    # the seeds of the next are drawn.
    with ThreadPoolExecutor(1) as writer, closing(model.pool):
        written = writer.submit(lambda: None)
        drawn = writer.submit(_seeds, key, numbers[0, ...], len(ensemble))
        for index, seen in enumerate(rows):
            if diverged >= 0:  # as in `cycle`, what follows repeats the last sound ensemble
                kept.append(kept[-1])
                lost.append(0 * lost[-1])
                continue
            driven = jax.tree.map(lambda leaf, k=index: np.asarray(leaf[k]), inputs)
            listen = _listener(on_progress, index, len(rows), len(ensemble))
            found = files.read(index, seen, driven)
            seeds, drawn = drawn.result(), writer.submit(_seeds, key, numbers[index + 1, ...], len(ensemble))
            if found is None:
                number, work = first_window + index, files.work(index)
                forecast = model.run(last, seeds, window=number, folder=work, inputs=driven, on_return=listen)
                _check_survivors(model, forecast, number, work)
                written.result()
                found = step(numbers[index, ...], last, forecast.ensemble.astype(last.dtype), seen, state)
                written = writer.submit(files.write, index, found, forecast.errors)
            last, state, diverged = found.ensemble, found.state, index if int(found.diverged) >= 0 else -1
            kept.append(found.kept)
            lost.append(found.lost)
        written.result()
    joined = jax.tree.map(lambda *leaves: jnp.asarray(np.concatenate(leaves)), *kept)
    return Run(joined, last, jnp.array(diverged), jnp.asarray(np.concatenate(lost)), state)


def _listener(
    on_progress: Callable[[Progress], None], window: int, windows: int, members: int
) -> Callable[[int, int, float], None]:
    return lambda done, member, seconds: on_progress(Progress(window, windows, done, members, member, seconds))


class _Given(AbstractEnsembleModel):
    """Returns a forecast that was made elsewhere."""

    after: Float[Array, "N n"]

    def forecast(self, ensemble: Float[Array, "N n"], *inputs: PyTree[Any], key: PRNGKeyArray) -> Float[Array, "N n"]:
        return self.after


class _Analysis(eqx.Module):
    """A window of `cycle` whose forecast has been made: the same loop, keys, losses and divergence."""

    filter: Filter
    system: System
    record: Record
    survivors: float
    key: PRNGKeyArray

    @eqx.filter_jit
    def __call__(self, window: Any, start: Array, after: Any, seen: Observations, state: PyTree[Any]) -> Run:
        system = eqx.tree_at(lambda s: s.model, self.system, _Given(after))
        how: Any = {"record": self.record, "first_window": window, "survivors": self.survivors, "state": state}
        return cycle(self.filter, system, start, seen, **how, key=self.key)


@eqx.filter_jit
def _seeds(key: PRNGKeyArray, window: Any, members: int) -> Int[Array, "N"]:
    """Return the seeds of a window, from the key that its forecast has in `cycle`."""
    return member_seeds(twin.window_keys(key, window)[0], members)


def _check_survivors(model: Members, found: Forecast, window: int, work: Path) -> None:
    """Raise TooFewMembersError where too many are lost."""
    N, lost = len(found.ensemble), len(found.errors)
    if N - lost >= fewest_survivors(model.survivors, N):
        return
    some = "; ".join(f"member {member}: {error}" for member, error in list(found.errors.items())[:3])
    raise TooFewMembersError(
        f"{lost} of {N} members of window {window} were lost, and {model.survivors:.0%} have to survive ({some}); the windows "
        f"before are kept, the files of this one are in {work}; the same call continues"
    )


class _Files:
    """The windows of a run in a folder; each names the run and all observations up to it by a digest."""

    def __init__(self, folder: Path, shape: PyTree[Any], run: str) -> None:
        self.folder, self.shape, self.digests = folder, shape, [run]
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for leftover in folder.glob(f".window_*{PARTIAL_SUFFIX}"):
                leftover.unlink(missing_ok=True)
        except OSError as error:
            raise PersistenceError(f"cannot keep windows in {folder}: {error.strerror}") from error

    def work(self, index: int) -> Path:
        """Return where the members of a window may keep files; nothing is there."""
        work = self._path(index).with_suffix("")
        shutil.rmtree(work, ignore_errors=True)
        return work

    def read(self, index: int, seen: Observations, inputs: Any) -> Run | None:
        """Return a window that was written before, None if it was not; they are asked for in their order."""
        self.digests.append(fingerprint(self.digests[index], seen, inputs))
        if not self._path(index).exists():
            return None
        tensors, about = read_tensors(self._path(index), kind=_KIND)
        if json.loads(about)["run"] != self.digests[index + 1]:
            raise ValueError(
                f"{self._path(index)} belongs to another run: another filter, ensemble, key, record, input or "
                "observation, or another version of bieqno; "
                "choose another folder, or delete it to start anew"
            )
        leaves, structure = jax.tree.flatten(self.shape)
        stored: Run = jax.tree.unflatten(structure, [jnp.asarray(tensors[str(k)]) for k in range(len(leaves))])
        return stored

    def write(self, index: int, run: Run, errors: dict[int, str]) -> None:
        """Write a window, then remove what its members left; the folders of those that were lost stay."""
        tensors = {str(k): np.asarray(leaf) for k, leaf in enumerate(jax.tree.leaves(run))}
        about = json.dumps({"run": self.digests[index + 1], "lost": {str(m): error for m, error in errors.items()}})
        write_tensors(self._path(index), tensors, kind=_KIND, description=about)
        work = self._path(index).with_suffix("")
        for folder in work.glob("member_*"):
            if int(folder.name.split("_")[1]) not in errors:
                shutil.rmtree(folder, ignore_errors=True)
        if work.exists() and not any(work.iterdir()):
            work.rmdir()

    def _path(self, index: int) -> Path:
        return self.folder / f"window_{index:06d}.bieqno"
