from itertools import count
from types import SimpleNamespace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh

from bieqno import MLP, Progress, StoredData, TrainingError, fit
from bieqno.operators import Standardiser, frozen
from bieqno.training import clock, falling_adam, trainable
from bieqno.training.record import start
from bieqno.training.step import run_chunk

KEY = jax.random.key(0)


def square(key):
    x = jax.random.uniform(key, (16, 1), minval=-1)
    return x, x**2


def mean_square(mlp, batch, *, key):
    x, y = batch
    return jnp.mean((jax.vmap(mlp)(x) - y) ** 2)


def network():
    return MLP(1, 1, width=16, key=KEY)


@pytest.mark.numbers
def test_it_is_plain_adam():
    """The compiled chunks do what a loop written by hand does."""
    module, optimizer = network(), optax.adam(1e-2)
    result = fit(module, mean_square, square, steps=7, chunk_steps=3, optimizer=optimizer, key=KEY)

    @jax.jit
    def by_hand(module, state, step):
        batch_key, loss_key = jax.random.split(jax.random.fold_in(KEY, step))
        value, grads = jax.value_and_grad(mean_square)(module, square(batch_key), key=loss_key)
        with jax.numpy_dtype_promotion("standard"):  # Optax's own arithmetic
            updates, state = optimizer.update(grads, state)
        return value, optax.apply_updates(module, updates), state

    state = optimizer.init(module)
    for step in range(7):
        value, module, state = by_hand(module, state, step)
        np.testing.assert_allclose(result.losses[step], value, rtol=1e-4)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), result.module, module)


def test_same_key_same_bits():
    first, second = (fit(network(), mean_square, square, steps=20, key=KEY) for _ in range(2))
    assert eqx.tree_equal(first.module, second.module)
    other = fit(network(), mean_square, square, steps=20, key=jax.random.key(1))
    assert not eqx.tree_equal(first.module, other.module)


def test_progress_and_stored_data():
    x = jnp.linspace(-1, 1, 50)[:, None]
    told: list[Progress] = []
    source = StoredData((x, x**2), batch_size=10)
    fit(network(), mean_square, source, steps=25, chunk_steps=10, key=KEY, on_progress=told.append)
    assert [p.step for p in told] == [0, 10, 20, 25]
    assert np.isnan([told[0].loss, told[0].remaining]).all(), "it speaks before it compiles, and knows nothing yet"
    assert all(p.steps == 25 and np.isfinite(p.loss) and p.validation is None for p in told[1:])
    assert told[-1].remaining == 0 < told[1].remaining


def test_the_remaining_time_does_not_hold_compilation(monkeypatch):
    now = SimpleNamespace(monotonic=lambda: 0.0)
    monkeypatch.setattr(clock, "time", now)
    watch = clock.Clock(first=0, steps=100, budget=None, chunk=10)
    assert np.isnan(watch.remaining)
    clock._listen("/jax/core/compile/backend_compile_duration", 50.0)
    now.monotonic = lambda: 60.0  # 50 s of compiling, and a second per step
    watch.after(10)
    assert watch.remaining == pytest.approx(90.0)
    now.monotonic = lambda: 80.0  # the next chunk takes two seconds per step, and counts alone
    watch.after(20)
    assert watch.remaining == pytest.approx(160.0)


def test_a_budget_of_time_ends_a_training_with_a_rate_of_zero(monkeypatch):
    ticks = count()  # a second at each look
    monkeypatch.setattr(clock, "time", SimpleNamespace(monotonic=lambda: float(next(ticks))))
    told: list[Progress] = []
    options = {"optimizer": falling_adam(1e-2, warm_up=100), "chunk_steps": 20, "key": KEY}
    result = fit(network(), mean_square, square, budget=300.0, **options, on_progress=told.append)
    assert told[-1].step == told[-1].steps == len(result.losses) > 300
    assert told[-2].seconds < 300.0
    assert result.losses[-1] < 0.2 * result.losses[0]
    with pytest.raises(ValueError, match="a number of steps or a budget"):
        fit(network(), mean_square, square, steps=3, budget=3.0, key=KEY)
    with pytest.raises(ValueError, match="a number of steps or a budget"):
        fit(network(), mean_square, square, key=KEY)


