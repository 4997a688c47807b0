"""What a training run tells: progress on the way, the result at the end, or why it had to stop."""

from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from jaxtyping import Float

M = TypeVar("M")


class Progress(NamedTuple):
    """Where a run stands, as told to `on_progress` after every chunk."""

    step: int
    steps: int
    loss: float
    validation: float | None
    skipped: int
    seconds: float
    remaining: float


@dataclass(frozen=True)
class FitResult(Generic[M]):
    """What `fit` returns.

    Attributes:
        module: the trained module; the one with the best validation where there was a validation.
        losses: loss of every step; NaN where the step was skipped.
        validations: held-out loss after every chunk.
        best_step: the step after which `module` was taken.
        skipped: number of steps left out because loss or gradient was not finite.
        stopped_early: whether the patience ran out before the steps did.
        source_state: the last state of a stateful batch source.
    """

    module: M
    losses: Float[np.ndarray, "steps"]
    validations: Float[np.ndarray, "chunks"]
    best_step: int
    skipped: int
    stopped_early: bool
    source_state: Any


class TrainingError(Exception):
    """Training had to stop; `result` holds the last good state."""

    def __init__(self, message: str, result: FitResult[Any]) -> None:
        super().__init__(message)
        self.result = result
