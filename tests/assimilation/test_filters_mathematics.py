"""Filters against closed forms, in 64 bits."""

from functools import partial

import catalogue
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bieqno.assimilation import (
    ETKF,
    LETKF,
    EnKF,
    Inflated,
    IterativeEnKF,
    LinearModel,
    LocalEnKF,
    Neighbours,
    NoisyModel,
    Observation,
    ParticleFilter,
    Relaxed,
    Rotated,
    SerialEnSRF,
    System,
    ThreeDVar,
    cycle,
    distances,
    gaspari_cohn,
    random_rotation,
    simulate,
)
from bieqno.assimilation.krylov import root_and_gain
from bieqno.assimilation.linalg import increments

rotation = jax.jit(lambda count, key: random_rotation(count, jnp.float64, key=key), static_argnums=0)
gain, local = jax.jit(increments), jax.jit(root_and_gain)


@pytest.fixture(autouse=True)
def _double():
    with jax.enable_x64(True):
        yield


def problem(members, size=6, observed=4, seed=0, correlated=True):
    """A prior ensemble, observations with correlated errors, and the pieces of the closed form."""
    prior, H, root, value = _draw(members, size, observed, seed)
    R = root @ root.T + 0.1 * np.eye(observed) if correlated else 0.5 * np.eye(observed)
    seen = Observation(H, jnp.asarray(R) if correlated else jnp.full(observed, 0.5**0.5)).window(value)
    return prior, H, R, seen


# Compiled as a whole: one program for each size, where every operation by itself would be one.
@partial(jax.jit, static_argnums=(0, 1, 2))
def _draw(members, size, observed, seed):
    keys = jax.random.split(jax.random.key(seed), 5)
    prior = jax.random.normal(keys[0], (members, size)) @ jax.random.normal(keys[1], (size, size))
    shapes = ((observed, size), (observed, observed), (observed,))
    return prior, *(jax.random.normal(key, shape) for key, shape in zip(keys[2:], shapes, strict=True))


@jax.jit
def kalman(mean, P, H, R, value):
    K = P @ H.T @ jnp.linalg.inv(H @ P @ H.T + R)
    return mean + K @ (value - H @ mean), P - K @ H @ P


@jax.jit
def moments(ensemble):
    return jnp.mean(ensemble, axis=0), jnp.cov(ensemble.T)


SQUARE_ROOT = {
    "ETKF": ETKF,
    "serial": SerialEnSRF,
    "LETKF": lambda: LETKF(Neighbours.within(jnp.inf, jnp.zeros((6, 1)), jnp.zeros((4, 1))), jnp.inf),
}


@pytest.mark.parametrize("name", SQUARE_ROOT)
@pytest.mark.parametrize("members", [2, 30])
@pytest.mark.parametrize("correlated", [False, True])
def test_square_root_filters_equal_kalman_with_the_ensembles_covariance(name, members, correlated):
    prior, H, R, seen = problem(members, correlated=correlated)
    posterior = catalogue.analyse(SQUARE_ROOT[name](), prior, seen, jax.random.key(0))
    mean, P = kalman(*moments(prior), H, R, seen.value)
    got_mean, got_P = moments(posterior)
    # LETKF takes its root by quadrature, accurate to 5e-8; the others to rounding.
    tolerance = 1e-6 if name == "LETKF" else 1e-9
    assert jnp.allclose(got_mean, mean, atol=tolerance)
    assert jnp.allclose(got_P, P, atol=10 * tolerance)


# Sizes come from a short list, since each pair compiles anew; values are free.
@settings(deadline=None, max_examples=8)
@given(sizes=st.sampled_from([(3, 5), (9, 2)]), seed=st.integers(0, 1000))
def test_letkf_with_infinite_radius_equals_etkf_member_by_member(sizes, seed):
    """With fewer members than observations and with more."""
    members, observed = sizes
    with jax.enable_x64(True):
        prior, _, _, seen = problem(members, observed=observed, seed=seed, correlated=False)
        near = Neighbours.within(jnp.inf, jnp.zeros((6, 1)), jnp.zeros((observed, 1)))
        key = jax.random.key(0)
        # Quadrature error of the root, 5e-8, times anomalies of size up to ten.
        local, whole = (catalogue.analyse(f, prior, seen, key) for f in (LETKF(near, jnp.inf), ETKF()))
        assert jnp.allclose(local, whole, atol=5e-6)


def test_enkf_gain_in_either_space_is_the_textbooks():
    for members in (3, 30):  # fewer and more than the observations
        prior, H, R, seen = problem(members)
        noise = seen.perturb(members, key=jax.random.key(1))
        P = jnp.cov(prior.T)
        K = P @ H.T @ jnp.linalg.inv(H @ P @ H.T + R)
        expected = prior + (noise - prior @ H.T) @ K.T
        assert jnp.allclose(catalogue.update(EnKF(centred=False), prior, seen, noise), expected, atol=1e-9)


