"""How long a new user waits: fit and predict in new processes, with an empty and with a filled compilation cache, and after that.

``python benchmarks/first_call.py``. Seconds of the clock and of the processor: on a busy machine only the latter mean something.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile

CODE = """
import json, time
import numpy as np
started = time.perf_counter(), time.process_time()
from bieqno import PretrainedGGPRegressor
def lap():
    global started
    before, started = started, (time.perf_counter(), time.process_time())
    return [after - start for after, start in zip(started, before)]
found = {"import": lap()}
rng = np.random.default_rng(0)
for count in SIZES:
    X = rng.uniform(size=(count, INPUTS))
    y = np.sin(6 * X[:, 0]) + 0.1 * rng.normal(size=count)
    lap()
    PretrainedGGPRegressor().fit(X, y).predict(X, return_std=True)
    found[("first, " if len(found) == 1 else "again, ") + f"{count} rows"] = lap()
print(json.dumps(found))
"""


def measure(inputs: int, sizes: list[int], cache: str) -> dict[str, list[float]]:
    environment = {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}
    code = CODE.replace("SIZES", str(sizes)).replace("INPUTS", str(inputs))
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, env=environment | {"BIEQNO_CACHE": cache}, check=True, stdout=subprocess.PIPE, text=True
    )
    return json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=2)
    asked = parser.parse_args()
    sizes = [500, 30, 57, 100, 250, 500]
    with tempfile.TemporaryDirectory() as cache:
        for name in ("cold", "warm"):
            for part, (wall, processor) in measure(asked.inputs, sizes, cache).items():
                print(f"{name}  {part:<18}{wall:8.2f} s  {processor:8.2f} s of the processor")


if __name__ == "__main__":
    main()
