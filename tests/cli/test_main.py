import subprocess
import sys
from pathlib import Path

import bieqno

COMMAND = Path(sys.executable).with_name("bieqno")


def run(*arguments, **environment):
    import os

    return subprocess.run(
        [COMMAND, *arguments], capture_output=True, text=True, check=False, env={**os.environ, **environment}
    )


def test_version():
    assert run("--version").stdout == f"bieqno {bieqno.__version__}\n"


def test_info(tmp_path):
    done = run("info", BIEQNO_CACHE=str(tmp_path / "cache"))
    rows = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert rows["bieqno"] == bieqno.__version__
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
    assert done.stdout == f"bieqno {bieqno.__version__}\n"


def test_every_command_has_an_example():
    for command in ("info", "list", "run", "report", "fit", "predict", "evaluate"):
        assert f"bieqno {command}" in run(command, "--help").stdout
    for command in ("init", "simulate", "train-filter", "assimilate", "compare"):
        assert f"bieqno {command}" in run(command, "--help").stdout
