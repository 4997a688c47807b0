"""Models outside JAX on the command line: every command of docs/cluster.md, on real engines, with a program in C."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from concurrent.futures import Executor
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from bieqno.assimilation import BMIModel, Program
from bieqno.cli.outside import open_executor
from bieqno.lab.system_files.reading import read_system_file

pytestmark = pytest.mark.standard_promotion("the command runs as a user has it, with code of the user's own")
ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "cluster.md").read_text()
ABOUT = {"inputs": None, "member": 0, "window": 0, "seed": 7}


def commands(title):
    """The lines of the first block of shell commands after a title of the page."""
    block = re.search(r"```sh\n(.*?)```", PAGE[PAGE.index(f"## {title}\n") :], re.DOTALL)
    return [shlex.split(line, comments=True) for line in block[1].splitlines() if line]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The example of the docs, compiled by its own instructions."""
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    folder = tmp_path_factory.mktemp("outside") / "example"
    shutil.copytree(ROOT / "examples" / "outside", folder)
    for words in commands("A program as a model")[:2]:
        assert words[0] == "cc"
        subprocess.run(words, cwd=folder, check=True)
    return folder


@pytest.fixture(scope="module")
def analysis(bieqno, folder):
    """The page's first run, on threads."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for words in commands("A program as a model")[2:]:
            done = bieqno(*words[1:])
            assert done.code == 0, done.err
    assert "RMSE against the truth" in done.out
    assert not list(folder.glob(".*"))
    return xr.load_dataset(folder / "analysis.nc")


def test_the_program_and_the_bmi_model_give_the_same_states(folder):
    state = np.linspace(-1.0, 9.0, 40)
    program, bmi = (read_system_file(folder / name).system.model for name in ("setup.toml", "setup_bmi.toml"))
    assert (type(program.run_one), type(bmi.run_one)) == (Program, BMIModel)
    after = program.run_one(state, **ABOUT, folder=folder / "one")
    assert np.array_equal(after, bmi.run_one(state, **ABOUT, folder=folder / "two"))
    assert not np.array_equal(after, program.run_one(state, **ABOUT | {"seed": 8}, folder=folder / "one"))
    assert 1.0 < np.abs(after - state).max() < 20.0
    with pytest.raises(ValueError, match="the state has 3 numbers, its variables have other sizes: state 40"):
        bmi.run_one(state[:3], **ABOUT, folder=folder)
    with pytest.raises(RuntimeError, match="exit code 1, cannot read a state from"):
        program.run_one(state[:3], **ABOUT, folder=folder / "one")


def test_programs_that_read_netcdf_and_inputs(tmp_path):
    """A program that adds the rain to the state, and one that writes the wrong thing."""
    (tmp_path / "model.py").write_text(
        "import sys, h5netcdf\n"
        "with h5netcdf.File(sys.argv[1]) as f, h5netcdf.File(sys.argv[3]) as g, h5netcdf.File(sys.argv[2], 'w') as out:\n"
        "    z = f['state'][:] + g['rain'][:]\n"
        "    out.dimensions['n'] = len(z)\n"
        "    out.create_variable('state' if sys.argv[4] != '9' else 'sate', ('n',), data=z)\n"
    )
    words = f"{shlex.quote(sys.executable)} model.py {{state_in}} {{state_out}} {{inputs}} {{seed}}"
    program = Program(words, "netcdf", str(tmp_path))
    about = ABOUT | {"inputs": {"rain": np.array(2.0)}, "folder": tmp_path / "with space"}
    assert program(np.arange(3.0), **about).tolist() == [2.0, 3.0, 4.0]
    with pytest.raises(ValueError, match=r"should hold a variable 'state' of shape \(3,\), got \{'sate': \(3,\)\}"):
        program(np.arange(3.0), **about | {"seed": 9})
    binary = Program("dd if={inputs} of={state_out} status=none {state_in}")
    with pytest.raises(RuntimeError, match="dd: exit code 1, Try"):
        binary(np.arange(3.0), **about)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("model {state_in}", "names {state_in} and {state_out}"),
        ("model {state_in} {state_out} {sede}", "not {sede}"),
        ("model '{state_in} {state_out}", "cannot be read"),
    ],
)
def test_commands_that_cannot_work_are_refused(command, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        Program(command)


def test_a_program_that_takes_too_long_is_killed(tmp_path):
    slow = Program("sh -c 'sleep 60; cp $0 $1' {state_in} {state_out}", timeout=0.2)
    with pytest.raises(TimeoutError, match=r"killed after 0\.2 seconds"):
        slow(np.zeros(2), **ABOUT, folder=tmp_path)
    with pytest.raises(ValueError, match=r"wrote no file state_out\.bin"):
        Program("true {state_in} {state_out}")(np.zeros(2), **ABOUT, folder=tmp_path)


@pytest.mark.long
# Its jobs are processes that it kills and does not wait for.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_dask_as_on_the_page(bieqno, folder, analysis, monkeypatch):
    """The jobs of Slurm are processes of this machine, started by the same package."""
    pytest.importorskip("distributed")
    jobs = pytest.importorskip("dask_jobqueue.local")
    script = re.search(r"```py\n(from dask_jobqueue.*?)```", PAGE, re.DOTALL)[1]
    local = "LocalCluster(cores=1, memory='1GB', scheduler_options={'dashboard_address': ':0'})"
    script = re.sub(r"SLURMCluster\([^)]*\)", local, script).replace("scale(jobs=8)", "scale(jobs=1)")
    script = script.replace("subprocess.run(", "run(")
    assert local in script
    done = []

    def run(words, check):
        done.append((words, bieqno(*words[1:])))

    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    monkeypatch.chdir(folder)
    exec(compile(script, "cluster.md", "exec"), {"LocalCluster": jobs.LocalCluster, "run": run})
    ((words, outcome),) = done
    assert outcome.code == 0, outcome.err
    assert words[-3].startswith("dask:tcp://")
    assert np.array_equal(xr.load_dataset(folder / words[-1])["posterior"], analysis["posterior"])


@pytest.mark.long
def test_mpi_as_on_the_page(folder, analysis):
    pytest.importorskip("mpi4py.futures")
    mpiexec = Path(sys.executable).with_name("mpiexec")
    if not mpiexec.exists():
        pytest.skip("mpich is not installed beside this Python")
    (words,) = commands("MPI")
    at = words.index("bieqno")
    assert words[:2] == ["mpiexec", "-n"]
    words = [str(mpiexec), "-n", "2", sys.executable, "-m", "bieqno.cli", *words[at + 1 :]]
    about = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(words, cwd=folder, env=about, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("written to") == 1
    assert np.array_equal(xr.load_dataset(folder / words[-1])["posterior"], analysis["posterior"])


def test_a_run_that_lost_too_many_members_is_continued(bieqno, folder, analysis, tmp_path, monkeypatch):
    """As the page says: mend the model, and say --resume."""
    shutil.copytree(folder, tmp_path / "run")
    monkeypatch.chdir(tmp_path / "run")
    setup = Path("setup.toml").read_text()
    places = "{window} {member} {state_in} {state_out} {seed}"
    broken = f"sh -c 'test $0 -lt 5 -o $1 -gt 3 || exit 9; exec ./lorenz96 $2 $3 - $4' {places}"
    Path("setup.toml").write_text(re.sub(r"command = .*", lambda _: f'command = "{broken}"', setup))
    words = commands("A program as a model")[-1][1:]
    done = bieqno(*words, "--out", "again.nc")
    assert done.code == 1
    assert (
        "4 of 10 members of window 5 were lost, and 80% have to survive (member 0: RuntimeError: sh: exit code 9"
        in done.err
    )
    assert done.err.count("--resume") == 1
    Path("setup.toml").write_text(setup)
    done = bieqno(*words, "--out", "again.nc", "--resume")
    assert done.code == 0, done.err
    assert np.array_equal(xr.load_dataset("again.nc")["posterior"], analysis["posterior"])


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("text", ["processes:1", "dask:local:1"])
def test_executors_by_their_names(text):
    if text.startswith("dask"):
        pytest.importorskip("distributed")
    with open_executor(text) as given:
        executor = given if isinstance(given, Executor) else given()
        assert executor.submit(abs, -3).result() == 3
        executor.shutdown()


@pytest.mark.parametrize(
    ("executor", "said"),
    [
        ("thread:8", "an executor is threads:8, processes:8, dask:ADDRESS, dask:local:4 or mpi; got 'thread:8'"),
        ("threads:0", "got 'threads:0'"),
        ("threads:local:2", "got 'threads:local:2'"),
        ("dask:", "got 'dask:'"),
    ],
)
def test_wrong_executors_are_named(bieqno, executor, said):
    done = bieqno("assimilate", "none.toml", "--observations", "obs.nc", "--filter", "f", "--executor", executor)
    assert (done.code, said in done.err) == (1, True), done.err


def test_wrong_models_are_named(bieqno, folder, tmp_path):
    text = (folder / "setup.toml").read_text()
    shutil.copy(folder / "my_model.py", tmp_path / "my_model.py")
    for new, said in (
        (
            'command = "./none {state_in} {state_out}"',
            "'command' in [model]: it fails on a state of 40 variables: FileNotFound",
        ),
        ('command = "./none {state_in}"', "a command names {state_in} and {state_out}"),
        ('command = "x"\nbmi = "y"', "names one of 'object', 'command' and 'bmi', got command and bmi"),
        ("", "names one of 'object', 'command' and 'bmi', got none"),
        ('bmi = "math:pi"', "'bmi' in [model] needs 'variables'"),
        ('bmi = "math:pi"\nvariables = ["z"]', "a BMI model needs its class"),
        ('command = "cp {state_in} {state_out}"\nexchange = "text"', "binary or netcdf, got exchange='text'"),
    ):
        (tmp_path / "setup.toml").write_text(re.sub(r"command = .*", lambda _, new=new: new, text))
        done = bieqno("simulate", tmp_path / "setup.toml", "--out", tmp_path / "obs.nc")
        assert (done.code, said in done.err) == (1, True), done.err
