"""What an objective is: it knows ensemble sizes, and prepares a training with a student on a system."""

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import optax
from jaxtyping import PRNGKeyArray

from bieqno.assimilation.protocols import Filter
from bieqno.assimilation.system import System


class Task(NamedTuple):
    """What `fit` needs beside the student: see its arguments of the same names."""

    loss: Callable[..., Any]
    source: Callable[..., Any]
    optimizer: optax.GradientTransformation
    identity: str
    source_state: Any = None
    microbatches: int = 1
    judge: Callable[[Any], Any] | None = None  # held-out loss of the student, if not by cycled runs on the system


@runtime_checkable
class Objective(Protocol):
    """Anything with ensemble sizes and a way to train for them."""

    @property
    def sizes(self) -> Iterable[int]:
        """Ensemble sizes that the student is trained for, and validated with."""

    def task(self, student: Filter, system: System, *, key: PRNGKeyArray) -> Task:
        """Prepare the training; a ValueError if the student cannot be trained so."""


def check_learning_rate(value: float) -> None:
    """Refuse what is no learning rate."""
    if not 0 < value < math.inf:
        raise ValueError(f"a learning rate is positive and finite, got learning_rate={value}")
