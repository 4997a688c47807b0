import contextlib
import json
import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

from bieqno.lab.system_files import read_observations, read_setup
from bieqno.lab.system_files.contest import classical_filters

# As little of everything as still passes through all of the code.
TINY = {
    "width": 8, "depth": 2, "teacher_members": 20, "truths": 2, "windows": 12, "steps": 4, "own_steps": 2, "burn_in": 2,
    "tuning_truths": 2, "tuning_windows": 6, "inflation": [1.0, 1.1], "radius": [5.0], "members": 4, "own_weights": False,
}  # fmt: skip


def edited(folder, **changes):
    """The set-up in a folder with other values."""
    path = folder / "setup.toml"
    text = path.read_text()
    for key, value in changes.items():
        text, count = re.subn(rf"^{key} = .*$", f"{key} = {json.dumps(value)}", text, flags=re.MULTILINE)
        assert count, key
    path.write_text(text)
    return path


@pytest.fixture(scope="module")
def folder(bieqno, tmp_path_factory):
    """The example, made small, with observations and a trained filter."""
    folder = tmp_path_factory.mktemp("own") / "setup"
    assert bieqno("init", folder).code == 0
    again = bieqno("init", folder)
    assert (again.code, "already holds setup.toml" in again.err) == (1, True)
    text = edited(folder, **TINY).read_text()
    # Both tables have `sizes`.
    (folder / "setup.toml").write_text(re.sub(r"^sizes = .*$", "sizes = [2]", text, flags=re.MULTILINE))
    done = bieqno("simulate", folder / "setup.toml", "--out", folder / "obs.nc", "--windows", 12)
    assert done.code == 0, done.err
    done = bieqno("train-filter", folder / "setup.toml", "--out", folder / "filter.bieqno")
    assert done.code == 0, done.err
    return folder


def test_a_stopped_training_goes_on_to_the_same_filter(bieqno, folder, monkeypatch):
    """Stopped by Ctrl-C after its last step and before the filter was written: nothing is left to train."""
    out = folder / "again.bieqno"
    told = []

    @contextlib.contextmanager
    def stopping(label, *, visible):
        def tell(progress):
            told.append(progress.step)
            raise KeyboardInterrupt

        yield tell

    monkeypatch.setattr("bieqno.cli.filters.training_bar", stopping)
    stopped = bieqno("train-filter", folder / "setup.toml", "--out", out)
    assert stopped.code == 130
    assert f"train-filter {folder / 'setup.toml'} --out {out} --resume" in stopped.err
    assert not out.exists()
    done = bieqno("train-filter", folder / "setup.toml", "--out", out, "--resume")
    assert done.code == 0, done.err
    assert told == [TINY["steps"]]
    assert out.read_bytes() == (folder / "filter.bieqno").read_bytes()
    assert not list(folder.glob(".*"))


def assimilated(bieqno, folder, *more, out="analysis.nc"):
    return bieqno(
        "assimilate", folder / "setup.toml", "--observations", folder / "obs.nc", "--filter", folder / "filter.bieqno",
        "--out", folder / out, *more,
    )  # fmt: skip


def test_assimilate_takes_gaps_and_keeps_times(bieqno, folder):
    done = assimilated(bieqno, folder)
    assert done.code == 0, done.err
    observed, analysis = xr.load_dataset(folder / "obs.nc"), xr.load_dataset(folder / "analysis.nc")
    assert observed["observed"].isnull().any()
    assert analysis["posterior"].sizes == {"time": 12, "member": 4, "state": 12}
    np.testing.assert_array_equal(analysis["time"], observed["time"])
    np.testing.assert_array_equal(analysis["observed"], observed["observed"])
    assert analysis.attrs["diverged"] == -1
    assert "RMSE against the truth" in done.out
    other = assimilated(bieqno, folder, "--start", folder / "analysis.nc", "--members", 9, out="later.nc")
    assert (other.code, "has 4 members, not 9" in other.err) == (1, True)
    lost = assimilated(bieqno, folder, out="obs.nc")
    assert (lost.code, "obs.nc is read by this command" in lost.err) == (1, True)
    again = assimilated(bieqno, folder, "--start", folder / "analysis.nc", out="later.nc")
    assert again.code == 0, again.err
    with xr.open_dataset(folder / "later.nc") as later:
        assert later.sizes["member"] == 4


