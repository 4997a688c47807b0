"""Optimizers whose learning rate falls over the whole training, however long that is.

`fit` says how far the training is: a training of another length, or one with a time limit, shares the compilation. Equal
arguments return one object for the same reason.
"""

from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

# Size of a step of Muon, whose directions are orthogonal matrices: the root mean square of its elements, in units of the learning
# rate. That of Adam is 0.2 to 0.4, so that one learning rate serves matrices and vectors.
ROOT_MEAN_SQUARE = 0.4


@lru_cache
def falling_adam(
    learning_rate: float, *, b2: float = 0.999, clip: float | None = None, warm_up: int = 0
) -> optax.GradientTransformation:
    """Return Adam with a rate that falls to zero along a cosine, after a rise of so many steps (at most half of all).

    Example:
        >>> optimizer = falling_adam(0.1)
        >>> state, ends = optimizer.init(jnp.zeros(1)), []
        >>> for fraction in (0.0, 0.5, 1.0):
        ...     update, _ = optimizer.update(jnp.ones(1), state, step=jnp.array(3), fraction=jnp.array(fraction))
        ...     ends.append(round(abs(float(update[0])), 3))
        >>> ends
        [0.1, 0.05, 0.0]
    """
    bounded = [] if clip is None else [optax.clip_by_global_norm(clip)]
    return optax.chain(*bounded, optax.scale_by_adam(b2=b2), _falling(learning_rate, warm_up))


@lru_cache
def falling_muon(learning_rate: float, *, b2: float = 0.999, warm_up: int = 0) -> optax.GradientTransformation:
    """Return Muon (Jordan et al. 2024) for matrices and Adam for all else, with the rate of `falling_adam`.

    Muon turns the momentum of a matrix into the nearest orthogonal one: all directions learn alike, also those with small
    gradients. Where a step is dear and networks are small that saves many steps.

    Example:
        >>> optimizer = falling_muon(0.1)
        >>> weight = jnp.array([[1.0, 0.0], [0.0, 0.01]])  # as a gradient: its second direction is a hundredth of the first
        >>> step = {"step": jnp.array(3), "fraction": jnp.array(0.0)}
        >>> update, _ = optimizer.update(weight, optimizer.init(weight), weight, **step)
        >>> bool(update[1, 1] / update[0, 0] > 0.5)
        True
    """
    # With a rate of minus one Muon returns the direction of ascent, as `scale_by_adam` does.
    both = optax.contrib.muon(-1.0, adam_b2=b2, consistent_rms=ROOT_MEAN_SQUARE)
    return optax.chain(both, _falling(learning_rate, warm_up))


def _falling(learning_rate: float, warm_up: int) -> optax.GradientTransformation:
    """Return the step down, with a rate that rises for some steps and falls to zero."""

    def update(
        updates: Any, state: Any, params: Any = None, *, step: Array, fraction: Float[Array, ""], **_: Any
    ) -> tuple[Any, Any]:
        rate = learning_rate * 0.5 * (1 + jnp.cos(jnp.pi * jnp.clip(fraction, 0, 1)))
        if warm_up:
            rate = rate * jnp.minimum(1.0, jnp.maximum(step.astype(fraction.dtype) / warm_up, 2 * fraction))
        return jax.tree.map(lambda u: -rate.astype(u.dtype) * u, updates), state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)
