"""What a family of systems is."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bieqno.assimilation import Places
from bieqno.assimilation.models.forecast import Model


@dataclass(frozen=True)
class Family:
    """Systems of one kind and size that differ in numbers: `draw` makes the model of one of them.

    All families have the same number of variables. A model's window is its field `length`; all its other arrays are parameters,
    which may be wrong. Free runs begin at `rest` and settle in `spin` windows.
    """

    name: str
    places: Places
    draw: Callable[[np.random.Generator], Model]
    rest: Callable[[np.random.Generator], Float[np.ndarray, "n"]]
    spin: int = 150


def uniform(rng: np.random.Generator, low: float, high: float) -> Float[Array, ""]:
    """Draw a number uniformly."""
    return jnp.asarray(rng.uniform(low, high), float)


def log_uniform(rng: np.random.Generator, low: float, high: float) -> Float[Array, ""]:
    """Draw a number uniformly in its logarithm."""
    return jnp.asarray(np.exp(rng.uniform(np.log(low), np.log(high))), float)


def wrong(model: Any, share: float, rng: np.random.Generator) -> Any:
    """Return a model whose parameters are off by a share, each with a sign of its own, and whose window is as it was."""
    off = jax.tree.map(lambda leaf: leaf * (1 + share * rng.choice([-1.0, 1.0])), model)
    return eqx.tree_at(lambda m: m.length, off, model.length)
