"""Many threads in one process, each call with a limit of time: nothing hangs, and all get the same bits.

`threads.py one` does so on one core only, `threads.py all` on all.
"""

import functools
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from tables import Tally, run

SOURCE = """
import faulthandler, os, sys, threading
faulthandler.dump_traceback_later({patience}, exit=True)
from concurrent.futures import ThreadPoolExecutor
if {one_core}: os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
import numpy as np, jax, jax.numpy as jnp
from bieqno import PretrainedGGPRegressor
from bieqno import assimilation as da
x = np.linspace(0, 1, 30)[:, None]
y = np.sin(6 * x[:, 0])
if "{what}" in ("predict", "sample_y"):
    model = PretrainedGGPRegressor(correction=False).fit(x, y)
if "{what}" in ("cycle", "run_trials"):
    system = da.System(da.Lorenz63(), da.Observation([0, 2], 1.0), jnp.array([-8.5, -7.0, 27.0]))
    trials = da.make_trials(system, 5, truths=3, members=6, key=jax.random.key(0))
    one = jax.tree.map(lambda leaf: leaf[0], trials)
calls = dict(
    predict=lambda: model.predict(x), sample_y=lambda: model.sample_y(x[:5], 2),
    fit=lambda: PretrainedGGPRegressor(correction=False).fit(x, y).predict(x[:3]),
    cycle=lambda: np.asarray(da.cycle(da.ETKF(), system, one.ensembles, one.twins.observations, key=jax.random.key(1)).ensemble),
    run_trials=lambda: np.asarray(da.run_trials(da.ETKF(), system, trials, key=jax.random.key(1)).ensemble),
)
def call():
    found = calls["{what}"]()
    faulthandler.dump_traceback_later({patience}, exit=True)  # until the next call has ended
    return found
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
elif "{pool}" == "dask":
    import dask
    lazy = [dask.delayed(lambda k: call(), pure=False)(k) for k in range({count})]
    found = dask.compute(*lazy, scheduler="threads", num_workers=8)
else:
    found = list(ThreadPoolExecutor(8).map(lambda _: call(), range({count})))
faulthandler.cancel_dump_traceback_later()
wrong = {count} - sum(np.array_equal(one, expected) for one in found)
print(wrong)
sys.exit(3 if wrong else 0)
"""
POOLS = {
    "threads": "8 threads",
    "joblib": "8 threads of joblib",
    "server": "8 clients of a threaded web server",
    "dask": "8 threads of Dask",
}
THREADS = 8
PATIENCE = 600  # seconds without the end of any call after which the process hangs
WHATS = ("predict", "sample_y", "cycle", "run_trials", "fit")
CORES = {"all": False, "one": True}  # whether the process is restricted to one


def campaign(count: int, seed: int, cores: Sequence[bool] = tuple(CORES.values())) -> Tally:
    """Make `count` calls of each function by each of 8 threads, on all cores and on one."""
    cases = [
        (one_core, pool, what)
        for one_core in cores
        for pool in POOLS
        for what in (WHATS if pool == "threads" else WHATS[:1])
    ]
    tally = Tally(len(cases))
    path = os.pathsep.join([str(Path(__file__).parents[1] / "src"), os.environ.get("PYTHONPATH", "")])
    for one_core, pool, what in cases:
        calls = THREADS * count
        code = SOURCE.format(one_core=one_core, what=what, pool=pool, count=calls, patience=PATIENCE)
        label = f"{what}, {POOLS[pool]}, {'one core' if one_core else 'all cores'}"
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": path},
        )
        if done.returncode in {0, 3}:
            wrong = int(done.stdout.split()[-1])
            tally.add(label, "same bits", times=calls - wrong)
            if wrong:
                tally.add(label, "different bits", f"{wrong} of {calls} calls", times=wrong)
        elif "Timeout (" in done.stderr:  # of the fault handler
            tally.add(label, "hang", done.stderr[-300:])
        else:
            tally.add(label, "uncontrolled", done.stderr[-300:])
        tally.step()
    return tally


if __name__ == "__main__":
    word = sys.argv[1] if len(sys.argv) > 1 else ""
    chosen: Callable[[int, int], Tally] = campaign
    if word in CORES:
        chosen = functools.update_wrapper(functools.partial(campaign, cores=[CORES[word]]), campaign)
    run("threads", chosen, count=200, arguments=sys.argv[1 + (word in CORES) :])
