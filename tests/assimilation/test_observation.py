"""Observations: operators, error laws, gaps; localization."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bieqno.assimilation import AffineLaw, Neighbours, Observation, Observations, ThreeDVar, distances, gaspari_cohn
from bieqno.assimilation.laws import CorrelatedError
from bieqno.assimilation.linalg import white_noise

KEY = jax.random.key(0)


def test_components_matrix_and_function_agree():
    state = jnp.arange(4.0)
    matrix = jnp.eye(4)[jnp.array([1, 3])]
    ways = (Observation([1, 3], 1.0), Observation(matrix, 1.0), Observation(lambda z: z[jnp.array([1, 3])], 1.0))
    for way in ways:
        assert way.size(4) == 2
        assert jnp.array_equal(way.operator(state), jnp.array([1.0, 3.0]))


@pytest.mark.parametrize("error", [0.3, jnp.array([0.3, 0.3]), 0.09 * jnp.eye(2), lambda d: jnp.full(2, -0.3)])
def test_all_forms_of_error_agree(error):
    seen = Observation([0, 1], error).window(jnp.array([1.0, -2.0]))
    assert jnp.allclose(seen.std, 0.3)
    assert jnp.allclose(seen.whiten(jnp.ones((1, 2))), 1 / 0.3, rtol=1e-5)
    draws = seen.perturb(5000, key=KEY)
    # Standard deviation of 5,000 draws is accurate to 1 %; four times that.
    assert jnp.allclose(jnp.std(draws, axis=0), 0.3, rtol=0.04)


def test_correlated_errors_are_whitened_and_coloured():
    R = jnp.array([[2.0, 0.8], [0.8, 1.0]])
    seen = Observation([0, 1], R).window(jnp.zeros(2))
    W = seen.whiten(jnp.eye(2))
    assert jnp.allclose(W @ R @ W.T, jnp.eye(2), atol=1e-5)
    assert jnp.allclose(jnp.cov(seen.perturb(20000, key=KEY).T), R, atol=0.08)


def primitives(jaxpr, *, inside=("pjit", "jit", "custom_vmap_call", "scan", "while")):
    """Names of what a program computes, without the branches that it may never take."""
    for equation in jaxpr.eqns:
        yield equation.primitive.name
        if equation.primitive.name in inside:
            for value in equation.params.values():
                inner = getattr(value, "jaxpr", None)
                if inner is not None:
                    yield from primitives(getattr(inner, "jaxpr", inner), inside=inside)


@pytest.mark.parametrize("mapped", [False, True])
def test_constant_covariances_are_decomposed_once(mapped):
    """Not in every window: what a window runs has no decomposition outside the branch for missing values."""
    seen = Observation([0, 1], jnp.array([[2.0, 0.8], [0.8, 1.0]])).window(jnp.zeros(2))
    background = ThreeDVar(jnp.array([[2.0, 0.8], [0.8, 1.0]]))

    def window(value):
        observed = eqx.tree_at(lambda o: (o.value, o.mask), seen, (value, jnp.isfinite(value)))
        return observed.whiten(jnp.ones((1, 2))), background(observed.perturb(2, key=KEY), observed, key=KEY)

    program = jax.make_jaxpr(jax.vmap(window) if mapped else window)(jnp.zeros((3, 2)) if mapped else jnp.zeros(2))
    names = set(primitives(program.jaxpr))
    assert "dot_general" in names
    assert not {"eigh", "cholesky", "svd"} & names


def test_a_covariance_with_gaps_is_that_of_what_is_left():
    R = jnp.array([[2.0, 0.8, 0.3], [0.8, 1.0, 0.1], [0.3, 0.1, 0.5]])
    rows = jax.random.normal(KEY, (4, 3))
    few = jnp.array([0, 2])
    gaps = Observation([0, 1, 2], R).window(jnp.array([0.0, jnp.nan, 0.0])).whiten(rows)
    alone = Observation([0, 1], R[few][:, few]).window(jnp.zeros(2)).whiten(rows[:, few])
    assert jnp.allclose(gaps[:, few], alone, atol=1e-5)
    assert jnp.all(gaps[:, 1] == 0)
    masks = jnp.array([[True, False, True], [True, True, True]])
    law = CorrelatedError.of(R, 1e-3)
    mapped = jax.vmap(lambda mask: law.whiten(rows, jnp.zeros(3), mask))(masks)
    assert jnp.allclose(mapped[0], gaps, atol=1e-6)
    assert jnp.allclose(mapped[1], law.whiten(rows, jnp.zeros(3), masks[1]), atol=1e-6)


def test_given_perturbations_are_used():
    given = jnp.arange(6.0).reshape(3, 2)
    seen = Observation([0, 1], 1.0).window(jnp.zeros(2), perturbed=given)
    assert jnp.array_equal(seen.perturb(3, key=KEY), given)
    with pytest.raises(ValueError, match=r"4 members need as many perturbed observations, got \(3, 2\)"):
        seen.perturb(4, key=KEY)


def test_the_papers_law_has_a_floor_and_follows_truth_or_value():
    observation = Observation([0], AffineLaw(0.1, 0.05))
    assert observation.window(jnp.array([-0.5])).std.item() == pytest.approx(1e-3)
    assert observation.window(jnp.array([9.5])).std.item() == pytest.approx(1.0)
    assert observation.window(jnp.array([9.5]), reference=jnp.array([19.5])).std.item() == pytest.approx(2.0)
    series = Observations(jnp.array([[9.5]]), jnp.ones((1, 1), bool), jnp.array([[19.5]]))
    assert series.rebuilt().reference.item() == 9.5


def test_gaps_are_nan_or_masked():
    assert Observations.of(jnp.array([[1.0, jnp.nan]])).mask.tolist() == [[True, False]]
    seen = Observation([0, 1], 1.0).window(jnp.array([1.0, 2.0]), mask=jnp.array([False, True]))
    assert seen.whiten(jnp.ones((1, 2))).tolist() == [[0.0, 1.0]]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Observation(np.array([0.5]), 1.0), "list of component numbers"),
        (lambda: Observation([0], jnp.ones((2, 3))), r"square covariance matrix or a function; got shape \(2, 3\)"),
        (lambda: Observation([0, 5], 1.0).size(4), "components 0 to 5 of a state of 4 variables"),
        (lambda: Observation([0, 1], jnp.ones(3)).size(4), r"\(2,\) values are observed, which the error law"),
        (lambda: Observation(jnp.ones((2, 3)), 1.0).size(4), r"expects a state of 3 variables, got \(4,\)"),
        (lambda: Observation(lambda z: z[0], 1.0).size(4), r"got shape \(\) for a state of 4 variables"),
        (lambda: Observation([0], jnp.nan), "finite"),
        (lambda: Observation([0], -1.0), "not negative, got an error of -1"),
        (lambda: Observation([0, 1], np.array([1.0, -0.5])), "not negative, got an error of -0.5"),
        (lambda: Observation([0, 1], jnp.array([[1.0, 5.0], [0.0, 1.0]])), "symmetric"),
        (
            lambda: Observation([0, 1], jnp.array([[1.0, 5.0], [5.0, 1.0]])),
            "no negative eigenvalue, and this one has -4",
        ),
        (lambda: distances(jnp.ones((2, 1)), jnp.ones((2, 2))), r"got shapes \(2, 1\) and \(2, 2\)"),
        (lambda: Neighbours.within(1.0, jnp.ones((2, 2)), jnp.ones((2, 2)), period=(1.0, 1.0, 1.0)), "each of 2 dim"),
    ],
)
def test_what_does_not_fit_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_gaspari_cohn_is_a_taper():
    distance = jnp.linspace(0, 3, 400)
    taper = gaspari_cohn(distance, 2.0)
    assert taper[0] == 1
    assert jnp.all(jnp.diff(taper) <= 1e-6)
    assert jnp.all(taper[distance >= 2] == 0)
    # Continuous and smooth: no step larger than its steepest slope, about 1.1 per unit, allows.
    assert jnp.max(jnp.abs(jnp.diff(taper))) < 1.2 * 3 / 399
    assert gaspari_cohn(jnp.array([5.0, jnp.inf]), jnp.inf).tolist() == [1, 0]
    # It is a correlation function: no negative eigenvalue beyond rounding, on a ring as on a line.
    ring = jnp.arange(20.0)[:, None]
    values = jnp.linalg.eigvalsh(gaspari_cohn(distances(ring, ring, period=20.0), 6.0))
    assert jnp.min(values) > -1e-5


# The number of points is fixed, since each one compiles anew; where they are is free.
@settings(deadline=None, max_examples=10)
@given(
    seed=st.integers(0, 1000), radius=st.floats(0.5, 6.0), period=st.sampled_from([None, 10.0, (10.0, float("inf"))])
)
def test_neighbours_are_those_within_the_radius(seed, radius, period):
    rng = np.random.default_rng(seed)
    here, there = rng.uniform(-5, 10, (12, 2)), rng.uniform(-5, 10, (9, 2))
    found = Neighbours.within(radius, here, there, period=period)
    dense = np.asarray(distances(here, there, period=period))
    for row, (numbers, far) in enumerate(zip(np.asarray(found.indices), np.asarray(found.distance), strict=True)):
        close = np.isfinite(far)
        assert set(numbers[close]) == set(np.flatnonzero(dense[row] <= radius))
        assert np.allclose(far[close], dense[row, numbers[close]], atol=1e-5)


def test_white_noise_is_white_in_any_size():
    for shape in ((10, 3), (40, 41), (300, 200)):
        draws = white_noise(shape, jnp.float32, key=KEY)
        assert draws.shape == shape
        # Five standard errors of mean and variance.
        assert abs(float(draws.mean())) < 5 / draws.size**0.5
        assert abs(float(draws.var()) - 1) < 5 * (2 / draws.size) ** 0.5
