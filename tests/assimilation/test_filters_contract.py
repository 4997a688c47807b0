"""One contract for every filter, wrapped and unwrapped."""

import dataclasses

import catalogue
import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from catalogue import analyse, update

from bieqno.assimilation import (
    ETKF,
    LETKF,
    EnKF,
    EnNF,
    Floored,
    Inflated,
    IterativeEnKF,
    LearnedGain,
    LocalEnKF,
    Neighbours,
    Observation,
    ParticleFilter,
    PriorInflated,
    Relaxed,
    Rotated,
    SerialEnSRF,
    ThreeDVar,
    forecast,
    inflate,
)

KEY = jax.random.key(1)

NAMES = list(catalogue.FILTERS)
# All but the one that never looks at the prior.
CONSERVATIVE = [name for name in NAMES if name != "climatology"]
# Wrappers of a posterior: with nothing observed there is none.
UNMOVED = {
    "bare": lambda f: f,
    "inflated": lambda f: Inflated(f, 1.1),
    "relaxed": lambda f: Relaxed(f, 0.5),
    "rotated": Rotated,
    "floored": lambda f: Floored(f, 0.1),
}


def window(members, observed=4, missing=(), error=0.5, seed=0):
    start_key, value_key = jax.random.split(jax.random.key(seed))
    start = jax.random.normal(start_key, (members, catalogue.SIZE))
    prior = forecast(catalogue.model(), start, key=start_key)
    value = jax.random.normal(value_key, (observed,)).at[jnp.array(missing, int)].set(jnp.nan)
    return prior, Observation(list(range(observed)), error).window(value, start=start)


@pytest.mark.parametrize("wrapper", catalogue.WRAPPERS)
@pytest.mark.parametrize("name", NAMES)
def test_keeps_shape_finite_and_same_key_same_bits(name, wrapper):
    filter = catalogue.WRAPPERS[wrapper](catalogue.FILTERS[name](4))
    prior, observed = window(5, missing=(2,))
    posterior = analyse(filter, prior, observed, KEY)
    assert posterior.shape == prior.shape
    assert posterior.dtype == prior.dtype
    assert jnp.all(jnp.isfinite(posterior))
    assert jnp.array_equal(posterior, analyse(filter, prior, observed, KEY))


@pytest.mark.parametrize("members", [1, 2, 12])
@pytest.mark.parametrize("name", NAMES)
def test_one_two_and_more_members_than_variables(name, members):
    prior, observed = window(members)
    posterior = analyse(catalogue.FILTERS[name](4), prior, observed, KEY)
    assert jnp.all(jnp.isfinite(posterior))
    if members == 1:
        # It has no covariance: up to rounding it stays where it is, but in filters that need none.
        moves = name in ("3D-Var", "climatology", "EnNF")
        assert jnp.allclose(posterior, prior, atol=1e-5) != moves


@pytest.mark.parametrize("name", CONSERVATIVE)
def test_all_values_missing_returns_the_prior_to_the_bit(name):
    prior, observed = window(5, missing=range(4))
    assert jnp.array_equal(analyse(catalogue.FILTERS[name](4), prior, observed, KEY), prior)


@pytest.mark.parametrize("name", CONSERVATIVE)
def test_an_empty_network_returns_the_prior_to_the_bit(name):
    prior, observed = window(5, observed=0)
    assert jnp.array_equal(analyse(catalogue.FILTERS[name](0), prior, observed, KEY), prior)


@pytest.mark.parametrize("wrapper", UNMOVED)
def test_wrappers_of_a_posterior_return_the_prior_too(wrapper):
    prior, observed = window(5, missing=range(4))
    assert jnp.array_equal(analyse(UNMOVED[wrapper](ETKF()), prior, observed, KEY), prior)


def test_an_inflated_prior_is_returned_inflated():
    """It stands for an error of the model, which grows in every window."""
    prior, observed = window(5, missing=range(4))
    assert jnp.array_equal(analyse(PriorInflated(ETKF(), 1.1), prior, observed, KEY), inflate(prior, 1.1))


def test_gaps_do_not_keep_a_window_with_one_value_from_being_analysed():
    prior, observed = window(5, missing=(1, 2, 3))
    for name in CONSERVATIVE:
        assert not jnp.array_equal(analyse(catalogue.FILTERS[name](4), prior, observed, KEY), prior)


@pytest.mark.parametrize("name", NAMES)
def test_singular_error_covariance(name):
    for error in (0.0, jnp.ones((4, 4))):
        prior, observed = window(5, error=error)
        assert jnp.all(jnp.isfinite(analyse(catalogue.FILTERS[name](4), prior, observed, KEY)))


