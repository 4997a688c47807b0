import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings

from bieqno import LowRankGaussian

pytestmark = pytest.mark.numbers


def random_gaussian(seed, n, r, *, diag=0.0, dtype="float64"):
    generator = np.random.default_rng(seed)
    return LowRankGaussian(
        jnp.asarray(generator.normal(size=n), dtype),
        jnp.asarray(generator.normal(size=(n, r)), dtype),
        jnp.asarray(diag + generator.normal(size=n), dtype),
    )


value_and_gradient = jax.jit(jax.value_and_grad(lambda gaussian, value: gaussian.log_prob(value)))


@settings.get_profile("compiling")
@given(n=st.integers(1, 6), r=st.integers(0, 8), seed=st.integers(0, 2**16))
def test_log_prob_is_the_dense_formula(n, r, seed):
    """Fewer points than rank, rank zero: the Woodbury form equals the dense one."""
    with jax.enable_x64(True):
        gaussian = random_gaussian(seed, n, r)
        value = np.random.default_rng(seed + 1).normal(size=n)
        expected = scipy.stats.multivariate_normal(gaussian.mean, gaussian.covariance()).logpdf(value)
        np.testing.assert_allclose(gaussian.log_prob(jnp.asarray(value)), expected, rtol=1e-9, atol=1e-9)


def test_gradient_is_the_dense_one(x64):
    gaussian, value = random_gaussian(3, 7, 4), jnp.arange(7.0)

    @jax.jit
    @jax.grad
    def dense(gaussian):
        return jax.scipy.stats.multivariate_normal.logpdf(value, gaussian.mean, gaussian.covariance())

    _, found = value_and_gradient(gaussian, value)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-8), found, dense(gaussian))


def test_second_derivatives(x64):
    gaussian, value = random_gaussian(3, 7, 4), jnp.arange(7.0)
    at_mean = jax.hessian(lambda m: LowRankGaussian(m, gaussian.factor, gaussian.log_diag).log_prob(value))
    second = jax.jit(at_mean)(gaussian.mean)
    np.testing.assert_allclose(second, -np.linalg.inv(gaussian.covariance()), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("diag", [-14.0, -9.0, 0.0, 9.0])
@pytest.mark.parametrize("columns", ["independent", "equal"])
def test_float32_is_stable(diag, columns):
    """Noise of sd 1e-3 beside factors of order one, and a factor whose columns coincide.

    There the textbook form subtracts numbers of order 1e10 and its Cholesky factor breaks down. The value is of
    order n, so an error of 1e-4 relative is what rounding of the inputs themselves amounts to.
    """
    with jax.enable_x64(True):
        exact = random_gaussian(0, 2000, 16, diag=diag)
        if columns == "equal":
            exact = LowRankGaussian(exact.mean, jnp.tile(exact.factor[:, :1], (1, 16)), exact.log_diag)
        gaussian = jax.tree.map(lambda x: x.astype("float32"), exact)
        exact = jax.tree.map(lambda x: x.astype("float64"), gaussian)
        value = exact.sample(1, key=jax.random.key(0))[0].astype("float32")
        expected, expected_gradient = value_and_gradient(exact, value.astype("float64"))
        found, gradient = value_and_gradient(gaussian, value)
        assert found.dtype == jnp.float32
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=0.2)
        for a, b in zip(jax.tree.leaves(gradient), jax.tree.leaves(expected_gradient), strict=True):
            # With sd 1e-3 and equal columns, rounding to float32 is amplified by the condition number 1e5.
            assert np.linalg.norm(np.asarray(a) - np.asarray(b)) <= 0.05 * np.linalg.norm(b)


def test_nothing_of_size_n_by_n_is_made():
    n, r = 10**5, 16
    shapes = LowRankGaussian(*[jnp.zeros(shape) for shape in [n, (n, r), n]])

    def work(gaussian, value, key):
        return jax.grad(lambda g: g.log_prob(value))(gaussian), gaussian.sample(2, key=key), gaussian.std

    compiled = jax.jit(work).lower(shapes, jnp.zeros(n), jax.random.key(0)).compile()
    # n x n alone would be 40 GB; 20 copies of the factor are 128 MB.
    assert compiled.memory_analysis().temp_size_in_bytes < 20 * n * r * 4
    gradient, samples, std = compiled(shapes, jnp.ones(n), jax.random.key(0))
    assert jnp.isfinite(gradient.factor).all()
    assert samples.shape == (2, n)
    np.testing.assert_allclose(std, 1)


def test_samples_have_the_moments():
    gaussian = random_gaussian(1, 4, 2, dtype="float32")
    samples = np.asarray(gaussian.sample(40_000, key=jax.random.key(0)))
    covariance = np.asarray(gaussian.covariance())
    # Five standard errors of a mean and of a covariance.
    error = 5 * np.sqrt(np.diag(covariance) / 40_000)
    assert (np.abs(samples.mean(0) - gaussian.mean) < error).all()
    scale = np.sqrt(np.outer(np.diag(covariance), np.diag(covariance)) * 2 / 40_000)
    assert (np.abs(np.cov(samples.T) - covariance) < 5 * scale).all()


def test_marginal_affine_and_std(x64):
    gaussian = random_gaussian(2, 5, 3)
    chosen = jnp.array([3, 0])
    np.testing.assert_allclose(gaussian.marginal(chosen).covariance(), gaussian.covariance()[jnp.ix_(chosen, chosen)])
    np.testing.assert_allclose(gaussian.std**2, jnp.diagonal(gaussian.covariance()))
    for scale, shift in [(-3.0, 2.0), (jnp.arange(1.0, 6.0), jnp.arange(5.0))]:
        moved = gaussian.affine(scale, shift)
        S = jnp.diag(jnp.broadcast_to(scale, 5))
        np.testing.assert_allclose(moved.mean, S @ gaussian.mean + shift)
        np.testing.assert_allclose(moved.covariance(), S @ gaussian.covariance() @ S)


def test_empty_and_mismatched():
    empty = LowRankGaussian(jnp.zeros(0), jnp.zeros((0, 2)), jnp.zeros(0))
    assert empty.log_prob(jnp.zeros(0)) == 0
    with pytest.raises(ValueError, match="expected 0 values"):
        empty.log_prob(jnp.zeros(1))


def test_what_it_takes():
    """Integers and NumPy arrays become floating-point arrays; indices outside are refused."""
    gaussian = LowRankGaussian(np.arange(3), np.ones((3, 1), np.int64), np.zeros(3))
    assert gaussian.sample(2, key=jax.random.key(0)).dtype == jnp.float32
    with pytest.raises(ValueError, match="within 3 points"):
        gaussian.marginal(jnp.array([0, 7]))
