"""Members outside JAX on real engines: each gives the bits of the plain run, whatever dies on the way."""

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bieqno.assimilation import (
    ETKF,
    Members,
    Observation,
    Observations,
    System,
    TooFewMembersError,
    cycle,
    cycle_outside,
    forecast,
    keep_ensembles,
    to_dataset,
)
from bieqno.assimilation.models.forecast import redrawn

HERE = Path(__file__).parent


@pytest.fixture(scope="module", autouse=True)
def _importable():
    """Workers import the models from this folder; those that are spawned take over the path."""
    sys.path.insert(0, str(HERE))
    yield
    sys.path.remove(str(HERE))


@pytest.fixture(scope="module")
def outside():
    import outside_driver

    return outside_driver


@pytest.fixture(scope="module")
def models():
    import outside_model

    return outside_model


class Plain(Executor):
    """One member after the other, in this thread."""

    def submit(self, function, /, *arguments, **named):
        future = Future()
        try:
            future.set_result(function(*arguments, **named))
        except Exception as error:
            future.set_exception(error)
        return future


@pytest.fixture(scope="module")
def plain(outside, models, tmp_path_factory):
    return outside.assimilate(models.run_one, Plain(), tmp_path_factory.mktemp("plain"))


def equal(one, other):
    return all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True))


def spawned():
    return ProcessPoolExecutor(2, mp_context=get_context("spawn"))


def test_threads_give_the_bits_of_the_plain_run(outside, models, plain, tmp_path):
    """Also where the members come back in another order: each waits for the next."""
    back, heard = {(window, member): threading.Event() for window in range(4) for member in range(4)}, []

    def backwards(state, *, member, window, **given):
        assert member == 3 or back[window, member + 1].wait(60)
        back[window, member].set()
        return models.run_one(state, member=member, window=window, **given)

    with ThreadPoolExecutor(4) as executor:
        run = outside.assimilate(backwards, executor, tmp_path, on_progress=heard.append)
    assert equal(run, plain)
    assert sorted(p.member for p in heard if p.window == 0) == [0, 1, 2, 3]
    assert (heard[-1].window, heard[-1].windows, heard[-1].done, heard[-1].members) == (3, 4, 4, 4)
    assert np.isfinite(run.kept["mean"]).all()
    assert not np.array_equal(run.kept["mean"][0], run.kept["mean"][1])
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"window_{k:06d}.bieqno" for k in range(4)]


def test_a_process_that_dies_is_replaced(outside, models, plain, tmp_path):
    assert equal(outside.assimilate(models.kills_its_worker_once, spawned, tmp_path), plain)
    assert (tmp_path / "killed").exists()
    given = spawned()
    with given, pytest.raises(RuntimeError, match="give Members a function that makes it"):
        outside.assimilate(models.kills_its_worker, given, tmp_path / "again")


def test_a_pool_that_loses_a_tenth_of_its_workers(outside, models, tmp_path):
    """Over 50 windows, N = 20: no member is lost, and the analyses are those of a pool that loses none."""
    pools, how = [], {"windows": 50, "members": 20}
    context = get_context("forkserver")  # of a process without JAX, in milliseconds
    context.set_forkserver_preload(["outside_model"])

    def pool():
        pools.append(ProcessPoolExecutor(2, mp_context=context))
        return pools[-1]

    run = outside.assimilate(models.kills_workers_at_random, pool, tmp_path / "lossy", **how)
    assert 5 <= len(pools) - 1 <= 15
    assert run.lost.tolist() == [0] * 50
    assert equal(run, outside.assimilate(models.run_one, Plain(), tmp_path / "sound", **how))


def test_who_kills_its_worker_is_lost_and_nobody_else(outside, models, tmp_path):
    """In both of its tries the others go down with it."""
    loky = pytest.importorskip("loky")
    run = outside.assimilate(
        models.kills_its_worker, lambda: loky.get_reusable_executor(2), tmp_path, windows=1, survivors=0.5
    )
    assert run.lost.tolist() == [1]


