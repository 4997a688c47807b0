"""A run that is killed and started again ends with the very bits of one that was not."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
import pytest
from jax._src.compilation_cache import decompress_executable

from bieqno import MLP, PersistenceError, TrainingError, fit
from bieqno.training.checkpoint import fingerprint

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
    for stop_after in (2, 8, 13):  # lines, of which the first says that it begins
        with start(folder, target) as process:
            for _ in range(stop_after):
                assert process.stdout.readline()
            process.send_signal(signal.SIGKILL)
    with start(folder, target, "kill-in-write", 3) as process:
        assert process.wait() == -signal.SIGKILL
    assert list(folder.glob("*.partial")) or list(folder.glob(".*.partial"))
    with start(folder, target) as process:
        steps = [int(line) for line in process.stdout][1:]
    assert 200 < steps[0] < 600, "it went on, neither from the start nor from the end"
    assert steps[-1] == 600
    assert target.read_bytes() == uninterrupted
    assert [path.name for path in folder.iterdir()] == ["checkpoint.bieqno"]


def small_fit(folder, *, steps=20, key=KEY, width=4, rate=1e-3, scale=1.0, activation=jax.nn.relu, **settings):
    x = scale * jnp.linspace(-1, 1, 8)[:, None]
    return fit(
        MLP(1, 1, width=width, activation=activation, key=jax.random.key(5)),
        lambda mlp, batch, *, key: jnp.mean((jax.vmap(mlp)(batch) - batch) ** 2),
        lambda key: x + 0.1 * jax.random.normal(key, (8, 1)),
        steps=steps,
        chunk_steps=10,
        optimizer=optax.adam(rate),
        key=key,
        checkpoint=folder,
        **settings,
    )


def test_a_finished_run_returns_at_once_and_can_be_prolonged(tmp_path):
    first = small_fit(tmp_path)
    again = small_fit(tmp_path)
    assert (first.losses == again.losses).all()
    longer = small_fit(tmp_path, steps=45)
    assert (longer.losses[:20] == first.losses).all()
    assert len(longer.losses) == 45


@pytest.mark.parametrize(
    "change",
    [{"key": jax.random.key(1)}, {"width": 5}, {"rate": 1e-2}, {"scale": 2.0}, {"activation": jax.nn.tanh}],
    ids=["key", "shapes", "learning rate", "data", "activation"],
)
def test_the_checkpoint_of_another_run_is_refused(change, tmp_path):
    small_fit(tmp_path)
    with pytest.raises(ValueError, match="belongs to another run"):
        small_fit(tmp_path, **change)


class Objective(eqx.Module):
    power: int

    def __call__(self, mlp, batch, *, key):
        return jnp.mean((jax.vmap(mlp)(batch) - batch) ** self.power)


def test_changed_code_of_a_loss_is_seen(tmp_path):
    """Also in a function inside it, and in the method of an objective."""

    def run(folder, loss):
        fit(MLP(1, 1, width=4, key=KEY), loss, lambda key: jnp.ones((4, 1)), steps=1, key=KEY, checkpoint=folder)

    def first(mlp, x, *, key):
        return jnp.mean(jax.vmap(lambda row: mlp(row) ** 2)(x))

    def second(mlp, x, *, key):
        return jnp.mean(jax.vmap(lambda row: mlp(row) ** 4)(x))

    second.__name__, second.__qualname__ = first.__name__, first.__qualname__

    class Other(eqx.Module):
        power: int

        def __call__(self, mlp, batch, *, key):
            return 2 * jnp.mean((jax.vmap(mlp)(batch) - batch) ** self.power)

    Other.__name__ = "Objective"
    for name, old, new in [("function", first, second), ("objective", Objective(2), Other(2))]:
        run(tmp_path / name, old)
        run(tmp_path / name, old)
        with pytest.raises(ValueError, match=r"another run .*loss"):
            run(tmp_path / name, new)


def test_another_version_or_identity_is_another_run(tmp_path, monkeypatch):
    small_fit(tmp_path, identity="imitation 1")
    small_fit(tmp_path, identity="imitation 1")
    with pytest.raises(ValueError, match=r"another run \(other identity"):
        small_fit(tmp_path, identity="imitation 2")
    monkeypatch.setattr("bieqno.training.checkpoint.version", lambda name: "99.1")
    with pytest.raises(ValueError, match=r"written by bieqno \d.*, this is 99\.1"):
        small_fit(tmp_path, identity="imitation 1")


def test_a_checkpoint_beyond_the_steps_is_refused(tmp_path):
    small_fit(tmp_path)
    with pytest.raises(ValueError, match="at step 20, beyond the 10 asked for"):
        small_fit(tmp_path, steps=10)


def test_a_stopped_run_goes_on_with_more_patience(tmp_path):
    def validate(mlp):
        return mlp.layers[-1].bias[0] * 0

    first = small_fit(tmp_path, steps=200, validate=validate, patience=2)
    assert (len(first.losses), first.stopped_early) == (30, True)
    assert len(small_fit(tmp_path, steps=200, validate=validate, patience=5).losses) == 60


@pytest.mark.standard_promotion("the test is about numbers of weak type in half precision")
def test_numbers_of_weak_type_resume_to_the_same_bits(tmp_path):
    """A plain number as state, in a computation in half precision: its type must not change in the checkpoint."""
    module = jax.tree.map(lambda x: x.astype(jnp.bfloat16), MLP(1, 1, width=4, key=KEY))

    def loss(mlp, batch, *, key):
        x, state = batch
        return jnp.mean((jax.vmap(mlp)(x) * state) ** 2), state * 0.99

    def source(key, state):
        return jax.random.normal(key, (4, 1), jnp.bfloat16), state

    def run(steps, folder):
        return fit(module, loss, source, source_state=1.0, steps=steps, chunk_steps=5, key=KEY, checkpoint=folder)

    whole = run(10, None)
    run(5, tmp_path)
    assert eqx.tree_equal(run(10, tmp_path).module, whole.module)


def test_a_full_disk_loses_nothing(tmp_path, monkeypatch):
    def full(*_, **__):
        raise PersistenceError("No space left on device")

    monkeypatch.setattr("bieqno.training.checkpoint.write_tensors", full)
    with pytest.raises(TrainingError, match="No space left") as caught:
        small_fit(tmp_path)
    assert len(caught.value.result.losses) == 20


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
    assert calls == [20, 30, 40]
    assert (resumed.losses == run().losses).all()


def test_a_schedule_that_was_used_is_the_same_schedule():
    optimizer = optax.adam(optax.cosine_decay_schedule(1e-3, 20))
    before = fingerprint(optimizer)
    with jax.numpy_dtype_promotion("standard"):
        optimizer.update(jnp.ones(2), optimizer.init(jnp.ones(2)))
    assert fingerprint(optimizer) == before


def test_the_state_of_any_object_is_seen():
    class Model:
        def __init__(self, factor):
            self.factor = factor

        def __call__(self, state):
            return self.factor * state

    assert fingerprint(Model(1.0)) == fingerprint(Model(1.0)) != fingerprint(Model(0.5))
    assert fingerprint({1, 2}) == fingerprint({2, 1}) != fingerprint({1, 3})


def test_a_program_in_the_compilation_cache_has_few_object_files(tmp_path):
    """One for each kernel is too many: the loader overflowed its stack where there were 1,900 (docs/known_issues.md)."""
    code = """
import jax, jax.numpy as jnp
from bieqno import MLP, fit

def loss(mlp, batch, *, key):
    values = batch
    for k in range(100):  # each a kernel of its own
        values = jnp.sort(jnp.tanh(values + k), axis=0)
    return jnp.mean((jax.vmap(mlp)(batch) - values) ** 2)

mlp, source = MLP(1, 1, width=2, key=jax.random.key(5)), lambda key: jax.random.normal(key, (2, 1))
fit(mlp, loss, source, steps=1, key=jax.random.key(0))
"""
    settings = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path), "XLA_FLAGS": ""}
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, **settings})
    (program,) = tmp_path.glob("*run_chunk*-cache")
    assert 0 < decompress_executable(program.read_bytes()).count(b"\x7fELF") < 60
