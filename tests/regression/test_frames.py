"""Data frames with categories, dates and gaps."""

import datetime

import numpy as np
import pandas as pd
import pytest

from bieqno.regression import PretrainedGGPRegressor
from bieqno.regression.frames import FrameEncoder


def frame(count=60, seed=0):
    rng = np.random.default_rng(seed)
    days = rng.integers(0, 700, count)
    found = pd.DataFrame(
        {
            "size": rng.uniform(size=count),
            "town": pd.Categorical(rng.choice(["Ulm", "Bonn", "Kiel"], count)),
            "open": rng.choice([True, False], count),
            "day": pd.Timestamp("2020-01-01") + pd.to_timedelta(days, unit="D"),
            "kind": rng.choice(["a", "b"], count),
        }
    )
    y = 2 * found["size"] + (found["town"] == "Bonn") + np.sin(2 * np.pi * days / 365.2425)
    return found, y.to_numpy() + 0.05 * rng.normal(size=count)


def test_columns_become_numbers():
    found, _ = frame()
    encoder = FrameEncoder.of(found)
    # A number, three levels, a boolean, a day with its place in the year, and one column for two levels.
    assert encoder.size == 1 + 3 + 1 + 3 + 1
    array = encoder.encode(found[found.columns[::-1]])
    assert array.shape == (60, 9)
    assert array[:, 1].tolist() == (found["town"] == "Bonn").astype(float).tolist()
    later = found.assign(town="Jena")  # never seen: none of the three
    assert not encoder.encode(later)[:, 1:4].any()
    assert FrameEncoder.of(found[["size", "open"]]) is None
    dates = pd.DataFrame({"day": [datetime.date(2020, 1, 1), None, datetime.date(2020, 3, 1)]})
    assert FrameEncoder.of(dates).encode(dates)[:, -1].tolist() == [0, 1, 0]


def test_a_column_without_any_value_is_left_out_with_a_warning():
    found, y = frame()
    for nothing in (np.nan, None, pd.NaT):
        encoder, later = FrameEncoder.of(found.assign(rain=nothing)), found.assign(rain=found["day"])
        assert encoder.size == FrameEncoder.of(found).size
        for other in (found, later, found.assign(rain=3.0)):
            np.testing.assert_array_equal(encoder.encode(other), FrameEncoder.of(found).encode(found))
    with pytest.raises(ValueError, match="no value in rain, snow"):
        FrameEncoder.of(pd.DataFrame({"rain": [np.nan, np.nan], "snow": [None, None]}))
    with pytest.warns(UserWarning, match="columns without any value are left out: 'rain'"):
        fitted = PretrainedGGPRegressor().fit(found.assign(rain=np.nan), y)
    plain = PretrainedGGPRegressor().fit(found, y)
    for new in (found, found.assign(rain=np.nan)):
        np.testing.assert_array_equal(fitted.predict(new), plain.predict(found))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda x: x.drop(columns="town"), "lacks columns of the fit: town"),
        (lambda x: x.assign(size=["many"] * len(x)), "'size' was a number in the fit, and is a category here"),
        (lambda x: x.assign(size=np.inf), "'size' holds an infinity"),
        (lambda x: np.zeros((3, 5)), "an array without names"),
    ],
)
def test_other_columns_are_refused(wrong, message):
    found, _ = frame()
    with pytest.raises(ValueError, match=message):
        FrameEncoder.of(found).encode(wrong(found))


def test_a_regressor_learns_from_a_frame(tmp_path):
    found, y = frame(120)
    model = PretrainedGGPRegressor(correction=False, random_state=0).fit(found, y)
    new, values = frame(60, seed=1)
    assert np.sqrt(np.mean((model.predict(new) - values) ** 2)) < 0.4 * values.std()
    assert model.feature_names_in_.tolist() == list(found)
    assert model.n_features_in_ == 5
    model.save(tmp_path / "model.bieqno")
    again = PretrainedGGPRegressor.load(tmp_path / "model.bieqno")
    assert np.array_equal(again.predict(new), model.predict(new))
    assert model.sample_y(new, 2).shape == (60, 2)


def test_missing_numbers_widen_predictions_or_are_learned():
    found, y = frame(120)
    gaps = found.assign(size=found["size"].where(np.arange(120) % 4 > 0))
    plain = PretrainedGGPRegressor(correction=False, random_state=0).fit(found, y)
    std, wider = (plain.predict(own, return_std=True)[1] for own in (found, gaps))
    lacking = gaps["size"].isna().to_numpy()
    assert (wider[lacking] > std[lacking]).all()
    assert wider[~lacking] == pytest.approx(std[~lacking])
    learned = PretrainedGGPRegressor(correction=False, random_state=0).fit(gaps, y)
    assert np.isfinite(learned.predict(gaps, return_std=True)).all()


def test_categories_that_look_like_numbers_and_columns_without_values():
    encoder = FrameEncoder.of(pd.DataFrame({"code": ["1", "2", "A", "B"], "size": [0.0, 1.0, 2.0, 3.0]}))
    as_numbers = encoder.encode(pd.DataFrame({"code": [1, 2], "size": [0.0, 1.0]}))
    as_texts = encoder.encode(pd.DataFrame({"code": ["1", "2"], "size": [0.0, 1.0]}))
    np.testing.assert_array_equal(as_numbers, as_texts)
    assert as_numbers[:, :-1].any()
    gap = encoder.encode(pd.DataFrame([{"code": "A", "size": None}]))
    assert gap[0, -1] == 1.5  # the median