def test_compare_is_paired_and_complete(bieqno, folder):
    out = folder.parent / "comparison"
    setup = folder / "nowhere.toml"
    lines = (folder / "setup.toml").read_text().splitlines()
    setup.write_text("\n".join(line for line in lines if not line.startswith(("positions", "radius"))))
    arguments = ("compare", setup, "--filter", folder / "filter.bieqno", "--out", out)
    done = bieqno(*arguments)
    assert done.code == 0, done.err
    numbers = json.loads((out / "comparison.json").read_text())
    methods = ["baseline", "EnNF", "EnKF tuned", "ETKF tuned"]  # without positions no LETKF, which is slow to compile
    assert [(entry["method"], entry["members"]) for entry in numbers["entries"]] == [(name, 2) for name in methods]
    assert numbers["entries"][2]["settings"]["inflation"] in TINY["inflation"]
    arrays = xr.load_dataset(out / "comparison.nc")
    errors = np.sqrt(((arrays["mean"] - arrays["truth"]) ** 2).mean("state")).isel(time=slice(2, None)).mean("time")
    np.testing.assert_allclose(errors, arrays["error"], rtol=1e-4)
    page = (out / "comparison.html").read_text()
    assert not any(word in page for word in ("<script", "<img", "<link", "src=", 'href="http', "url(http"))
    (out / "mine.txt").write_text("")
    foreign = bieqno(*arguments)
    assert (foreign.code, "mine.txt" in foreign.err) == (1, True)


def test_positions_bring_a_local_filter(folder):
    setup = read_setup(folder / "setup.toml")
    build, grid = classical_filters(setup)["LETKF tuned"]
    assert grid == {"inflation": TINY["inflation"], "radius": TINY["radius"]}
    prior = jnp.stack([setup.state] * 3)
    observed = setup.observation.window(jnp.zeros(9))
    found = jax.eval_shape(lambda z: build(inflation=1.0, radius=5.0)(z, observed, key=jax.random.key(0)), prior)
    assert found.shape == prior.shape


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("members = 4", "membres = 4", "unknown key 'membres' in [ensemble]; did you mean 'members'?"),
        ("members = 4", 'members = "4"', "'members' in [ensemble] is a whole number, got '4'"),
        ("members = 4", "members = 1", "'members' in [ensemble] is at least 2, got 1"),
        ("[ensemble]", "[ensembel]", "unknown key 'ensembel'; did you mean 'ensemble'?"),
        ("my_model:model", "my_model:modle", "no 'modle'; did you mean 'model'?"),
        ("my_model:model", "my_modle:model", "did you mean 'my_model'?"),
        ("my_model:model", "model", "expected 'module:object'"),
        ("my_model:observation", "my_model:model", "expected a bieqno.assimilation.Observation, as in"),
        ("my_model:positions", "my_model:stations", "expected 12 positions, one row each, got shape (9, 1)"),
        ("my_model:state", "my_model:observed_variables", "fails on a state of 9 variables"),
        (
            "my_model:teacher",
            "my_model:model",
            "'teacher' in [training], 'my_model:model': it does not work as a filter",
        ),
        ("width = 8", 'object = "math:pi"', "'object' in [filter], 'math:pi': expected something to call"),
        ("spread = 1.0", "spread = [1.0, 2.0]", "one number or 12"),
        ("spread = 1.0", "spread = nan", "'spread' in [ensemble] is more than 0, got nan"),
        ("limit = 100.0", "limit = -1", "'limit' in [model] is more than 0, got -1"),
        ("period = 12.0", "period = [12.0, 3.0]", "'period' has 2 numbers, 'positions' have 1 coordinates"),
        ("burn_in = 2", "burn_in = 12", "it is 12 of 12 'windows'"),
        ("seed = 0", "seed = ", "setup.toml: Invalid value"),
        ("radius = [5.0]", "", "needs values of 'radius'"),
    ],
)
def test_wrong_setups_name_file_and_key(bieqno, folder, tmp_path, old, new, said):
    text = (folder / "setup.toml").read_text()
    assert old in text
    (tmp_path / "setup.toml").write_text(text.replace(old, new, 1))
    (tmp_path / "my_model.py").write_text((folder / "my_model.py").read_text())
    done = bieqno("train-filter", tmp_path / "setup.toml", "--out", tmp_path / "filter.bieqno")
    assert done.code == 1
    assert said in done.err
    assert str(tmp_path / "setup.toml") in done.err
    assert "Traceback" not in done.err
    assert not (tmp_path / "filter.bieqno").exists()


