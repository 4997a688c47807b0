"""Every filter and wrapper, for the tests that all of them must pass."""

import equinox as eqx
import jax
import jax.numpy as jnp

from bieqno.assimilation import (
    ETKF,
    LETKF,
    Climatology,
    EnKF,
    EnNF,
    Floored,
    Inflated,
    IterativeEnKF,
    LearnedGain,
    LinearModel,
    Neighbours,
    ParticleFilter,
    PriorInflated,
    Relaxed,
    Rotated,
    SerialEnSRF,
    ThreeDVar,
)

SIZE = 6
RING = jnp.arange(float(SIZE))[:, None]


def model() -> LinearModel:
    """Rotates pairs of variables and damps them a little: linear, stable, not diagonal."""
    matrix = jnp.kron(jnp.eye(SIZE // 2), 0.95 * jnp.array([[0.8, 0.6], [-0.6, 0.8]]))
    return LinearModel(matrix)


def _all_near(observed: int) -> Neighbours:
    return Neighbours.within(jnp.inf, RING, RING[:observed])


# What makes each filter for the first so many of the variables; made anew, so that it follows the precision.
FILTERS = {
    "EnKF": lambda observed: EnKF(),
    "EnKF, plain perturbations": lambda observed: EnKF(centred=False),
    "EnKF, sampled covariance": lambda observed: EnKF(sampled=True),
    "ETKF": lambda observed: ETKF(),
    "serial": lambda observed: SerialEnSRF(),
    "LETKF": lambda observed: LETKF(_all_near(observed), jnp.inf),
    "LETKF, local": lambda observed: LETKF(_all_near(observed), 3.0),
    "particle filter": lambda observed: ParticleFilter(0.3),
    "iterative": lambda observed: IterativeEnKF(model()),
    "3D-Var": lambda observed: ThreeDVar(jnp.eye(SIZE)),
    "EnNF": lambda observed: EnNF(observed, width=8, depth=2, key=jax.random.key(8)),
    "LearnedGain": lambda observed: LearnedGain(observed, width=8, depth=2, key=jax.random.key(9)),
    "climatology": lambda observed: Climatology(jax.random.normal(jax.random.key(9), (50, SIZE))),
}

WRAPPERS = {
    "bare": lambda f: f,
    "wrapped": lambda f: Rotated(Relaxed(Inflated(PriorInflated(Floored(f, 0.1), 1.05), 1.05), 0.3)),
}


@eqx.filter_jit
def analyse(filter, prior, observed, key):
    """One analysis, compiled once for every kind of filter and shape: most of the time of these tests."""
    return filter(prior, observed, key=key)


@eqx.filter_jit
def update(filter, prior, observed, perturbed):
    """One analysis with given perturbed observations, compiled likewise."""
    return filter.update(prior, observed, perturbed)
