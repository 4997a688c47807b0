"""Every filter and wrapper, for the tests that all of them must pass."""

import dataclasses

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
    LocalEnKF,
    LocalEnNF,
    Neighbourhoods,
    Neighbours,
    ParticleFilter,
    Places,
    PriorInflated,
    RecordEnNF,
    Relaxed,
    Rotated,
    SerialEnSRF,
    ThreeDVar,
    distances,
    gaspari_cohn,
)
from bieqno.operators import Standardiser

SIZE = 6
RING = jnp.arange(float(SIZE))[:, None]


def model() -> LinearModel:
    """Rotates pairs of variables and damps them a little: linear, stable, not diagonal."""
    matrix = jnp.kron(jnp.eye(SIZE // 2), 0.95 * jnp.array([[0.8, 0.6], [-0.6, 0.8]]))
    return LinearModel(matrix)


def _all_near(observed: int) -> Neighbours:
    return Neighbours.within(jnp.inf, RING, RING[:observed])


def _taper(here, there):
    return gaspari_cohn(distances(here, there), 3.0)


def _local(observed: int) -> LocalEnNF:
    """With a narrow extent, so that an analysis of a few of the states here is clipped."""
    places = Places(RING)
    near = Neighbourhoods.of(places, places.at(range(observed)), radius=2.0, reach=1.0)
    return LocalEnNF.new(near, Standardiser.unit(1), jnp.array([1.5]), width=8, channels=2, key=jax.random.key(7))


# What makes each filter for the first so many of the variables; made anew, so that it follows the precision.
FILTERS = {
    "EnKF": lambda observed: EnKF(),
    "EnKF, plain perturbations": lambda observed: EnKF(centred=False),
    "EnKF, sampled covariance": lambda observed: EnKF(sampled=True),
    "EnKF, local": lambda observed: LocalEnKF(*(_taper(RING[:observed], there) for there in (RING, RING[:observed]))),
    "ETKF": lambda observed: ETKF(),
    "serial": lambda observed: SerialEnSRF(),
    "LETKF": lambda observed: LETKF(_all_near(observed), jnp.inf),
    "LETKF, local": lambda observed: LETKF(_all_near(observed), 3.0),
    "particle filter": lambda observed: ParticleFilter(0.3),
    "iterative": lambda observed: IterativeEnKF(model()),
    "3D-Var": lambda observed: ThreeDVar(jnp.eye(SIZE)),
    "EnNF": lambda observed: EnNF(observed, width=8, depth=2, key=jax.random.key(8)),
    "LearnedGain": lambda observed: LearnedGain(observed, width=8, depth=2, key=jax.random.key(9)),
    "LocalEnNF": _local,
    "RecordEnNF": lambda observed: RecordEnNF(
        ["same"] * SIZE, "same", 2 * jnp.eye(SIZE), observations=observed, width=8, key=jax.random.key(9)
    ),
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


def update(filter, prior, observed, perturbed):
    """One analysis with given perturbed observations, compiled likewise."""
    return analyse(filter, prior, dataclasses.replace(observed, perturbed=perturbed), jax.random.key(0))