def test_loky_gives_the_bits_of_the_plain_run(outside, models, plain, tmp_path):
    loky = pytest.importorskip("loky")
    assert equal(
        outside.assimilate(models.kills_its_worker_once, lambda: loky.get_reusable_executor(2), tmp_path), plain
    )


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_dask_with_a_worker_killed_in_a_window(outside, models, plain, tmp_path):
    distributed = pytest.importorskip("distributed")
    about = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": ":0", "silence_logs": 50}
    with distributed.LocalCluster(**about) as cluster, distributed.Client(cluster) as client:
        killed = []

        def kill(progress):
            if (progress.window, progress.done) == (1, 1):
                killed.append(min(client.run(os.getpid).values()))
                os.kill(killed[0], signal.SIGKILL)

        run = outside.assimilate(models.slow, client.get_executor(), tmp_path, on_progress=kill)
    assert killed
    assert equal(run, plain)


def child(*words, **named):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.Popen([*map(str, words)], env=environment, **named)


def test_mpi_with_two_ranks(outside, plain, tmp_path):
    pytest.importorskip("mpi4py.futures")
    mpiexec = Path(sys.executable).with_name("mpiexec")
    if not mpiexec.exists():
        pytest.skip("mpich is not installed beside this Python")
    words = (mpiexec, "-n", "2", sys.executable, HERE / "outside_driver.py", tmp_path, "run_one", "mpi")
    assert child(*words).wait(timeout=240) == 0
    assert equal(outside.assimilate(never, Plain(), tmp_path), plain)


@pytest.mark.long
@pytest.mark.parametrize("what", ["kills", "workers", "members"])
def test_what_a_run_survives_at_length(what):
    """20 drivers killed at random moments; a pool that loses workers; members that fail for good: the script has the bars."""
    assert child(sys.executable, HERE.parents[1] / "benchmarks" / "outside.py", what).wait() == 0


def never(state, **given):
    raise AssertionError("this window was assimilated before")


def test_a_run_that_was_killed_continues_to_the_same_bits(outside, models, plain, tmp_path):
    """In the middle of window 2; `benchmarks/outside.py` kills it at random moments."""
    driver = child(sys.executable, HERE / "outside_driver.py", tmp_path, "hangs_in_window_2")
    end = time.monotonic() + 120
    there = [tmp_path / "window_000001.bieqno", tmp_path / "window_000002"]
    while not all(path.exists() for path in there) and driver.poll() is None and time.monotonic() < end:
        time.sleep(0.05)
    driver.kill()
    driver.wait()
    assert len(list(tmp_path.glob("window_*.bieqno"))) == 2
    (tmp_path / ".window_000002.bieqno.0000.partial").write_bytes(b"half of it")
    ran = set()

    def counted(state, *, window, **given):
        ran.add(window)
        return models.run_one(state, window=window, **given)

    assert equal(outside.assimilate(counted, Plain(), tmp_path), plain)
    assert ran == {2, 3}
    assert not list(tmp_path.glob(".*"))
    with pytest.raises(ValueError, match=r"window_000000.bieqno belongs to another run"):
        outside.assimilate(counted, Plain(), tmp_path, members=3)


def test_lost_members_are_redrawn_and_counted(outside, models, plain, tmp_path):
    run = outside.assimilate(models.fails, Plain(), tmp_path, members=20)
    assert run.lost.tolist() == [0, 3, 0, 0]
    assert run.diverged.item() == -1
    assert to_dataset(run)["lost"].values.tolist() == [0, 3, 0, 0]
    left = sorted(path.name for path in (tmp_path / "window_000001").iterdir())
    assert left == [f"member_0000{k}{again}" for k in range(3) for again in ("", "_again_1")]
    with pytest.raises(TooFewMembersError, match=r"3 of 4 members of window 1 were lost.*member 0: .*no such soil;"):
        outside.assimilate(models.fails, Plain(), tmp_path / "few")
    # What it has is kept, and with the model mended the run goes on.
    assert (tmp_path / "few" / "window_000000.bieqno").exists()
    assert equal(outside.assimilate(models.run_one, Plain(), tmp_path / "few"), plain)


