"""Models that workers import by themselves, without JAX: Lorenz-96 in NumPy with noise by its seed, and members that fail."""

import os
import signal
import time

import numpy as np


def run_one(state, *, inputs, member, window, seed, folder):
    z = np.array(state)
    for _ in range(2):
        half = z + 0.025 * tendency(z)
        z = z + 0.05 * tendency(half)
    drive = 0.0 if inputs is None else inputs["push"]
    return z + drive + 0.1 * np.random.default_rng(seed).normal(size=z.shape)


def tendency(z):
    return (np.roll(z, -1) - np.roll(z, 2)) * np.roll(z, 1) - z + 8.0


def slow(state, **given):
    time.sleep(0.1)
    return run_one(state, **given)


def hangs_in_window_2(state, *, member, window, folder, **given):
    if (member, window) == (3, 2):
        folder.mkdir(parents=True)
        time.sleep(600)
    return run_one(state, member=member, window=window, folder=folder, **given)


def kills_its_worker_once(state, *, member, window, folder, **given):
    """The second member of window 1 kills the process that runs it, the first time."""
    marker = folder.parents[1] / "killed"
    if (member, window) == (1, 1) and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return run_one(state, member=member, window=window, folder=folder, **given)


def kills_workers_at_random(state, *, member, window, folder, **given):
    """In one of five windows one of 20 members kills the process that runs it: a tenth of two workers per window."""
    chance = np.random.default_rng([7, window])
    if chance.random() < 0.2 and member == chance.integers(20) and "again" not in folder.name:
        os.kill(os.getpid(), signal.SIGKILL)
    return run_one(state, member=member, window=window, folder=folder, **given)


def kills_its_worker(state, *, member, **given):
    if member == 1:
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGKILL)
    return run_one(state, member=member, **given)


def fails(state, *, member, window, folder, **given):
    """In window 1 member 0 raises, member 1 is not finite and member 2 has another shape."""
    folder.mkdir(parents=True)
    if window == 1 and member == 0:
        raise RuntimeError("no such soil\nin a long text")
    after = run_one(state, member=member, window=window, folder=folder, **given)
    if window == 1 and member == 1:
        after[0] = np.nan
    return after[:-1] if window == 1 and member == 2 else after