def test_of_equally_good_modules_the_last_is_taken_whatever_the_sign():
    for values, best in (
        ((1.0, 1.5, 1.01), 3),
        ((-1.0, -1.01, -1.005), 3),
        ((-1.0, -1.5, -1.4), 2),
        ((1.0, 0.5, 0.6), 2),
    ):
        record = start(network(), optax.adam(1e-3), None)
        for step, value in enumerate(values, 1):
            state = record.state._replace(step=jnp.int32(step))
            record = record.after(state, jnp.zeros(1), value, tolerance=0.02)
        assert int(record.best_step) == best, values


def test_a_budget_goes_on_where_it_was(monkeypatch, tmp_path):
    ticks = count()
    monkeypatch.setattr(clock, "time", SimpleNamespace(monotonic=lambda: float(next(ticks))))
    options = {"optimizer": falling_adam(1e-2), "chunk_steps": 20, "key": KEY, "checkpoint": tmp_path}
    first = fit(network(), mean_square, square, budget=100.0, **options)
    again = fit(network(), mean_square, square, budget=100.0, **options)
    np.testing.assert_array_equal(first.losses, again.losses)  # it had ended
    for wrong in (0.0, -5.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="positive number of seconds"):
            fit(network(), mean_square, square, budget=wrong, key=KEY)


def test_trainings_of_other_lengths_share_the_compilation():
    optimizer = falling_adam(1e-2, warm_up=5)
    fit(network(), mean_square, square, steps=20, chunk_steps=10, optimizer=optimizer, key=KEY)
    compiled = run_chunk.compiled._cached._cache_size()
    fit(network(), mean_square, square, steps=40, chunk_steps=10, optimizer=falling_adam(1e-2, warm_up=5), key=KEY)
    assert run_chunk.compiled._cached._cache_size() == compiled


def test_early_stopping_restores_the_best():
    """A learning rate that makes the loss rise again: the best module comes back, not the last."""
    x = jnp.linspace(-1, 1, 20)[:, None]

    def validate(mlp):
        return mean_square(mlp, (x, x**2), key=None)

    result = fit(
        network(),
        mean_square,
        square,
        steps=10_000,
        chunk_steps=5,
        validate=validate,
        patience=3,
        key=KEY,
        optimizer=optax.adam(3e-2),
    )
    assert result.stopped_early
    assert len(result.losses) < 10_000
    best = int(np.argmin(result.validations))
    assert result.best_step == 5 * (best + 1)
    assert len(result.validations) == best + 1 + 3
    np.testing.assert_allclose(validate(result.module), result.validations[best], rtol=1e-5)


def test_a_stateful_source_carries_its_state():
    """The state is what the loss returns: here a particle that the module pushes, and a counter."""

    class State(eqx.Module):
        place: jax.Array
        steps: jax.Array

    def sample(key, state):
        return state

    def loss(shift, batch, *, key):
        moved = batch.place + shift
        return jnp.sum((moved - 1) ** 2), State(jax.lax.stop_gradient(moved), batch.steps + 1)

    start = State(jnp.zeros(()), jnp.zeros((), jnp.int32))
    result = fit(
        jnp.float32(0.5), loss, sample, source_state=start, steps=9, chunk_steps=4, optimizer=optax.sgd(0.1), key=KEY
    )
    shift, place = 0.5, 0.0
    for _ in range(9):
        place, shift = place + shift, shift - 0.1 * 2 * (place + shift - 1)
    assert int(result.source_state.steps) == 9
    np.testing.assert_allclose([result.source_state.place, result.module], [place, shift], rtol=1e-5)


@pytest.mark.parametrize("broken", ["loss", "gradient"])
def test_bad_steps_are_skipped_and_counted(broken):
    def loss(module, batch, *, key):
        bad = jnp.where(jax.random.uniform(key) < 0.3, 0.0, 1.0)
        # The gradient of sqrt at zero is infinite although its value is fine.
        spoiled = jnp.sqrt(bad * module.layers[0].weight[0, 0] ** 2) if broken == "gradient" else jnp.log(bad)
        return mean_square(module, batch, key=key) + spoiled

    result = fit(network(), loss, square, steps=40, key=KEY)
    assert result.skipped == np.isnan(result.losses).sum()
    assert 0 < result.skipped < 40
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(result.module))


