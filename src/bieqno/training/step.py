"""Batches, one optimizer step, and many steps as one compiled program."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from bieqno.compilation import quick_jit
from bieqno.distributed import spread
from bieqno.operators.fixed import FROZEN


class StoredData(eqx.Module):
    """A batch source over stored arrays: rows drawn at random, the same rows of every array. Any function of a key is one.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> source = StoredData((jnp.zeros((100, 3)), jnp.zeros(100)), batch_size=8)
        >>> [part.shape for part in source(jax.random.key(0))]
        [(8, 3), (8,)]
    """

    arrays: PyTree[Array]
    batch_size: int = eqx.field(static=True)

    def __check_init__(self) -> None:
        sizes = {x.shape[0] for x in jax.tree.leaves(self.arrays)}
        if len(sizes) != 1 or 0 in sizes:
            raise ValueError(f"stored arrays need the same number of rows, at least one; got {sorted(sizes)}")
        if self.batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {self.batch_size}")

    def __call__(self, key: PRNGKeyArray) -> PyTree[Array]:
        """Draw a batch."""
        return self.take(jax.random.randint(key, (self.batch_size,), 0, self.rows))

    @property
    def rows(self) -> int:
        """Number of stored rows."""
        return int(jax.tree.leaves(self.arrays)[0].shape[0])

    def take(self, rows: Int[Array, "b"]) -> PyTree[Array]:
        """Return these rows of every array."""
        return jax.tree.map(lambda x: x[rows], self.arrays)


class State(NamedTuple):
    """What a step changes."""

    module: Any
    optimizer: Any
    source_state: Any
    step: Int[Array, ""]
    streak: Int[Array, ""]
    longest_streak: Int[Array, ""]
    skipped: Int[Array, ""]


class Step(eqx.Module):
    """One optimizer step, as a value: runs with equal parts share one compilation."""

    loss: Callable[..., Any]
    source: Callable[..., Any]
    optimizer: optax.GradientTransformation = eqx.field(static=True)
    stateful: bool = eqx.field(static=True)
    microbatches: int = eqx.field(static=True)
    mesh: Mesh | None = eqx.field(static=True)
    steps: Float[Array, ""]  # of the whole training, as far as is known: an array, on which no compilation depends

    def draw(self, state: State, key: PRNGKeyArray) -> PyTree:
        """Draw the batch of a step."""
        return self.source(key, state.source_state) if self.stateful else self.source(key)

    def value_and_grad(self, module: Any, batch: PyTree, key: PRNGKeyArray) -> tuple[Any, Any]:
        """Return the loss (with the new state of a stateful source) and the gradient."""
        trained, fixed = trainable(module)

        def objective(trained: Any, batch: PyTree, key: PRNGKeyArray) -> tuple[Any, Any]:
            value = self.loss(eqx.combine(trained, fixed), batch, key=key)
            return value if self.stateful else (value, None)

        gradient = jax.value_and_grad(objective, has_aux=True)
        if self.microbatches == 1:
            return gradient(trained, batch, key)

        def add(total: Any, part: tuple[PyTree, PRNGKeyArray]) -> tuple[Any, None]:
            (value, _), grads = gradient(trained, *part)
            return jax.tree.map(jnp.add, total, (value, grads)), None

        parts = jax.tree.map(self._cut, batch)
        shapes = jax.eval_shape(gradient, trained, jax.tree.map(lambda x: x[0], parts), key)
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), (shapes[0][0], shapes[1]))
        total, _ = jax.lax.scan(add, zeros, (parts, jax.random.split(key, self.microbatches)))
        value, grads = jax.tree.map(lambda x: x / self.microbatches, total)
        return (value, None), grads

    def _cut(self, x: Array) -> Array:
        """Cut the first axis into microbatches such that each has rows of every device."""
        return self._spread(jnp.swapaxes(x.reshape(-1, self.microbatches, *x.shape[1:]), 0, 1), None)

    def _spread(self, x: Any, *before: None) -> Any:
        """Spread the axis after those `before` it over the devices of the mesh, if there is one."""
        if self.mesh is None or not jnp.ndim(x):
            return x
        axes = PartitionSpec(*before, self.mesh.axis_names)
        return jax.lax.with_sharding_constraint(x, NamedSharding(self.mesh, axes))

    def __call__(self, state: State, key: PRNGKeyArray) -> tuple[State, Float[Array, ""]]:
        """Take one step, or skip it if anything came out not finite."""
        batch_key, loss_key = jax.random.split(jax.random.fold_in(key, state.step))
        batch = jax.tree.map(self._spread, self.draw(state, batch_key))
        (value, source), grads = self.value_and_grad(state.module, batch, loss_key)
        trained, fixed = trainable(state.module)
        # Optimizers that look at the loss (a plateau, say) or at the progress (a falling rate) are given it.
        seen = {"value": value, "step": state.step, "fraction": state.step.astype(jnp.float32) / self.steps}
        update = optax.with_extra_args_support(self.optimizer).update
        with jax.numpy_dtype_promotion("standard"):  # Optax is not written for strict promotion
            updates, optimizer_state = update(grads, state.optimizer, trained, **seen)
        module = eqx.combine(eqx.apply_updates(trained, updates), fixed)
        computed = jax.tree.leaves((value, grads, updates, eqx.filter(source, eqx.is_inexact_array)))
        good = _all_finite(computed)
        module, optimizer_state, source = _choose(good, (module, optimizer_state, source), state[:3])
        bad = jnp.where(good, 0, 1)
        streak = (state.streak + 1) * bad
        longest = jnp.maximum(streak, state.longest_streak)
        following = State(module, optimizer_state, source, state.step + 1, streak, longest, state.skipped + bad)
        return following, jnp.where(good, value, jnp.nan)


def _all_finite(arrays: Sequence[Array]) -> Bool[Array, ""]:
    """Return whether all numbers are finite.

    Looked at as one vector of each type: the compiler repeats what is found for each array by itself wherever it is used.
    """
    types = dict.fromkeys(x.dtype for x in arrays)
    vectors = [jnp.concatenate([jnp.ravel(x) for x in arrays if x.dtype == dtype]) for dtype in types]
    return jnp.all(jnp.array([jnp.all(jnp.isfinite(vector)) for vector in vectors]))


@quick_jit
def run_chunk(step: Step, state: State, key: PRNGKeyArray, length: int) -> tuple[State, Float[Array, "length"]]:
    """Take `length` steps; return the state after the last and the loss of each."""
    arrays, rest = eqx.partition(state, eqx.is_array)

    def body(arrays: Any, _: None) -> tuple[Any, Float[Array, ""]]:
        following, value = step(eqx.combine(arrays, rest), key)
        return eqx.filter(following, eqx.is_array), value

    arrays, values = jax.lax.scan(body, arrays, None, length=length)
    if step.mesh is not None:  # whole on every device, so that each process can write or return it by itself
        arrays, values = spread((arrays, values), step.mesh)
    return eqx.combine(arrays, rest), values


def _choose(good: Bool[Array, ""], new: Any, old: Any) -> Any:
    """Return the new state or the old one, in the types of the old: a loop's state keeps its type."""

    def pick(a: Any, b: Any) -> Any:
        if not eqx.is_array(b):
            return b
        return jnp.where(good, a if is_key(b) else jnp.asarray(a, b.dtype), b)

    return jax.tree.map(pick, new, old)


def is_key(x: Any) -> bool:
    """Return whether an array holds random keys."""
    return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def trainable(module: Any) -> tuple[Any, Any]:
    """Split a module in two: the floating-point arrays that are trained, and the rest; fields marked `frozen` are rest."""
    return eqx.partition(module, _trained(module))


def _trained(tree: Any) -> Any:
    """Return which leaves are trained, as a tree of the same structure."""
    marks = {f.name: f.metadata.get(FROZEN) for f in dataclasses.fields(tree)} if isinstance(tree, eqx.Module) else {}

    def mark(path: tuple[Any, ...], part: Any) -> Any:
        fixed = marks.get(path[0].name) if marks and path else None
        if getattr(tree, fixed) if isinstance(fixed, str) else fixed:
            return jax.tree.map(lambda _: False, part)
        return _trained(part) if isinstance(part, eqx.Module) else eqx.is_inexact_array(part)

    return jax.tree_util.tree_map_with_path(mark, tree, is_leaf=lambda x: x is not tree and isinstance(x, eqx.Module))