@pytest.mark.parametrize("name", ["EnKF", "EnKF, sampled covariance", "ETKF", "serial", "LETKF", "3D-Var", "iterative"])
def test_a_missing_value_is_one_that_was_never_observed(name):
    prior, gap = window(5, observed=4, missing=(3,))
    short = Observation([0, 1, 2], 0.5).window(gap.value[:3], start=gap.start)
    with_gap, without = catalogue.FILTERS[name](4), catalogue.FILTERS[name](3)
    if name.startswith("EnKF"):
        noise = jax.random.normal(KEY, (5, 4))
        first = update(with_gap, prior, gap, gap.value + noise)
        second = update(without, prior, short, short.value + noise[:, :3])
    else:
        first, second = analyse(with_gap, prior, gap, KEY), analyse(without, prior, short, KEY)
    assert jnp.allclose(first, second, atol=2e-5)  # rounding


@pytest.mark.parametrize("name", [n for n in NAMES if n not in ("climatology", "LocalEnNF", "RecordEnNF")])
def test_member_permutation_commutes(name):
    """With the perturbations permuted alike; inflation and relaxation on top commute by themselves.

    Filters whose noise is not one of observations are tested elsewhere.
    """
    order = jnp.array([3, 0, 4, 1, 2])
    prior, observed = window(5)
    moved = Observation(range(4), 0.5).window(observed.value, start=observed.start[order])
    filter = Relaxed(Inflated(Reordered(catalogue.FILTERS[name](4), jnp.arange(5)), 1.1), 0.5)
    reordered = Relaxed(Inflated(Reordered(catalogue.FILTERS[name](4), order), 1.1), 0.5)
    straight = analyse(filter, prior, observed, KEY)
    permuted = analyse(reordered, prior[order], moved, KEY)
    assert jnp.allclose(permuted, straight[order], atol=2e-5)  # rounding of sums in another order


class Reordered(eqx.Module):
    """A filter whose random perturbations are given to the members in another order."""

    filter: object
    order: object

    def __call__(self, ensemble, observed, *, key):
        if isinstance(self.filter, EnKF | EnNF | LearnedGain | LocalEnKF):
            perturbed = observed.perturb(5, key=key)[self.order]
            return self.filter(ensemble, dataclasses.replace(observed, perturbed=perturbed), key=key)
        if isinstance(self.filter, ParticleFilter):
            # With fewer members than variables the shake is a combination of members: both axes are theirs.
            noise = jax.random.normal(key, (5, 5))[self.order][:, self.order]
            return self.filter.update(ensemble, observed, jnp.array(0.3), noise)
        return self.filter(ensemble, observed, key=key)


def test_filters_refuse_what_does_not_fit():
    prior, observed = window(5)
    key = jax.random.key(0)
    with pytest.raises(
        ValueError, match="known for 6 variables and 3 observations, the state has 6 and 4 are observed"
    ):
        LETKF(Neighbours.within(1.0, catalogue.RING, catalogue.RING[:3]), 1.0)(prior, observed, key=key)
    with pytest.raises(ValueError, match="known for 3 variables and 4 observations, the state has 6"):
        LETKF(Neighbours.within(1.0, catalogue.RING[:3], catalogue.RING[:4]), 1.0)(prior, observed, key=key)
    with pytest.raises(ValueError, match=r"need tapers \(4, 6\) and \(4, 4\), got \(4, 5\)"):
        SerialEnSRF(jnp.ones((4, 5)), jnp.ones((4, 4)))(prior, observed, key=key)
    with pytest.raises(ValueError, match=r"background covariance is \(2, 2\), the state has 6"):
        ThreeDVar(jnp.eye(2))(prior, observed, key=key)
    with pytest.raises(ValueError, match="ensemble at the start of the window"):
        IterativeEnKF(catalogue.model())(prior, Observation(range(4), 0.5).window(observed.value), key=key)
    with pytest.raises(ValueError, match="component"):
        Observation([7], 1.0).window(jnp.zeros(1)).predict(prior)


@pytest.mark.parametrize("name", [*NAMES, "sampled EnKF"])
def test_no_filter_waits_for_threads_inside_a_compiled_loop(name):
    """gesdd deadlocks when all threads of XLA wait for each other, on one core as soon as filters are mapped."""
    filter = EnKF(sampled=True) if name == "sampled EnKF" else catalogue.FILTERS[name](4)
    prior, observed = window(5)
    mapped = jax.jit(jax.vmap(lambda members: filter(members, observed, key=KEY)))
    assert "gesdd" not in mapped.lower(jnp.stack([prior] * 3)).as_text()