def test_repeated_bad_steps_stop_with_the_last_good_state(tmp_path):
    def source(key, state):
        return square(key), state

    def stateful(module, batch, *, key):
        data, step = batch
        value = mean_square(module, data, key=key)
        return jnp.where(step < 15, value, jnp.nan), jnp.where(step < 15, step + 1, step)

    with pytest.raises(TrainingError, match=r"not finite in .* steps in a row") as caught:
        fit(
            network(),
            stateful,
            source,
            source_state=jnp.zeros((), jnp.int32),
            steps=1000,
            chunk_steps=10,
            max_bad_steps=10,
            key=KEY,
            checkpoint=tmp_path,
        )
    result = caught.value.result
    good = fit(network(), mean_square, square, steps=15, chunk_steps=10, key=KEY)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), result.module, good.module)
    assert len(result.losses) < 50
    assert (tmp_path / "checkpoint.bieqno").exists()


@pytest.mark.numbers
def test_microbatches_are_the_same_step():
    whole = fit(network(), mean_square, square, steps=10, key=KEY)
    parts = fit(network(), mean_square, square, steps=10, microbatches=4, key=KEY)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), whole.module, parts.module)


def meshes():
    """Both ways to make a mesh, of one axis and of two; four devices are forced by conftest."""
    assert len(jax.devices()) == 4
    return {"Mesh": Mesh(np.array(jax.devices()), ("data",)), "make_mesh": jax.make_mesh((2, 2), ("space", "truths"))}


@pytest.mark.parametrize("way", ["Mesh", "make_mesh"])
@pytest.mark.parametrize("microbatches", [1, 2])
def test_several_devices_give_the_same_loss(microbatches, way):
    mesh = meshes()[way]
    one = fit(network(), mean_square, square, steps=12, chunk_steps=5, key=KEY)
    many = fit(network(), mean_square, square, steps=12, chunk_steps=5, mesh=mesh, microbatches=microbatches, key=KEY)
    np.testing.assert_allclose(many.losses, one.losses, rtol=1e-4)
    assert len(jax.tree.leaves(many.module)[0].devices()) == 4


@pytest.mark.parametrize("microbatches", [1, 4])
def test_the_batch_really_is_spread(microbatches):
    mesh = meshes()["Mesh"]
    seen = []

    def loss(module, batch, *, key):
        jax.debug.inspect_array_sharding(batch[0], callback=seen.append)
        return mean_square(module, batch, key=key)

    fit(network(), loss, square, steps=1, mesh=mesh, microbatches=microbatches, key=KEY)
    assert {sharding.num_devices for sharding in seen} == {4}
    assert not any(sharding.is_fully_replicated for sharding in seen)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": 0}, "steps must be at least 1"),
        ({"chunk_steps": 0}, "chunk_steps must be at least 1"),
        ({"patience": 3}, "validate is None"),
        ({"microbatches": 5}, r"divide into 5 parts .* got shape \(16, 1\)"),
        ({"microbatches": 2, "source_state": 0}, "stateful batch source"),
    ],
)
def test_wrong_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        fit(network(), mean_square, square, **{"steps": 5, "key": KEY, **settings})


def test_stored_data_refuses_unequal_rows():
    with pytest.raises(ValueError, match=r"same number of rows.*\[2, 3\]"):
        StoredData((jnp.zeros(3), jnp.zeros(2)), batch_size=1)


def test_fourier_frequencies_stay_fixed_even_under_weight_decay():
    module = MLP(1, 1, width=8, fourier_features=3, key=KEY)
    result = fit(module, mean_square, square, steps=20, optimizer=optax.adamw(1e-2, weight_decay=0.5), key=KEY)
    assert (result.module.features.frequencies == module.features.frequencies).all()
    assert not eqx.tree_equal(result.module.layers, module.layers)


def test_a_state_that_is_not_finite_is_not_taken_over():
    def loss(module, batch, *, key):
        data, state = batch
        return mean_square(module, data, key=key), jnp.where(jax.random.uniform(key) < 0.3, jnp.nan, state + 1)

    def source(key, state):
        return square(key), state

    result = fit(network(), loss, source, source_state=0.0, steps=40, key=KEY)
    assert 0 < result.skipped < 40
    assert float(result.source_state) == 40 - result.skipped


