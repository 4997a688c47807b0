import contextlib
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from bieqno.assimilation import EnNF, LearnedGain, load_filter
from bieqno.lab.system_files.objects import find_object
from bieqno.lab.system_files.reading import read_system_file
from bieqno.lab.system_files.series import read_observations

pytestmark = pytest.mark.standard_promotion("the command runs as a user has it, with code of the user's own")
# As little of everything as still passes through all of the code.
SMALL = """
seed = 0

[model]
object = "my_model:model"
state = "my_model:state"
limit = 100.0
positions = "my_model:positions"
period = 12.0

[observation]
object = "my_model:observation"

[ensemble]
members = 4
spread = 1.0

[filter]
radius = 6.0
width = 8
channels = 2

[training]
sizes = [3]
truths = [2]
steps = 4

[validation]
truths = 2
windows = 4
burn_in = 1
every = 2

[compare]
sizes = [2]
truths = 2
windows = 12
burn_in = 2
tuning_truths = 2
tuning_windows = 6
inflation = [1.0, 1.1]
radius = [3.0]
"""
IMITATION = """
[filter]
kind = "ennf"
width = 8
depth = 2
own_steps = 2

[training]
objective = "imitation"
teacher = "my_model:teacher"
teacher_members = 20
truths = 2
windows = 12
steps = 4
sizes = [2]
"""


@pytest.fixture(scope="module")
def folder(bieqno, tmp_path_factory):
    """The example, made small, with observations and a trained filter."""
    folder = tmp_path_factory.mktemp("own") / "system"
    assert bieqno("init", folder).code == 0
    again = bieqno("init", folder)
    assert (again.code, "already holds setup.toml" in again.err) == (1, True)
    example = read_system_file(folder / "setup.toml")
    assert (example.system.size, example.system.observed, example.window) == (40, 10, 0.15)
    text = (folder / "my_model.py").read_text().replace("SIZE = 40", "SIZE = 12")
    (folder / "my_model.py").write_text(f"{text}\nfrom bieqno.assimilation import EnKF\n\nteacher = EnKF()\n")
    sys.modules.pop("my_model")  # the example's own is another
    (folder / "setup.toml").write_text(SMALL)
    done = bieqno("simulate", folder / "setup.toml", "--out", folder / "obs.nc", "--windows", 12)
    assert done.code == 0, done.err
    done = bieqno("train-filter", folder / "setup.toml", "--out", folder / "filter.bieqno")
    assert done.code == 0, done.err
    assert "trained for 4 steps, best after" in done.out
    return folder


def changed(folder, tmp_path, *changes):
    """A copy of the system file with other lines."""
    text = (folder / "setup.toml").read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    (tmp_path / "setup.toml").write_text(text)
    (tmp_path / "my_model.py").write_text((folder / "my_model.py").read_text())
    return tmp_path / "setup.toml"


def test_a_stopped_training_continues_to_the_same_filter(bieqno, folder, monkeypatch):
    """Stopped by Ctrl-C after its last step and before the filter was written: nothing is left to train."""
    out = folder / "again.bieqno"
    steps = []

    @contextlib.contextmanager
    def stopping(label):
        def on_progress(progress):
            steps.append((progress.step, progress.validation is not None))
            if progress.step == progress.steps:
                raise KeyboardInterrupt

        yield on_progress

    monkeypatch.setattr("bieqno.cli.systems.training_bar", stopping)
    stopped = bieqno("train-filter", folder / "setup.toml", "--out", out)
    assert stopped.code == 130
    assert f"train-filter {folder / 'setup.toml'} --out {out} --resume" in stopped.err
    assert not out.exists()
    done = bieqno("train-filter", folder / "setup.toml", "--out", out, "--resume")
    assert done.code == 0, done.err
    assert steps == [(0, False), (2, True), (4, True)]
    assert out.read_bytes() == (folder / "filter.bieqno").read_bytes()
    assert not list(folder.glob(".*"))


