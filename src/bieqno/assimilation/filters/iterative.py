"""The iterative ensemble Kalman filter (Sakov, Oliver and Bertino 2012; Bocquet and Sakov 2014, lag one)."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from bieqno.arguments import checked
from bieqno.assimilation.linalg import anomalies, thin_svd
from bieqno.assimilation.models.forecast import Model, forecast
from bieqno.assimilation.observation import Observed


class IterativeEnKF(eqx.Module):
    """Finds the start of the window that best explains what is observed at its end, then runs the model again.

    At most `iterations` Gauss-Newton steps in the span of the ensemble, each relinearised by the ensemble around the present
    estimate, until the weights move by less than `tolerance` in units of the prior's standard deviation. It begins from
    `Observed.start`, the ensemble before the forecast, which `cycle` gives to every filter; the forecast itself it makes
    anew, by the same model as `cycle`.

    Example:
        >>> from bieqno.assimilation import Lorenz63, Observation
        >>> model, observation = Lorenz63(window=0.25), Observation([0, 1, 2], 1.0)
        >>> start = jnp.array([1.5, -1.5, 25.0]) + jax.random.normal(jax.random.key(0), (10, 3))
        >>> prior = jax.vmap(model)(start)
        >>> observed = observation.window(model(jnp.array([1.5, -1.5, 25.0])), start=start)
        >>> IterativeEnKF(model)(prior, observed, key=jax.random.key(1)).shape
        (10, 3)
    """

    model: Model
    iterations: int = eqx.field(static=True, default=10)
    tolerance: float = eqx.field(static=True, default=1e-3)

    @checked()
    def __call__(self, ensemble: Float[Array, "N n"], observed: Observed, *, key: PRNGKeyArray) -> Float[Array, "N n"]:
        """Analyse one window; the key is for the model's error, the same in every iteration."""
        observed = observed.gaussian(ensemble)
        start = observed.start
        if start is None or start.shape != ensemble.shape:
            raise ValueError(
                "the iterative filter runs the model itself and needs the ensemble at the start of the window, of shape "
                f"{ensemble.shape}; observed.start is {None if start is None else start.shape}"
            )
        count = ensemble.shape[0]
        if count == 1:
            return ensemble
        model_key = jax.random.fold_in(key, 2)
        mean, A = anomalies(start)
        spread = jnp.sqrt(count - 1).astype(start.dtype)

        def run(w: Float[Array, "N"], L: Float[Array, "k"], U: Float[Array, "N k"]) -> Float[Array, "N n"]:
            contracted = _scale(A, 1 / jnp.sqrt(1 + L**2), U)
            return forecast(self.model, mean + w @ A + spread * contracted, observed.inputs, key=model_key)

        def unfinished(carry: tuple[Array, ...]) -> Array:
            return (carry[0] < self.iterations) & (carry[-1] > self.tolerance)

        def improve(carry: tuple[Array, ...]) -> tuple[Array, ...]:
            step, w, L, U, _ = carry
            predicted_mean, Y = anomalies(observed.predict(run(w, L, U)))
            # Anomalies were contracted before the run; undone here, they are sensitivities to w.
            S = _scale(observed.whiten(Y), jnp.sqrt(1 + L**2), U)
            d = observed.whiten((observed.value - predicted_mean)[None])[0]
            U, L, Vt = thin_svd(S)
            # (I + S S^T)^-1 (S d - w), without the large S d.
            change = U @ (L / (1 + L**2) * (Vt @ d)) - _scale(w[:, None], 1 / (1 + L**2), U)[:, 0]
            return step + 1, w + change, L, U, jnp.max(jnp.abs(change))

        rank = min(count, observed.value.shape[0])
        zeros = (jnp.zeros(shape, start.dtype) for shape in (count, rank, (count, rank)))
        begin = (jnp.array(0), *zeros, jnp.array(jnp.inf, start.dtype))
        _, w, L, U, _ = jax.lax.while_loop(unfinished, improve, begin)
        return observed.or_prior(run(w, L, U), ensemble)


def _scale(columns: Float[Array, "N r"], factors: Float[Array, "k"], U: Float[Array, "N k"]) -> Float[Array, "N r"]:
    """Multiply by the matrix that multiplies the columns of U by these factors, and is the identity beside them."""
    return columns + U @ ((factors - 1)[:, None] * (U.T @ columns))
