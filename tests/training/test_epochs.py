"""Mini-batches over stored data: every row once in an epoch, and a training that is watched."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bieqno import MLP, StoredData, fit
from bieqno.training import EpochLoss, Epochs

KEY = jax.random.key(0)


def test_an_epoch_has_every_row_once_in_an_order_of_its_own():
    epochs = Epochs(StoredData(jnp.arange(12), batch_size=4))
    state, orders = epochs.start, []
    for epoch in range(2):
        taken = []
        for step in range(epochs.batches):
            rows, state = epochs(jax.random.fold_in(KEY, 3 * epoch + step), state)
            taken += rows.tolist()
        orders.append(taken)
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(12))
    assert orders[0] != orders[1]


def test_a_batch_larger_than_the_data_is_refused():
    with pytest.raises(ValueError, match="of 4 rows is more than the 3 stored"):
        Epochs(StoredData(jnp.arange(3), batch_size=4))


def test_training_over_epochs_ends_when_the_watch_says_so():
    x = jax.random.uniform(KEY, (20, 1))
    epochs, seen = Epochs(StoredData((x, x**2), batch_size=5)), []

    def loss(mlp, batch, *, key):
        return jnp.mean((jax.vmap(mlp)(batch[0]) - batch[1]) ** 2)

    def watch(module, losses):
        seen.append(losses)
        return len(seen) == 3

    common = {"steps": 40, "chunk_steps": epochs.batches, "source_state": epochs.start, "key": KEY}
    result = fit(MLP(1, 1, width=8, key=KEY), EpochLoss(loss), epochs, **common, watch=watch)
    assert [len(losses) for losses in seen] == [4, 8, 12]
    np.testing.assert_array_equal(result.losses, seen[-1])
    assert result.losses[-4:].mean() < result.losses[:4].mean()