@pytest.mark.long
def test_imitation_with_separate_weights(bieqno, folder, tmp_path):
    setup = changed(folder, tmp_path)
    start, end = SMALL.index("[filter]"), SMALL.index("[validation]")
    setup.write_text(SMALL[:start] + IMITATION + SMALL[end:])
    done = bieqno("train-filter", setup, "--out", tmp_path / "filter.bieqno")
    assert done.code == 0, done.err
    trained = load_filter(tmp_path / "filter.bieqno")
    assert isinstance(trained, EnNF)
    assert trained.weights is not None


def test_learned_gain_against_the_truth(bieqno, folder, tmp_path):
    local = "radius = 6.0\nwidth = 8\nchannels = 2"
    setup = changed(folder, tmp_path, (local, 'width = 8\ndepth = 2\nkind = "learned-gain"'))
    done = bieqno("train-filter", setup, "--out", tmp_path / "filter.bieqno")
    assert done.code == 0, done.err
    assert isinstance(load_filter(tmp_path / "filter.bieqno"), LearnedGain)


def assimilated(bieqno, folder, *more, out="analysis.nc"):
    return bieqno(
        "assimilate",
        folder / "setup.toml",
        "--observations",
        folder / "obs.nc",
        "--filter",
        folder / "filter.bieqno",
        "--out",
        folder / out,
        *more,
    )


def test_assimilate_takes_gaps_and_keeps_times(bieqno, folder):
    done = assimilated(bieqno, folder)
    assert done.code == 0, done.err
    observed, analysis = xr.load_dataset(folder / "obs.nc"), xr.load_dataset(folder / "analysis.nc")
    assert observed["observed"].isnull().any()
    assert analysis["posterior"].sizes == {"time": 12, "member": 4, "state": 12}
    assert np.array_equal(np.isfinite(analysis["pit"]), np.isfinite(analysis["observed"]))
    assert np.isfinite(analysis["log_score"]).all()
    np.testing.assert_array_equal(analysis["time"], observed["time"])
    np.testing.assert_array_equal(analysis["observed"], observed["observed"])
    assert analysis.attrs["diverged"] == -1
    assert "RMSE against the truth" in done.out
    other = assimilated(bieqno, folder, "--start", folder / "analysis.nc", "--members", 9, out="later.nc")
    assert (other.code, "has 4 members, not 9" in other.err) == (1, True)
    lost = assimilated(bieqno, folder, out="obs.nc")
    assert (lost.code, "obs.nc is read by this command" in lost.err) == (1, True)


