"""A state that is spread over the devices of a mesh gives the result of one device; conftest forces four devices."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bieqno import MLP, distributed, fit
from bieqno.assimilation import (
    ETKF,
    LETKF,
    Inflated,
    LocalEnNF,
    Lorenz96,
    NoisyModel,
    Observation,
    Observations,
    Places,
    System,
    cycle,
    cycle_chunks,
    forecast,
    load_dataset,
    make_trials,
    read_chunks,
    run_trials,
    write_chunks,
)
from bieqno.assimilation.dataset import netcdf
from bieqno.assimilation.division import Divided, divide
from bieqno.assimilation.models.forecast import AbstractEnsembleModel

KEY = jax.random.key(0)


def ring(size=24):
    places = Places.grid(size, period=float(size))
    return System(
        Lorenz96(size, window=0.05, step=0.05),
        Observation(range(0, size, 4), 1.0),
        jnp.full(size, 8.0),
        places,
        spread=1.0,
    )


def shaken(filter):
    """A LocalEnNF whose networks and operator all do something, as after training."""

    def shake(x):
        return x + 0.1 * jax.random.normal(jax.random.key(x.size), x.shape) if eqx.is_inexact_array(x) else x

    parts = lambda f: (f.steering, f.correction, f.operator)  # noqa: E731
    return eqx.tree_at(parts, filter, replace_fn=lambda part: jax.tree.map(shake, part))


def grid():
    """A plane of 8 by 4 places; two values are observed of one of them, and one is missing."""
    observation = Observation([0, 3, 3, 9, 14, 20, 27, 31], jnp.linspace(0.5, 1.5, 8))
    return System(lambda z: z, observation, jnp.ones(32), Places.grid(8, 4, period=(8.0, np.inf)), spread=1.0)


def scattered():
    """Sixteen places anywhere in a square, of which averages are observed."""
    places = Places(np.random.default_rng(0).uniform(0, 4, (16, 2)))
    matrix = np.zeros((6, 16))
    for row in range(6):
        matrix[row, [row, 15 - row]] = 0.5
    return System(
        lambda z: z, Observation(matrix, 0.7), jnp.ones(16), places, observation_places=places.at(range(6)), spread=1.0
    )


@pytest.mark.parametrize(
    ("where", "kind"),
    [
        (grid, LETKF),
        pytest.param(scattered, LETKF, marks=pytest.mark.long),
        pytest.param(grid, LocalEnNF, marks=pytest.mark.long),
        (scattered, LocalEnNF),
    ],
)
def test_parts_give_the_analysis_of_the_whole(where, kind):
    system = where()
    if kind is LETKF:
        filter = Inflated(LETKF(system.neighbours(1.5), 1.5), 1.1)
    else:
        around = system.neighbourhoods(1.5, 1.0)
        units = LocalEnNF.new(around, _unit(), jnp.array([20.0]), width=4, channels=2, key=KEY)
        filter = shaken(units)
    prior = jax.random.normal(KEY, (4, system.size))
    value = jnp.ones(system.observed).at[-2].set(jnp.nan)
    parts = divide(filter, system.observation, system.size, distributed.mesh(), largest=3)
    assert isinstance(parts, Divided)

    @eqx.filter_jit
    def analysed(filter, value):
        return filter(prior, system.observation.window(value), key=KEY)

    whole = analysed(filter, value)
    assert np.abs(whole - prior).max() > 0.1
    np.testing.assert_allclose(analysed(parts, value), whole, atol=1e-5)
    # One value, far from most parts: those are inflated all the same.
    single = jnp.where(jnp.arange(system.observed) == 0, value, jnp.nan)
    np.testing.assert_allclose(analysed(parts, single), analysed(filter, single), atol=1e-5)
    nothing = jnp.full(system.observed, jnp.nan)
    assert (analysed(parts, nothing) == prior).all()


def _unit():
    from bieqno.operators import Standardiser

    return Standardiser(jnp.zeros(1), jnp.ones(1))


def run_of(system, mesh=None):
    """A short run of an inflated LETKF."""
    filter = Inflated(LETKF(system.neighbours(5.0), 5.0), 1.05)
    series = Observations.of(8.0 + jax.random.normal(KEY, (3, system.observed)))
    return cycle(filter, system, 8.0 + jax.random.normal(KEY, (4, system.size)), series, mesh=mesh, key=KEY)


def train_on(mesh, folder=None, steps=6):
    """A short training of a network."""

    def draw(key):
        x = jax.random.uniform(key, (8, 1))
        return x, x**2

    def loss(mlp, batch, *, key):
        return jnp.mean((jax.vmap(mlp)(batch[0]) - batch[1]) ** 2)

    how = {"chunk_steps": 2, "mesh": mesh, "checkpoint": folder, "checkpoint_seconds": 0.0}
    held_out = draw(jax.random.key(1))
    validate = lambda mlp: loss(mlp, held_out, key=None)  # noqa: E731
    return fit(MLP(1, 1, width=4, key=KEY), loss, draw, steps=steps, validate=validate, key=KEY, **how).module


@pytest.mark.parametrize("resumed", [False, pytest.param(True, marks=pytest.mark.long)])
def test_two_processes_give_the_result_of_one(tmp_path, resumed):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    environment = {**os.environ, "XLA_FLAGS": "", "PYTHONPATH": os.pathsep.join(sys.path)}
    program = [sys.executable, Path(__file__).with_name("mesh_process.py"), address]

    def trained_by(processes, steps):
        own = [[*program, str(processes), str(k), tmp_path, str(steps)] for k in range(processes)]
        started = [subprocess.Popen(words, env=environment, cwd=tmp_path) for words in own]
        try:
            assert [process.wait(timeout=240) for process in started] == [0] * processes
        finally:
            for process in started:
                process.kill()
        run, module = run_of(ring()), train_on(None, steps=steps)
        expected = (run.ensemble, run.kept["mean"], module.layers[0].weight)
        for process in range(processes):
            found = np.load(tmp_path / f"process_{process}.npz")
            for name, value in zip(found.files, expected, strict=True):
                np.testing.assert_allclose(found[name], value, atol=1e-5)
        assert [path.name for path in (tmp_path / "training").iterdir()] == ["checkpoint.bieqno"]

    trained_by(2, steps=6)
    if resumed:
        trained_by(1, steps=8)  # goes on from the checkpoint of both


@pytest.mark.long
def test_the_page_on_clusters_as_a_job_of_slurm(tmp_path):
    """Its script as it is, but for the number of variables, by two processes that Slurm would have started so."""
    page = (Path(__file__).parents[2] / "docs" / "cluster.md").read_text()
    script = re.search(r"`field.py`:\n\n```py\n(.*?)```", page, re.DOTALL)[1]
    assert "n = 10**6\n" in script
    (tmp_path / "field.py").write_text(script.replace("n = 10**6\n", "n = 24\n"))
    values = 8.0 + np.random.default_rng(0).normal(size=(3, 6))
    with netcdf().File(tmp_path / "obs.nc", "w") as file:
        file.dimensions = {"time": 3, "observation": 6}
        file.create_variable("observed", ("time", "observation"), float, data=values)
    job = {"SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_NODELIST": "localhost", "SLURM_NTASKS": "2"}
    environment = {**os.environ, **job, "XLA_FLAGS": "", "PYTHONPATH": os.pathsep.join(sys.path)}
    own = [{**environment, "SLURM_PROCID": k, "SLURM_LOCALID": k} for k in "01"]
    program = [sys.executable, "field.py"]
    started = [subprocess.Popen(program, env=environment, cwd=tmp_path) for environment in own]
    try:
        assert [process.wait(timeout=240) for process in started] == [0, 0]
    finally:
        for process in started:
            process.kill()
    scope = {}
    alone = script.replace("n = 10**6\n", "n = 24\n").replace("mesh=distributed.mesh(), ", "").split("runs =")[0]
    exec(compile(alone, "field.py", "exec"), scope)
    expected = cycle(scope["filter"], scope["system"], scope["start"], Observations.of(values), key=jax.random.key(1))
    found = load_dataset(tmp_path / "analysis.nc")
    np.testing.assert_allclose(found["mean"], expected.kept["mean"], atol=1e-4)


@pytest.mark.parametrize("filter", ["LETKF", pytest.param("ETKF", marks=pytest.mark.long)])
def test_a_run_on_a_mesh_is_that_on_one_device(filter):
    system = ring()
    filter = {"LETKF": Inflated(LETKF(system.neighbours(5.0), 5.0), 1.05), "ETKF": ETKF()}[filter]
    trials = make_trials(system, 3, truths=2, members=4, spin=5, key=KEY)
    one = run_trials(filter, system, trials, key=KEY)
    many = run_trials(filter, system, trials, mesh=jax.make_mesh((4,), ("space",)), key=KEY)
    assert many.ensemble.sharding.spec[-1] == "space"
    assert not np.array_equal(one.ensemble, trials.ensembles)
    same(many, one)


def same(many, one):
    for ours, theirs in zip(jax.tree.leaves(many), jax.tree.leaves(one), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(2, 2), (1, 4)])
def test_members_along_a_second_axis(shape):
    """Forecasts of some members on each device, analyses of some variables on each."""
    system, found = ring(), []

    class Watched(AbstractEnsembleModel):
        def forecast(self, ensemble, *, key):
            jax.debug.inspect_array_sharding(ensemble, callback=found.append)
            return forecast(system.model, ensemble, key=key)

    mesh = jax.make_mesh(shape, ("space", "members"))
    run = run_of(eqx.tree_at(lambda s: s.model, system, Watched()), mesh)
    same(run, run_of(system))
    assert {sharding.shard_shape((4, 24)) for sharding in found} == {(4 // shape[1], 24 // shape[0])}
    with pytest.raises(ValueError, match="one that divides 3 members"):
        cycle(ETKF(), system, jnp.ones((3, 24)), Observations.of(jnp.ones((1, 6))), mesh=mesh, key=KEY)


def test_truths_along_a_second_axis():
    """Three of them, two at a time; each has its own number, and so its own noise."""
    system = ring()
    noisy = eqx.tree_at(lambda s: s.model, system, NoisyModel(system.model, 0.1))
    filter = Inflated(LETKF(system.neighbours(5.0), 5.0), 1.05)
    trials = make_trials(noisy, 3, truths=3, members=4, spin=5, key=KEY)
    mesh = jax.make_mesh((2, 2), ("space", "truths"))
    many = run_trials(filter, noisy, trials, mesh=mesh, key=KEY)
    same(many, run_trials(filter, noisy, trials, key=KEY))
    two = run_trials(filter, noisy, jax.tree.map(lambda x: x[:2], trials), mesh=mesh, key=KEY)
    assert two.ensemble.sharding.shard_shape((2, 4, 24)) == (1, 4, 12)


def collectives(filter, system, mesh):
    """The bytes of each kind of exchange in a compiled analysis on a mesh, the sizes of what is exchanged."""
    over = lambda *axes: jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*axes))  # noqa: E731
    parts = divide(filter, system.observation, system.size, mesh)
    ensemble = jax.device_put(jnp.ones((4, system.size)), over(None, "space"))
    value = jax.device_put(jnp.ones(system.observed), over(distributed.dividing(system.observed, mesh)))
    analyse = eqx.filter_jit(lambda f, z, v: f(z, system.observation.window(v), key=KEY))
    text = analyse.lower(parts, ensemble, value).compile().compiled.as_text()
    return re.findall(r"= \w+\[([\d,]*)\][^ ]* (all-gather|all-to-all|collective-permute)\(", text)


def test_what_devices_exchange_is_a_halo_and_no_observation_is_everywhere():
    """On a ring ten times as long they exchange as much; nothing is gathered."""
    sizes = [ring(size) for size in (96, 960)]
    short, long = (collectives(LETKF(s.neighbours(5.0), 5.0), s, distributed.mesh()) for s in sizes)
    assert {kind for _, kind in long} == {"collective-permute"}
    assert sorted(short) == sorted(long)


def test_a_regular_ring_needs_one_list_of_neighbours_whatever_its_length():
    system = ring(96)
    parts = divide(LETKF(system.neighbours(5.0), 5.0), system.observation, 96, distributed.mesh(devices=2), largest=12)
    assert parts.take.shape[0] == 8
    assert parts.variable_halo.shifts == (1,)
    assert [leaf.shape for leaf in jax.tree.leaves(parts.parted)] == []
    assert parts.shared[0].neighbours.indices.shape[0] == parts.take.shape[1] < 12 + 2 * 8


def test_what_cannot_be_divided():
    system = ring(10)
    with pytest.raises(ValueError, match="4 devices hold as many variables each, which 10"):
        cycle(ETKF(), system, jnp.ones((2, 10)), Observations.of(jnp.ones((1, 3))), mesh=distributed.mesh(), key=KEY)
    own = Observation(lambda z: z[::4] ** 2, 1.0)
    letkf = LETKF(ring(8).neighbours(2.0), 2.0)
    assert divide(letkf, own, 8, distributed.mesh()).neighbours.observations == 2  # left to the compiler
    with pytest.raises(ValueError, match="there are 4 devices, got devices=5"):
        distributed.mesh(devices=5)
    with pytest.raises(ValueError, match="got processes alone"):
        distributed.start(processes=2)
    assert distributed.start() == distributed.start() == 1


def test_a_series_streams_from_one_file_to_another(tmp_path):
    system, rng = ring(16), np.random.default_rng(0)
    values = 8.0 + rng.normal(size=(5, 4))
    values[1, 2] = np.nan
    with netcdf().File(tmp_path / "obs.nc", "w") as file:
        file.dimensions = {"time": 5, "observation": 4}
        file.create_variable("observed", ("time", "observation"), float, data=values)
    start = 8.0 + jax.random.normal(KEY, (3, 16))
    whole = cycle(ETKF(), system, start, Observations.of(values), key=KEY)
    pieces = read_chunks(tmp_path / "obs.nc", 2)
    last = write_chunks(tmp_path / "run.nc", cycle_chunks(ETKF(), system, start, pieces, key=KEY))
    spread = read_chunks(tmp_path / "obs.nc", 2, mesh=distributed.mesh())
    for ours, theirs in zip(spread, read_chunks(tmp_path / "obs.nc", 2), strict=True):
        assert ours.value.sharding.shard_shape(ours.value.shape)[1] == 1
        assert all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True))
    found = load_dataset(tmp_path / "run.nc")
    np.testing.assert_allclose(found["mean"], whole.kept["mean"], atol=1e-5)
    np.testing.assert_allclose(last.ensemble, whole.ensemble, atol=1e-5)
    assert found["mean"].dims == ("time", "state")
    assert found["sound"].values.tolist() == [1] * 5
    with pytest.raises(ValueError, match="no variable 'other'; there are observed"):
        next(read_chunks(tmp_path / "obs.nc", variable="other"))
    with pytest.raises(FileExistsError, match=r"run\.nc exists"):
        write_chunks(tmp_path / "run.nc", [last])
    with netcdf().File(tmp_path / "coded.nc", "w") as file:
        file.dimensions = {"time": 5, "observation": 4}
        file.create_variable("observed", ("time", "observation"), float, data=values).attrs["scale_factor"] = 0.1
    with pytest.raises(ValueError, match="has scale_factor"):
        next(read_chunks(tmp_path / "coded.nc"))


def test_parts_of_a_moving_network():
    """Observations of a part are in another order than those of the whole."""
    model, places = Lorenz96(16, window=0.05, step=0.05), Places.grid(16, period=16.0)
    system = System(model, Observation(range(0, 16, 4), 1.0), jnp.full(16, 8.0), places, spread=1.0, at_once=2)
    filter = LETKF(system.neighbours(6.0), 6.0)
    value = jnp.array([8.5, jnp.nan, jnp.nan, 7.0])
    prior = 8.0 + jax.random.normal(KEY, (4, 16))
    parts = divide(filter, system.observation, system.size, distributed.mesh(), largest=4)
    whole, found = (
        jax.jit(lambda v, f=f: f(prior, system.observation.window(v), key=KEY))(value) for f in (filter, parts)
    )
    assert np.abs(whole - prior).max() > 0.1
    np.testing.assert_allclose(found, whole, atol=1e-5)
