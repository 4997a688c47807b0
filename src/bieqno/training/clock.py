"""The time of a training without that of compilation, and with it when a training of limited time will end."""

import math
import time
from dataclasses import dataclass, field

import jax

from bieqno.distributed import agree

# The time of tracing is left out: it is reported of functions and again of what they call.
_COMPILING = tuple(f"/jax/core/compile/{part}_duration" for part in ("backend_compile", "jaxpr_to_mlir_module"))
_compiling = 0.0  # seconds that this process has spent so


def _listen(event: str, duration_secs: float, **kwargs: str | int) -> None:
    global _compiling
    if event in _COMPILING:
        _compiling += duration_secs


jax.monitoring.register_event_duration_secs_listener(_listen)


@dataclass
class Clock:
    """Measures chunks of a training that began at step `first` and lasts `steps`, or as long as `budget` seconds allow."""

    first: int
    steps: int
    budget: float | None
    chunk: int
    before: float = 0.0  # seconds that earlier processes took
    begun: float = field(default_factory=lambda: time.monotonic())
    compiled: float = field(default_factory=lambda: _compiling)
    step: int = 0
    settled: tuple[int, float] | None = None  # step and time at the end of the first chunk, where all is compiled

    def __post_init__(self) -> None:
        self.step = self.first
        if self.budget is not None and self.first:  # continued: at the pace so far
            self._plan(self.before / self.first)

    def after(self, step: int) -> None:
        """Take note that a chunk has ended; with a budget, decide anew how many steps there will be: whole chunks."""
        self.step = step
        self.settled = self.settled or (step, self.seconds)
        if self.budget is not None:
            self._plan(self.pace)

    def _plan(self, pace: float) -> None:
        left = (self.budget or 0.0) - self.before - self.seconds
        chunks = agree(max(0, math.floor(left / max(pace * self.chunk, 1e-9))))
        self.steps = self.step + int(chunks) * self.chunk

    @property
    def known_steps(self) -> int:
        """Number of steps, zero while it is not known."""
        return self.steps if self.budget is None or self.step else 0

    @property
    def seconds(self) -> float:
        """Time since the beginning."""
        return time.monotonic() - self.begun

    @property
    def pace(self) -> float:
        """Seconds per step, without compilation."""
        if self.settled and self.step > self.settled[0]:
            return (self.seconds - self.settled[1]) / (self.step - self.settled[0])
        return max(self.seconds - (_compiling - self.compiled), 0.0) / max(self.step - self.first, 1)

    @property
    def remaining(self) -> float:
        """Seconds that the steps to come will take; unknown (NaN) before the first chunk has ended."""
        return self.pace * (self.steps - self.step) if self.step > self.first else math.nan
