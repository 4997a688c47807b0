"""The library without the laboratory's packages: it is imported and used in a process in which they cannot be imported."""

import subprocess
import sys

BLOCKED = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"pandas", "matplotlib", "rich", "typer", "xarray", "h5netcdf", "h5py", "scoringrules",
                                  "statsmodels", "plotly"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocker())
"""

USE = """
import tempfile, pathlib
import jax, jax.numpy as jnp, numpy as np
import bieqno
from bieqno.assimilation import ETKF, Lorenz63, Observation, System, cycle, simulate, to_dataset

x = np.linspace(0, 1, 12)[:, None]
model = bieqno.PretrainedGGPRegressor(correction=False).fit(x, np.sin(6 * x[:, 0]))
assert np.isfinite(model.predict(x[:3], return_std=True)).all()

system = System(Lorenz63(), Observation([0, 2], 1.0), jnp.array([-8.5, -7.0, 27.0]))
twin = simulate(system, 3, key=jax.random.key(0))
start = system.state + jax.random.normal(jax.random.key(1), (4, 3))
run = cycle(ETKF(), system, start, twin.observations, key=jax.random.key(2))
assert run.kept["mean"].shape == (3, 3)

operator = bieqno.InvariantOperator(2, 1, width=4, key=jax.random.key(0))
with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder) / "operator.bieqno"
    bieqno.save(path, operator)
    assert (bieqno.load(path)(jnp.ones((3, 2))) == operator(jnp.ones((3, 2)))).all()

try:
    to_dataset(run, twin)
except ImportError as error:
    assert str(error).count('pip install "bieqno[netcdf]"') == 1, error
else:
    raise AssertionError("a dataset without xarray")
print("used")
"""


def run(code):
    return subprocess.run(
        [sys.executable, "-c", BLOCKED + code], capture_output=True, text=True, check=False, timeout=300
    )


def test_the_library_is_used_without_the_laboratory():
    done = run(USE)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["used"]


def test_the_command_without_the_laboratory_names_the_extra():
    done = run("sys.argv = ['bieqno', 'list']; from bieqno.cli import main; main()")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.strip().splitlines()[-1].count('pip install "bieqno[lab]"') == 1
    assert len(done.stderr.strip().splitlines()) == 1
