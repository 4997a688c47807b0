"""Models outside JAX: what `cycle_outside` costs beside the model, what it survives, and what lost members cost.

python benchmarks/outside.py overhead    # a model of 50 ms per member, on threads and on Dask, beside the ideal
python benchmarks/outside.py dask        # what a member costs Dask: milliseconds of the processor
python benchmarks/outside.py kills       # `kill -9` of the driver at 20 random moments: resumed to the same bits
python benchmarks/outside.py workers     # a pool that loses 10 % of its workers in every window
python benchmarks/outside.py members     # 10 % of the members fail in every window: counts, and the error of the analysis
"""

import os
import random
import shutil
import signal
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np

SIZE, SECONDS = 40, 0.05
CLEAN = get_context("forkserver")  # workers start from a process without JAX, in milliseconds


def lorenz96(state, *, inputs, member, window, seed, folder):
    """Carry a state by 0.15, with a little noise."""
    z = np.array(state)
    tendency = lambda z: (np.roll(z, -1) - np.roll(z, 2)) * np.roll(z, 1) - z + 8.0  # noqa: E731
    for _ in range(3):
        a = tendency(z)
        b = tendency(z + 0.025 * a)
        c = tendency(z + 0.025 * b)
        z = z + 0.05 / 6 * (a + 2 * b + 2 * c + tendency(z + 0.05 * c))
    return z + 0.01 * np.random.default_rng(seed).normal(size=z.shape)


def sleeps(state, **given):
    """Take as long as a model of `SECONDS` per member, and no processor."""
    time.sleep(SECONDS)
    return state


def slowly(state, **given):
    """Run the model so that a run lasts for seconds."""
    time.sleep(0.01)
    return lorenz96(state, **given)


def kills_workers(state, *, member, window, folder, share, members, **given):
    """In a window one of `members`, with probability `share`, kills the process that it runs in; not when run again."""
    chance = np.random.default_rng([7, window])
    if chance.random() < share and member == chance.integers(members) and "again" not in folder.name:
        os.kill(os.getpid(), signal.SIGKILL)
    return lorenz96(state, member=member, window=window, folder=folder, **given)


def fails(state, *, member, window, share, trial, **given):
    """Fail with probability `share`, whatever the seed."""
    if failing(trial, window, member) < share:
        raise RuntimeError("lost")
    return lorenz96(state, member=member, window=window, **given)


def failing(trial, window, member):
    return np.random.default_rng([trial, window, member]).random()


