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

from bieqno.assimilation.linalg import anomalies
from bieqno.assimilation.observation import Observed
from bieqno.operators import EquivariantOperator
from bieqno.operators.networks import NetworkSettings


class LearnedGain(eqx.Module):
    """Moves each variable of each member along innovation, predicted anomaly and perturbation, by learned coefficients.

    ``z_a[i,j] = z_f[i,j] + s_j (A_ij . innovation + B_ij . anomaly_i + C_ij . perturbation_i)``, the three vectors in units of
    ``(H P H^T + R)^(1/2)`` and s_j the spread of the variable. (A, B, C) is one `EquivariantOperator` over the members, shared by
    all variables, given nothing but the variable and observation space: the stochastic EnKF has A = -B = C, square-root
    filters have C = 0. Takes ensembles of any size, states of any number of variables, and missing values.

    Args:
        observations: number m of observed values.
        width: length of embeddings and hidden layers.
        depth: number of layers of each of the three networks.
        teachers: number of filters it is to imitate, told apart by a code given to the fitting net; 0 for no code.
        key: random key of the initial weights.
        **network: `activation` and `residual` of the networks.

    Example:
        >>> import jax, jax.numpy as jnp
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
        self.operator = EquivariantOperator(
            *_sizes(observations, teachers)[:2],
            context_size=_sizes(observations, teachers)[2],
            width=width,
            depth=depth,
            key=key,
            **network,
        )
        self.teacher = jnp.array(0) if teachers else None
        self.observations = observations
        self.teachers = teachers

    def __check_init__(self) -> None:
        expected = _sizes(self.observations, self.teachers)
        sizes = (self.operator.in_size, self.operator.out_size, self.operator.context_size)
        if sizes != expected:
            raise ValueError(f"{self.observations} observed values need an operator of sizes {expected}, got {sizes}")
        if (self.teacher is None) == (self.teachers > 0):
            raise ValueError("a code of the teacher is given if there are teachers, and only then")
        if self.teacher is not None and (self.teacher.shape or not jnp.issubdtype(self.teacher.dtype, jnp.integer)):
            raise ValueError(
                f"the code of the teacher is one whole number, got {self.teacher.dtype}{self.teacher.shape}"
            )

    def acting_as(self, teacher: int | Int[Array, ""]) -> "LearnedGain":
        """Return the same filter in the role of one of its teachers, counted from 0."""
        if not self.teachers or (isinstance(teacher, int) and not 0 <= teacher < self.teachers):
            raise ValueError(f"this filter has {self.teachers} teachers, counted from 0; got {teacher}")
        return eqx.tree_at(lambda f: f.teacher, self, jnp.asarray(teacher))

    def __call__(self, ensemble: Float[Array, "N n"], observed: Observed, *, key: PRNGKeyArray) -> Float[Array, "N n"]:
        """Analyse one window."""
        if observed.value.shape != (self.observations,):
            raise ValueError(f"this filter takes {self.observations} observed values, got {observed.value.shape[0]}")
        perturbed = observed.perturb(ensemble.shape[0], key=key)
        A, scale = _standardised(ensemble)
        predicted_mean, Y = anomalies(observed.predict(ensemble))
        # In units of the errors, then of the whole innovation; missing values are zero in both.
        S = observed.whiten(Y)
        root, error = _inverse_root(S)
        predicted = S * jnp.sqrt(max(ensemble.shape[0] - 1, 1)).astype(S.dtype) @ root
        innovation = observed.whiten((observed.value - predicted_mean)[None]) @ root
        perturbation = observed.whiten(perturbed - observed.value) @ root
        along = jnp.concatenate([jnp.broadcast_to(innovation, predicted.shape), predicted, perturbation], axis=1)
        seen = jnp.concatenate(
            [predicted, jnp.where(observed.mask, _standardised(observed.predict(ensemble))[0], 0)], axis=1
        )
        code = [] if self.teacher is None else [jax.nn.one_hot(self.teacher, self.teachers)]

        def analyse(column: Float[Array, "N"]) -> Float[Array, "N"]:
            correlation = jnp.mean(column[:, None] * predicted, axis=0)
            coefficients = self.operator((column[:, None], seen), context=jnp.concatenate([*code, error, correlation]))
            return jnp.sum(coefficients[:, : along.shape[1]] * along, axis=1)

        return (ensemble + jax.vmap(analyse, 1, 1)(A) * scale).astype(ensemble.dtype)


def _sizes(observations: int, teachers: int) -> tuple[int, int, int]:
    """Lengths of the operator's elements, results (at least one, even if nothing is observed) and context."""
    m = observations
    return 1 + 2 * m, max(1, 3 * m), teachers + m * (m + 1) // 2 + m


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