def test_members_that_hang_are_given_up(outside, models, tmp_path):
    release = threading.Event()

    def hangs(state, *, member, **given):
        if member == 2:
            release.wait(60)
        return models.run_one(state, member=member, **given)

    with ThreadPoolExecutor(4) as executor:
        how = {"timeout": 0.3, "retries": 0, "survivors": 0.7, "windows": 1}
        run = outside.assimilate(hangs, executor, tmp_path, **how)
        release.set()
    assert run.lost.tolist() == [1]


def test_ctrl_c_cancels_what_has_not_begun(outside, models, tmp_path):
    begun = []

    def interrupted(state, *, member, **given):
        begun.append(member)
        time.sleep(0.05)
        return models.run_one(state, member=member, **given)

    def stop(progress):
        raise KeyboardInterrupt

    with ThreadPoolExecutor(1) as executor, pytest.raises(KeyboardInterrupt):
        outside.assimilate(interrupted, executor, tmp_path, members=20, on_progress=stop)
    assert len(begun) <= 2


def test_inputs_reach_the_members(outside, models, tmp_path):
    pushed = outside.assimilate(
        models.run_one, Plain(), tmp_path, windows=2, inputs={"push": jnp.array([0.0, 5.0])}, record=keep_ensembles
    )
    without = outside.assimilate(models.run_one, Plain(), tmp_path / "none", windows=2, record=keep_ensembles)
    moved = np.asarray(pushed.kept["prior"] - without.kept["prior"])
    assert np.allclose(moved[0], 0)
    assert np.allclose(moved[1], 5, atol=1e-4)


def test_wrong_arguments_are_refused_before_a_member_runs(models, tmp_path):
    with pytest.raises(ValueError, match=r"survivors=1\.5"):
        Members(models.run_one, Plain(), survivors=1.5)
    with pytest.raises(ValueError, match="retries=-1"):
        Members(models.run_one, Plain(), retries=-1)
    start, seen, how = (
        jnp.ones((3, 8)),
        Observations.of(jnp.ones((2, 1))),
        {"folder": tmp_path, "key": jax.random.key(0)},
    )
    system = System(Members(never, Plain()), Observation([0, 1, 2, 3], 1.0), jnp.ones(8))
    with pytest.raises(ValueError, match="4 values are observed, but the series has 1"):
        cycle_outside(ETKF(), system, start, seen, **how)
    with pytest.raises(TypeError, match="use cycle for a JAX model"):
        cycle_outside(ETKF(), System(jnp.sin, Observation([0], 1.0), jnp.ones(8)), start, seen, **how)


def test_a_member_has_the_seed_that_it_has_in_a_compiled_run(models, tmp_path):
    """A function of key, window and member: `cycle` and `cycle_outside` give one run."""
    system = System(Members(models.run_one, Plain()), Observation(range(8), 1.0), jnp.full(8, 8.0))
    start, seen = 8.0 + jax.random.normal(jax.random.key(0), (4, 8)), Observations.of(jnp.full((3, 8), 8.0))
    how = {"first_window": 5, "key": jax.random.key(1)}
    inside = cycle(ETKF(), system, start, seen, **how)
    outside = cycle_outside(ETKF(), system, start, seen, folder=tmp_path, **how)
    np.testing.assert_allclose(outside.kept["mean"], inside.kept["mean"], atol=1e-4)
    assert np.abs(np.diff(inside.kept["mean"], axis=0)).max() > 0.1


