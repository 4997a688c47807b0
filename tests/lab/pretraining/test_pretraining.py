"""Pre-training: the random tasks, and a training that can be interrupted."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.spatial import KDTree

from bieqno.lab.pretraining import training
from bieqno.lab.pretraining.designs import ANY, DESIGNS, NOISES, choose, draw_layout, nearest_rows
from bieqno.lab.pretraining.functions import FAMILIES, RandomTasks
from bieqno.lab.pretraining.training import predict, pretrain
from bieqno.regression.data import Data
from bieqno.regression.pretrained.correction import MAX_DIMENSION, Correction, no_correction
from bieqno.regression.pretrained.neighbours import search_rows, spread_rows

pytestmark = pytest.mark.standard_promotion("random functions mix counts and coordinates")


def test_tasks_are_what_they_say():
    tasks = jax.jit(RandomTasks(64, observations=64, candidates=64))(jax.random.key(0))
    assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(tasks))
    counts = tasks.data.mask.sum(axis=1)
    assert int(counts.min()) >= 8
    beyond = jnp.arange(MAX_DIMENSION) >= tasks.dimension[:, None]
    for places in (tasks.data.inputs, tasks.points.reshape(64, -1, MAX_DIMENSION)):
        assert not bool(jnp.any(places * beyond[:, None] != 0))
    # A point that is asked for is next to its probe.
    task = jax.tree.map(lambda x: x[0], tasks)
    centres = jax.vmap(lambda x: nearest_rows(x, task.data)[0])(task.points.reshape(-1, MAX_DIMENSION))
    probes = jnp.repeat(spread_rows(task.data.inputs, task.data.targets, task.data.mask), task.mask.shape[1])
    assert np.array_equal(centres[task.mask.ravel()], probes[task.mask.ravel()])
    assert bool(task.mask.any())
    # Functions are standardised, and the noise adds at most one.
    spread = jnp.std(tasks.data.targets, axis=1, where=tasks.data.mask)
    assert 0.7 < float(jnp.median(spread)) < 1.3


def test_places_are_squeezed_along_inputs_that_matter_little():
    keys = jax.random.split(jax.random.key(0), 400)
    layouts = jax.jit(jax.vmap(lambda key: draw_layout(key, 64)))(keys)
    there = jnp.arange(MAX_DIMENSION) < layouts.dimension[:, None]
    assert set(layouts.dimension.tolist()) == set(range(1, MAX_DIMENSION + 1))
    assert np.allclose(layouts.widths.max(axis=1), 1)
    assert np.array_equal(layouts.widths > 0, there)
    squeezed = jnp.min(layouts.widths, axis=1, where=there, initial=1) < 0.999
    assert float(squeezed[layouts.dimension > 4].mean()) == 1
    assert 0.2 < float(squeezed[(layouts.dimension > 1) & (layouts.dimension <= 4)].mean()) < 0.5
    # The spacing is that of places which fill the wide inputs alone.
    design, dimension = list(DESIGNS).index("scattered"), jnp.asarray(8)
    layout = jax.jit(lambda key: draw_layout(key, 512, design, dimension))(jax.random.key(3))
    x = np.asarray(layout.rounded(layout.inputs) * layout.widths, float)[np.asarray(layout.mask)]
    nearest = np.median(KDTree(x).query(x, k=9)[0][:, -1])
    assert 0.4 < nearest / float(layout.spacing) < 3


def test_what_is_held_out_is_never_drawn():
    for kinds in (FAMILIES, DESIGNS, NOISES):
        shares = tuple(kinds.values())
        assert sum(shares) == pytest.approx(1)
        drawn = jax.vmap(lambda key, own=shares: choose(key, own, ANY))(jax.random.split(jax.random.key(0), 2000))
        held_out = [number for number, share in enumerate(shares) if not share]
        assert len(held_out) == 1
        assert not set(held_out) & set(drawn.tolist())
        assert int(choose(jax.random.key(0), shares, held_out[0])) == held_out[0]


def test_functions_of_many_inputs_come_without_their_trend():
    draw = jax.jit(lambda key, dimension: RandomTasks(1, observations=256, candidates=8).draw(key, dimension=dimension))

    def told(dimension):
        """Return the largest share of the variance that a plane tells, of some functions."""
        shares = []
        for key in jax.random.split(jax.random.key(2), 12):
            data = draw(key, jnp.asarray(dimension)).data
            x, y = (
                np.asarray(part, float)[np.asarray(data.mask)] for part in (data.inputs[:, :dimension], data.targets)
            )
            x, y = np.column_stack([np.ones(len(x)), x]), y - y.mean()
            shares.append(1 - np.sum((y - x @ np.linalg.lstsq(x, y)[0]) ** 2) / np.sum(y**2))
        return max(shares)

    assert told(6) < 0.1
    assert told(2) > 0.5


def test_tasks_of_a_kind_are_of_that_kind():
    """One program draws any family, design and law of the noise, by number."""
    draw = jax.jit(jax.vmap(RandomTasks(1, observations=64, candidates=8).draw, in_axes=(0, *[None] * 4)))
    keys = jax.random.split(jax.random.key(1), 32)

    def tasks(*names):
        kinds = [list(k).index(n) for k, n in zip((FAMILIES, DESIGNS, NOISES), names, strict=True)]
        return draw(keys, *map(jnp.asarray, (*kinds, 2)))  # of many inputs, the trend would follow the noise

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
    settings = {"steps": 2, "batch_size": 2, "key": jax.random.key(0)}
    first = Correction(width=8, key=jax.random.key(1))
    whole = pretrain(first, **settings)
    assert np.isfinite(whole.losses).all()

    def stop(progress):
        if progress.step:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pretrain(first, checkpoint=tmp_path, on_progress=stop, **settings)
    steps = []
    again = pretrain(first, checkpoint=tmp_path, on_progress=lambda p: steps.append(p.step), **settings)
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
