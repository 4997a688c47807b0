"""The ensemble transform Kalman filter with the symmetric root (Bishop et al. 2001), and its local form (Hunt et al. 2007)."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, PRNGKeyArray

from bieqno.arguments import checked
from bieqno.assimilation.geometry import Neighbours, gaspari_cohn
from bieqno.assimilation.krylov import root_and_gain
from bieqno.assimilation.linalg import anomalies, thin_svd
from bieqno.assimilation.neighbourhoods import Candidates
from bieqno.assimilation.observation import Observed

# Numbers gathered at a time: analyses are done in chunks of about this, so that memory is bounded and stays in cache.
CHUNK = 2**16
EXPORTED = 64  # members that a program for any number of them is laid out for


class ETKF(eqx.Module):
    """Moves mean and anomalies by the Kalman filter's formulas, exactly and without perturbations.

    Example:
        >>> from bieqno.assimilation import Observation
        >>> prior = jnp.array([[-1.0], [1.0]])  # mean 0, variance 2
        >>> observed = Observation([0], 2.0).window(jnp.array([3.0]))
        >>> posterior = ETKF()(prior, observed, key=jax.random.key(0))
        >>> posterior.mean().round(4).item(), posterior.var(ddof=1).round(4).item()  # 1 and 4/3
        (1.0, 1.333299994468689)
    """

    @checked()
    def __call__(self, ensemble: Float[Array, "N n"], observed: Observed, *, key: PRNGKeyArray) -> Float[Array, "N n"]:
        """Analyse one window; draws nothing at random."""
        observed = observed.gaussian(ensemble)
        predicted_mean, Y = anomalies(observed.predict(ensemble))
        mean, A = anomalies(ensemble)
        S = observed.whiten(Y)
        innovation = observed.whiten((observed.value - predicted_mean)[None])[0]
        # With S = U L V^T:  weights = U L (1 + L^2)^-1 V^T d,  transform = U (1 + L^2)^(-1/2) U^T, the identity
        # outside the columns of U.
        U, L, Vt = thin_svd(S)
        weights = U @ (L / (1 + L**2) * (Vt @ innovation))
        shrink = U @ ((U.T @ (ensemble - mean)) * (1 / jnp.sqrt(1 + L**2) - 1)[:, None])
        return ensemble + weights @ A + shrink


class LETKF(eqx.Module):
    """An ETKF for each variable with the observations near it, whose errors grow with distance.

    Cost and memory are linear in the number of variables. The influence of an observation ends at `radius`, at most that
    of the neighbours: a larger one is refused, or counts as theirs where it is traced (in `jit`, `vmap`, `grad`) and has no
    value yet. Correlated errors are whitened by the symmetric root of R first, which keeps every value nearest to
    its place.

    Example:
        >>> from bieqno.assimilation import Neighbours, Observation
        >>> ring = jnp.arange(8.0)[:, None]
        >>> filter = LETKF(Neighbours.within(2.0, ring, ring[:1], period=8.0), 2.0)
        >>> prior = jax.random.normal(jax.random.key(0), (5, 8))
        >>> observed = Observation([0], 1.0).window(jnp.array([2.0]))
        >>> moved = filter(prior, observed, key=jax.random.key(1)) - prior
        >>> (jnp.abs(moved).max(axis=0) > 1e-6).tolist()
        [True, True, False, False, False, False, False, True]
    """

    neighbours: Neighbours | Candidates
    radius: float | Float[Array, ""]

    def __check_init__(self) -> None:
        # `tune` checks its grid before it traces. An `eqx.error_if` would keep its program out of the compilation cache.
        if not hasattr(self.neighbours, "radius"):
            raise TypeError(f"neighbours are those of Neighbours.within, got {type(self.neighbours).__name__}")
        known = self.neighbours.radius * (1 + 1e-6)  # rounding in 32 bits
        if not isinstance(self.radius, jax.core.Tracer) and float(self.radius) > known:
            raise ValueError(
                f"a radius of {float(self.radius):g} is beyond that of the neighbours, {self.neighbours.radius:g}: "
                "build these with Neighbours.within for the largest radius of interest"
            )

    @checked()
    def __call__(self, ensemble: Float[Array, "N n"], observed: Observed, *, key: PRNGKeyArray) -> Float[Array, "N n"]:
        """Analyse one window; draws nothing at random."""
        observed, count = observed.gaussian(ensemble), ensemble.shape[0]
        near = self.neighbours.now(observed.mask)
        variables, reach = near.indices.shape
        observed.check_known(ensemble, variables, near.observations)
        if not reach:
            return ensemble
        predicted_mean, Y = anomalies(observed.predict(ensemble))
        mean, A = anomalies(ensemble)
        innovation = observed.whiten((observed.value - predicted_mean)[None])
        rows = jnp.concatenate([observed.whiten(Y), innovation]).T
        # An error that is lost in the rounding of the spread, as where an error law passes through zero, would cost
        # all digits; it counts as this share of the spread, 2 % in 32 bits and 0.01 % in 64.
        share = float(np.finfo(rows.dtype).eps) ** 0.25
        rows = rows / jnp.maximum(1, share * jnp.linalg.norm(rows[:, :-1], axis=1, keepdims=True))
        radius = jnp.minimum(self.radius, self.neighbours.radius)
        weight = jnp.sqrt(gaspari_cohn(near.distance, radius)).astype(rows.dtype)

        root, shift = local_transforms(A, rows[:, :-1].T, rows[:, -1], near.indices, weight)
        moved = root * jnp.sqrt(max(count - 1, 1)).astype(root.dtype) + shift
        return observed.or_prior(mean + moved, ensemble)

    def noise(self, shape: tuple[int, int], dtype: DTypeLike, *, key: PRNGKeyArray) -> None:
        """Return what is drawn at random for the whole state: nothing."""

    def needs(self, variables: Int[np.ndarray, "k"]) -> tuple[Int[np.ndarray, "_"], Int[np.ndarray, "_"]]:
        """Return the variables and observations that the analysis of some variables looks at."""
        return variables, self.neighbours.reaching(variables)

    def part(self, variables: Int[np.ndarray, "k"], observations: Int[np.ndarray, "l"]) -> "LETKF":
        """Return the same for a part of the state and some observations, numbered as in these lists."""
        return LETKF(self.neighbours.part(variables, observations), self.radius)


def local_transforms(
    A: Float[Array, "N n"],
    S: Float[Array, "N m"],
    innovation: Float[Array, "m"],
    near: Int[Array, "n k"],
    weight: Float[Array, "n k"],
) -> tuple[Float[Array, "N n"], Float[Array, "n"]]:
    """Return anomalies after a local analysis of each variable, and the increments of the mean.

    A and S are the anomalies of variables and predictions, S and the innovation in units of the error; `weight` is the
    square root of the taper for each of the observations `near` a variable. Anomalies of zero may pad the members.
    """
    (count, size), reach = A.shape, near.shape[1]
    # One row per observation, the innovation behind the anomalies: a neighbourhood is a gather of rows.
    rows = jnp.concatenate([S, innovation[None]]).T

    def analyse(
        a: Float[Array, "b N"], near: Int[Array, "b k"], weight: Float[Array, "b k"]
    ) -> tuple[Float[Array, "b N"], Float[Array, "b"]]:
        local = rows[near] * weight[..., None]
        root, gain = root_and_gain(jnp.swapaxes(local[..., :-1], 1, 2), a)
        # The mean moves by a^T (I + S S^T)^-1 S d, the same for all members.
        return root, jnp.sum(gain * local[..., -1], axis=1)

    known = count if isinstance(count, int) else EXPORTED
    chunk = min(size, max(1, CHUNK // (known * reach)))
    chunks = -(-size // chunk)
    parts: tuple[Array, ...] = (A.T, near, weight)
    if chunks == 1:
        root, shift = analyse(*parts)
    else:
        padding = ((0, chunks * chunk - size), (0, 0))
        parts = tuple(jnp.pad(x, padding).reshape(chunks, chunk, -1) for x in parts)
        root, shift = jax.lax.map(lambda part: analyse(*part), parts)
        root, shift = root.reshape(-1, count)[:size], shift.reshape(-1)[:size]
    return root.T, shift