def setting(run_one, executor, *, members, windows, trial=0, **about):
    """Return what `cycle_outside` takes: a tuned LETKF, Lorenz-96 with every second variable observed, and its truth."""
    import jax
    import jax.numpy as jnp

    from bieqno.assimilation import LETKF, Inflated, Members, Observation, Observations, Places, System

    system = System(
        Members(run_one, executor, **about),
        Observation(range(0, SIZE, 2), 1.0),
        jnp.full(SIZE, 8.0),
        Places.grid(SIZE, period=float(SIZE)),
    )
    rng = np.random.default_rng(trial)
    z, truth = 8.0 + rng.normal(size=SIZE), []
    for window in range(-100, windows):
        z = lorenz96(z, inputs=None, member=0, window=window, seed=[trial, 100 + window], folder=None)
        truth.append(z)
    truth = np.array(truth[100:])
    seen = Observations.of(jnp.asarray(truth[:, ::2] + rng.normal(size=(windows, SIZE // 2)), float))
    start = jnp.asarray(truth[0] + rng.normal(size=SIZE) + rng.normal(size=(members, SIZE)), float)
    filter = Inflated(LETKF(system.neighbours(8.0), 8.0), 1.05)
    return (filter, system, start, seen), {"key": jax.random.key(trial)}, truth


def run(run_one, executor, folder=None, **about):
    from bieqno.assimilation import cycle_outside

    arguments, how, truth = setting(run_one, executor, **about)
    with tempfile.TemporaryDirectory() as own:
        found = cycle_outside(*arguments, folder=folder or own, **how)
    return found, truth


@contextmanager
def dask(workers):
    from distributed import Client, LocalCluster

    about = {"n_workers": 2, "threads_per_worker": workers // 2, "dashboard_address": ":0"}
    with LocalCluster(**about) as cluster, Client(cluster, set_as_default=False) as client:
        yield client.get_executor(pure=False)


def overhead(windows=20):
    """Print seconds, the best of three: the model's own on so many workers, the executor's alone, and those of a run."""
    from bieqno.assimilation import cycle_outside

    for name, engine in (("threads", ThreadPoolExecutor), ("dask", dask)):
        for members, workers in ((20, 4), (20, 10), (20, 20)):
            model, alone, taken = [], [], []
            with engine(workers) as executor, tempfile.TemporaryDirectory() as folder:
                run(sleeps, executor, members=members, windows=3)  # compiles
                for again in range(3):
                    model.append(
                        seconds(lambda: [sleeps(None) for _ in range(20)]) / 20 * -(-members // workers) * windows
                    )
                    alone.append(seconds(partial(rounds, executor, members, windows)))
                    arguments, how, _ = setting(sleeps, executor, members=members, windows=windows)
                    taken.append(seconds(partial(cycle_outside, *arguments, folder=Path(folder, str(again)), **how)))
            ideal, plain, ours = min(model), min(alone), min(taken)
            told = f"{name} alone {plain:.2f} s ({plain / ideal - 1:+.0%}), with bieqno {ours:.2f} s ({ours / ideal - 1:+.0%})"
            print(f"N = {members}, {workers:2} workers: model {ideal:.2f} s, {told}", flush=True)


def rounds(executor, members, windows):
    """Run as many members, and do nothing else."""
    for _ in range(windows):
        wait([executor.submit(sleeps, np.zeros(SIZE)) for _ in range(members)])


def processor(windows=20, members=20):
    """Print the milliseconds of the processor that a member of no work costs Dask, submitted alone or in one graph."""
    import psutil
    from distributed import Client, LocalCluster

    cluster = LocalCluster(n_workers=2, threads_per_worker=10, dashboard_address=":0")
    with cluster, Client(cluster, set_as_default=False) as client:
        executor, state = client.get_executor(pure=False), np.zeros(SIZE)
        processes = [psutil.Process(), *map(psutil.Process, client.run(os.getpid).values())]
        ways = {
            "submitted alone": lambda: wait([executor.submit(sleeps, state) for _ in range(members)]),
            "in one graph": lambda: client.gather(client.map(sleeps, [state] * members, pure=False)),
        }
        for name, way in ways.items():
            way()
            before = [sum(process.cpu_times()[:2]) for process in processes]
            for _ in range(windows):
                way()
            taken = [sum(p.cpu_times()[:2]) - was for p, was in zip(processes, before, strict=True)]
            own, others = (1e3 * x / windows / members for x in (taken[0], sum(taken[1:])))
            print(f"{name}: client and scheduler {own:.1f} ms, workers {others:.1f} ms per member", flush=True)


def seconds(call):
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def drive(folder):
    (folder / "begun").touch()
    run(slowly, partial(ThreadPoolExecutor, 4), folder, members=8, windows=40)
    (folder / "ended").touch()


def kills(times=20):
    reference, _ = run(lorenz96, ThreadPoolExecutor, members=8, windows=40)
    context, rng = get_context("forkserver"), random.Random(0)
    context.set_forkserver_preload(["bieqno.assimilation"])
    kept = []
    for moment in range(times):
        folder, last = Path(tempfile.mkdtemp()), rng.randrange(39)
        process = context.Process(target=drive, args=(folder,))
        process.start()
        while not (folder / f"window_{last:06}.bieqno").exists() and process.is_alive():
            time.sleep(0.001)
        time.sleep(rng.uniform(0.0, 0.03))  # about as long as a window
        process.kill()
        process.join()
        kept.append(len(list(folder.glob("window_*.bieqno"))))
        again, _ = run(lorenz96, ThreadPoolExecutor, folder, members=8, windows=40)
        same = all(
            np.array_equal(a, b)
            for a, b in ((again.ensemble, reference.ensemble), (again.kept["mean"], reference.kept["mean"]))
        )
        print(
            f"kill {moment + 1}: {kept[-1]} of 40 windows were kept; the same bits after resuming: {same}", flush=True
        )
        shutil.rmtree(folder)
        assert same


def workers(count=4, members=20, windows=50):
    """A pool of `count` processes of which a tenth dies per window, on average."""
    reference, _ = run(lorenz96, ThreadPoolExecutor, members=members, windows=windows)
    pools = []

    def pool():
        pools.append(ProcessPoolExecutor(count, mp_context=CLEAN))
        return pools[-1]

    model = partial(kills_workers, share=0.1 * count, members=members)
    found, _ = run(model, pool, members=members, windows=windows)
    same = np.array_equal(found.ensemble, reference.ensemble)
    print(
        f"{len(pools) - 1} workers killed in {windows} windows: {int(found.lost.sum())} members lost, same bits: {same}"
    )
    assert same
    assert not found.lost.any()


def members(share=0.1, count=20, windows=50, trials=24):
    """A tenth of the members fails, with no second try: they are redrawn."""
    errors = []
    for trial in range(trials):
        about = {"members": count, "windows": windows, "trial": trial, "retries": 0, "survivors": 0.5}
        plain, truth = run(lorenz96, ThreadPoolExecutor, **about)
        found, _ = run(partial(fails, share=share, trial=trial), ThreadPoolExecutor, **about)
        expected = [sum(failing(trial, w, m) < share for m in range(count)) for w in range(windows)]
        assert found.lost.tolist() == expected, (found.lost.tolist(), expected)
        assert (int(plain.diverged), int(found.diverged)) == (-1, -1)
        errors.append([float(np.sqrt(np.mean((r.kept["mean"] - truth) ** 2, axis=1)).mean()) for r in (plain, found)])
        told = f"RMSE {errors[-1][0]:.4f} without, {errors[-1][1]:.4f} with"
        print(f"truth {trial}: {sum(expected)} of {count * windows} lost, {told}", flush=True)
    plain, with_losses = np.mean(errors, axis=0)
    ratio = np.array(errors)[:, 1] / np.array(errors)[:, 0]
    print(f"all {trials}: {plain:.4f} without losses, {with_losses:.4f} with: {with_losses / plain - 1:+.1%}")
    print(f"median ratio {np.median(ratio):.3f}, above 1 for {int((ratio > 1).sum())} truths")
    assert abs(with_losses / plain - 1) <= 0.05
    assert abs(np.median(ratio) - 1) <= 0.05


if __name__ == "__main__":
    for name in sys.argv[1:] or ("overhead", "dask", "kills", "workers", "members"):
        {"overhead": overhead, "dask": processor, "kills": kills, "workers": workers, "members": members}[name]()
