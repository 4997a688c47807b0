"""Mini-batches over stored data, epoch by epoch."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from bieqno.training.step import StoredData

State = tuple[Int[Array, "rows"], Int[Array, ""]]
"""The order of the rows in this epoch, and how many mini-batches of it were taken."""


class Epochs(eqx.Module):
    """A stateful batch source over stored arrays: in each epoch every row once, in an order drawn anew.

    Rows that do not fill a mini-batch are left out, other ones in every epoch.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> epochs = Epochs(StoredData(jnp.arange(7), batch_size=3))
        >>> rows, (_, taken) = epochs(jax.random.key(0), epochs.start)
        >>> epochs.batches, len(rows), int(taken)
        (2, 3, 1)
    """

    data: StoredData

    def __check_init__(self) -> None:
        if self.data.batch_size > self.data.rows:
            raise ValueError(f"a mini-batch of {self.data.batch_size} rows is more than the {self.data.rows} stored")

    @property
    def batches(self) -> int:
        """Number of mini-batches in an epoch."""
        return self.data.rows // self.data.batch_size

    @property
    def start(self) -> State:
        """The `source_state` that `fit` begins with."""
        return jnp.arange(self.data.rows), jnp.zeros((), jnp.int32)

    def __call__(self, key: PRNGKeyArray, state: State) -> tuple[PyTree[Array], State]:
        """Return the next mini-batch, and the state after it."""
        order, taken = state
        order = jax.lax.cond(taken == 0, lambda: jax.random.permutation(key, order), lambda: order)
        size = self.data.batch_size
        rows = jax.lax.dynamic_slice(order, (taken * size,), (size,))
        return self.data.take(rows), (order, (taken + 1) % self.batches)


class EpochLoss(eqx.Module):
    """The loss that `fit` is given beside `Epochs`: of a mini-batch, and the state that the source continues from."""

    loss: Callable[..., Any]

    def __call__(
        self, module: Any, batch: tuple[PyTree[Array], State], *, key: PRNGKeyArray
    ) -> tuple[Float[Array, ""], State]:
        """Return the loss of the mini-batch and the state."""
        return self.loss(module, batch[0], key=key), batch[1]
