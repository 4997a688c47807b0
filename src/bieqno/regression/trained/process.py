"""The generalized Gaussian process (eq. 9 of the paper).

``{m_i, l_i, d_i} = phi_fit(phi_self(x_i) (+) mean_j phi_int(x_j) (+) mean_k phi_d(x_k, y_k))`` gives the mean and the
covariance ``L L^T + exp(D)`` (eq. 8) at any test points, given the observations: the lean form of the posterior operator.
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from bieqno.gaussian import LowRankGaussian
from bieqno.operators import MLP, ElementwiseOperator, PosteriorOperator, frozen
from bieqno.regression.data import MIN_NOISE, Data

MAX_LOG_VARIANCE = 40.0  # keeps the variance finite in single precision where a network extrapolates far


class GeneralizedGaussianProcess(eqx.Module):
    """The joint distribution of noisy values at test points, given observations.

    Args:
        set_interaction: use the paper's ``phi_int``: a prediction depends on the other points asked for at the same time.
        noise: known standard deviation of the observation noise; None learns it.
        uncertain: whether each observation comes with the variance of noise of its own.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> process = GeneralizedGaussianProcess(1, key=jax.random.key(0))
        >>> gaussian = process(jnp.zeros((5, 1)), jnp.zeros((3, 1)), jnp.zeros(3))
        >>> gaussian.covariance().shape
        (5, 5)
    """

    operator: PosteriorOperator
    noise_known: bool = eqx.field(static=True)
    uncertain: bool = eqx.field(static=True)
    log_noise: Float[Array, ""] = frozen(when="noise_known")

    def __init__(
        self,
        in_size: int,
        *,
        rank: int = 8,
        width: int = 64,
        depth: int = 3,
        set_interaction: bool = False,
        noise: float | Float[Array, ""] | None = None,
        uncertain: bool = False,
        key: PRNGKeyArray,
    ) -> None:
        self_key, key = jax.random.split(key)
        alone = ElementwiseOperator(MLP(in_size, width, width=width, depth=depth, key=self_key))
        inputs = None if set_interaction else alone
        self.operator = PosteriorOperator(
            in_size, in_size + 1 + uncertain, 2 + rank, width=width, depth=depth, lean=True, inputs=inputs, key=key
        )
        self.log_noise = jnp.log(jnp.asarray(0.1 if noise is None else noise, jnp.zeros(()).dtype))
        self.noise_known = noise is not None
        self.uncertain = uncertain

    def __call__(
        self,
        points: Float[Array, "n d"],
        inputs: Float[Array, "m d"],
        targets: Float[Array, "m"],
        noise_variance: Float[Array, "m"] | None = None,
        *,
        point_mask: Bool[Array, "n"] | None = None,
        observation_mask: Bool[Array, "m"] | None = None,
    ) -> LowRankGaussian:
        """Return the posterior at `points`, given `targets` at `inputs`, whose `noise_variance` an `uncertain` process reads."""
        parts = [inputs, targets[:, None]]
        if self.uncertain:
            std = jnp.sqrt(jnp.zeros_like(targets) if noise_variance is None else noise_variance)
            parts.append((std / (1 + std))[:, None])  # between zero and one, however noisy
        observations = jnp.concatenate(parts, axis=1)
        out = self.operator(points, observations, input_mask=point_mask, observation_mask=observation_mask)
        return self.distribution(out)

    def distribution(self, out: Float[Array, "n q"]) -> LowRankGaussian:
        """Return the Gaussian that the operator's results ``{m_i, d_i, l_i}`` stand for."""
        log_diag = jnp.logaddexp(jnp.minimum(out[:, 1], MAX_LOG_VARIANCE), self.log_floor)
        return LowRankGaussian(out[:, 0], out[:, 2:] / (self.operator.out_size - 2) ** 0.5, log_diag)

    def given(self, data: Data, points: Float[Array, "n d"], mask: Bool[Array, "n"]) -> LowRankGaussian:
        """Return the posterior at the points of the `mask`, given padded data."""
        observed = data.inputs, data.targets, data.noise_variance
        return self(points, *observed, point_mask=mask, observation_mask=data.mask)

    @property
    def log_floor(self) -> Float[Array, ""]:
        """Logarithm of the least variance of a prediction: the noise, known or learned, at least `MIN_NOISE`."""
        return jnp.logaddexp(2 * self.log_noise, 2 * math.log(MIN_NOISE))


def combine(members: LowRankGaussian) -> LowRankGaussian:
    """Return one Gaussian with the moments of the mixture of `members` (stacked along a first axis of length K).

    Its covariance is the mean of theirs plus the spread of their means: still low rank plus diagonal, of rank K (r + 1).
    """
    K, n, r = members.factor.shape
    mean = jnp.mean(members.mean, axis=0)
    factors = jnp.moveaxis(members.factor, 0, 1).reshape(n, K * r)
    spread = (members.mean - mean[None]).T
    factor = jnp.concatenate([factors, spread], axis=1) / K**0.5
    log_diag = jax.nn.logsumexp(members.log_diag, axis=0) - math.log(K)
    return LowRankGaussian(mean, factor if K > 1 else factor[:, :r], log_diag)