def test_modules_that_fail_say_why(bieqno, folder, tmp_path):
    (tmp_path / "setup.toml").write_text((folder / "setup.toml").read_text())
    (tmp_path / "my_model.py").write_text("model = undefined\n")
    done = bieqno("simulate", tmp_path / "setup.toml", "--out", tmp_path / "obs.nc")
    assert done.code == 1
    assert "importing the module my_model failed: NameError: name 'undefined' is not defined" in done.err


def test_files_that_do_not_fit(bieqno, folder, tmp_path):
    data = xr.load_dataset(folder / "obs.nc")

    def tried(changed, *more):
        changed.to_netcdf(tmp_path / "obs.nc", engine="h5netcdf")
        return assimilated(bieqno, folder, "--observations", tmp_path / "obs.nc", *more, out="none.nc")

    assert "has 5 values a window" in tried(data.isel(observation=slice(5))).err
    assert "not evenly spaced" in tried(data.isel(time=[0, 1, 3, 4])).err
    assert "rows are 0.1 apart in time, a window of the set-up" in tried(data.isel(time=slice(None, None, 2))).err
    assert "did you mean 'observed'?" in tried(data, "--variable", "obseved").err
    assert "which variable" in tried(data.rename(observed="seen")).err
    assert "every value of 'observed' is missing" in tried(data.where(False)).err
    dated = data.assign_coords(time=[f"day {k}" for k in range(data.sizes["time"])])
    assert "times should be numbers or dates" in tried(dated).err
    (tmp_path / "obs.nc").write_text("no netCDF")
    foreign = assimilated(bieqno, folder, "--observations", tmp_path / "obs.nc", out="none.nc")
    assert "as netCDF" in foreign.err
    assert foreign.code == 1
    wrong = assimilated(bieqno, folder, "--filter", folder / "obs.nc", out="none.nc")
    assert (wrong.code, "not a bieqno file" in wrong.err) == (1, True)
    assert not (folder / "none.nc").exists()
    text = (folder / "my_model.py").read_text()
    (tmp_path / "my_model.py").write_text(text.replace("% 4 != 3", "% 3 != 2"))
    (tmp_path / "setup.toml").write_text((folder / "setup.toml").read_text())
    other = bieqno(
        "compare", tmp_path / "setup.toml", "--filter", folder / "filter.bieqno", "--out", tmp_path / "comparison"
    )
    assert other.code == 1
    assert "trained for 9 observed values, " in other.err


@pytest.mark.parametrize(
    "times",
    [
        {"time": ("time", 3.0 * np.arange(12), {"units": "weeks"})},  # another unit than the model's
        {"time": ("time", np.arange(12))},  # the number of the row
        {"time": np.datetime64("2026-01-01", "ns") + np.arange(12) * np.timedelta64(6, "h")},
    ],
    ids=["weeks", "numbers", "dates"],
)
def test_times_that_are_not_the_models_are_not_compared(folder, tmp_path, times):
    data = xr.load_dataset(folder / "obs.nc").assign_coords(times)
    data.to_netcdf(tmp_path / "obs.nc", engine="h5netcdf")
    series = read_observations(tmp_path / "obs.nc", read_setup(folder / "setup.toml"))
    np.testing.assert_array_equal(series.variable["time"], data["time"])


def test_as_a_process_of_its_own(tmp_path):
    """A mistake is one line and exit code 1; --debug shows where."""
    command = Path(sys.executable).with_name("bieqno")
    arguments = ["train-filter", str(tmp_path / "setup.toml")]
    done = subprocess.run([command, "--debug", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "setup.toml" in done.stderr
