"""Records that might have been: what a filter for real records is trained on, since a real one has no truth."""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from bieqno.assimilation.system import System


class Scenarios(eqx.Module):
    """Systems with parameters of their own, what drives each, and states that it may begin with, stacked along a first axis.

    The systems differ in nothing but arrays: parameters of the model, of the operator and of the law. The inputs are those of a
    record or resampled ones, with one row per window, None for models that nothing drives. Truth and first ensemble are drawn
    from `states`.

    Example:
        >>> from bieqno.assimilation import Observation
        >>> grow = lambda rate, z, rain: rate * z + rain
        >>> def draw(key):
        ...     rate = 1 + 0.1 * jax.random.normal(key)
        ...     system = System(jax.tree_util.Partial(grow, rate), Observation([0], 1.0), jnp.ones(1))
        ...     return system, jnp.ones(5), jnp.ones((3, 1))
        >>> scenarios = Scenarios.of([draw(key) for key in jax.random.split(jax.random.key(0), 4)])
        >>> scenarios.count, scenarios.windows, scenarios.at(1)[0].state.shape
        (4, 5, (1,))
    """

    system: System  # with a first axis in all arrays
    inputs: PyTree[Any]
    states: Float[Array, "K s n"]
    count: int = eqx.field(static=True)
    windows: int = eqx.field(static=True)

    @classmethod
    def of(
        cls, drawn: Sequence[tuple[System, PyTree[Any], Float[Array, "s n"]]], windows: int | None = None
    ) -> "Scenarios":
        """Stack systems, inputs and first states; without inputs the number of windows is given."""
        if not drawn:
            raise ValueError("at least one scenario is drawn, got none")
        lengths = {leaf.shape[0] for _, inputs, _ in drawn for leaf in jax.tree.leaves(inputs)} or {windows}
        if len(lengths) > 1 or None in lengths:
            raise ValueError(f"all scenarios have one number of windows, got {sorted(map(str, lengths))}")
        parts = [eqx.partition(one, eqx.is_array) for one in drawn]
        if any(not eqx.tree_equal(parts[0][1], rest) for _, rest in parts[1:]):
            raise ValueError(
                "scenarios differ in nothing but arrays: give numbers that differ as jnp.asarray(...), and one function to all"
            )
        arrays = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(own for own, _ in parts))
        system, inputs, states = eqx.combine(arrays, parts[0][1])
        return cls(system, inputs, states, len(drawn), int(lengths.pop()))

    def at(
        self, number: int | Int[Array, ""], window: int | Int[Array, ""] | slice = slice(None)
    ) -> tuple[System, PyTree[Any], Float[Array, "s n"]]:
        """Return one of them, with the inputs of one window or of some."""

        def own(tree: PyTree[Any]) -> PyTree[Any]:
            return jax.tree.map(lambda leaf: leaf[number] if eqx.is_array(leaf) else leaf, tree)

        inputs = jax.tree.map(lambda leaf: leaf[number, window], self.inputs)
        return own(self.system), inputs, self.states[number]

    def begin(
        self, number: Int[Array, ""], members: int, *, key: PRNGKeyArray
    ) -> tuple[Float[Array, "n"], Float[Array, "N n"]]:
        """Draw a truth and an ensemble from the first states."""
        states = self.states[number]
        drawn = states[jax.random.randint(key, (1 + members,), 0, len(states))]
        return drawn[0], drawn[1:]