def test_an_analysis_is_explained_and_a_filter_exported(bieqno, folder):
    done = assimilated(bieqno, folder, "--explain", 3, out="explained.nc")
    assert done.code == 0, done.err
    assert "moved by" in done.out
    picture = (folder / "explained.explanation.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    which = ("--analysis", folder / "explained.nc", "--setup", folder / "setup.toml", "--out", folder / "again.png")
    beyond = bieqno("explain", folder / "filter.bieqno", *which, "--window", 99)
    assert (beyond.code, "has 12 windows" in beyond.err) == (1, True)
    how = ("--setup", folder / "setup.toml", "--format", "stablehlo")
    done = bieqno("export", folder / "filter.bieqno", *how)
    # After four steps the filter may be its base, which cannot be exported.
    assert (folder / "filter.stablehlo").exists() if done.code == 0 else "is its base" in done.err
    wrong = bieqno("export", folder / "filter.bieqno", *how, "--members", "many")
    assert (wrong.code, "got many" in wrong.err) == (1, True)


@pytest.mark.parametrize("times", [True, False], ids=["times", "no-times"])
def test_a_run_in_parts_is_the_run_in_one_part(bieqno, folder, tmp_path, times):
    """Windows are numbered on: the second part draws other random numbers than the first."""
    data = xr.load_dataset(folder / "obs.nc")
    data = data if times else data.drop_vars("time")
    data["observed"][5] = np.nan  # a part in which nothing was observed

    def part(name, windows, *more):
        data.isel(time=windows).to_netcdf(tmp_path / "obs.nc", engine="h5netcdf")
        done = assimilated(bieqno, folder, "--observations", tmp_path / "obs.nc", *more, out=tmp_path / name)
        assert done.code == 0, done.err
        return xr.load_dataset(tmp_path / name)

    whole = part("whole.nc", slice(None))
    first = part("first.nc", slice(0, 5))
    second = part("second.nc", slice(5, 6), "--start", tmp_path / "first.nc")
    third = part("third.nc", slice(6, None), "--start", tmp_path / "second.nc")
    assert [found.attrs["last_window"] for found in (whole, first, second, third)] == [12, 5, 6, 12]
    for name in ("prior", "posterior", "time"):
        parts = np.concatenate([found[name].values for found in (first, second, third)])
        np.testing.assert_array_equal(parts, whole[name].values)


def test_compare_is_paired_and_complete(bieqno, folder, tmp_path):
    out = tmp_path / "comparison"
    # Without positions there are no local filters, which are slow to compile; the trained filter keeps its own.
    setup = changed(
        folder, tmp_path, ('positions = "my_model:positions"\nperiod = 12.0\n', ""), ("radius = [3.0]\n", "")
    )
    arguments = ("compare", setup, "--filter", folder / "filter.bieqno", "--out", out)
    done = bieqno(*arguments)
    assert done.code == 0, done.err
    numbers = json.loads((out / "comparison.json").read_text())
    found = {entry["method"]: entry for entry in numbers["entries"]}
    assert {"baseline", "EnNF", "pretrained EnNF", "EnKF tuned", "ETKF tuned", "particle filter tuned"} <= set(found)
    assert "LETKF tuned" not in found
    assert {entry["members"] for entry in numbers["entries"]} == {2}
    assert found["EnKF tuned"]["settings"]["inflation"] in [1.0, 1.1]
    arrays = xr.load_dataset(out / "comparison.nc")
    errors = np.sqrt(((arrays["mean"] - arrays["truth"]) ** 2).mean("state")).isel(time=slice(2, None)).mean("time")
    sound = arrays["diverged"].values < 0
    np.testing.assert_allclose(errors.values[sound], arrays["error"].values[sound], rtol=1e-4)
    page = (out / "comparison.html").read_text()
    # One file: it carries its script and images, and asks for nothing.
    addresses = re.findall(r"""(?:src|href)=["']?([^"'\s>]+)""", page.split('<script type="application/json"')[0])
    assert len(addresses) >= 5
    assert all(address.startswith("data:") for address in addresses)
    assert "default-src 'none'" in page
    (out / "mine.txt").write_text("")
    foreign = bieqno(*arguments)
    assert (foreign.code, "mine.txt" in foreign.err) == (1, True)


def test_places_say_where_variables_and_observations_are(folder, tmp_path):
    system = read_system_file(folder / "setup.toml").system
    assert system.places.period == (12.0,)
    assert system.observation_places.positions[:, 0].tolist() == [0.0, 4.0, 8.0]
    setup = changed(folder, tmp_path, ('positions = "my_model:positions"\nperiod = 12.0', 'places = "my_model:places"'))
    text = (tmp_path / "my_model.py").read_text()
    (tmp_path / "my_model.py").write_text(
        f"{text}\nfrom bieqno.assimilation import Places\n\nplaces = Places.grid(3, 4)\n"
    )
    assert read_system_file(setup).system.places.positions.shape == (12, 2)


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
        ("my_model:positions", "my_model:SIZE", "expected 12 positions, one row each, got shape ()"),
        ("my_model:positions", "numpy:zeros", "'positions' in [model], 'numpy:zeros'"),
        ("my_model:state", "my_model:SIZE", "expected a state, a vector of numbers, got shape ()"),
        ("width = 8", "depth = 3", '\'depth\' in [filter] belongs to kind = "ennf" or "learned-gain", not to "local"'),
        ("width = 8", 'kind = "enff"', "'kind' in [filter] is one of local, ennf, learned-gain; got 'enff'"),
        ("steps = 4", "teacher_members = 4", 'belongs to objective = "imitation", not to "truth"'),
        ("steps = 4", 'objective = "imitation"', "'truths' in [training] is a whole number, got [2]"),
        ("truths = [2]", "truths = [2, 3]", "'truths' in [training] has 2 numbers, 'sizes' 1"),
        ("steps = 4", "missing = [0.5]", "'missing' in [training] is two shares from low to high"),
        ("spread = 1.0", "spread = [1.0, 2.0]", "one number or 12"),
        ("spread = 1.0", "spread = nan", "'spread' in [ensemble] is more than 0, got nan"),
        ("limit = 100.0", "limit = -1", "'limit' in [model] is more than 0, got -1"),
        ("period = 12.0", "period = [12.0, 3.0]", "'period' has 2 numbers, 'positions' have 1 coordinates"),
        ("burn_in = 2", "burn_in = 12", "it is 12 of 12 'windows'"),
        ("seed = 0", "seed = ", "setup.toml: Invalid value"),
        ("seed = 0", f"seed = {10**20}", "'seed' is at most 4294967295, got 1000"),
        ("channels = 2", f"channels = {10**9}", "'width' and 'channels' in [filter]: this needs"),
        ("tuning_truths = 2", f"tuning_truths = {10**9}", "[compare]: this needs"),
        ("steps = 4", f"steps = 4\nunroll = {10**9}", "[training]: this needs"),
        ("windows = 4", f"windows = {10**9}", "[validation]: this needs"),
        (
            "my_model:observation",
            'my_model:observation"\nplaces = "my_model:state',
            "expected a bieqno.assimilation.Places",
        ),
    ],
)
def test_wrong_system_files_name_file_and_key(bieqno, folder, tmp_path, old, new, said):
    setup = changed(folder, tmp_path, (old, new))
    done = bieqno("train-filter", setup, "--out", tmp_path / "filter.bieqno")
    assert done.code == 1
    assert said in done.err
    assert str(tmp_path / "setup.toml") in done.err
    assert "Traceback" not in done.err
    assert not (tmp_path / "filter.bieqno").exists()


