"""Public functions take what NumPy takes, or say which argument is wrong."""

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

import bieqno
from bieqno import assimilation as da
from bieqno import scores
from bieqno.arguments import checked

pytestmark = pytest.mark.standard_promotion("functions are called as users call them")
KEY = jax.random.key(0)
SYSTEM = da.System(da.Lorenz63(), da.Observation([0, 2], 1.0), jnp.array([-8.5, -7.0, 27.0]))
PRIOR = [[1.0, 2.0, 3.0], [2.0, 4.0, 4.0]]
WINDOW = SYSTEM.observation.window([1.0, 2.0])


@checked("gaps")
def example(
    rows: Float[Array, "n k"],
    weights: Float[Array, "n"] | None = None,
    mask: Bool[Array, "n"] | None = None,
    which: Int[Array, "m"] | None = None,
    gaps: Float[Array, "..."] | None = None,
    count: int = 1,
    *,
    key: PRNGKeyArray | None = None,
) -> Float[Array, "k"]:
    return jnp.sum(rows, axis=0)


def test_what_numpy_takes_becomes_arrays():
    for rows in ([[1, 2], [3, 4]], np.array([[1, 2], [3, 4]], np.float16), pd.DataFrame({"a": [1, 3], "b": [2, 4]})):
        found = example(rows, weights=(1, 2), mask=[True, False], which=[0], gaps=[np.nan])
        assert found.tolist() == [4.0, 6.0]


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"rows": None}, TypeError, "rows holds numbers, got NoneType"),
        ({"rows": "x"}, TypeError, "rows holds numbers, got str"),
        ({"rows": KEY}, TypeError, "rows holds numbers"),
        ({"rows": [1.0]}, ValueError, r"rows has the shape \(n, k\), got \(1,\)"),
        ({"rows": [[1.0], [2.0, 3.0]]}, ValueError, "rows cannot be made an array"),
        ({"rows": [[np.nan]]}, ValueError, "rows holds values that are not finite"),
        ({"rows": np.array([[1e300]])}, ValueError, "rows holds values that are not finite"),
        ({"rows": np.ma.ones((2, 2))}, ValueError, "masked array"),
        ({"rows": np.full((1, 1), 3e38)}, None, None),
        ({"rows": np.full((2, 1), 3e38)}, ValueError, "result of example is not finite"),
        ({"weights": [1.0]}, ValueError, r"weights has the shape \(n\) with n = 2, got \(1,\)"),
        ({"mask": [1, 0]}, ValueError, "mask holds truth values"),
        ({"which": [0.5]}, ValueError, "which holds whole numbers"),
        ({"count": 1.5}, TypeError, "count is a int, got float"),
        ({"count": np.ma.masked_array(1, True)}, TypeError, "count is a int, got MaskedArray"),
        ({"key": KEY}, None, None),
        ({"key": None}, None, None),
        ({"key": 0}, TypeError, "key is one random key"),
    ],
)
def test_the_rest_is_refused_by_name(wrong, error, message):
    arguments = {"rows": [[1.0, 2.0], [3.0, 4.0]], **wrong}
    if error is None:
        assert example(**arguments).ndim == 1
        return
    with pytest.raises(error, match=message):
        example(**arguments)


