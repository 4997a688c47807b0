"""The example of the documentation runs, and finds what it says."""

import runpy
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_model.py"


def test_own_model(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    found = runpy.run_path(str(EXAMPLE))
    # The printed uncertainty of the growth rate is 0.011; four times that.
    assert abs(float(found["mean"][-1, 2]) - 1.1) < 0.045
    assert "diverged: never" in capsys.readouterr().out
    assert (tmp_path / "own_model/run.nc").exists()
