"""A record in tables: a small part of the Leaf River, with gaps."""

import json
import re
import runpy
import shlex
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from bieqno.assimilation import LogNormal, load_dataset, save_dataset
from bieqno.lab.records.leaf_river import river
from bieqno.lab.records.own import OwnRecord, own_baselines, own_record
from bieqno.lab.report.record_page import next_steps, record_scores

pytestmark = pytest.mark.standard_promotion("the command runs as a user has it, with code of the user's own")
SETUP = """
[model]
object = "my_river:model"
state = "my_river:state"
limit = 1e5

[observation]
object = "my_river:observation"

[ensemble]
members = 8
spread = 0.01
"""
MODULE = '''
import jax
import jax.numpy as jnp

from bieqno.assimilation import ETKF, LogNormal, Observation, StochasticModel, Transformed


def day(state, inputs, *, key):
    """A soil that fills, and a river that is fed by what is in it; a longer window empties it more."""
    noise = jnp.exp(0.2 * jax.random.normal(key, (2,)))
    soil = (state[0] + 0.3 * inputs["rain_mm"]) * noise[0] * jnp.exp(-0.1 * inputs["length"])
    return jnp.stack([soil, jnp.maximum(2.0 * soil * noise[1], 0.1)])


model = StochasticModel(day)
state = jnp.array([5.0, 10.0])
observation = Observation([1], LogNormal(0.1))
filter = Transformed.by(ETKF(), ["log", "log"], "log")
'''


def tables(folder, days=60):
    """The flow of every other day, and the rain of all."""
    found = river()
    dates = found.dates[:days].strftime("%Y-%m-%d")
    rain = pd.DataFrame({"date": dates, "rain_mm": np.asarray(found.inputs["rain"])[:days].sum(axis=1)})
    flow = pd.DataFrame({"date": dates, "flow": found.flow[:days]}).iloc[::2]
    flow.iloc[3, 1] = np.nan
    rain.to_csv(folder / "forcing.csv", index=False)
    flow.to_csv(folder / "record.csv", index=False)
    return flow, rain


@pytest.mark.parametrize("kind", ["csv", "nc"])
def test_a_record_is_assimilated_and_judged(tmp_path, bieqno, kind):
    for name, table in zip(("record", "forcing"), tables(tmp_path), strict=True):
        series = table.assign(date=pd.to_datetime(table["date"])).rename(columns={"date": "time"}).set_index("time")
        save_dataset(series.to_xarray(), tmp_path / f"{name}.nc")
    (tmp_path / "setup.toml").write_text(SETUP)
    (tmp_path / "my_river.py").write_text(MODULE)
    out = tmp_path / "analysis.nc"
    tables_given = ["--observations", tmp_path / f"record.{kind}", "--inputs", tmp_path / f"forcing.{kind}"]
    done = bieqno("assimilate", tmp_path / "setup.toml", *tables_given, "--filter", "my_river:filter", "--out", out)
    assert done.code == 0, done.err
    assert "one step ahead" in done.out
    assert "analysis.html" in done.out
    data = load_dataset(tmp_path / "analysis.nc")
    assert data["posterior"].shape == (60, 8, 2)
    assert int(np.isfinite(data["pit"].values).sum()) == 29
    assert str(data["time"].values[2])[:10] == str(river().dates[2])[:10]
    page = (tmp_path / "analysis.html").read_text()
    assert "What to do next" in page
    numbers = json.loads((tmp_path / "analysis.json").read_text())["scores"]
    assert set(numbers) == {"filter", "autoregression", "persistence", "climatology"}
    assert all(np.isfinite(own["log_score"]) for own in numbers.values())


GUIDE = (Path(__file__).parents[2] / "docs" / "your_own_record.md").read_text()
NUMBER = r"-?\d+\.?\d*"


def shown(step, run):
    """Yield each command of a console block of the guide with what it printed there and here."""
    for command, told in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", step, re.MULTILINE):
        program, *arguments = shlex.split(command)
        yield command, told, run(program, arguments)


