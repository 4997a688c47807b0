"""Many threads in one process, each call with a limit of time: nothing hangs, and all get the same bits."""

import os
import subprocess
import sys
from pathlib import Path

from tables import Tally, run

SOURCE = """
import os, sys, threading
from concurrent.futures import ThreadPoolExecutor
if {one_core}: os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
import numpy as np, jax, jax.numpy as jnp
from bieqno import PretrainedGGPRegressor
from bieqno import assimilation as da
x = np.linspace(0, 1, 30)[:, None]
y = np.sin(6 * x[:, 0])
model = PretrainedGGPRegressor(correction=False).fit(x, y)
system = da.System(da.Lorenz63(), da.Observation([0, 2], 1.0), jnp.array([-8.5, -7.0, 27.0]))
trials = da.make_trials(system, 5, truths=3, members=6, key=jax.random.key(0))
one = jax.tree.map(lambda leaf: leaf[0], trials)
calls = dict(
    predict=lambda: model.predict(x), sample_y=lambda: model.sample_y(x[:5], 2),
    fit=lambda: PretrainedGGPRegressor(correction=False).fit(x, y).predict(x[:3]),
    cycle=lambda: np.asarray(da.cycle(da.ETKF(), system, one.ensembles, one.twins.observations, key=jax.random.key(1)).ensemble),
    run_trials=lambda: np.asarray(da.run_trials(da.ETKF(), system, trials, key=jax.random.key(1)).ensemble),
)
call = calls["{what}"]
expected = call()
if "{pool}" == "joblib":
    from joblib import Parallel, delayed
    found = Parallel(n_jobs=8, backend="threading")(delayed(call)() for _ in range({count}))
elif "{pool}" == "server":
    import http.server, socketserver, urllib.request
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200); self.end_headers(); self.wfile.write(np.ascontiguousarray(call()).tobytes())
        def log_message(self, *args): pass
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    ask = lambda _: urllib.request.urlopen(f"http://127.0.0.1:{{server.server_port}}").read()
    found = [np.frombuffer(b, expected.dtype).reshape(expected.shape) for b in ThreadPoolExecutor(8).map(ask, range({count}))]
else:
    found = list(ThreadPoolExecutor(8).map(lambda _: call(), range({count})))
sys.exit(0 if all(np.array_equal(one, expected) for one in found) else 3)
"""
POOLS = {"threads": "8 threads", "joblib": "8 threads of joblib", "server": "8 clients of a threaded web server"}
WHATS = ("predict", "sample_y", "cycle", "run_trials", "fit")


def campaign(count: int, seed: int) -> Tally:
    """Make `count` calls by 8 threads of each function, on all cores and on one."""
    tally = Tally()
    path = os.pathsep.join([str(Path(__file__).parents[1] / "src"), os.environ.get("PYTHONPATH", "")])
    for one_core in (False, True):
        for pool in POOLS:
            for what in WHATS if pool == "threads" else WHATS[:1]:
                calls = max(8, count // 20) if what == "fit" else count
                code = SOURCE.format(one_core=one_core, what=what, pool=pool, count=calls)
                label = f"{what}, {POOLS[pool]}, {'one core' if one_core else 'all cores'}"
                try:
                    done = subprocess.run(
                        [sys.executable, "-c", code], capture_output=True, text=True, timeout=900, check=False,
                        env={**os.environ, "PYTHONPATH": path},
                    )  # fmt: skip
                except subprocess.TimeoutExpired:
                    tally.add(label, "hang")
                    continue
                end = {0: f"{calls} calls, same bits", 3: "different bits"}.get(done.returncode, "uncontrolled")
                tally.add(label, end, done.stderr[-300:])
    return tally


if __name__ == "__main__":
    run("threads", campaign, count=200)
