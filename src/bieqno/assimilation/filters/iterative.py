"""The iterative ensemble Kalman filter (Sakov, Oliver and Bertino 2012; Bocquet and Sakov 2014, lag one)."""

from typing import TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from bieqno.assimilation.models.forecast import Model, forecast
from bieqno.assimilation.moments import anomalies
from bieqno.assimilation.observation import Observed

GaussNewtonState: TypeAlias = tuple[Array, Array, Array, Array, Array]


class IterativeEnKF(eqx.Module):
    """Finds the start of the window that best explains what is observed at its end, then runs the model again.

    Gauss-Newton steps in the span of the ensemble, each relinearised by the ensemble around the present
    estimate. It begins from `Observed.start`, the ensemble before the forecast, which `cycle` hands to every
    filter; the forecast itself it makes anew.

    Args:
        model: the dynamics over one window; the one that `cycle` uses.
        iterations: most Gauss-Newton steps.
        tolerance: stops when the weights move by less, in units of the prior's standard deviation.

    Example:
        >>> import jax, jax.numpy as jnp
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

    def __call__(self, ensemble: Float[Array, "N n"], observed: Observed, *, key: PRNGKeyArray) -> Float[Array, "N n"]:
        """Analyse one window; the key is for the model's error, the same in every iteration."""
        start = observed.start
        if start is None or start.shape != ensemble.shape:
            raise ValueError(
                "the iterative filter runs the model itself and needs the ensemble at the start of the "
                f"window, of shape {ensemble.shape}; observed.start is "
                f"{None if start is None else start.shape}"
            )
        count = ensemble.shape[0]
        if count == 1:
            return ensemble
        model_key = jax.random.fold_in(key, 2)
        mean, A = anomalies(start)
        spread = jnp.sqrt(count - 1).astype(start.dtype)
        eye = jnp.eye(count, dtype=start.dtype)

        def run(w: Float[Array, "N"], T: Float[Array, "N N"]) -> Float[Array, "N n"]:
            return forecast(self.model, mean + w @ A + spread * (T @ A), key=model_key)

        def unfinished(carry: GaussNewtonState) -> Array:
            step, _, _, _, moved = carry
            return (step < self.iterations) & (moved > self.tolerance)

        def improve(carry: GaussNewtonState) -> GaussNewtonState:
            step, w, T, inverse, _ = carry
            predicted_mean, Y = anomalies(observed.predict(run(w, T)))
            # Anomalies were contracted by T before the run; undone here, they are sensitivities to w.
            S = inverse @ observed.whiten(Y)
            d = observed.whiten((observed.value - predicted_mean)[None])[0]
            values, U = jnp.linalg.eigh(S @ S.T)
            values = 1 + jnp.maximum(values, 0)
            change = U @ ((U.T @ (S @ d - w)) / values)
            T = (U / jnp.sqrt(values)) @ U.T
            inverse = (U * jnp.sqrt(values)) @ U.T
            return step + 1, w + change, T, inverse, jnp.max(jnp.abs(change))

        begin = (
            jnp.array(0),
            jnp.zeros(count, start.dtype),
            eye,
            eye,
            jnp.array(jnp.inf, start.dtype),
        )
        _, w, T, _, _ = jax.lax.while_loop(unfinished, improve, begin)
        return run(w, T)
