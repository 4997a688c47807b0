"""What `cycle` keeps of each window: functions of prior, posterior and what was observed."""

from typing import Any, Protocol, TypeAlias, runtime_checkable

import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from bieqno.assimilation.observation import Observed

Ensemble: TypeAlias = Float[Array, "N n"]


@runtime_checkable
class Record(Protocol):
    """Decides what is kept of a window; `key` is the one the filter was called with."""

    def __call__(self, prior: Ensemble, posterior: Ensemble, observed: Observed, *, key: PRNGKeyArray) -> PyTree[Any]:
        """Any PyTree of arrays."""


def keep_moments(prior: Ensemble, posterior: Ensemble, observed: Observed, *, key: PRNGKeyArray) -> dict[str, Array]:
    """Mean and standard deviation of both ensembles: memory that does not grow with N."""
    scale = jnp.sqrt(prior.shape[0] / max(prior.shape[0] - 1, 1)).astype(prior.dtype)
    return {
        "prior_mean": jnp.mean(prior, axis=0),
        "prior_spread": jnp.std(prior, axis=0) * scale,
        "mean": jnp.mean(posterior, axis=0),
        "spread": jnp.std(posterior, axis=0) * scale,
    }


def keep_mean(prior: Ensemble, posterior: Ensemble, observed: Observed, *, key: PRNGKeyArray) -> Float[Array, "n"]:
    """The mean of the analysis, and no more."""
    return jnp.mean(posterior, axis=0)


def keep_ensembles(prior: Ensemble, posterior: Ensemble, observed: Observed, *, key: PRNGKeyArray) -> dict[str, Array]:
    """Both ensembles, for `to_dataset`, rank histograms and figures."""
    return {"prior": prior, "posterior": posterior}


def keep_triples(prior: Ensemble, posterior: Ensemble, observed: Observed, *, key: PRNGKeyArray) -> dict[str, Array]:
    """What a teacher shows a learned filter: prior, predicted and perturbed observations, posterior.

    The perturbed observations are those that the filter drew, if it perturbs, and otherwise those that it
    would have drawn.
    """
    return {
        "prior": prior,
        "predicted": observed.predict(prior),
        "perturbed": observed.perturb(prior.shape[0], key=key),
        "observed": observed.value,
        "std": observed.std,
        "mask": observed.mask,
        "posterior": posterior,
    }