def test_a_local_enkf_without_tapers_is_the_enkf():
    prior, _, _, seen = problem(7)
    noise = seen.perturb(7, key=jax.random.key(1))
    everywhere = LocalEnKF(jnp.ones((4, 6)), jnp.ones((4, 4)))
    local, whole = (catalogue.update(filter, prior, seen, noise) for filter in (everywhere, EnKF()))
    assert jnp.allclose(local, whole, atol=1e-9)


def test_sampled_enkf_is_the_papers_formula():
    prior, H, _, seen = problem(30)
    noise = seen.perturb(30, key=jax.random.key(1))
    P, C_dd = jnp.cov(prior.T), jnp.cov(noise.T)
    K = P @ H.T @ jnp.linalg.inv(H @ P @ H.T + C_dd)
    expected = prior + (noise - prior @ H.T) @ K.T
    assert jnp.allclose(catalogue.update(EnKF(sampled=True, centred=False), prior, seen, noise), expected, atol=1e-8)


def test_3dvar_is_optimal_interpolation_and_solves_a_nonlinear_problem():
    prior, H, R, seen = problem(1)
    B = jnp.cov(jax.random.normal(jax.random.key(5), (6, 50)))
    mean, _ = kalman(prior[0], 0.5 * B, H, R, seen.value)
    assert jnp.allclose(ThreeDVar(B, 0.5)(prior, seen, key=jax.random.key(0))[0], mean, atol=1e-9)
    # Observing the square of a number: the minimum of a quartic, where its derivative vanishes.
    squared = Observation(lambda z: z**2, 0.1).window(jnp.array([4.0]))
    found = ThreeDVar(jnp.eye(1), iterations=20)(jnp.ones((1, 1)), squared, key=jax.random.key(0))[0, 0]
    slope = (found - 1.0) + (found**2 - 4) * 2 * found / 0.01
    assert abs(float(slope)) < 1e-6


LINEAR = {
    "EnKF": EnKF,
    "EnKF, sampled": lambda: EnKF(sampled=True),
    "ETKF": ETKF,
    "serial": SerialEnSRF,
    "LETKF": lambda: LETKF(Neighbours.within(jnp.inf, catalogue.RING, catalogue.RING[:3]), jnp.inf),
    "iterative": lambda: IterativeEnKF(catalogue.model()),
    "particle filter": lambda: ParticleFilter(0.1),
}


@pytest.mark.parametrize("name", LINEAR)
def test_every_filter_tends_to_the_kalman_filter(name):
    """Cycled over a linear model: the distance to the exact posterior mean falls like 1/sqrt(N)."""
    filter, model, observation = LINEAR[name](), catalogue.model(), Observation(range(3), 0.7)
    windows, size = 4, catalogue.SIZE
    system = System(model, observation, jnp.ones(size))
    twin = simulate(system, windows, key=jax.random.key(0))
    mean, P = jnp.zeros(size), jnp.eye(size)
    H, R = jnp.eye(3, size), 0.49 * jnp.eye(3)
    exact = []
    for value in twin.observations.value:
        mean, P = kalman(model.matrix @ mean, model.matrix @ P @ model.matrix.T, H, R, value)
        exact.append(mean)
    errors = []
    sizes = (200, 3200)
    for members in sizes:

        def one(key, members=members):
            ensemble = jax.random.normal(key, (members, size))
            run = cycle(filter, system, ensemble, twin.observations, key=key)
            gap = run.kept["mean"] - jnp.array(exact)
            return jnp.mean(gap**2), jnp.mean((run.kept["spread"][-1] ** 2 - jnp.diagonal(P)) ** 2)

        # Iterative and deterministic filters inherit the sampling error of the first ensemble alone.
        keys = jax.random.split(jax.random.key(1), 3)
        errors.append([float(jnp.sqrt(jnp.mean(x))) for x in jax.jit(jax.vmap(one))(keys)])
    # Standard errors of a mean of unit variables are 1/sqrt(N); the factor leaves room for four windows of
    # resampling and for the few repetitions. The particle filter's weights thin it out by about ten.
    room = 12 if name == "particle filter" else 3
    for members, (mean_error, variance_error) in zip(sizes, errors, strict=True):
        assert mean_error < room / np.sqrt(members)
        assert variance_error < room * 1.5 / np.sqrt(members)
    assert errors[1][0] < 0.6 * errors[0][0]  # 1/4 in the limit of many repetitions


