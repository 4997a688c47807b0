"""Optimizers whose learning rate falls over the whole training, however long that is.

`fit` says how far the training is: a training of another length, or one with a time limit, shares the compilation. Equal
arguments return one object for the same reason. All numbers are one vector where they are treated alike: a program with a few
long loops compiles sooner than one with a few short ones for each array.
"""

from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from bieqno.training.muon import scale_by_muon


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
    return optax.flatten(optax.chain(*_clipped(clip), optax.scale_by_adam(b2=b2), _falling(learning_rate, warm_up)))


@lru_cache
def falling_muon(
    learning_rate: float, *, b2: float = 0.999, clip: float | None = None, warm_up: int = 0
) -> optax.GradientTransformation:
    """Return Muon (Jordan et al. 2024) for matrices and Adam for all else, with the rate of `falling_adam`.

    Example:
        >>> optimizer = falling_muon(0.1)
        >>> gradient = jnp.array([[1.0, 0.0], [0.0, 0.01]])  # its second direction is a hundredth of the first
        >>> step = {"step": jnp.array(3), "fraction": jnp.array(0.0)}
        >>> update, _ = optimizer.update(gradient, optimizer.init(gradient), **step)
        >>> bool(update[1, 1] / update[0, 0] > 0.5)
        True
    """
    parts = [*map(optax.flatten, _clipped(clip)), scale_by_muon(b2=b2), optax.flatten(_falling(learning_rate, warm_up))]
    return optax.chain(*parts)


def _clipped(clip: float | None) -> list[optax.GradientTransformation]:
    """Return what bounds gradients: one that is far too large would rule the momentum for many steps."""
    return [] if clip is None else [optax.clip_by_global_norm(clip)]


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
