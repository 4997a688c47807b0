"""Programs that several threads call at once end.

jaxlib 0.10.0, 0.10.1 and 0.10.2 hang on two cores in any program with batched LAPACK that four threads call; 0.9.2 does not.
When the first test passes with a later release, the upper bound of `jax` in pyproject.toml may be raised. Each test is a
process of its own with a limit of time, for a thread that hangs cannot be ended.
"""

import os
import subprocess
import sys

import pytest

CHOLESKY = """
import threading
import jax, jax.numpy as jnp

@jax.jit
def factor(a):
    return jnp.linalg.cholesky(a @ a.swapaxes(1, 2) + 32 * jnp.eye(32))

matrices = jax.random.normal(jax.random.key(0), (3200, 32, 32))
factor(matrices).block_until_ready()
threads = [threading.Thread(target=lambda: [factor(matrices).block_until_ready() for _ in range(5)]) for _ in range(4)]
"""

MODEL = """
import threading
import numpy as np
from bieqno import PretrainedGGPRegressor

x = np.linspace(0, 1, 40)[:, None]
y = np.sin(6 * x[:, 0])
"""

PREDICT = """
model = PretrainedGGPRegressor().fit(x, y)
expected = model.predict(x)
equal = []
def predict():
    equal.append(all(np.array_equal(model.predict(x), expected) for _ in range(3)))
threads = [threading.Thread(target=predict) for _ in range(4)]
"""

FIT = """
expected = PretrainedGGPRegressor().fit(x, y).predict(x[:5])
equal = []
def fit():
    equal.append(np.array_equal(PretrainedGGPRegressor().fit(x, y).predict(x[:5]), expected))
threads = [threading.Thread(target=fit) for _ in range(2)]
"""

RUN = """
for thread in threads: thread.start()
for thread in threads: thread.join()
"""

JOBLIB = """
from joblib import Parallel, delayed
Parallel(n_jobs=4, backend="threading")(delayed(model.predict)(x) for _ in range(8))
"""


@pytest.mark.parametrize(
    ("code", "seconds"),
    [
        (CHOLESKY + RUN, 120),
        (MODEL + PREDICT + RUN + "assert equal == [True] * 4" + JOBLIB, 300),
        (MODEL + FIT + RUN + "assert equal == [True] * 2", 300),
    ],
    ids=["four threads, batched Cholesky", "four threads predict, also joblib's", "two threads fit"],
)
def test_threads_end(code, seconds):
    users = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    call = [sys.executable, "-c", code]
    done = subprocess.run(call, capture_output=True, text=True, timeout=seconds, check=False, env=users)
    assert done.returncode == 0, done.stderr


FORKED = """
import multiprocessing
import jax
import numpy as np
from bieqno import PretrainedGGPRegressor, assimilation as da

x = np.linspace(0, 1, 30)[:, None]
y = np.sin(6 * x[:, 0])
prior = np.asarray(jax.random.normal(jax.random.key(0), (8, 40)))
observed = da.Observation(range(0, 40, 2), 1.0).window(np.zeros(20))
calls = (
    lambda: PretrainedGGPRegressor(correction=False).fit(x, y),
    lambda: da.ETKF()(prior, observed, key=jax.random.key(1)),
)

def refused(call):
    try:
        call()
    except RuntimeError as error:
        raise SystemExit(3 if "forked" in str(error) else 4)

for call in calls:
    child = multiprocessing.get_context("fork").Process(target=refused, args=(call,))
    child.start()
    child.join(60)
    assert child.exitcode == 3, child.exitcode
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")
def test_a_process_that_is_forked_after_use_says_so_and_does_not_hang(tmp_path):
    """Fits and analyses waited without end for threads that a fork does not have."""
    script = tmp_path / "forked.py"
    script.write_text(FORKED)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


SPAWNED = """
import multiprocessing
import numpy as np
from bieqno import PretrainedGGPRegressor

def predict(model):
    return model.predict(np.array([[0.3]])).tolist()

if __name__ == "__main__":
    x = np.linspace(0, 1, 30)[:, None]
    model = PretrainedGGPRegressor(correction=False).fit(x, np.sin(6 * x[:, 0]))
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        assert pool.map(predict, [model] * 2) == [predict(model)] * 2
"""


@pytest.mark.long
def test_processes_that_are_spawned_after_use_end_with_the_same_bits(tmp_path):
    script = tmp_path / "spawned.py"
    script.write_text(SPAWNED)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
