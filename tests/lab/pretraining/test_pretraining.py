"""Pre-training: the random tasks, and a training that can be interrupted."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.spatial import KDTree

from bieqno.lab.pretraining import training
from bieqno.lab.pretraining.designs import DESIGNS, NOISES, nearest_rows
from bieqno.lab.pretraining.functions import FAMILIES, RandomTasks
from bieqno.lab.pretraining.training import predict, pretrain
from bieqno.regression.data import Data
from bieqno.regression.pretrained.correction import MAX_DIMENSION, no_correction
from bieqno.regression.pretrained.neighbours import search_rows, spread_rows

pytestmark = pytest.mark.standard_promotion("random functions mix counts and coordinates")


def test_tasks_are_what_they_say():
    tasks = jax.jit(RandomTasks(64, observations=64, candidates=64))(jax.random.key(0))
    assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(tasks))
    counts = tasks.data.mask.sum(axis=1)
    assert int(counts.min()) >= 8
    assert len(set(tasks.dimension.tolist())) == MAX_DIMENSION
    beyond = jnp.arange(MAX_DIMENSION) >= tasks.dimension[:, None]
    for places in (tasks.data.inputs, tasks.points.reshape(64, -1, MAX_DIMENSION)):
        assert not bool(jnp.any(places * beyond[:, None] != 0))
    # A point that is asked for is next to its probe.
    task = jax.tree.map(lambda x: x[0], tasks)
    centres = jax.vmap(lambda x: nearest_rows(x, task.data)[0])(task.points.reshape(-1, MAX_DIMENSION))
    probes = jnp.repeat(spread_rows(task.data.inputs, task.data.targets, task.data.mask), task.mask.shape[1])
    assert np.array_equal(centres[task.mask.ravel()], probes[task.mask.ravel()])
    assert bool(task.mask.any())
    # Functions are standardised, and the noise adds at most 0.6 squared.
    spread = jnp.std(tasks.data.targets, axis=1, where=tasks.data.mask)
    assert 0.7 < float(jnp.median(spread)) < 1.3


def test_tasks_of_a_kind_are_of_that_kind():
    """One program draws any family, design and law of the noise, by number."""
    draw = jax.jit(jax.vmap(RandomTasks(1, observations=64, candidates=8).draw, in_axes=(0, None, None, None)))
    keys = jax.random.split(jax.random.key(1), 32)

    def tasks(*names):
        return draw(
            keys, *(jnp.asarray(list(k).index(n)) for k, n in zip((FAMILIES, DESIGNS, NOISES), names, strict=True))
        )

    normal, outliers = (tasks("additive", "clusters", noise) for noise in ("normal", "outliers"))
    assert bool(jnp.isfinite(normal.values).all())
    assert np.array_equal(normal.data.inputs, outliers.data.inputs)
    same = np.mean(np.asarray(normal.data.targets == outliers.data.targets)[np.asarray(normal.data.mask)])
    assert 0.9 < same < 0.99
    other = tasks("steps", "scattered", "normal")
    spread = [np.mean(jnp.var(task.data.inputs[..., 0], axis=1, where=task.data.mask)) for task in (normal, other)]
    assert spread[0] < spread[1]


def test_training_continues_where_it_was_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "CHUNK_STEPS", 1)
    monkeypatch.setattr(training, "RandomTasks", partial(RandomTasks, observations=32, candidates=32))
    settings = {"steps": 2, "batch_size": 2, "width": 8, "key": jax.random.key(0)}
    whole = pretrain(**settings)
    assert np.isfinite(whole.losses).all()

    def stop(progress):
        if progress.step:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pretrain(checkpoint=tmp_path, on_progress=stop, **settings)
    steps = []
    again = pretrain(checkpoint=tmp_path, on_progress=lambda p: steps.append(p.step), **settings)
    assert steps == [1, 2]  # the first step was not made again
    assert eqx.tree_equal(whole.module, again.module)
    assert np.abs(whole.module.operator.fit.network.layers[-1].weight).max() > 0


def test_both_searches_find_the_same_neighbours():
    rng = np.random.default_rng(0)
    inputs, points = rng.uniform(size=(40, 2)), rng.uniform(size=(24, 2))
    data = Data(jnp.asarray(inputs, jnp.float32), jnp.zeros(40), jnp.zeros(40), jnp.arange(40) < 30)
    compared = jax.vmap(lambda point: nearest_rows(point, data))(jnp.asarray(points, jnp.float32))
    assert np.array_equal(compared, search_rows(KDTree(inputs[:30]), points))


def test_padding_of_a_task_changes_nothing():
    task = jax.jit(RandomTasks(1, observations=32, candidates=32).draw)(jax.random.key(3))
    assert not bool(task.data.mask.all())
    wild = eqx.tree_at(lambda t: t.data.targets, task, jnp.where(task.data.mask, task.data.targets, 1e3))
    wild = eqx.tree_at(lambda t: t.data.inputs, wild, jnp.where(task.data.mask[:, None], task.data.inputs, 0.5))
    predicted = eqx.filter_jit(predict)
    plain, changed = (np.asarray(predicted(no_correction(), own).mean)[task.mask.ravel()] for own in (task, wild))
    assert changed == pytest.approx(plain, abs=1e-4)