def test_kalman_limit_with_model_error():
    """One window of a noisy linear model: variance grows by that of the error, then shrinks by the Kalman filter."""
    model = NoisyModel(LinearModel(jnp.array([[0.9]])), 0.5)
    observation = Observation([0], 1.0)
    system = System(model, observation, jnp.zeros(1))
    twin = simulate(system, 1, key=jax.random.key(0))
    ensemble = jax.random.normal(jax.random.key(1), (20000, 1))
    run = cycle(ETKF(), system, ensemble, twin.observations, key=jax.random.key(2))
    prior = 0.81 + 0.25
    # Variances of 20,000 draws are accurate to 1 %; three times that.
    assert np.isclose(float(run.kept["prior_spread"][0, 0]) ** 2, prior, rtol=0.03)
    assert np.isclose(float(run.kept["spread"][0, 0]) ** 2, prior / (1 + prior), rtol=0.03)


def test_localized_serial_filter_leaves_the_far_side_alone():
    prior = jax.random.normal(jax.random.key(0), (5, 6))
    far = distances(catalogue.RING[:1], catalogue.RING)
    taper = gaspari_cohn(far, 3.0)
    seen = Observation([0], 0.1).window(jnp.array([2.0]))
    moved = catalogue.analyse(SerialEnSRF(taper, taper[:, :1]), prior, seen, jax.random.key(1)) - prior
    assert jnp.all(jnp.abs(moved[:, 3:]) < 1e-12)
    assert jnp.all(jnp.abs(moved[:, 0]) > 1e-3)


@settings(deadline=None, max_examples=10)
@given(count=st.sampled_from([1, 2, 9]), seed=st.integers(0, 1000))
def test_rotations_are_orthogonal_and_keep_the_mean(count, seed):
    with jax.enable_x64(True):
        Q = rotation(count, jax.random.key(seed))
        assert jnp.allclose(Q @ Q.T, jnp.eye(count), atol=1e-10)
        assert jnp.allclose(Q @ jnp.ones(count), 1, atol=1e-10)


def test_wrappers_at_their_neutral_setting_are_the_identity():
    prior, _, _, seen = problem(7)
    key = jax.random.key(2)
    plain = EnKF()(prior, seen, key=key)
    assert jnp.array_equal(Inflated(EnKF(), 1.0)(prior, seen, key=key), plain)
    assert jnp.array_equal(Relaxed(EnKF(), 0.0)(prior, seen, key=key), plain)


def test_wrappers_do_what_they_say():
    prior, _, _, seen = problem(7)
    key = jax.random.key(2)
    filters = (ETKF(), Inflated(ETKF(), 1.3), Rotated(ETKF()), Relaxed(ETKF(), 1.0))
    found = [moments(catalogue.analyse(filter, prior, seen, key)) for filter in filters]
    (mean, P), (inflated_mean, inflated), (rotated_mean, rotated), (relaxed_mean, relaxed) = found
    for other in (inflated_mean, rotated_mean, relaxed_mean):
        assert jnp.allclose(other, mean, atol=1e-9)
    assert jnp.allclose(inflated, 1.69 * P, atol=1e-9)
    assert jnp.allclose(rotated, P, atol=1e-9)
    assert jnp.allclose(jnp.diagonal(relaxed), jnp.var(prior, axis=0, ddof=1), atol=1e-9)


def test_iterative_filter_equals_etkf_for_a_linear_model():
    model = catalogue.model()
    start = jax.random.normal(jax.random.key(0), (8, catalogue.SIZE))
    prior = jax.vmap(model)(start)
    seen = Observation(range(4), 0.5).window(jnp.arange(4.0), start=start)
    key = jax.random.key(1)
    iterative, whole = (catalogue.analyse(filter, prior, seen, key) for filter in (IterativeEnKF(model), ETKF()))
    assert jnp.allclose(iterative, whole, atol=1e-8)


def test_particle_filter_resamples_in_proportion():
    prior = jnp.array([[0.0], [1.0], [2.0], [3.0]])
    # Likelihoods 1 : exp(-1/2) : ... ; errors so small that the nearest member takes all.
    seen = Observation([0], 0.01).window(jnp.array([2.0]))
    posterior = catalogue.analyse(ParticleFilter(0.0), prior, seen, jax.random.key(0))
    assert jnp.array_equal(posterior, jnp.full((4, 1), 2.0))
    flat = Observation([0], 1.0).window(jnp.array([jnp.nan]))
    assert jnp.array_equal(catalogue.analyse(ParticleFilter(0.0), prior, flat, jax.random.key(0)), prior)