def test_hostile_calls_that_ended_in_an_uncontrolled_exception_or_in_nan():
    mlp = bieqno.MLP(2, 1, width=4, key=KEY)
    gaussian = bieqno.LowRankGaussian([0.0, 0.0], [[1.0], [1.0]], [0.0, 0.0])
    assert mlp([1, 2]).shape == (1,)
    assert gaussian.log_prob([0, 0]).shape == ()
    assert da.EnKF()(PRIOR, WINDOW, key=KEY).shape == (2, 3)
    assert scores.rmse([[1.0, 2.0]], [[1.0, 2.0]]).tolist() == [0.0]
    hostile = [
        (lambda: mlp(None), TypeError, "parts"),
        (lambda: mlp(KEY), TypeError, "parts"),
        (lambda: mlp([np.nan, 1.0]), ValueError, "parts"),
        (lambda: bieqno.MLP("2", 1, key=KEY), TypeError, "in_size"),
        (lambda: bieqno.MLP(2, 1, key=0), TypeError, "key"),
        (lambda: gaussian.log_prob("ab"), TypeError, "value"),
        (lambda: gaussian.marginal([7]), ValueError, "within 2 points"),
        (lambda: bieqno.LowRankGaussian([np.nan], [[1.0]], [0.0]), ValueError, "finite"),
        (lambda: da.EnKF()(None, WINDOW, key=KEY), TypeError, "ensemble"),
        (lambda: da.EnKF()(PRIOR, None, key=KEY), TypeError, "observed is a Observed"),
        (lambda: da.EnKF()([[np.inf] * 3] * 2, WINDOW, key=KEY), ValueError, "ensemble"),
        (lambda: da.ParticleFilter(0.1)(np.zeros((0, 3)), WINDOW, key=KEY), ValueError, "at least one member"),
        (lambda: da.cycle(None, SYSTEM, PRIOR, da.Observations.of([[1.0, 2.0]]), key=KEY), TypeError, "filter"),
        (lambda: da.System(da.Lorenz63(), {}, jnp.ones(3)), TypeError, "observation"),
        (lambda: da.System(da.Lorenz63(), SYSTEM.observation, jnp.ones(3), limit=np.inf), ValueError, "limit"),
        (lambda: da.gaspari_cohn([1.0], -1.0), ValueError, "radius"),
        (lambda: bieqno.MLP(2, KEY, key=KEY), TypeError, "out_size"),
        (lambda: gaussian.sample(KEY, key=KEY), TypeError, "count"),
        (lambda: da.ETKF()(PRIOR, KEY, key=KEY), TypeError, "observed is a Observed"),
        (lambda: da.Neighbours.within(1.0, np.ones((2, 0)), np.ones((3, 0))), ValueError, "at least one coordinate"),
        (lambda: da.Neighbours.within(pd.array([1.0, None]), PRIOR, PRIOR), TypeError, "radius"),
        (lambda: da.Observation(np.array([[1.0, np.nan]]), 1.0), ValueError, "observation matrix holds"),
        (lambda: da.Observation(np.array([[1e300, 1.0]]), 1.0), ValueError, "observation matrix holds"),
        (lambda: scores.independent_interval([1.0, 2.0], level=1.0), ValueError, "level lies between 0 and 1"),
        (lambda: scores.autocorrelated_interval(np.arange(9.0), level=np.inf), ValueError, "level lies between"),
        (lambda: da.Places.sphere([np.nan], [0.0]), ValueError, "finite"),
        (lambda: da.Places(np.array([[np.inf]])), ValueError, "finite"),
        (lambda: scores.relative_rmse([[0.0]], [[1.0]]), ValueError, "not finite"),
        (lambda: scores.crps([[1.0]], [[1.0]]), ValueError, "ensemble has the shape"),
    ]
    for call, error, message in hostile:
        with pytest.raises(error, match=message):
            call()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: da.LETKF({}, 2.0), TypeError, "neighbours"),
        (lambda: da.LocalEnKF(None, np.eye(2)), TypeError, "taper"),
        (lambda: da.LocalEnKF(np.eye(2), np.full((2, 2), np.nan)), ValueError, "observation_taper holds values"),
        (lambda: da.LinearModel(np.full((2, 2), np.inf)), ValueError, "matrix holds values that are not finite"),
        (lambda: da.Climatology(np.full((2, 2), np.nan)), ValueError, "states holds values that are not finite"),
        (lambda: da.Climatology(np.ones(2)), ValueError, "states are rows"),
        (lambda: da.ThreeDVar(np.eye(2), iterations=np.ma.masked_array(1, True)), TypeError, "iterations is a int"),
        (lambda: da.LogNormal(np.inf), ValueError, "deviation is positive and finite"),
        (lambda: da.NegativeBinomial(np.inf), ValueError, "size is positive and finite"),
        (lambda: da.Censored(1.0, np.nan), ValueError, "detection limit is finite"),
        (lambda: da.AffineLaw(np.nan, 0.0), ValueError, "slope"),
        (lambda: da.Lorenz96(4, window=np.inf), ValueError, "whole number of steps"),
        (lambda: da.Lorenz96(4, window=1e300, step=1.0), ValueError, "whole number of steps"),
        (lambda: da.UnevenFlow(jnp.sin, step=1e-300, longest=1.0), ValueError, "steps are positive"),
        (lambda: da.rk4(jnp.sin, jnp.ones(1), step=0.1, steps=-1), ValueError, "steps is a whole number"),
        (lambda: da.rk4(jnp.sin, jnp.ones(1), step=0.1, steps=10**300), ValueError, "steps is a whole number"),
        (lambda: da.AgainstTruth(missing={"low": 0.0}), TypeError, "missing"),
        (lambda: da.explain(da.EnKF(), PRIOR, None), TypeError, "observed is a Observed"),
        (lambda: da.explain(object(), 0.5, WINDOW), TypeError, "filter"),
        (lambda: da.to_dataset(7), TypeError, "run is a Run"),
        (lambda: da.summarise(7, burn_in=1), TypeError, "data is a dataset"),
        (lambda: da.append_parameters(np.sin, {}, PRIOR, PRIOR), TypeError, "system is a System"),
        (lambda: da.calibration_band(-1), ValueError, "expected numbers, bins and a level"),
        (lambda: da.calibration_band(10, level=1.5), ValueError, "expected numbers, bins and a level"),
    ],
)
def test_constructors_and_long_functions_name_what_is_wrong(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_constructors_take_lists():
    assert da.LinearModel([[1, 0], [0, 1]])(jnp.ones(2)).tolist() == [1.0, 1.0]
    local = da.LocalEnKF([[1, 1, 1]] * 2, [[1, 0], [0, 1]])
    assert local(PRIOR, WINDOW, key=KEY).shape == (2, 3)


def test_more_values_in_a_window_than_at_once_are_refused():
    system = da.System(
        *(da.Lorenz96(8), da.Observation(range(8), 1.0), jnp.full(8, 8.0), da.Places.grid(8, period=8.0)), at_once=2
    )
    with pytest.raises(ValueError, match="8 values, more than the at_once=2"):
        da.cycle(da.EnKF(), system, jnp.ones((3, 8)), da.Observations.of(jnp.ones((1, 8))), key=KEY)


def test_numbers_of_numpy_are_plain_numbers():
    system = da.System(lambda z: 2 * z, da.Observation([0], 0.1), jnp.ones(2))
    twin = da.simulate(system, np.int64(3), key=KEY)
    assert twin.truth[:, 0].tolist() == [2.0, 4.0, 8.0]
