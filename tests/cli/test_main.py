import subprocess
import sys
from pathlib import Path

import pytest

import bieqno as package
from bieqno.cli.output import _terminal_bar, alone, write_page

COMMAND = Path(sys.executable).with_name("bieqno")


def run(*arguments, **environment):
    import os

    return subprocess.run(
        [COMMAND, *arguments], capture_output=True, text=True, check=False, env={**os.environ, **environment}
    )


def test_version():
    assert run("--version").stdout == f"bieqno {package.__version__}\n"


def test_info(tmp_path):
    done = run("info", BIEQNO_CACHE=str(tmp_path / "cache"))
    rows = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert rows["bieqno"] == package.__version__
    assert rows["dtype"] == "float32"
    assert "cpu" in rows["devices"].lower()
    assert rows["cache"] == str(tmp_path / "cache")


def test_a_missing_file_is_named_and_nothing_else(tmp_path):
    done = run("predict", str(tmp_path / "none.bieqno"), str(tmp_path / "none.csv"), "--out", str(tmp_path / "x.csv"))
    assert done.returncode == 1
    assert "none" in done.stderr
    assert "No such file or directory" in done.stderr
    assert "Errno" not in done.stderr


AT_ONCE = """
import sys
from bieqno.cli import main
for arguments in (["--version"], ["--help"], ["inof"], ["run"], ["run", "--help"], ["evaluate", "--help"], ["fit", "t.csv"],
                  ["predict"], ["train-filter", "--help"], ["assimilate", "setup.toml"], ["compare", "--outt", "x"],
                  ["fit", "t.csv", "--target", "y", "--steps", "9"], ["predict", "m", "t.csv", "--quantiles", "2"]):
    sys.argv = ["bieqno", *arguments]
    try:
        main()
    except SystemExit as ended:
        print(ended.code)
for heavy in ("numpy", "jax", "sklearn", "pandas", "matplotlib", "xarray"):
    assert heavy not in sys.modules, heavy
"""


