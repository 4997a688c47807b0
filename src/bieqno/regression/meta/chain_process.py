"""The generalized Gaussian process along the chain rule: each value is predicted from those before it.

The density of many values is the product of one-dimensional ones, each given the observations and the values before
(Bruinsma et al. 2023 evaluate neural processes so). It is a joint density whatever the single ones are, hence these need not
be normal: each is a mixture of what the processes of a `Bank` and straight pieces (`draw_lines`) say. The posterior operator
attends to the nearest values before a point and decides how much each of them is believed, and corrects them. Before
training it corrects nothing: the process begins as the mixture of its Gaussian processes, and contains each of them.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from bieqno.operators import MLP, CrossAttentionPool, ElementwiseOperator, PosteriorOperator
from bieqno.regression.meta.bank import Bank
from bieqno.regression.meta.features import NEIGHBOUR_FEATURES, of_neighbours, of_point, point_features
from bieqno.regression.meta.lines import CANDIDATES, Lines, draw_lines, without_pieces
from bieqno.regression.meta.mixture import Mixture

FLOOR = 1e-6
"""Least variance in the unit of the values: a thousandth of it as standard deviation, which bounds the density at 399."""
_DOUBT = 5.0
"""How much less a straight piece is believed than a Gaussian process before training, as a logarithm."""


class ChainProcess(eqx.Module):
    """Predictions of values of a function of one variable, in units that all tasks share.

    Args:
        bank: the Gaussian processes; they are not trained along with the operator.
        pieces: whether it is told of straight pieces; without them it knows its Gaussian processes alone.
        width: length of embeddings and hidden layers.
        heads: of the attention to the neighbours.
        key: random key of the initial weights.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> process = ChainProcess(Bank(), width=16, key=jax.random.key(0))
        >>> x = jnp.linspace(-1, 1, 9)
        >>> process.along(x, x).log_prob(x).shape  # each given those before
        (9,)
    """

    bank: Bank
    operator: PosteriorOperator
    pieces: bool = eqx.field(static=True)

    def __init__(self, bank: Bank, *, pieces: bool = True, width: int = 64, heads: int = 4, key: PRNGKeyArray) -> None:
        point_key, pool_key, key = jax.random.split(key, 3)
        size = point_features(bank.size)
        operator = PosteriorOperator(
            size,
            NEIGHBOUR_FEATURES,
            3 * bank.size + 2 * CANDIDATES,
            width=width,
            lean=True,
            inputs=ElementwiseOperator(MLP(size, width, width=2 * width, activation=jax.nn.silu, key=point_key)),
            pool=CrossAttentionPool(width, query_size=width, heads=heads, key=pool_key),
            activation=jax.nn.silu,
            key=key,
        )
        self.bank = bank
        self.pieces = pieces
        self.operator = eqx.tree_at(lambda o: o.fit.network.layers[-1].weight, operator, replace_fn=jnp.zeros_like)

    def __check_init__(self) -> None:
        expected = (point_features(self.bank.size), NEIGHBOUR_FEATURES, 3 * self.bank.size + 2 * CANDIDATES)
        found = (self.operator.in_size, self.operator.observation_size, self.operator.out_size)
        if found != expected:
            raise ValueError(f"a bank of {self.bank.size} needs an operator of sizes {expected}, got {found}")

    def along(self, x: Float[Array, "n"], y: Float[Array, "n"]) -> Mixture:
        """Each value given those before it: the sum of the log-densities is that of all of them together."""
        before = jnp.tri(len(x), k=-1, dtype=bool)
        return self._conclude(x, self.bank.along(x, y), x, y, before)

    def at(
        self,
        points: Float[Array, "p"],
        x: Float[Array, "n"],
        y: Float[Array, "n"],
        mask: Bool[Array, "n"] | None = None,
    ) -> Mixture:
        """The value at each point by itself, given the same observations.

        Args:
            points: where to predict.
            x: where was observed.
            y: what was observed.
            mask: which observations are there; None if all are.
        """
        there = jnp.ones(len(x), bool) if mask is None else mask
        everywhere = jnp.broadcast_to(there, (len(points), len(x)))
        return self._conclude(points, self.bank.at(points, x, y, there), x, y, everywhere)

    def sample(
        self, points: Float[Array, "p"], x: Float[Array, "n"], y: Float[Array, "n"], *, key: PRNGKeyArray
    ) -> Float[Array, "p"]:
        """Draw values at all points together, one after the other."""
        everywhere = jnp.concatenate([x, points])
        place = jnp.arange(len(everywhere))

        def draw(values: Array, step: tuple[Array, Array]) -> tuple[Array, None]:
            i, key = step
            mixture = self.at(everywhere[i][None], everywhere, values, place < i)
            return values.at[i].set(mixture.sample(key)[0]), None

        start = jnp.concatenate([y, jnp.zeros_like(points)])
        values, _ = jax.lax.scan(draw, start, (place[len(x) :], jax.random.split(key, len(points))))
        return values[len(x) :]

    def _conclude(
        self,
        points: Float[Array, "p"],
        said: Mixture,
        x: Float[Array, "n"],
        y: Float[Array, "n"],
        known: Bool[Array, "p n"],
    ) -> Mixture:
        """Correct what was said at points of which the last argument tells the values that are known."""
        said = jax.lax.stop_gradient(said)
        order = jnp.argsort(x)
        ascending = x[order], y[order]

        def at(point: Array, own: Mixture, mask: Array) -> Mixture:
            lines = draw_lines(point, *ascending, mask[order])
            return self._corrected(point, own, lines if self.pieces else without_pieces(lines), x, y, mask)

        return jax.vmap(at)(points, said, known)

    def _corrected(
        self, point: Float[Array, ""], said: Mixture, lines: Lines, x: Array, y: Array, mask: Bool[Array, "n"]
    ) -> Mixture:
        elements, near = of_neighbours(point, said, lines, x, y, mask)
        inputs = of_point(said, lines, jnp.sum(mask))
        out = self.operator(inputs[None], elements, observation_mask=near)[0]
        e = self.bank.size
        gate, shift, log_factor, trust, log_size = jnp.split(out, [e, 2 * e, 3 * e, 3 * e + CANDIDATES])
        means = said.means + shift * jnp.sqrt(said.variances)
        variances = said.variances * jnp.exp(jnp.clip(log_factor, -10, 10)) + FLOOR
        logits = jnp.concatenate([said.log_weight + gate, jnp.where(lines.there, trust - _DOUBT, -60)])
        return Mixture(
            jax.nn.log_softmax(logits),
            jnp.concatenate([means, jnp.where(lines.there, lines.values, 0)]),
            jnp.concatenate([variances, 0.1**2 * jnp.exp(jnp.clip(2 * log_size, -20, 6)) + FLOOR]),
        )
