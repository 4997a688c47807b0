"""One of some JAX processes: a run on a mesh of all, and a training; see test_mesh.py."""

import sys
from pathlib import Path

import jax
import numpy as np

from bieqno import distributed


def main(address, processes, process, folder, steps):
    assert distributed.start(address, processes, process) == processes
    assert distributed.start() == processes
    from test_mesh import ring, run_of, train_on

    mesh = distributed.mesh()
    assert len(mesh.devices) == processes
    assert len(jax.local_devices()) == 1
    run = run_of(ring(), mesh)
    assert len(run.ensemble.addressable_shards) == 1
    own = run.ensemble.addressable_data(0).shape[1]
    assert own == ring().size // processes
    module = train_on(mesh, Path(folder) / "training", steps)
    kept = distributed.local((run.ensemble, run.kept["mean"], module.layers[0].weight))
    np.savez(Path(folder) / f"process_{process}.npz", *map(np.asarray, kept))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], int(sys.argv[5]))
