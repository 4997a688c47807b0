"""BI-EqNO, the posterior map (section 2.1 of the paper, its second figure).

F_E embeds the inputs, F_I embeds the observations, and a further equivariant operator fits their concatenation:
equivariant to the order of the inputs, invariant to the order of the observations, for any number of either.
"""

from typing import Any, Unpack

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from bieqno.arguments import checked
from bieqno.operators.networks import MLP, MLPSettings, Network, shape_of
from bieqno.operators.pooling import PoolLike, blank_padding
from bieqno.operators.sets import EquivariantOperator, InvariantOperator


class ElementwiseOperator(eqx.Module):
    """One network applied to every element alone: the shared ``phi_fit`` of the paper's lean forms.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> operator = ElementwiseOperator(MLP(3, 2, key=jax.random.key(0)))
        >>> operator(jnp.ones((7, 3))).shape
        (7, 2)
    """

    network: Network

    @checked()
    def __call__(self, elements: Float[Array, "n p"], *, mask: Bool[Array, "n"] | None = None) -> Float[Array, "n q"]:
        """Apply the network to each row; padded rows of the result are zero."""
        elements, mask = blank_padding(elements, mask)
        return jnp.where(mask[:, None], jax.vmap(self.network)(elements), 0)


class PosteriorOperator(eqx.Module):
    """Map input elements and a set of observations to one result per input element.

    The inputs are samples of a prior (and the results samples of the posterior), or coordinates (and the results
    the distribution there).

    Args:
        in_size, observation_size, out_size: lengths of an input element, an observation and a result.
        lean: the form of the paper's gGP: no fitting nets in the parts, one shared ``phi_fit`` per element.
        pool: how the embeddings of the observations become one vector; the masked mean by default. A pool that asks
            for a query (`CrossAttentionPool`) is queried by the embedding of each input element, ``inputs.out_size``
            values, which is `width`, or ``2 * width`` in the lean form.
        inputs, observations, fit: operators in place of the default F_E, F_I, and the one on the concatenation.
        width, chunk_size, **network: as for `InvariantOperator`.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> operator = PosteriorOperator(1, 2, 3, key=jax.random.key(0))
        >>> operator(jnp.ones((5, 1)), jnp.ones((8, 2))).shape
        (5, 3)
        >>> operator(jnp.ones((5, 1)), jnp.ones((0, 2))).shape  # no observation yet: the prior
        (5, 3)
    """

    inputs: EquivariantOperator | ElementwiseOperator
    observations: InvariantOperator
    fit: EquivariantOperator | ElementwiseOperator
    in_size: int = eqx.field(static=True)
    observation_size: int = eqx.field(static=True)
    out_size: int = eqx.field(static=True)

    @checked()
    def __init__(
        self,
        in_size: int,
        observation_size: int,
        out_size: int,
        *,
        width: int = 64,
        lean: bool = False,
        pool: PoolLike | None = None,
        inputs: EquivariantOperator | ElementwiseOperator | None = None,
        observations: InvariantOperator | None = None,
        fit: EquivariantOperator | ElementwiseOperator | None = None,
        chunk_size: int | None = None,
        key: PRNGKeyArray,
        **network: Unpack[MLPSettings],
    ) -> None:
        input_key, observation_key, fit_key = jax.random.split(key, 3)
        if observations is not None and pool is not None:
            raise ValueError("pool belongs to the default F_I; give it to your own `observations`")
        size = None if lean else width
        shape: Any = {"width": width, "chunk_size": chunk_size}
        self.inputs = inputs or EquivariantOperator(in_size, size, key=input_key, **shape, **network)
        self.observations = observations or InvariantOperator(
            observation_size, size, pool=pool, key=observation_key, **shape, **network
        )
        self.in_size, self.observation_size, self.out_size = in_size, observation_size, out_size
        joined = eqx.filter_eval_shape(self._embed, *self._one_of_each()).shape[1]
        plain: MLPSettings = {**network, "fourier_features": 0}  # they are of the elements only
        if fit is None and lean:
            fit = ElementwiseOperator(MLP(joined, out_size, width=width, key=fit_key, **plain))
        self.fit = fit or EquivariantOperator(joined, out_size, key=fit_key, **shape, **plain)

    def __check_init__(self) -> None:
        shape = shape_of(PosteriorOperator.__call__, self, *self._one_of_each()).shape
        if shape != (1, self.out_size):
            raise ValueError(f"the parts give results of {shape[1:]}, not of ({self.out_size},)")

    @checked()
    def __call__(
        self,
        inputs: Float[Array, "n p"],
        observations: Float[Array, "m r"],
        *,
        input_mask: Bool[Array, "n"] | None = None,
        observation_mask: Bool[Array, "m"] | None = None,
    ) -> Float[Array, "n q"]:
        """Map prior elements or coordinates, and observations, one per row; either set may be empty.

        The masks say which rows are elements, all by default; padded rows of the result are zero.
        """
        return self.fit(self._embed(inputs, observations, input_mask, observation_mask), mask=input_mask)

    def _embed(
        self, inputs: Array, observations: Array, input_mask: Array | None = None, observation_mask: Array | None = None
    ) -> Float[Array, "n joined"]:
        """Return F_E(inputs) beside F_I(observations), the latter queried by each input where the pool uses a query."""
        own = self.inputs(inputs, mask=input_mask)
        # What does not depend on the query is computed once: vmap leaves it unbatched.
        seen = jax.vmap(lambda q: self.observations(observations, mask=observation_mask, query=q))(own)
        return jnp.concatenate([own, seen], axis=1)

    def _one_of_each(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        """Return the shapes of one input and one observation."""
        sizes = (self.in_size, self.observation_size)
        return tuple(jax.ShapeDtypeStruct((1, n), jnp.zeros(()).dtype) for n in sizes)