@settings(deadline=None, max_examples=12)
@given(
    shape=st.sampled_from([(1, 7), (4, 7), (11, 7), (11, 1)]),
    scale=st.sampled_from([0.0, 0.1, 1.0, 30.0]),
    seed=st.integers(0, 1000),
)
def test_solvers_agree_with_dense_algebra(shape, scale, seed):
    count, size = shape
    random = np.random.default_rng(seed)
    S, a, D = scale * random.normal(size=shape), random.normal(size=count), random.normal(size=(2, size))
    with jax.enable_x64(True):
        found = gain(jnp.asarray(S), jnp.asarray(D), jnp.eye(count))
        root, weights = local(jnp.asarray(S[None]), jnp.asarray(a[None]))
    dense = D @ np.linalg.solve(np.eye(size) + S.T @ S, S.T)
    assert np.allclose(found, dense, atol=1e-8)
    values, vectors = np.linalg.eigh(np.eye(count) + S @ S.T)
    # The quadrature of the root is accurate to 7e-8 for eigenvalues up to 1e7.
    assert np.allclose(root[0], (vectors / np.sqrt(values)) @ (vectors.T @ a), atol=1e-6)
    assert np.allclose(weights[0], S.T @ ((vectors / values) @ (vectors.T @ a)), atol=1e-8)


PRECISE = {
    "EnKF": (EnKF, 1e-4),
    "EnKF, sampled": (lambda: EnKF(sampled=True), 1e-3),
    "ETKF": (ETKF, 1e-4),
    "serial": (SerialEnSRF, 1e-4),
    # Counts errors below 2 % of the spread as that, so that its members keep 2 % of deviations up to three.
    "LETKF": (lambda: LETKF(Neighbours.within(jnp.inf, catalogue.RING, catalogue.RING[:4]), jnp.inf), 0.08),
    "3D-Var": (lambda: ThreeDVar(jnp.eye(6)), 1e-4),
}


@pytest.mark.parametrize("name", PRECISE)
def test_32_bits_do_where_an_error_is_a_thousandth_of_the_spread(name):
    """As where the paper's error law passes through zero: I + S^T S has a condition of a million."""
    build, tolerance = PRECISE[name]
    prior = 5 + np.random.default_rng(0).normal(size=(12, 6))
    noise = np.random.default_rng(1).normal(size=(12, 4))
    deviation = np.array([1e-3, 1.0, 0.1, 1e-3])

    def analyse():
        seen = Observation(range(4), jnp.asarray(deviation)).window(jnp.full(4, 6.0))
        filter, ensemble = build(), jnp.asarray(prior)
        if isinstance(filter, EnKF):
            return np.asarray(catalogue.update(filter, ensemble, seen, 6.0 + jnp.asarray(noise * deviation)))
        return np.asarray(catalogue.analyse(filter, ensemble, seen, jax.random.key(0)))

    exact = analyse()
    with jax.enable_x64(False):
        single = analyse()
    assert single.dtype == np.float32
    assert np.abs(single - exact).max() < tolerance


@pytest.mark.numbers
def test_derivatives_of_root_and_gain_are_those_of_the_eigendecomposition(x64):
    """Eigenvalues are distinct here, where the derivative of an eigendecomposition exists; a row of padding changes nothing."""
    keys = jax.random.split(jax.random.key(0), 4)
    shapes = (3, 4, 6), (3, 4), (3, 4), (3, 6)
    S, a, along, beside = (jax.random.normal(k, shape) for k, shape in zip(keys, shapes, strict=True))

    def plain(S, a):
        values, vectors = jnp.linalg.eigh(jnp.eye(4) + S @ jnp.swapaxes(S, 1, 2))
        root, inverse = (jnp.einsum("bij,bj,bkj,bk->bi", vectors, values**p, vectors, a) for p in (-0.5, -1.0))
        return root, jnp.einsum("bnm,bn->bm", S, inverse)

    def slopes(function, S, a, along):
        def total(S, a):
            root, gain = function(S, a)
            return jnp.sum(root * along) + jnp.sum(gain * beside)

        return jax.grad(total, argnums=(0, 1))(S, a)

    expected = slopes(plain, S, a, along)
    for found, other in zip(slopes(root_and_gain, S, a, along), expected, strict=True):
        np.testing.assert_allclose(found, other, rtol=1e-4, atol=1e-6)  # the nodes of the root are good to 1e-7
    padded = (jnp.pad(x, [(0, 0), (0, 1)] + [(0, 0)] * (x.ndim - 2)) for x in (S, a, along))
    for found, other in zip(slopes(root_and_gain, *padded), expected, strict=True):
        np.testing.assert_allclose(found[:, :4], other, rtol=1e-4, atol=1e-6)  # the nodes of the root are good to 1e-7
