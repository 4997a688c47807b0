"""The form of results: one file of numbers, arrays and figures; all or nothing."""

import json
from dataclasses import replace

import numpy as np
import pytest
import xarray as xr
from matplotlib.figure import Figure

from bieqno.lab.results import Result, Row, _tidy, read_result, write_result


def a_result(value=1.0):
    rows = (Row("case", "method", "rmse", value, None, 1), Row("case", "method", "nlpd", -2.0, 0.5, 5))
    arrays = {"case": xr.Dataset({"mean": (("method", "point"), np.ones((1, 3)))}, {"method": ["ggp"]})}
    return Result("an-experiment", "smoke", 7, rows, arrays, {"only": ["method"]})


def test_rows_hold_mean_and_standard_error():
    row = Row.of("c", "m", "rmse", [1.0, 2.0, 3.0])
    assert (row.value, row.n) == (2.0, 3)
    assert row.stderr == pytest.approx(1 / np.sqrt(3))
    assert Row.of("c", "m", "rmse", [1.0]).stderr is None


def test_metrics_json_has_the_agreed_form(tmp_path):
    folder = write_result(a_result(), tmp_path)
    stored = json.loads((folder / "metrics.json").read_text())
    assert list(stored) == ["experiment", "preset", "seed", "rows"]
    assert stored["rows"][0] == {
        "case": "case",
        "method": "method",
        "metric": "rmse",
        "value": 1.0,
        "stderr": None,
        "n": 1,
    }


def test_written_and_read_are_the_same(tmp_path):
    figure = Figure()
    figure.subplots().plot([0, 1])
    folder = write_result(a_result(), tmp_path / "runs", {"line": figure})
    assert sorted(path.name for path in folder.iterdir()) == ["arrays.nc", "config.json", "figures", "metrics.json"]
    assert sorted(path.name for path in (folder / "figures").iterdir()) == ["line.png", "line.svg"]
    again = read_result(folder)
    assert again.rows == a_result().rows
    assert (again.experiment, again.preset, again.seed) == ("an-experiment", "smoke", 7)
    assert again.config == {"only": ["method"]}
    xr.testing.assert_identical(again.arrays["case"], a_result().arrays["case"])


def test_numbers_that_json_does_not_know_become_null(tmp_path):
    folder = write_result(a_result(np.inf), tmp_path)
    assert json.loads((folder / "metrics.json").read_text())["rows"][0]["value"] is None
    assert np.isnan(read_result(folder).rows[0].value)


def test_a_newer_result_replaces_the_older_as_a_whole(tmp_path):
    write_result(a_result(), tmp_path, {"old": Figure()})
    folder = write_result(a_result(2.0), tmp_path)
    assert list((folder / "figures").iterdir()) == []
    assert [path.name for path in tmp_path.iterdir()] == ["an-experiment"]
    assert read_result(folder).value("case", "method", "rmse") == 2.0


def test_a_failing_write_leaves_the_old_result(tmp_path):
    class Broken(Figure):
        def savefig(self, *args, **kwargs):
            raise OSError("no space")

    write_result(a_result(), tmp_path)
    with pytest.raises(OSError, match="no space"):
        write_result(a_result(2.0), tmp_path, {"broken": Broken()})
    assert [path.name for path in tmp_path.iterdir()] == ["an-experiment"]
    assert read_result(tmp_path / "an-experiment").value("case", "method", "rmse") == 1.0


def test_values_are_found_by_name():
    assert a_result().value("case", "method", "nlpd") == -2.0
    assert len(a_result().select(metric="rmse")) == 1
    with pytest.raises(KeyError, match="no crps of method"):
        a_result().value("case", "method", "crps")


def test_parts_are_the_studies_that_were_taken_over(tmp_path):
    own = a_result()
    assert own.parts() == {"an-experiment": own}
    rows = (
        replace(own.rows[0], case="other/b"),
        replace(own.rows[0], case="other/a"),
        replace(own.rows[0], case="third/c"),
    )
    arrays = {"other/b": own.arrays["case"], "other/a": own.arrays["case"]}
    # Also from the disk, where groups are kept by the alphabet.
    parts = read_result(write_result(Result("demo", "quick", 0, rows, arrays), tmp_path)).parts()
    assert list(parts) == ["other", "third"]
    assert list(parts["other"].arrays) == ["b", "a"]
    assert parts["third"].value("c", "method", "rmse") == 1.0


def test_a_run_killed_between_its_two_renames_loses_nothing(tmp_path):
    folder = write_result(a_result(1.0), tmp_path)
    folder.rename(folder.with_name(f".{folder.name}.00.old"))
    folder.with_name(f".{folder.name}.00.partial").mkdir()
    _tidy(folder)
    assert read_result(folder).rows[0].value == 1.0
    write_result(a_result(2.0), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]