def test_a_streak_inside_a_long_chunk_is_noticed():
    def broken(module, batch, *, key):
        return jnp.where(jax.random.uniform(key) < 0.9, jnp.nan, mean_square(module, batch, key=key))

    with pytest.raises(TrainingError, match="steps in a row"):
        fit(network(), broken, square, steps=100, chunk_steps=100, max_bad_steps=10, key=KEY)


def test_a_run_without_a_single_good_step_is_an_error():
    with pytest.raises(TrainingError, match="5 steps in a row"):
        fit(network(), lambda m, b, *, key: jnp.nan * mean_square(m, b, key=key), square, steps=5, key=KEY)


@pytest.mark.parametrize(
    "optimizer",
    [
        optax.contrib.reduce_on_plateau(patience=2),
        optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(optax.cosine_decay_schedule(1e-3, 10))),
    ],
    ids=["plateau", "clipped schedule"],
)
def test_other_optimizers(optimizer):
    result = fit(network(), mean_square, square, steps=3, optimizer=optimizer, key=KEY)
    assert np.isfinite(result.losses).all()


def test_patience_under_64_bit_numbers(x64):
    result = fit(
        network(),
        mean_square,
        square,
        steps=200,
        chunk_steps=10,
        key=KEY,
        patience=2,
        validate=lambda mlp: jnp.asarray(0.1) + 0 * mlp.layers[0].bias[0],
    )
    assert len(result.losses) == 30
    assert result.stopped_early


class Scaled(eqx.Module):
    """A network between a frozen standardiser, a frozen network and a bias that is frozen on demand."""

    scaling: Standardiser
    network: MLP
    fixed: MLP = frozen()
    bias: jax.Array = frozen(when="bias_known")
    bias_known: bool = eqx.field(static=True, default=True)

    def __call__(self, x):
        return self.network(self.scaling(x)) + self.fixed(x) + self.bias


def scaled(bias_known=True):
    inner, fixed = (MLP(1, 1, width=4, fourier_features=2, key=key) for key in jax.random.split(KEY))
    return Scaled(Standardiser(jnp.ones(1), 2 * jnp.ones(1)), inner, fixed, jnp.ones(1), bias_known)


FROZEN_PARTS = [lambda m: m.scaling, lambda m: m.fixed, lambda m: m.network.features]


@pytest.mark.parametrize("bias_known", [True, False])
def test_frozen_parts_are_equal_to_the_bit_under_weight_decay(bias_known):
    """Inside a list inside a dictionary, stacked by vmap, and after `tree_at`."""
    one = scaled(bias_known)
    edited = eqx.tree_at(lambda m: m.scaling.mean, one, jnp.full(1, 0.3))
    stacked = jax.tree.map(lambda x: jnp.stack([x, 2 * x]), one)
    module = {"one": [edited], "stacked": stacked}

    def loss(module, batch, *, key):
        x, y = batch
        results = eqx.filter_vmap(lambda m: jax.vmap(m)(x))(module["stacked"])
        return jnp.mean((jnp.sum(results, 0) + jax.vmap(module["one"][0])(x) - y) ** 2)

    optimizer = optax.adamw(1e-2, weight_decay=0.5)
    result = fit(module, loss, square, steps=5, optimizer=optimizer, key=KEY).module
    for before, after in [(edited, result["one"][0]), (stacked, result["stacked"])]:
        for part in FROZEN_PARTS:
            assert eqx.tree_equal(part(before), part(after), typematch=True)
        assert eqx.tree_equal(before.bias, after.bias) == bias_known
        assert all(
            (a.weight != b.weight).any() for a, b in zip(before.network.layers, after.network.layers, strict=True)
        )


def test_frozen_parts_never_reach_the_optimizer():
    trained, fixed = trainable(scaled())
    assert len(jax.tree.leaves(trained)) == 2 * 3
    for part in FROZEN_PARTS:
        assert not jax.tree.leaves(part(trained))
        assert eqx.tree_equal(part(fixed), part(scaled()))