def test_first_states_have_the_scale_of_the_model(bieqno, folder, tmp_path):
    """The spread follows from a free run if it is not given; one that is too large for the model is named."""
    logistic = (
        "import jax.numpy as jnp\n\nfrom bieqno.assimilation import Observation\n\n\n"
        "def model(z):\n    return 1 - 1.7 * (0.6 * z + 0.4 * jnp.roll(z, 1)) ** 2\n\n\n"
        "state = 0.3 * jnp.cos(jnp.arange(12.0))\nobservation = Observation([0, 4, 8], 0.1)\n"
        "positions = jnp.arange(12.0)[:, None]\n"
    )
    setup = changed(folder, tmp_path, ("spread = 1.0", "spread = 2.0"))
    (tmp_path / "my_model.py").write_text(logistic)
    done = bieqno("simulate", setup, "--out", tmp_path / "obs.nc", "--windows", 5)
    assert (done.code, "a smaller 'spread' in [ensemble]" in done.err) == (1, True), done.err
    done = bieqno("train-filter", setup, "--out", tmp_path / "filter.bieqno")
    assert (done.code, "or a smaller spread" in done.err) == (1, True), done.err
    setup = changed(folder, tmp_path, ("spread = 1.0", ""))
    (tmp_path / "my_model.py").write_text(logistic)
    file = read_system_file(setup)
    assert file.system.spread is None
    assert 0.05 < float(file.spread.min()) <= float(file.spread.max()) < 0.3
    done = bieqno("simulate", setup, "--out", tmp_path / "obs.nc", "--windows", 5)
    assert done.code == 0, done.err


def test_a_wrong_teacher_or_student_is_named(bieqno, folder, tmp_path):
    setup = changed(folder, tmp_path)
    start, end = SMALL.index("[filter]"), SMALL.index("[validation]")
    for old, new, said in (
        ("my_model:teacher", "my_model:tendency", "'my_model:tendency': it does not work as a filter"),
        ("width = 8", 'object = "math:pi"', "'object' in [filter] fails: TypeError"),
    ):
        setup.write_text(SMALL[:start] + IMITATION.replace(old, new) + SMALL[end:])
        done = bieqno("train-filter", setup, "--out", tmp_path / "filter.bieqno")
        assert (done.code, said in done.err) == (1, True), done.err


