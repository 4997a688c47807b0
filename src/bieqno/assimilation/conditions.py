"""What a filter was trained for, and a warning where it is used for something else."""

import warnings
from typing import Any

import jax
import jax.numpy as jnp

from bieqno.assimilation.observation_operators import Components
from bieqno.assimilation.system import System
from bieqno.training.checkpoint import fingerprint

ALIKE = 1.5  # factor within which errors and densities count as those of the training

Conditions = tuple[str, float, float]
"""A digest of the observation operator, mean standard deviation of its errors, observations per variable."""


def conditions_of(system: System) -> Conditions:
    """Return what a filter that is trained for a system is made for.

    Example:
        >>> from bieqno.assimilation import Lorenz96, Observation
        >>> conditions_of(System(Lorenz96(8), Observation([0, 4], 0.5), jnp.full(8, 8.0)))
        ('components', 0.5, 0.25)
    """
    observation = system.observation
    plain = isinstance(observation.operator, Components)  # whichever they are: places say where
    with jax.ensure_compile_time_eval():  # also where a filter is used inside `jit`
        error = jnp.mean(observation.error.std(observation.operator(system.state)))
    name = "components" if plain else fingerprint(observation.operator)[:12]
    return name, float(error), (system.at_once or system.observed) / system.size


def warn_where_unlike(filter: Any, system: System) -> None:
    """Say so if a filter was trained for another operator, other errors or another density of observations."""
    trained: Conditions | None = getattr(filter, "conditions", None)
    if trained is None or any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(system)):
        return
    here = conditions_of(system)
    unlike = [
        f"{what} of {new:.3g} instead of {old:.3g}"
        for what, old, new in zip(("errors", "observations per variable"), trained[1:], here[1:], strict=True)
        if old > 0 and not 1 / ALIKE <= new / old <= ALIKE
    ]
    if trained[0] != here[0]:
        unlike.insert(0, "another observation operator")
    if unlike:
        warnings.warn(
            f"the filter was not trained for this system: {', '.join(unlike)}; train it anew, or compare it with a tuned LETKF",
            stacklevel=3,
        )
