"""What a training run carries from chunk to chunk, and what it reports: progress, the result, or an error."""

import math
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

from bieqno.training.clock import Clock
from bieqno.training.step import State, is_key, trainable

M = TypeVar("M")


class Progress(NamedTuple):
    """Where a run stands, as reported to `on_progress` before the first chunk, which compiles, and after every chunk."""

    step: int
    steps: int
    loss: float
    validation: float | None
    skipped: int
    seconds: float
    remaining: float
    reference: float | None = None  # validation error of what is to be beaten, where there is such a thing


@dataclass(frozen=True)
class FitResult(Generic[M]):
    """The trained module and its training history."""

    module: M  # the one with the best validation where there was a validation
    losses: Float[np.ndarray, "steps"]  # NaN where the step was skipped, for its loss or gradient was not finite
    validations: Float[np.ndarray, "chunks"]  # held-out loss after every chunk
    best_step: int  # the step after which `module` was taken
    skipped: int
    stopped_early: bool  # whether the patience ran out before the steps did
    source_state: Any  # the last one of a stateful batch source


class TrainingError(Exception):
    """Training had to stop; `result` holds the last good state."""

    def __init__(self, message: str, result: FitResult[Any]) -> None:
        super().__init__(message)
        self.result = result


class Record(NamedTuple):
    """The state of a run between two chunks, with its training history."""

    state: State
    best: Any
    best_value: Float[Array, ""]
    best_step: Int[Array, ""]
    stale: Int[Array, ""]
    losses: Float[np.ndarray, "steps"]
    validations: Float[np.ndarray, "chunks"]
    seconds: Float[np.ndarray, "1"]  # that it has taken so far, in all processes

    @property
    def step(self) -> int:
        """Return the number of steps taken."""
        return int(self.state.step)

    @property
    def on_devices(self) -> tuple[Any, ...]:
        """Return everything but the training history."""
        return self[:5]

    @property
    def history(self) -> dict[str, Float[np.ndarray, "_"]]:
        """Return the training history, which stays on the host."""
        return {"losses": self.losses, "validations": self.validations, "seconds": self.seconds}

    def after(
        self, state: State, values: Float[Array, "length"], validation: float | None, tolerance: float
    ) -> "Record":
        """Return the record after a chunk: the best module is kept, and how many validations ago the best one was.

        Of modules that are as good but for the tolerance it is the last.
        """
        record = self._replace(state=state, losses=np.append(self.losses, np.asarray(values, np.float32)))
        if validation is None:
            return record
        record = record._replace(validations=np.append(self.validations, np.float32(validation)))
        improved = validation < float(self.best_value)
        least = float(self.best_value)
        if improved or validation <= least + tolerance * abs(least):
            record = record._replace(best=state.module, best_step=state.step)
        if improved:
            record = record._replace(best_value=jnp.float32(validation))
        return record._replace(stale=jnp.zeros((), jnp.int32) if improved else self.stale + 1)

    def out_of_patience(self, patience: int | None) -> bool:
        """Return whether the validation has not improved for too long."""
        return patience is not None and int(self.stale) >= patience

    def progress(self, clock: Clock, chunk: int) -> Progress:
        """Report a chunk of so many steps; before the first one has ended its loss is unknown (NaN)."""
        values = self.losses[len(self.losses) - chunk :]
        finite = values[np.isfinite(values)]
        loss = float(finite.mean()) if finite.size else math.nan
        validation = float(self.validations[-1]) if self.validations.size else None
        steps, skipped = max(clock.known_steps, self.step), int(self.state.skipped)
        return Progress(self.step, steps, loss, validation, skipped, clock.seconds, clock.remaining)

    def result(self, steps: int, patience: int | None) -> FitResult[Any]:
        """Return what the run has reached."""
        use_best = bool(jnp.isfinite(self.best_value))
        return FitResult(
            module=self.best if use_best else self.state.module,
            losses=self.losses,
            validations=self.validations,
            best_step=int(self.best_step) if use_best else self.step,
            skipped=int(self.state.skipped),
            stopped_early=self.out_of_patience(patience) and self.step < steps,
            source_state=self.state.source_state,
        )


def start(module: Any, optimizer: optax.GradientTransformation, source_state: Any) -> Record:
    """Return the record before the first step."""
    zero = jnp.zeros((), jnp.int32)
    source_state = jax.tree.map(lambda x: jnp.asarray(x) if eqx.is_array_like(x) else x, source_state)
    state = State(module, optimizer.init(trainable(module)[0]), source_state, zero, zero, zero, zero)
    # Arrays of weak type (made from plain numbers) would change their type on the way through a checkpoint.
    arrays, rest = eqx.partition(state, lambda x: eqx.is_array(x) and not is_key(x))
    state = eqx.combine(jax.tree.map(lambda x: jax.lax.convert_element_type(x, x.dtype), arrays), rest)
    empty = np.zeros(0, np.float32)
    return Record(state, state.module, jnp.float32(jnp.inf), zero, zero, empty, empty, np.zeros(1))
