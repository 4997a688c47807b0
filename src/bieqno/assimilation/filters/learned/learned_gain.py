"""A learned filter in the form of a Kalman filter: an equivariant operator gives the gain, and the observations enter linearly.

The increment of a Kalman analysis is linear in the innovation, and its gain is a bounded function of second moments once all is
measured in units of the innovation's covariance ``H P H^T + R``. Networks learn bounded functions well and products of
large numbers badly, so they are asked for the former only.
"""

from typing import Unpack

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from bieqno.arguments import checked
from bieqno.assimilation.filters.learned.ennf import AbstractStudent
from bieqno.assimilation.linalg import anomalies
from bieqno.assimilation.observation import Observed
from bieqno.operators import EquivariantOperator
from bieqno.operators.networks import NetworkSettings


class LearnedGain(AbstractStudent):
    """Moves each variable of each member along innovation, predicted anomaly and perturbation, by learned coefficients.

    ``z_a[i,j] = z_f[i,j] + s_j (A_ij . innovation + B_ij . anomaly_i + C_ij . perturbation_i)``, the three vectors in units of
    ``(H P H^T + R)^(1/2)`` and s_j the spread of the variable. (A, B, C) is one `EquivariantOperator` over the members, shared by
    all variables, given nothing but the variable and observation space: the stochastic EnKF has A = -B = C, square-root
    filters have C = 0. Takes ensembles of any size, states of any number of variables, and missing values.

    Each of the `teachers` to imitate has a code given to the fitting net; 0 for no code.

    Example:
        >>> from bieqno.assimilation import Observation
        >>> filter = LearnedGain(1, key=jax.random.key(0))
        >>> observed = Observation([0], 1.0).window(jnp.array([2.0]))
        >>> prior = jax.random.normal(jax.random.key(1), (5, 3))
        >>> filter(prior, observed, key=jax.random.key(2)).shape
        (5, 3)
    """

    operator: EquivariantOperator
    teacher: Int[Array, ""] | None
    observations: int = eqx.field(static=True)
    teachers: int = eqx.field(static=True)

    @checked()
    def __init__(
        self,
        observations: int,
        *,
        width: int = 64,
        depth: int = 3,
        teachers: int = 0,
        key: PRNGKeyArray,
        **network: Unpack[NetworkSettings],
    ) -> None:
        self.teacher = jnp.array(0) if teachers else None
        self.observations, self.teachers = observations, teachers
        size, results, context = self.sizes
        self.operator = EquivariantOperator(
            size, results, context_size=context, width=width, depth=depth, key=key, **network
        )

    def __check_init__(self) -> None:
        self.check(self.operator)

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Lengths of the operator's elements, results (at least one, even if nothing is observed) and context."""
        m = self.observations
        return 1 + 2 * m, max(1, 3 * m), self.teachers + m * (m + 1) // 2 + m

    @checked()
    def __call__(self, ensemble: Float[Array, "N n"], observed: Observed, *, key: PRNGKeyArray) -> Float[Array, "N n"]:
        """Analyse one window."""
        observed, code = observed.gaussian(ensemble), self.code(observed)
        perturbed = observed.perturb(ensemble.shape[0], key=key)
        A, scale = _standardised(ensemble)
        predictions = observed.predict(ensemble)
        predicted_mean, Y = anomalies(predictions)
        # In units of the errors, then of the whole innovation; missing values are zero in both.
        S = observed.whiten(Y)
        root, error = _inverse_root(S)
        predicted = S * jnp.sqrt(max(ensemble.shape[0] - 1, 1)).astype(S.dtype) @ root
        innovation = observed.whiten((observed.value - predicted_mean)[None]) @ root
        perturbation = observed.whiten(perturbed - observed.value) @ root
        along = jnp.concatenate([jnp.broadcast_to(innovation, predicted.shape), predicted, perturbation], axis=1)
        seen = jnp.concatenate([predicted, jnp.where(observed.mask, _standardised(predictions)[0], 0)], axis=1)

        def analyse(column: Float[Array, "N"]) -> Float[Array, "N"]:
            correlation = jnp.mean(column[:, None] * predicted, axis=0)
            coefficients = self.operator((column[:, None], seen), context=jnp.concatenate([*code, error, correlation]))
            return jnp.sum(coefficients[:, : along.shape[1]] * along, axis=1)

        return (ensemble + jax.vmap(analyse, 1, 1)(A) * scale).astype(ensemble.dtype)


def _standardised(rows: Float[Array, "N k"]) -> tuple[Float[Array, "N k"], Float[Array, "k"]]:
    """Distances from the ensemble mean in units of the spread, and the spread; zeros where there is none."""
    centred = rows - jnp.mean(rows, axis=0)
    variance = jnp.mean(centred**2, axis=0)
    scale = jnp.sqrt(jnp.where(variance > 0, variance, 1))
    return centred / scale, jnp.where(variance > 0, scale, 0)


def _inverse_root(S: Float[Array, "N m"]) -> tuple[Float[Array, "m m"], Float[Array, "t"]]:
    """The symmetric ``(S^T S + I)^(-1/2)``, and the error's covariance in its units: the upper triangle of its square."""
    eigenvalues, Q = jnp.linalg.eigh(S.T @ S)
    shrunk = 1 / (1 + jnp.maximum(eigenvalues, 0))
    return (Q * jnp.sqrt(shrunk)) @ Q.T, ((Q * shrunk) @ Q.T)[jnp.triu_indices(S.shape[1])]
