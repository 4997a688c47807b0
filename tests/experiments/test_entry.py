"""``python -m bieqno.experiments`` from end to end, in this process so that compiled programs are shared."""

import json

import jax
import pytest
from typer.testing import CliRunner

from bieqno.experiments.__main__ import app


@pytest.fixture
def call(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "cache"))
    before = jax.config.jax_compilation_cache_dir
    yield lambda *arguments: CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "runs")])
    jax.config.update("jax_compilation_cache_dir", before)


def test_smoke_run_stores_and_prints(call, tmp_path):
    done = call("step-1d", "--preset", "smoke")
    assert done.exit_code == 0, done.output
    assert "NLPD" in done.output
    folder = tmp_path / "runs" / "step-1d"
    names = {path.name for path in folder.iterdir()}
    for figure in ("bands-random", "covariance-random", "reliability"):
        assert {f"{figure}.png", f"{figure}.svg"} <= names
    assert {"random-30.nc", "random-100.nc"} <= names
    assert json.loads((folder / "metrics.json").read_text())["preset"] == "smoke"


@pytest.mark.parametrize(("arguments", "told"), [(("step-2d",), "step-1d"), (("step-1d", "--preset", "fast"), "smoke")])
def test_unknown_names_are_refused(call, tmp_path, arguments, told):
    done = call(*arguments)
    assert done.exit_code == 2
    assert told in done.output
    assert not (tmp_path / "runs").exists()