@pytest.mark.long
def test_the_guide_runs_as_it_is_shown(tmp_path, bieqno, monkeypatch, capsys):
    """Its files and its commands in their order, with the numbers that it shows, but for the last digits."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)  # as of a script that Python runs
    titled = re.findall(r'^```\w+ title="(.*?)"\n(.*?)^```', GUIDE, re.DOTALL | re.MULTILINE)
    assert [name for name, _ in titled] == ["tables.py", "my_river.py", "setup.toml", "fit.py"]
    for name, content in titled:
        Path(name).write_text(content)

    def run(program, arguments):
        if program == "python":
            runpy.run_path(arguments[0])
            return capsys.readouterr().out
        monkeypatch.delitem(sys.modules, "my_river", raising=False)  # each command is a process of its own
        done = bieqno(*arguments)
        assert done.code == 0, done.err
        return done.out

    consoles = re.findall(r"^```console\n(.*?)^```", GUIDE, re.DOTALL | re.MULTILINE)
    commands = [found for step in consoles for found in shown(step, run)]
    assert [command.split()[:2] for command, _, _ in commands] == [
        ["python", "tables.py"], ["bieqno", "assimilate"], ["python", "fit.py"], ["bieqno", "assimilate"],
    ]  # fmt: skip
    for command, told, here in commands:
        assert re.sub(NUMBER, "#", told).split() == re.sub(NUMBER, "#", here).split(), command
        for shown_number, number in zip(re.findall(NUMBER, told), re.findall(NUMBER, here), strict=True):
            assert float(number) == pytest.approx(float(shown_number), rel=0.05, abs=0.06), command
    data = load_dataset("analysis.nc")
    assert int(np.isfinite(data["pit"].values).sum()) == 355


def test_steps_that_differ_are_told_to_the_model(tmp_path):
    flow, rain = tables(tmp_path)
    uneven = own_record(flow.drop(flow.index[[2, 3]]))
    assert uneven.inputs["length"][:4].tolist() == [2.0, 2.0, 6.0, 2.0]
    assert own_record(flow).inputs is None
    with pytest.raises(ValueError, match="no inputs at 1952-"):
        own_record(flow, rain.iloc[5:])
    with pytest.raises(ValueError, match="have a gap"):
        own_record(flow, rain.assign(rain_mm=np.nan))
    with pytest.raises(ValueError, match="rise from row to row"):
        own_record(flow.iloc[::-1])
    with pytest.raises(ValueError, match=r"column 'date' holds '05\.08\.1952'; dates are written as 2024-12-31"):
        own_record(flow.assign(date=["05.08.1952", *flow["date"][1:]]))
    with pytest.raises(ValueError, match="no column 'level'"):
        own_record(flow, rain, ["level"])


def test_without_a_model_who_knows_more_predicts_better(tmp_path):
    """In the sample: persistence and climatology are what the autoregression can be."""
    found = own_baselines(own_record(*tables(tmp_path)), LogNormal(0.1))
    means = {
        name: np.nanmean(np.where(np.isfinite(one["pit"]), one["log_score"], np.nan)) for name, one in found.items()
    }
    assert means["autoregression"] >= max(means["persistence"], means["climatology"]) - 0.01


def test_what_to_do_next_depends_on_what_is_wrong():
    scored = {"filter": {"log_score": -2.0}, "persistence": {"log_score": -3.0}}
    uniform = np.linspace(0.005, 0.995, 300)
    assert "calibrated" in next_steps(scored, uniform, -1)[1]
    assert "more noise" in next_steps(scored, np.where(uniform < 0.5, uniform**2, 1 - (1 - uniform) ** 2), -1)[1]
    assert "wider" in next_steps(scored, 0.5 + (uniform - 0.5) / 2, -1)[1]
    assert "too low" in next_steps(scored, np.sqrt(uniform), -1)[1]
    assert "diverged in window 4" in next_steps(scored, uniform, 3)[0]
    assert "without a model" in next_steps({**scored, "filter": {"log_score": -4.0}}, uniform, -1)[0]


def test_a_value_that_nothing_came_before_is_not_scored():
    values = np.concatenate([np.full(3, np.nan), 2 + np.sin(np.arange(20.0))])[:, None]
    record = OwnRecord(pd.date_range("2024-01-01", periods=23), ("flow",), values, None)
    for found in own_baselines(record, LogNormal(0.1)).values():
        assert np.isnan(found["pit"][:4]).all()
        assert np.isfinite(found["pit"][4:]).all()


def test_values_at_the_beginning_only_cannot_be_scored():
    pit = np.full(100, np.nan)
    pit[:3] = 0.5
    with pytest.raises(ValueError, match="after the first 5 % of the windows"):
        record_scores({"filter": {"pit": pit, "log_score": pit, "crps": pit}})


def a_river(folder, flow):
    (folder / "setup.toml").write_text(SETUP)
    (folder / "my_river.py").write_text(MODULE)
    tables(folder)[0].assign(flow=flow).to_csv(folder / "record.csv", index=False)
    files = ["--observations", folder / "record.csv", "--inputs", folder / "forcing.csv"]
    return ["assimilate", folder / "setup.toml", *files, "--filter", "my_river:filter", "--out", folder / "a.nc"]


def test_a_flow_of_zero_has_no_logarithm(tmp_path, bieqno):
    done = bieqno(*a_river(tmp_path, [1.0, 2.0, 0.0] * 10))
    assert done.code == 1
    assert "10 observed values cannot occur under LogNormal, such as 0 in window 5" in done.err


def test_a_filter_that_diverges_at_once_is_said_to(tmp_path, bieqno):
    """Not that there are no values."""
    command = a_river(tmp_path, 2.0)
    (tmp_path / "my_river.py").write_text(MODULE.replace("jnp.maximum(2.0 * soil * noise[1], 0.1)", "0.0 * soil"))
    done = bieqno(*command)
    assert done.code == 1
    assert "The filter diverged in window 1" in done.err
    assert "zeros have no logarithm" in done.err


def test_a_model_that_looks_for_another_input_is_told_which_there_are(tmp_path, bieqno):
    command = a_river(tmp_path, 2.0)
    (tmp_path / "my_river.py").write_text(MODULE.replace("rain_mm", "rain"))
    done = bieqno(*command)
    assert done.code == 1
    assert "the inputs rain_mm, length: KeyError: 'rain'" in done.err


def test_a_file_without_times_is_refused(tmp_path, bieqno):
    tables(tmp_path)
    (tmp_path / "setup.toml").write_text(SETUP)
    (tmp_path / "my_river.py").write_text(MODULE)
    save_dataset(xr.Dataset({"rain": ("day", np.ones(3))}), tmp_path / "rain.nc")
    files = ["--observations", tmp_path / "record.csv", "--inputs", tmp_path / "rain.nc"]
    done = bieqno("assimilate", tmp_path / "setup.toml", *files, "--out", tmp_path / "analysis.nc")
    assert done.code == 1
    assert "no series along a coordinate 'time'" in done.err


COMPARE = """
[compare]
sizes = [4]
truths = 2
windows = 12
burn_in = 2
tuning_truths = 1
tuning_windows = 8
inflation = [1.0]
"""


def test_a_driven_model_is_simulated_and_its_record_assimilated(tmp_path, bieqno):
    _, rain = tables(tmp_path, 30)
    (tmp_path / "setup.toml").write_text(SETUP)
    (tmp_path / "my_river.py").write_text(MODULE)
    setup, forcing, seen = tmp_path / "setup.toml", tmp_path / "forcing.csv", tmp_path / "obs.nc"
    asked = ["simulate", setup, "--inputs", forcing, "--out", seen, "--windows"]
    assert bieqno(*asked, 20).code == 0
    data = load_dataset(seen)
    assert data.sizes["time"] == 20
    assert str(data["time"].values[1])[:10] == rain["date"][1]
    short = bieqno(*asked, 40)
    assert short.code == 1
    assert "has 30 rows, one per window, and 40 windows were asked for" in short.err
    given = ["--observations", seen, "--inputs", forcing, "--filter", "my_river:filter", "--out", tmp_path / "a.nc"]
    done = bieqno("assimilate", setup, *given)
    assert done.code == 0, done.err


def test_filters_are_compared_on_truths_of_a_driven_model(tmp_path, bieqno):
    tables(tmp_path, 30)
    (tmp_path / "setup.toml").write_text(SETUP + COMPARE)
    (tmp_path / "my_river.py").write_text(MODULE)
    out = tmp_path / "comparison"
    given = ["--inputs", tmp_path / "forcing.csv", "--filter", "my_river:filter", "--out", out]
    done = bieqno("compare", tmp_path / "setup.toml", *given)
    assert done.code == 0, done.err
    entries = json.loads((out / "comparison.json").read_text())["entries"]
    assert {entry["method"] for entry in entries} >= {"Transformed", "pretrained EnNF", "ETKF tuned"}
    assert "--inputs" in json.loads((out / "comparison.json").read_text())["command"]