def test_modules_that_fail_say_why(bieqno, folder, tmp_path):
    (tmp_path / "setup.toml").write_text((folder / "setup.toml").read_text())
    (tmp_path / "my_model.py").write_text("model = undefined\n")
    done = bieqno("simulate", tmp_path / "setup.toml", "--out", tmp_path / "obs.nc")
    assert done.code == 1
    assert "importing the module my_model failed: NameError: name 'undefined' is not defined" in done.err


@pytest.mark.parametrize("name", ["m" * 5000, "\u00e4" * 200])
def test_a_name_that_no_file_can_have_is_refused(tmp_path, name):
    """It was an OSError with the whole name."""
    with pytest.raises(ValueError, match="a name that no file can have") as refused:
        find_object(f"{name}:model", tmp_path)
    assert len(str(refused.value)) < 200


def test_files_that_do_not_fit(bieqno, folder, tmp_path):
    data = xr.load_dataset(folder / "obs.nc")

    def tried(changed, *more):
        changed.to_netcdf(tmp_path / "obs.nc", engine="h5netcdf")
        return assimilated(bieqno, folder, "--observations", tmp_path / "obs.nc", *more, out="none.nc")

    assert "has 2 values per window" in tried(data.isel(observation=slice(2))).err
    assert "not evenly spaced" in tried(data.isel(time=[0, 1, 3, 4])).err
    assert "rows are 0.3 apart in time, a window of" in tried(data.isel(time=slice(None, None, 2))).err
    assert "did you mean 'observed'?" in tried(data, "--variable", "obseved").err
    assert "which variable" in tried(data.rename(observed="seen")).err
    assert "has no window" in tried(data.isel(time=slice(0))).err
    assert "beyond single precision" in tried(data.assign(observed=1e300 * data["observed"].astype(float))).err
    analysis = xr.Dataset({"posterior": (("time", "member", "state"), np.zeros((0, 3, 12)))})  # of no window
    for wrong in (analysis, analysis.transpose(), xr.ones_like(analysis).astype(str)):
        wrong.to_netcdf(tmp_path / "start.nc", engine="h5netcdf")
        assert "holds no analysis" in tried(data, "--start", tmp_path / "start.nc").err
    whole = xr.Dataset({"posterior": (("time", "member", "state"), np.zeros((1, 3, 12)))}, attrs={"last_window": "x"})
    whole.to_netcdf(tmp_path / "start.nc", engine="h5netcdf")
    assert "'last_window' should be a whole number" in tried(data, "--start", tmp_path / "start.nc").err
    dated = data.assign_coords(time=[f"day {k}" for k in range(data.sizes["time"])])
    assert "times should be numbers or dates" in tried(dated).err
    (tmp_path / "obs.nc").write_text("no netCDF")
    foreign = assimilated(bieqno, folder, "--observations", tmp_path / "obs.nc", out="none.nc")
    assert "no netCDF file" in foreign.err
    assert foreign.code == 1
    wrong = assimilated(bieqno, folder, "--filter", folder / "obs.nc", out="none.nc")
    assert (wrong.code, "not a bieqno file" in wrong.err) == (1, True)
    assert not (folder / "none.nc").exists()
    setup = changed(folder, tmp_path)
    text = (folder / "my_model.py").read_text()
    (tmp_path / "my_model.py").write_text(text.replace("range(0, SIZE, 4)", "range(0, SIZE, 3)"))
    other = bieqno("compare", setup, "--filter", folder / "filter.bieqno", "--out", tmp_path / "comparison")
    assert other.code == 1
    assert "does not fit" in other.err
    assert "for 12 variables and 3 observations" in other.err


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
    series = read_observations(tmp_path / "obs.nc", read_system_file(folder / "setup.toml"))
    np.testing.assert_array_equal(series.variable["time"], data["time"])


def test_as_a_process_of_its_own(tmp_path):
    """A mistake is one line and exit code 1; --debug shows where."""
    command = Path(sys.executable).with_name("bieqno")
    arguments = ["train-filter", str(tmp_path / "setup.toml")]
    done = subprocess.run([command, "--debug", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "setup.toml" in done.stderr
