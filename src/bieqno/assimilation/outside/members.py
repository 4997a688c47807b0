"""`Members`: a model outside JAX that runs one member at a time, by whatever executor is given."""

import asyncio
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from bieqno.assimilation.models.forecast import AbstractEnsembleModel

RunOne: TypeAlias = Callable[..., Any]
"""``run_one(state, *, inputs, member, window, seed, folder) -> state``: one member, one window, in 64-bit numbers."""

UNKNOWN = -1  # the number of a window inside a compiled program, which does not know it


class Pool:
    """An executor as it is; or a function that makes one, which is called when it is needed and again when it broke."""

    def __init__(self, executor: Executor | Callable[[], Executor]) -> None:
        given = hasattr(executor, "submit") and not isinstance(executor, type)
        if not given and not callable(executor):
            raise TypeError(f"expected an executor or a function that makes one, got {type(executor).__name__}")
        self._make: Any = None if given else executor
        self._executor: Any = executor if given else None

    def submit(self, function: RunOne, *arguments: Any, **named: Any) -> "Future[Any]":
        """Submit a call."""
        if self._executor is None:
            self._executor = self._make()
        future: Future[Any] = self._executor.submit(function, *arguments, **named)
        return future

    def replace(self, error: BaseException) -> None:
        """Drop an executor that broke, so that the next call makes another."""
        if self._make is None:
            advice = "give Members a function that makes it, as in lambda: ProcessPoolExecutor(8), and it is replaced"
            raise RuntimeError(f"the executor broke ({described(error)}); {advice}") from error
        self.close()

    def close(self) -> None:
        """Shut down an executor that was made here; one that was given belongs to who gave it."""
        if self._make is not None and self._executor is not None:
            self._executor.shutdown(wait=False)
            self._executor = None


class Forecast(NamedTuple):
    """An ensemble one window later, NaN where a member was lost, and why each of those was."""

    ensemble: Float[np.ndarray, "N n"]
    errors: dict[int, str]


class Members(AbstractEnsembleModel):
    """A model whose members are run one by one, by whatever executor is given: threads, processes, Dask, MPI, Slurm.

    `cycle_outside` assimilates with it. In a compiled program (`simulate`, `spin_up`) it is called on the host, without the
    number of the window; members that were lost are NaN there.

    Args:
        run_one: ``run_one(state, *, inputs, member, window, seed, folder) -> state``. The seed is a function of key, window and
            member: a member that is run again gets the same one. The folder is the member's own; it makes it if it needs
            one, and may keep there what explains a failure.
        executor: a `concurrent.futures.Executor`, of which only `submit` is used; or a function that makes one, so that a
            pool whose workers died can be replaced.
        retries: how often a member is run again that raised, timed out, or did not return finite numbers.
        timeout: seconds without any member coming back after which the missing ones count as failed.
        survivors: smallest share of the members that may be left in a window; the others are redrawn from them.

    Example:
        >>> from concurrent.futures import ThreadPoolExecutor
        >>> from bieqno.assimilation import forecast
        >>> def run_one(state, *, inputs, member, window, seed, folder):
        ...     return 2 * state + member
        >>> with ThreadPoolExecutor(2) as executor:
        ...     model = Members(run_one, executor)
        ...     forecast(model, jnp.ones((3, 1)), key=jax.random.key(0)).ravel().tolist()
        [2.0, 3.0, 4.0]
    """

    run_one: RunOne
    pool: Pool
    retries: int = eqx.field(static=True)
    timeout: float | None = eqx.field(static=True)
    survivors: float = eqx.field(static=True)

    def __init__(
        self,
        run_one: RunOne,
        executor: Executor | Callable[[], Executor],
        retries: int = 1,
        timeout: float | None = None,
        survivors: float = 0.8,
    ) -> None:
        self.run_one, self.pool = run_one, Pool(executor)
        self.retries, self.timeout, self.survivors = retries, timeout, survivors

    def __check_init__(self) -> None:
        if not callable(self.run_one):
            raise TypeError(f"expected a function that runs one member, got {type(self.run_one).__name__}")
        counted = isinstance(self.retries, int) and self.retries >= 0
        if not (counted and 0 < self.survivors <= 1 and (self.timeout is None or self.timeout > 0)):
            given = f"retries={self.retries}, timeout={self.timeout}, survivors={self.survivors}"
            raise ValueError(f"expected a number of retries, a positive timeout and a share of survivors, got {given}")

    def forecast(self, ensemble: Float[Array, "N n"], *inputs: PyTree[Any], key: PRNGKeyArray) -> Float[Array, "N n"]:
        """Return the ensemble one window later, NaN where a member was lost."""

        def call(values: Any, seeds: Any, *given: Any) -> np.ndarray:
            driven = jax.tree.map(np.array, given[0]) if given else None
            with tempfile.TemporaryDirectory() as folder:
                found = self.run(values, seeds, window=UNKNOWN, folder=Path(folder), inputs=driven)
            return found.ensemble.astype(values.dtype)

        shape = jax.ShapeDtypeStruct(ensemble.shape, ensemble.dtype)
        seeds = member_seeds(key, ensemble.shape[0])
        return jax.pure_callback(call, shape, ensemble, seeds, *inputs, vmap_method="sequential")

    def run(
        self,
        ensemble: Any,
        seeds: Any,
        *,
        window: int,
        folder: Path,
        inputs: Any = None,
        on_return: Callable[[int, int, float], None] = lambda done, member, seconds: None,
    ) -> Forecast:
        """Run all members, each in a folder of its own; `on_return` hears how many are back, which came last and when."""
        states = np.array(ensemble, np.float64)
        how = {"inputs": inputs, "window": window}
        work = _Window(self, states, np.asarray(seeds), how, folder, on_return)
        for attempt in range(1 + self.retries):
            work.attempt(work.missing, attempt)
        # A member that kills its worker takes those with it that run beside it: each of them has a last try alone.
        broken = [member for member, error in work.errors.items() if isinstance(error, BrokenExecutor)]
        for member in broken:
            work.attempt([member], 1 + self.retries)
        return Forecast(work.after, {member: described(error) for member, error in sorted(work.errors.items())})