def test_new_observations_continue_a_complete_run(outside, models, tmp_path):
    """Those of the driver are other ones for another length, so the series is made here."""
    values, start, key = jax.random.normal(jax.random.key(0), (3, 8)), jnp.eye(3, 8), jax.random.key(1)
    system = System(Members(models.run_one, Plain()), Observation(range(8), 1.0), jnp.ones(8))
    short, whole, new = (
        cycle_outside(ETKF(), system, start, Observations.of(values[:k]), folder=tmp_path / name, key=key)
        for name, k in (("a", 2), ("a", 3), ("b", 3))
    )
    assert len(short.lost) == 2
    assert equal(whole, new)
    changed = Observations.of(values.at[1].add(1.0))
    with pytest.raises(ValueError, match=r"window_000001.bieqno belongs to another run"):
        cycle_outside(ETKF(), system, start, changed, folder=tmp_path / "a", key=key)
    empty = cycle_outside(ETKF(), system, start, Observations.of(values[:0]), folder=tmp_path / "c", key=key)
    assert (empty.lost.shape, empty.diverged.item()) == ((0,), -1)


def test_a_run_that_diverges_stands_still(outside, models, tmp_path):
    """As in `cycle`: what it kept is marked, and the model is not run any more."""
    ran = []

    def leaves(state, *, window, **given):
        ran.append(window)
        return state + 1e9 * (window == 1)

    run = outside.assimilate(leaves, Plain(), tmp_path)
    assert (run.diverged.item(), max(ran), len(run.kept["mean"])) == (1, 1, 4)
    assert to_dataset(run)["sound"].values.tolist() == [1, 0, 0, 0]


def test_failed_forecasts_of_a_compiled_run_are_redrawn():
    """A model that gives NaN where a member is largest: redrawn and counted; with too few survivors the run has diverged."""

    def model(z):
        return jnp.where(z > 2.0, jnp.nan, 0.9 * z)

    system = System(model, Observation([0], 1.0), jnp.zeros(1))
    start = jnp.linspace(-1.0, 2.1, 20)[:, None]
    seen = Observations.of(jnp.zeros((3, 1)))
    run = cycle(ETKF(), system, start, seen, survivors=0.8, key=jax.random.key(0))
    assert (run.lost.tolist(), run.diverged.item()) == ([1, 0, 0], -1)
    assert cycle(ETKF(), system, start, seen, key=jax.random.key(0)).diverged.item() == 0
    few = cycle(ETKF(), system, start + 1.0, seen, survivors=0.8, key=jax.random.key(0))
    assert (few.diverged.item(), few.lost.tolist()) == (0, [7, 0, 0])
    with pytest.raises(ValueError, match="survivors=0"):
        cycle(ETKF(), system, start, seen, survivors=0.0, key=jax.random.key(0))


def test_redrawn_members_have_the_moments_of_the_survivors():
    N, lost = 2000, 1000
    z = jax.random.normal(jax.random.key(0), (N, 2)) @ jnp.array([[1.0, 0.8], [0.0, 0.6]]) + 3.0
    mask = jnp.arange(N) < lost
    new = redrawn(jnp.where(mask[:, None], jnp.nan, z), mask, key=jax.random.key(1))
    assert np.array_equal(new[lost:], z[lost:])
    assert np.allclose(np.mean(new[:lost], axis=0), np.mean(z[lost:], axis=0), atol=0.1)
    assert np.allclose(np.cov(new[:lost].T), np.cov(z[lost:].T), atol=0.1)


def test_a_model_of_members_also_runs_inside_a_compiled_program(models):
    model = Members(models.run_one, Plain())
    start = jnp.full((3, 8), 8.0)
    again = [np.asarray(jax.jit(lambda k: forecast(model, start, key=k))(jax.random.key(5))) for _ in range(2)]
    assert np.array_equal(*again)
    assert len({row.tobytes() for row in again[0]}) == 3  # each has a seed of its own
