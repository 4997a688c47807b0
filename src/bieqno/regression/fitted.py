"""A process that has been trained on data, and what it takes to predict with it in the data's own units."""

from collections.abc import Callable
from operator import itemgetter
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bieqno.gaussian import LowRankGaussian
from bieqno.operators import EquivariantOperator
from bieqno.regression.process import GeneralizedGaussianProcess, combine
from bieqno.regression.splits import Data

CHUNK = 8192
"""Test points per compiled call: the memory beyond the result itself stays bounded."""


class Scaling(eqx.Module):
    """Shift and scale of inputs and targets."""

    input_shift: Float[Array, "d"]
    input_scale: Float[Array, "d"]
    target_shift: Float[Array, ""]
    target_scale: Float[Array, ""]

    def inputs(self, X: np.ndarray) -> Float[Array, "n d"]:
        """Inputs in scaled units."""
        return (jnp.asarray(X, self.input_shift.dtype) - self.input_shift) / self.input_scale

    def targets(self, y: np.ndarray) -> Float[Array, "n"]:
        """Targets in scaled units."""
        return (jnp.asarray(y, self.target_shift.dtype) - self.target_shift) / self.target_scale


class FittedProcess(eqx.Module):
    """Members of an ensemble, the observations they are conditioned on, and the calibration of their variance."""

    members: tuple[GeneralizedGaussianProcess, ...]
    data: Data
    scaling: Scaling
    variance_factor: Float[Array, ""]

    @property
    def set_interaction(self) -> bool:
        """Whether a prediction depends on the other points asked for at the same time."""
        return isinstance(self.members[0].operator.inputs, EquivariantOperator)

    def posterior(self, X: np.ndarray) -> LowRankGaussian:
        """The joint distribution of new noisy values at `X`."""
        parts = self._in_chunks(X, lambda gaussian: gaussian)
        return jax.tree.map(lambda *x: jnp.concatenate(x), *parts)

    def moments(self, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation at `X`, without keeping the covariance factor."""
        parts = self._in_chunks(X, lambda gaussian: (gaussian.mean, gaussian.std))
        mean, std = (np.concatenate([np.asarray(part[i]) for part in parts]) for i in range(2))
        return mean, std

    def conditioned(self, data: Data) -> "FittedProcess":
        """The same process given other observations."""
        return FittedProcess(self.members, data, self.scaling, self.variance_factor)

    def _in_chunks(self, X: np.ndarray, keep: Callable[[LowRankGaussian], Any]) -> list[Any]:
        size = max(len(X), 1) if self.set_interaction else min(CHUNK, _round_up(len(X)))
        parts = []
        for start in range(0, max(len(X), 1), size):
            part = X[start : start + size]
            padded = np.zeros((size, X.shape[1]), X.dtype)
            padded[: len(part)] = part
            kept = keep(_predict(self, self.scaling.inputs(padded)))
            parts.append(jax.tree.map(itemgetter(slice(len(part))), kept))
        return parts


@eqx.filter_jit
def _predict(fitted: FittedProcess, points: Float[Array, "n d"]) -> LowRankGaussian:
    data = fitted.data
    gaussians = eqx.filter_vmap(lambda p: p(points, data.inputs, data.targets, observation_mask=data.mask))(
        stack(fitted.members)
    )
    joint = combine(gaussians)
    wider = LowRankGaussian(
        joint.mean,
        jnp.sqrt(fitted.variance_factor) * joint.factor,
        joint.log_diag + jnp.log(fitted.variance_factor),
    )
    return wider.affine(fitted.scaling.target_scale, fitted.scaling.target_shift)


def stack(members: tuple[GeneralizedGaussianProcess, ...]) -> GeneralizedGaussianProcess:
    """Members of equal shape as one, their arrays stacked along a first axis, to be trained and applied by `vmap`."""
    return jax.tree.map(lambda *x: jnp.stack(x), *members)


def unstack(stacked: GeneralizedGaussianProcess) -> tuple[GeneralizedGaussianProcess, ...]:
    """The members one by one."""
    return tuple(jax.tree.map(itemgetter(i), stacked) for i in range(stacked.log_noise.shape[0]))


def _round_up(count: int) -> int:
    """The next power of two, at least 16: data sets of similar size share one compilation."""
    return max(16, 1 << max(count - 1, 0).bit_length())


def make_data(inputs: Float[Array, "n d"], targets: Float[Array, "n"], noise_variance: np.ndarray) -> Data:
    """Pad scaled data to a size that many data sets share."""
    padding = _round_up(len(targets)) - len(targets)
    return Data(
        jnp.pad(inputs, ((0, padding), (0, 0))),
        jnp.pad(targets, (0, padding)),
        jnp.pad(jnp.asarray(noise_variance, targets.dtype), (0, padding)),
        jnp.arange(len(targets) + padding) < len(targets),
    )