@eqx.filter_jit
def member_seeds(key: PRNGKeyArray, members: int) -> Int[Array, "N"]:
    """Return a seed for each member, from 0 to 2^31 - 1, which any language can read.

    Example:
        >>> seeds = member_seeds(jax.random.key(0), 3)
        >>> member_seeds(jax.random.key(0), 2).tolist() == seeds[:2].tolist(), bool((seeds >= 0).all())
        (True, True)
    """
    keys = jax.vmap(lambda member: jax.random.fold_in(key, member))(jnp.arange(members))
    return (jax.vmap(lambda k: jax.random.bits(k, dtype=jnp.uint32))(keys) >> 1).astype(jnp.int32)


def described(error: BaseException) -> str:
    """Return an error in one line."""
    return f"{type(error).__name__}: {error}".split("\n")[0]


@dataclass
class _Window:
    """The members of one window: what came back, and what went wrong with those that did not."""

    model: Members
    states: Float[np.ndarray, "N n"]
    seeds: Int[np.ndarray, "N"]
    how: dict[str, Any]
    folder: Path
    on_return: Callable[[int, int, float], None]
    errors: dict[int, BaseException] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.after = np.full_like(self.states, np.nan)
        self.missing = list(range(len(self.states)))
        self.begin = time.monotonic()

    def attempt(self, members: Iterable[int], number: int) -> None:
        """Run some members, in their order, and take what comes back."""
        members, futures = list(members), dict[Future[Any], int]()
        try:
            for member in members:
                try:
                    futures[self._submit(member, number)] = member
                except BrokenExecutor as error:  # while others were being submitted
                    self.errors[member] = error
            self._collect(futures)
        finally:  # also on Ctrl-C: what has not begun does not begin any more
            for future in futures:
                future.cancel()
        broken = [self.errors[m] for m in members if isinstance(self.errors.get(m), BrokenExecutor)]
        if broken:
            self.model.pool.replace(broken[0])

    def _submit(self, member: int, number: int) -> "Future[Any]":
        folder = self.folder / (f"member_{member:05d}" + (f"_again_{number}" if number else ""))
        own = {**self.how, "member": member, "seed": int(self.seeds[member]), "folder": folder}
        return self.model.pool.submit(self.model.run_one, self.states[member].copy(), **own)

    def _collect(self, futures: "dict[Future[Any], int]") -> None:
        pending, timeout = set(futures), self.model.timeout
        while pending:
            done, pending = wait(pending, timeout, return_when=FIRST_COMPLETED)
            if not done:
                for future in pending:
                    self.errors[futures[future]] = TimeoutError(f"no member came back for {timeout} seconds")
                return
            for future in done:
                self._take(futures[future], future)

    def _take(self, member: int, future: "Future[Any]") -> None:
        try:
            after = np.asarray(future.result(), np.float64)
            if after.shape != self.states[member].shape:
                raise ValueError(f"a model keeps the shape {self.states[member].shape} of a state, got {after.shape}")
            if not np.isfinite(after).all():
                raise ValueError("the state that came back is not finite")
        except (
            Exception,
            SystemExit,
            asyncio.CancelledError,
        ) as error:  # whatever the user's code and engine may raise
            self.errors[member] = error
            return
        self.after[member] = after
        self.missing.remove(member)
        self.errors.pop(member, None)
        self.on_return(len(self.states) - len(self.missing), member, time.monotonic() - self.begin)
