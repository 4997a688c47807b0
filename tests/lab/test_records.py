"""Real records: their models keep account of people and water, and the studies run."""

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from bieqno.assimilation import StochasticModel, forecast
from bieqno.lab.records.baselines import count_baselines, scores
from bieqno.lab.records.leaf_river import FLOW, STRUCTURE, HyMOD, basin, efficiency, river, with_parameters
from bieqno.lab.records.measles import epidemic, town, towns
from bieqno.lab.studies import leaf_river, measles


def test_the_calendar_of_the_epidemic():
    london = town("London")
    assert (london.dates[0], london.dates[-1], len(london.cases)) == ("1950-01-06", "1963-12-27", 730)
    assert abs(london.inputs["school"].mean() - 0.7589) < 0.02
    assert london.inputs["entry"].sum() == 14  # once a year
    assert 3.1e6 < london.inputs["population"].min() < london.inputs["population"].max() < 3.5e6
    assert len(towns()) == 20
    assert all(len(town(name).before) == 2 for name in ("Mold", "Leeds"))


def test_people_are_counted_and_none_is_lost():
    """Without births and deaths S + E + I + C of a week is constant, whatever is drawn."""
    record = town("London")
    system = epidemic(record)
    model = system.model.function
    closed = type(system.model)(type(model)(**{**vars(model), "mu": jnp.array(1e-12)}))
    inputs = {name: jnp.asarray(series[40], float) for name, series in record.inputs.items()}
    inputs["births"] = jnp.zeros(7)
    start = jnp.tile(jnp.array([1e5, 300.0, 200.0, 55.0]), (8, 1))
    after = forecast(closed, start, inputs, key=jax.random.key(0))
    assert jnp.array_equal(jnp.sum(after, axis=1), jnp.full(8, 1e5 + 500))
    assert jnp.all(after >= 0)
    assert jnp.array_equal(after, jnp.round(after))
    assert len(set(after[:, 0].tolist())) == 8


def test_water_that_falls_is_stored_or_flows():
    """Without evaporation."""
    model, state = HyMOD(depth=5.0, quick=0.3), jnp.array([0.4, 20.0, 1.0, 2.0, 3.0, 0.0, 1.0])
    rain = jnp.array([10.0, 0.0, 60.0, 5.0])
    after = model.day(state, rain, jnp.array(0.0), jnp.zeros(5))
    capacity = np.exp(5.0) / (1 + np.exp(model.shape))
    held = lambda z: capacity * z[0] + z[1:5].sum()  # noqa: E731
    assert np.isclose(held(after) + after[6] / FLOW, held(state) + rain.sum(), rtol=1e-4)
    dry = model.day(state, jnp.zeros(4), jnp.array(8.0), jnp.zeros(5))
    assert dry[0] < state[0]


def test_parameters_in_the_state_are_those_of_the_model():
    """That do not walk: members are as of the model with their own parameters; others stay where they were, or walk."""
    found, key = river(), jax.random.key(0)
    inputs = {name: jnp.asarray(series[30], float) for name, series in found.inputs.items()}
    plain = basin(HyMOD(depth=jnp.array(6.0)), 0.1, 3.0)
    start = jnp.tile(plain.state, (3, 1))
    about = {name: (float(getattr(HyMOD(), name)), 0.2) for name in STRUCTURE}
    still, both = with_parameters(plain, start, about, jnp.array(0.0), key=key)
    assert len(set(both[:, 7].tolist())) == 3
    after = forecast(still.model, both, inputs, key=key)
    assert jnp.array_equal(after[:, 7:], both[:, 7:])
    keys = jax.random.split(jax.random.split(key)[0], 3)  # the noise of the walk takes the other half
    for member, k, end in zip(both, keys, after, strict=True):
        own = StochasticModel(HyMOD(**dict(zip(STRUCTURE, member[7:], strict=True))))
        assert jnp.allclose(forecast(own, member[None, :7], inputs, key=k)[0], end[:7], rtol=1e-5)
    walking = with_parameters(plain, start, about, jnp.array(0.1), key=key)[0]
    moved = forecast(walking.model, jnp.tile(both[:1], (2000, 1)), inputs, key=key)[:, 7:] - both[0, 7:]
    assert jnp.allclose(moved.std(axis=0), 0.1, rtol=0.1)


def test_predictions_without_a_model():
    record = town("Mold")
    found = count_baselines(record.cases[:60], record.before, pd.to_datetime(list(record.dates[:60])))
    totals = {name: float(scores(one, record.cases[:60])["log_score"].sum()) for name, one in found.items()}
    assert totals["autoregression"] > max(totals["persistence"], totals["climatology"])
    assert efficiency(river().flow, river().flow) == 1


@pytest.mark.long
def test_the_studies_of_records_run():
    settings = measles.Settings("smoke", ("Mold",), (3,), 4, 2, 8, (1, 4), 1, 2, (2,))
    result = measles.EXPERIMENT.run(settings, only=["ETKF tuned", "EnNF"])
    classical, learned = result.select(metric="log_score")
    assert (classical.case, classical.method, classical.ensemble_size, classical.n) == ("Mold", "ETKF tuned", 3, 2)
    assert np.isfinite([classical.value, learned.value]).all()
    assert result.arrays["Mold"].sizes == {"entry": 2, "time": 8}
    assert result.select(metric="inflation")[0].value in measles.INFLATIONS
    assert result.select(metric="moments")[0].value in (0.0, 1.0)
    days = leaf_river.Settings("smoke", (3,), 1, 3, (40, 20), 2, (2,))
    with pytest.raises(ValueError, match="add --only 'EnKF tuned'"):
        leaf_river.EXPERIMENT.run(days, only=["EnNF"])
    result = leaf_river.EXPERIMENT.run(days, only=["persistence", "EnKF tuned", "EnKF, parameters", "EnNF"])
    assert np.isfinite([row.value for row in result.select(metric="nll")]).all()
    assert len(result.select(metric="nll")) == 4
    assert [row.method for row in result.select(metric="walk")] == ["EnKF, parameters"]
    assert {row.metric for row in result.rows} >= {"nll", "nll_wet", "nll_dry", "efficiency", "calibrated"}