def test_help_and_wrong_usage_import_nothing_that_takes_long():
    done = subprocess.run([sys.executable, "-c", AT_ONCE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    codes = [line for line in done.stdout.splitlines() if line in {"0", "2"}]
    assert codes == ["0", "0", "2", "2", "0", "0", "2", "2", "0", "2", "2", "2", "2"]


def test_names_come_when_they_are_asked_for():
    # A module that imports another one from the package comes first: no circle may be closed.
    script = "import bieqno.cli.output; bieqno.save; from bieqno import *; MLP; assert 'MLP' in dir(bieqno); bieqno.x"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stderr.strip().splitlines()[-1] == "AttributeError: module 'bieqno' has no attribute 'x'"


def test_help_and_wrong_usage():
    assert "info" in run("--help").stdout
    wrong = run("inof")
    assert wrong.returncode == 2
    assert "inof" in wrong.stderr


def test_without_the_extra_lab_one_line_says_what_to_install():
    script = "import sys; sys.modules['typer'] = None; from bieqno.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert 'pip install "bieqno[lab]"' in done.stderr
    assert done.stdout == ""


def test_python_m():
    done = subprocess.run(
        [sys.executable, "-m", "bieqno.cli", "--version"], capture_output=True, text=True, check=False
    )
    assert done.stdout == f"bieqno {package.__version__}\n"


def test_every_command_has_an_example():
    for command in ("info", "list", "run", "report", "fit", "predict", "evaluate"):
        assert f"bieqno {command}" in run(command, "--help").stdout
    for command in ("init", "simulate", "train-filter", "assimilate", "compare"):
        assert f"bieqno {command}" in run(command, "--help").stdout


def test_a_bug_says_how_to_report_it_and_what_files_cause_is_one_line(bieqno, monkeypatch, tmp_path):
    nested = tmp_path / "setup.toml"
    nested.write_text("a = " + "[" * 5000)
    done = bieqno("simulate", nested, "--out", tmp_path / "obs.nc")
    assert done.code == 1
    assert done.err.count("\n") == 2
    assert "Traceback" not in done.err
    monkeypatch.setattr("bieqno.lab.system_files.reading.read_system_file", lambda path: {}["a key that is not there"])
    done = bieqno("simulate", nested, "--out", tmp_path / "obs.nc")
    assert done.code == 70
    assert "Traceback" in done.err
    assert "Please report" in done.err


def test_a_folder_is_written_by_one_process_at_a_time(tmp_path):
    with alone(tmp_path), pytest.raises(ValueError, match="another bieqno is writing"), alone(tmp_path):
        pass
    with alone(tmp_path):
        assert not list(tmp_path.iterdir())


def test_a_folder_that_its_last_owner_removed_is_no_lock(tmp_path, monkeypatch):
    """Between our opening and our lock it was removed and made anew: both processes would have held a lock."""
    import fcntl

    lock = fcntl.flock

    def late(opened, how):
        (tmp_path / "kept").rmdir()
        (tmp_path / "kept").mkdir()
        lock(opened, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with pytest.raises(ValueError, match="another bieqno is writing"), alone(tmp_path / "kept"):
        pass


def test_a_cache_that_cannot_be_written_is_one_warning(tmp_path):
    (tmp_path / "file").touch()
    done = run("info", BIEQNO_CACHE=str(tmp_path / "file" / "cache"))
    assert done.returncode == 0
    assert done.stderr.count("warning:") == 1
    assert "compiled programs cannot be kept" in done.stderr
    assert "cache        off" in done.stdout


def test_a_page_that_cannot_be_written_leaves_the_numbers_as_they_were(tmp_path):
    (tmp_path / "page.html").mkdir()
    for before in (None, b"old"):
        if before is not None:
            (tmp_path / "page.json").write_bytes(before)
        with pytest.raises(package.PersistenceError):
            write_page(tmp_path / "page.html", "page", {"rmse": 1.0})
        assert (tmp_path / "page.json").exists() == (before is not None)
    assert (tmp_path / "page.json").read_bytes() == b"old"


INTERRUPTED = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # which jobs in the background of a shell ignore
sys.path.insert(0, sys.argv[1])
from bieqno.cli import interrupt_quietly
interrupt_quietly()
try:
    os.kill(os.getpid(), signal.SIGINT)
except KeyboardInterrupt:
    print("raised", flush=True)
import interrupted_module
"""


def test_ctrl_c_while_modules_are_imported_is_no_traceback(tmp_path):
    """It was one, and an abort in modules of C++; afterwards it is raised, so that a command says what it has saved."""
    (tmp_path / "interrupted_module.py").write_text(
        "import os, signal\ntry:\n    os.kill(os.getpid(), signal.SIGINT)\nexcept KeyboardInterrupt:\n    pass\n"
    )
    code = [sys.executable, "-c", INTERRUPTED, str(tmp_path)]
    done = subprocess.run(code, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "raised\n", "")


def test_parts_that_take_minutes_have_a_remaining_time():
    clock, bar = [0.0], _terminal_bar()
    bar.get_time = lambda: clock[0]
    task = bar.add_task("compare", total=20)
    for done in (1, 2, 3, 4):
        clock[0] += 60
        bar.update(task, completed=done)
    assert bar.tasks[0].time_remaining == 16 * 60


IN_THE_COURSE = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # which jobs in the background of a shell ignore
sys.path.insert(0, sys.argv[1])
import bieqno.cli
bieqno.cli.LONGEST_IMPORT = 2.0
bieqno.cli.interrupt_quietly(begun=True)
try:
    import interrupted_module
    time.sleep(60)
except KeyboardInterrupt:
    print("told", flush=True)
"""


@pytest.mark.parametrize(("seconds", "printed", "code"), [(0.3, "imported\ntold\n", 0), (60, "", 130)])
def test_ctrl_c_in_an_import_of_a_running_command_waits_for_its_end(tmp_path, seconds, printed, code):
    """It ended the process at once: with the cursor hidden by a bar, and no word on how to go on."""
    (tmp_path / "interrupted_module.py").write_text(
        "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\nend = time.monotonic() + "
        f"{seconds}\nwhile time.monotonic() < end:\n    time.sleep(0.01)\nprint('imported', flush=True)\n"
    )
    call = [sys.executable, "-c", IN_THE_COURSE, str(tmp_path)]
    # Half of the sleep that follows the import: the command is woken from it.
    done = subprocess.run(call, capture_output=True, text=True, check=False, timeout=30)
    assert (done.returncode, done.stdout, done.stderr) == (code, printed, "")
