"""A run that is killed and started again ends with the very bits of one that was not."""

import signal
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from bieqno import MLP, PersistenceError, fit

SCRIPT = Path(__file__).with_name("resumable_run.py")
KEY = jax.random.key(0)


def start(folder, target, *options):
    return subprocess.Popen(
        [sys.executable, SCRIPT, folder, target, *map(str, options)], stdout=subprocess.PIPE, text=True
    )


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    with start(folder / "run", folder / "result") as process:
        assert process.wait() == 0
    return (folder / "result").read_bytes()


def test_killed_at_several_points(uninterrupted, tmp_path):
    """Kill -9 right after a chunk was reported, three times, then once while a checkpoint is half written."""
    folder, target = tmp_path / "run", tmp_path / "result"
    for stop_after in (1, 7, 12):
        with start(folder, target) as process:
            for _ in range(stop_after):
                assert process.stdout.readline()
            process.send_signal(signal.SIGKILL)
    with start(folder, target, "kill-in-write", 3) as process:
        assert process.wait() == -signal.SIGKILL
    assert list(folder.glob("*.partial")) or list(folder.glob(".*.partial"))
    with start(folder, target) as process:
        steps = [int(line) for line in process.stdout]
    assert 200 < steps[0] < 600, "it went on, neither from the start nor from the end"
    assert steps[-1] == 600
    assert target.read_bytes() == uninterrupted
    assert [path.name for path in folder.iterdir()] == ["checkpoint.bieqno"]


def small_fit(folder, *, steps=20, key=KEY, width=4):
    return fit(
        MLP(1, 1, width=width, key=jax.random.key(5)),
        lambda mlp, x, *, key: jnp.mean(jax.vmap(mlp)(x) ** 2),
        lambda key: jax.random.normal(key, (8, 1)),
        steps=steps,
        chunk_steps=10,
        key=key,
        checkpoint=folder,
    )


def test_a_finished_run_returns_at_once_and_can_be_prolonged(tmp_path):
    first = small_fit(tmp_path)
    again = small_fit(tmp_path)
    assert (first.losses == again.losses).all()
    longer = small_fit(tmp_path, steps=45)
    assert (longer.losses[:20] == first.losses).all()
    assert len(longer.losses) == 45


@pytest.mark.parametrize("change", [{"key": jax.random.key(1)}, {"width": 5}])
def test_the_checkpoint_of_another_run_is_refused(change, tmp_path):
    small_fit(tmp_path)
    with pytest.raises(ValueError, match="belongs to another run"):
        small_fit(tmp_path, **change)


def test_a_damaged_checkpoint_is_not_ignored(tmp_path):
    small_fit(tmp_path)
    content = bytearray((tmp_path / "checkpoint.bieqno").read_bytes())
    content[-1] ^= 1
    (tmp_path / "checkpoint.bieqno").write_bytes(content)
    with pytest.raises(PersistenceError, match="checksum"):
        small_fit(tmp_path)


def test_an_unusable_folder_is_said_at_once(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(PersistenceError, match="cannot use"):
        small_fit(tmp_path / "file" / "folder")


def test_an_interrupt_keeps_what_was_reached(tmp_path):
    calls = []

    def interrupt(progress):
        calls.append(progress.step)
        if progress.step == 20:
            raise KeyboardInterrupt

    def run(**settings):
        return fit(
            MLP(1, 1, width=4, key=KEY),
            lambda mlp, x, *, key: jnp.mean(jax.vmap(mlp)(x) ** 2),
            lambda key: jax.random.normal(key, (8, 1)),
            steps=40,
            chunk_steps=10,
            key=KEY,
            **settings,
        )

    with pytest.raises(KeyboardInterrupt):
        run(checkpoint=tmp_path, checkpoint_seconds=1e9, on_progress=interrupt)
    calls.clear()
    resumed = run(checkpoint=tmp_path, on_progress=lambda p: calls.append(p.step))
    assert calls == [30, 40]
    assert (resumed.losses == run().losses).all()
