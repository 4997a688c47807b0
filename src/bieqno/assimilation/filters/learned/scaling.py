"""Standardisation of what a learned filter takes in and gives out."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from bieqno.operators import Standardiser


class Scaling(eqx.Module):
    """Means and scales; no variable of the state has one of its own, since all share one operator.

    Args:
        state: of state variables, one for all.
        anomaly: of their distances from the ensemble mean, one for all.
        increment: of what an analysis adds to them, one for all.
        predicted: of predicted observations, one a value.
        predicted_anomaly: of their distances from the ensemble mean, one a value.
        innovation: of the difference between observations and predictions, one a value.

    Example:
        >>> Scaling.unit(2).predicted.scale.tolist()
        [1.0, 1.0]
    """

    state: Standardiser
    anomaly: Standardiser
    increment: Standardiser
    predicted: Standardiser
    predicted_anomaly: Standardiser
    innovation: Standardiser

    @classmethod
    def unit(cls, observations: int) -> "Scaling":
        """The one that changes nothing."""
        return cls(*[Standardiser.unit()] * 3, *[Standardiser.unit(observations)] * 3)

    @classmethod
    def of(
        cls,
        prior: Float[Array, "k N n"],
        posterior: Float[Array, "k N n"],
        predicted: Float[Array, "k N m"],
        perturbed: Float[Array, "k N m"],
    ) -> "Scaling":
        """The one that standardises a sample of analyses."""

        def deviations(series: Float[Array, "k N _"]) -> Float[Array, "k N _"]:
            return series - jnp.mean(series, axis=1, keepdims=True)

        return cls(
            Standardiser.of(prior),
            Standardiser.of(deviations(prior)),
            Standardiser.of(posterior - prior),
            Standardiser.of(predicted, axis=(0, 1)),
            Standardiser.of(deviations(predicted), axis=(0, 1)),
            Standardiser.of(perturbed - predicted, axis=(0, 1)),
        )
