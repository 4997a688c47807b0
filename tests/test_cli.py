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


def test_help_and_wrong_usage():
    assert "info" in run("--help").stdout
    wrong = run("inof")
    assert wrong.returncode == 2
    assert "inof" in wrong.stderr
