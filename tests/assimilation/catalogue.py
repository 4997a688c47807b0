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


def filters(observed: int) -> dict[str, object]:
    """Fresh filters for the first `observed` of the variables (made anew, so that they follow the precision)."""
    near = Neighbours.within(jnp.inf, RING, RING[:observed])
    return {
        "EnKF": EnKF(),
        "EnKF, plain perturbations": EnKF(centred=False),
        "EnKF, sampled covariance": EnKF(sampled=True),
        "ETKF": ETKF(),
        "serial": SerialEnSRF(),
        "LETKF": LETKF(near, jnp.inf),
        "LETKF, local": LETKF(near, 3.0),
        "particle filter": ParticleFilter(0.3),
        "iterative": IterativeEnKF(model()),
        "3D-Var": ThreeDVar(jnp.eye(SIZE)),
        "EnNF": EnNF(observed, width=8, depth=2, key=jax.random.key(8)),
        "LearnedGain": LearnedGain(observed, width=8, depth=2, key=jax.random.key(9)),
        "climatology": Climatology(jax.random.normal(jax.random.key(9), (50, SIZE))),
    }


WRAPPERS = {
    "bare": lambda f: f,
    "wrapped": lambda f: Rotated(Relaxed(Inflated(PriorInflated(Floored(f, 0.1), 1.05), 1.05), 0.3)),
}


@eqx.filter_jit
def analyse(filter, prior, observed, key):
    """One analysis, compiled once for every kind of filter and shape: most of the time of these tests."""
    return filter(prior, observed, key=key)
