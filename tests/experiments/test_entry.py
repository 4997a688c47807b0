"""``python -m bieqno.experiments`` from end to end."""

import json
import os
import subprocess
import sys


def call(*arguments):
    environment = {**os.environ, "COLUMNS": "100"}
    return subprocess.run(
        [sys.executable, "-m", "bieqno.experiments", *arguments], capture_output=True, text=True, env=environment
    )


def test_smoke_run_stores_and_prints(tmp_path):
    done = call("step-1d", "--preset", "smoke", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "NLPD" in done.stdout
    names = {path.name for path in (tmp_path / "step-1d").iterdir()}
    for figure in ("bands-random", "covariance-random", "reliability"):
        assert {f"{figure}.png", f"{figure}.svg"} <= names
    assert {"random-30.nc", "random-100.nc"} <= names
    assert json.loads((tmp_path / "step-1d" / "metrics.json").read_text())["preset"] == "smoke"


def test_unknown_names_are_refused(tmp_path):
    for arguments, told in ((("step-2d",), "step-1d"), (("step-1d", "--preset", "fast"), "smoke")):
        done = call(*arguments, "--out", str(tmp_path))
        assert done.returncode == 2
        assert told in done.stderr
    assert not list(tmp_path.iterdir())
