"""One optimizer step, and many of them as one compiled program."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree


class State(NamedTuple):
    """What a step changes."""

    module: Any
    optimizer: Any
    source: Any
    step: Int[Array, ""]
    streak: Int[Array, ""]
    skipped: Int[Array, ""]


class Step(eqx.Module):
    """One optimizer step, as a value: runs with equal parts share one compilation."""

    loss: Callable[..., Any]
    sample_batch: Callable[..., Any]
    optimizer: optax.GradientTransformation = eqx.field(static=True)
    living: bool = eqx.field(static=True)
    microbatches: int = eqx.field(static=True)
    mesh: Mesh | None = eqx.field(static=True)

    def batch(self, state: State, key: PRNGKeyArray) -> PyTree:
        """Draw the batch of a step, spread over the devices of the mesh."""
        batch = self.sample_batch(key, state.source) if self.living else self.sample_batch(key)
        if self.mesh is None:
            return batch
        spread = NamedSharding(self.mesh, PartitionSpec(self.mesh.axis_names[0]))
        return jax.tree.map(lambda x: jax.lax.with_sharding_constraint(x, spread) if jnp.ndim(x) else x, batch)

    def value_and_grad(self, module: Any, batch: PyTree, key: PRNGKeyArray) -> tuple[Any, Any]:
        """Loss (with the source's new state, for a living one) and gradient."""

        def objective(module: Any, batch: PyTree, key: PRNGKeyArray) -> tuple[Any, Any]:
            value = self.loss(module, batch, key=key)
            return value if self.living else (value, None)

        gradient = eqx.filter_value_and_grad(objective, has_aux=True)
        if self.microbatches == 1:
            return gradient(module, batch, key)
        parts = jax.tree.map(lambda x: x.reshape(self.microbatches, -1, *x.shape[1:]), batch)

        def add(total: Any, part: tuple[PyTree, PRNGKeyArray]) -> tuple[Any, None]:
            (value, _), grads = gradient(module, *part)
            return jax.tree.map(jnp.add, total, (value, grads)), None

        shapes = eqx.filter_eval_shape(gradient, module, jax.tree.map(lambda x: x[0], parts), key)
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), (shapes[0][0], shapes[1]))
        total, _ = jax.lax.scan(add, zeros, (parts, jax.random.split(key, self.microbatches)))
        value, grads = jax.tree.map(lambda x: x / self.microbatches, total)
        return (value, None), grads

    def __call__(self, state: State, key: PRNGKeyArray) -> tuple[State, Float[Array, ""]]:
        """Take one step, or skip it if anything came out not finite."""
        batch_key, loss_key = jax.random.split(jax.random.fold_in(key, state.step))
        batch = self.batch(state, batch_key)
        (value, source), grads = self.value_and_grad(state.module, batch, loss_key)
        trainable = eqx.filter(state.module, eqx.is_inexact_array)
        updates, optimizer_state = self.optimizer.update(grads, state.optimizer, trainable)
        module = eqx.apply_updates(state.module, updates)
        good = jnp.isfinite(value) & _all_finite(grads) & _all_finite(updates)
        module, optimizer_state, source = _choose(
            good, (module, optimizer_state, source), (state.module, state.optimizer, state.source)
        )
        count = jnp.where(good, 0, 1)
        return (
            State(module, optimizer_state, source, state.step + 1, (state.streak + 1) * count, state.skipped + count),
            jnp.where(good, value, jnp.nan),
        )


@eqx.filter_jit
def run_chunk(step: Step, state: State, key: PRNGKeyArray, length: int) -> tuple[State, Float[Array, "length"]]:
    """Take `length` steps; return the state after the last and the loss of each."""
    arrays, rest = eqx.partition(state, eqx.is_array)

    def body(arrays: Any, _: None) -> tuple[Any, Float[Array, ""]]:
        following, value = step(eqx.combine(arrays, rest), key)
        return eqx.filter(following, eqx.is_array), value

    arrays, values = jax.lax.scan(body, arrays, None, length=length)
    return eqx.combine(arrays, rest), values


def _all_finite(tree: Any) -> Bool[Array, ""]:
    return jnp.all(jnp.array([jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(tree)]))


def _choose(good: Bool[Array, ""], new: Any, old: Any) -> Any:
    return jax.tree.map(lambda a, b: jnp.where(good, a, b) if eqx.is_array(b) else b, new, old)
