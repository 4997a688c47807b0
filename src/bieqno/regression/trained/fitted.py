"""A process that has been trained on data, and what it takes to predict with it in the data's own units."""

from collections.abc import Iterator
from operator import itemgetter

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from bieqno.gaussian import LowRankGaussian
from bieqno.operators import EquivariantOperator
from bieqno.regression.held_out import HeldOut
from bieqno.regression.predictive import AbstractPredictive
from bieqno.regression.scaling import Scaling
from bieqno.regression.trained.process import GeneralizedGaussianProcess, combine
from bieqno.regression.trained.splits import Data

CHUNK = 8192
"""Test points per compiled call: the memory beyond the result itself stays bounded."""


class FittedProcess(AbstractPredictive):
    """Members of an ensemble, the observations they are conditioned on, and the calibration of their variance."""

    members: tuple[GeneralizedGaussianProcess, ...]
    data: Data
    scaling: Scaling
    variance_factor: Float[Array, ""]
    held_out: HeldOut

    def __check_init__(self) -> None:
        if not isinstance(self.held_out, HeldOut):
            raise ValueError("a fitted process knows how rows were predicted that were held out")
        if not self.members or any(not isinstance(member, GeneralizedGaussianProcess) for member in self.members):
            raise ValueError("a fitted process has members, each a generalized Gaussian process")
        if not isinstance(self.data, Data) or not isinstance(self.scaling, Scaling) or self.variance_factor.shape != ():
            raise ValueError("a fitted process has data, a scaling, and one factor of its variance")
        sizes = {self.members[0].operator.in_size, self.data.inputs.shape[1], len(self.scaling.input_shift)}
        if len(sizes) > 1:
            raise ValueError(f"members, data and scaling differ in their number of inputs: {sorted(sizes)}")

    @property
    def set_interaction(self) -> bool:
        """Whether a prediction depends on the other points asked for at the same time."""
        return isinstance(self.members[0].operator.inputs, EquivariantOperator)

    @property
    def uncertain(self) -> bool:
        """Whether observations come with the variance of further noise of their own."""
        return self.members[0].uncertain

    def conditioned(self, X: np.ndarray, y: np.ndarray, variances: np.ndarray) -> "FittedProcess":
        """The same process given other observations, each with the variance of its further noise."""
        return eqx.tree_at(lambda process: process.data, self, make_data(self.scaling, X, y, variances))

    def in_chunks(self, X: np.ndarray) -> Iterator[tuple[LowRankGaussian, Int[np.ndarray, "n"]]]:
        """The distribution at one chunk of points after another, each with the rows that it is of."""
        # The observations are embedded anew in each chunk, so a chunk has more points than there are observations.
        most = len(X) if self.set_interaction else max(CHUNK, 4 * len(self.data.mask))
        size = min(round_up(len(X)), round_up(most))
        for start in range(0, len(X), size):
            part = X[start : start + size]
            padded = np.zeros((size, X.shape[1]), X.dtype)
            padded[: len(part)] = part
            count = jnp.asarray(len(part))
            rows = np.where(np.arange(size) < len(part), start + np.arange(size), -1)
            yield _predict(self.members, self.data, self.variance_factor, self.scaling.inputs(padded), count), rows


@eqx.filter_jit
def _predict(
    members: tuple[GeneralizedGaussianProcess, ...],
    data: Data,
    factor: Float[Array, ""],
    points: Float[Array, "n d"],
    count: Int[Array, ""],
) -> LowRankGaussian:
    there = jnp.arange(points.shape[0]) < count

    def of_member(process: GeneralizedGaussianProcess) -> tuple[LowRankGaussian, Array]:
        gaussian = process(
            points, data.inputs, data.targets, data.noise_variance, point_mask=there, observation_mask=data.mask
        )
        return gaussian, process.log_floor

    gaussians, log_floors = eqx.filter_vmap(of_member)(stack(members))
    joint = combine(gaussians)
    # The calibration may make predictions surer, but not surer than the noise.
    log_diag = jnp.maximum(joint.log_diag + jnp.log(factor), jax.nn.logsumexp(log_floors) - jnp.log(len(members)))
    return LowRankGaussian(joint.mean, jnp.sqrt(factor) * joint.factor, log_diag)


def stack(members: tuple[GeneralizedGaussianProcess, ...]) -> GeneralizedGaussianProcess:
    """Members of equal shape as one, their arrays stacked along a first axis, to be trained and applied by `vmap`."""
    return jax.tree.map(lambda *x: jnp.stack(x), *members)


@eqx.filter_jit
def unstack(stacked: GeneralizedGaussianProcess) -> tuple[GeneralizedGaussianProcess, ...]:
    """The members one by one."""
    return tuple(jax.tree.map(itemgetter(i), stacked) for i in range(stacked.log_noise.shape[0]))


def round_up(count: int) -> int:
    """The next power of two, at least 16: data sets of similar size share one compilation."""
    return max(16, 1 << max(count - 1, 0).bit_length())


def make_data(scaling: Scaling, X: np.ndarray, y: np.ndarray, noise_variance: np.ndarray) -> Data:
    """Scale data, and pad them to a size that many data sets share."""
    inputs, targets = np.asarray(scaling.inputs(X)), np.asarray(scaling.targets(y))
    padding = (0, round_up(len(y)) - len(y))
    # By NumPy: JAX would compile anew for every number of rows.
    return Data(
        jnp.asarray(np.pad(inputs, (padding, (0, 0)))),
        jnp.asarray(np.pad(targets, padding)),
        jnp.asarray(np.pad(noise_variance / scaling.target_scale**2, padding), targets.dtype),
        jnp.asarray(np.arange(len(y) + padding[1]) < len(y)),
    )
