"""A training run as its own process, to be killed: `python resumable_run.py FOLDER RESULT [kill-in-write N]`.

With `kill-in-write N` the process kills itself in the middle of writing its N-th checkpoint.
"""

import os
import signal
import sys

import jax
import jax.numpy as jnp

# From where they are: `bieqno` itself would bring scikit-learn, two seconds for each process.
from bieqno.operators import MLP
from bieqno.persistence import save
from bieqno.training import fit


def main():
    folder, target, *options = sys.argv[1:]
    if options:
        kill_in_write(int(options[1]))
    x = jnp.linspace(-1, 1, 64)[:, None]

    def source(key, state):
        rows = jax.random.randint(key, (16,), 0, 64)
        return x[rows] + state

    def loss(mlp, batch, *, key):
        noise = 0.01 * jax.random.normal(key, batch.shape)
        error = jax.vmap(mlp)(batch) - jnp.sin(3 * batch) - noise
        return jnp.mean(error**2), 0.1 * jax.lax.stop_gradient(jnp.mean(error))

    def validate(mlp):
        return jnp.mean((jax.vmap(mlp)(x) - jnp.sin(3 * x)) ** 2)

    result = fit(
        MLP(1, 1, width=16, key=jax.random.key(0)),
        loss,
        source,
        source_state=jnp.zeros(()),
        steps=600,
        chunk_steps=10,
        validate=validate,
        key=jax.random.key(1),
        checkpoint=folder,
        checkpoint_seconds=0,
        on_progress=lambda progress: print(progress.step, flush=True),
    )
    save(target, result.module)


def kill_in_write(count):
    left = [count]
    original = os.fsync

    def fsync(descriptor):
        left[0] -= 1
        if left[0] == 0:
            os.ftruncate(descriptor, os.fstat(descriptor).st_size // 2)
            os.kill(os.getpid(), signal.SIGKILL)
        original(descriptor)

    os.fsync = fsync


if __name__ == "__main__":
    main()
