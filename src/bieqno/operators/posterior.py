"""BI-EqNO, the posterior map (section 2.1 of the paper, its second figure).

F_E embeds the inputs, F_I embeds the observations, and a further equivariant operator fits their concatenation:
equivariant to the order of the inputs, invariant to the order of the observations, for any number of either.
"""

from collections.abc import Callable
from typing import Unpack

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from bieqno.operators.equivariant import ElementwiseOperator, EquivariantOperator
from bieqno.operators.invariant import InvariantOperator
from bieqno.operators.networks import MLP, Fourier, Layers, NetworkSettings
from bieqno.operators.pooling import AbstractPool


class PosteriorOperator(eqx.Module):
    """Map input elements and a set of observations to one result per input element.

    The inputs are samples of a prior (and the results samples of the posterior), or coordinates (and the results
    the distribution there).

    Args:
        in_size: length of an input element.
        observation_size: length of an observation.
        out_size: length of each result.
        width: length of the embeddings and hidden layers.
        depth: number of layers of each network.
        lean: the form of the paper's gGP: no fitting nets in the parts, one shared ``phi_fit`` per element.
        pool: how the embeddings of the observations become one vector; the masked mean by default. A pool that asks
            for a query (`CrossAttentionPool`) is queried by the embedding of each input element, ``inputs.out_size``
            values, which is `width`, or ``2 * width`` in the lean form.
        inputs: operator in place of the default F_E on the inputs.
        observations: operator in place of the default F_I on the observations.
        fit: operator in place of the default one on the concatenation.
        fourier_features: number of Fourier features given to the embedding nets of inputs and observations.
        fourier_scale: their typical frequency.
        chunk_size: pool at most so many elements at a time, to bound the memory for large sets.
        key: random key of the initial weights.
        **network: `activation` and `residual` of the default networks.

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

    def __init__(
        self,
        in_size: int,
        observation_size: int,
        out_size: int,
        *,
        width: int = 64,
        depth: int = 3,
        lean: bool = False,
        pool: AbstractPool | Callable[[Array, Array], Array] | None = None,
        inputs: EquivariantOperator | ElementwiseOperator | None = None,
        observations: InvariantOperator | None = None,
        fit: EquivariantOperator | ElementwiseOperator | None = None,
        fourier_features: int = 0,
        fourier_scale: float = 1.0,
        chunk_size: int | None = None,
        key: PRNGKeyArray,
        **network: Unpack[NetworkSettings],
    ) -> None:
        input_key, observation_key, fit_key = jax.random.split(key, 3)
        if observations is not None and pool is not None:
            raise ValueError("pool belongs to the default F_I; give it to your own `observations`")
        layers: Layers = {"width": width, "depth": depth, **network}
        fourier: Fourier = {"fourier_features": fourier_features, "fourier_scale": fourier_scale}
        size, chunks = None if lean else width, chunk_size
        if inputs is None:
            inputs = EquivariantOperator(in_size, size, chunk_size=chunks, key=input_key, **layers, **fourier)
        if observations is None:
            observations = InvariantOperator(
                observation_size, size, pool=pool, chunk_size=chunks, key=observation_key, **layers, **fourier
            )
        self.inputs, self.observations = inputs, observations
        self.in_size, self.observation_size, self.out_size = in_size, observation_size, out_size
        joined = self._shape_of(self._embed)[1]
        if fit is None and lean:
            fit = ElementwiseOperator(MLP(joined, out_size, key=fit_key, **layers))
        self.fit = fit or EquivariantOperator(joined, out_size, chunk_size=chunks, key=fit_key, **layers)

    def __check_init__(self) -> None:
        shape = self._shape_of(self.__call__)
        if shape != (1, self.out_size):
            raise ValueError(f"the parts give results of {shape[1:]}, not of ({self.out_size},)")

    def __call__(
        self,
        inputs: Float[Array, "n p"],
        observations: Float[Array, "m r"],
        *,
        input_mask: Bool[Array, "n"] | None = None,
        observation_mask: Bool[Array, "m"] | None = None,
    ) -> Float[Array, "n q"]:
        """Apply the map; padded rows of the result are zero.

        Args:
            inputs: prior elements or coordinates, one per row; may be empty.
            observations: what was observed, one per row; may be empty.
            input_mask: which rows of `inputs` are elements; None if all are.
            observation_mask: which rows of `observations` are elements; None if all are.
        """
        embedded = self._embed(inputs, observations, input_mask, observation_mask)
        return self.fit(embedded, mask=input_mask)

    def _embed(
        self,
        inputs: Float[Array, "n p"],
        observations: Float[Array, "m r"],
        input_mask: Bool[Array, "n"] | None = None,
        observation_mask: Bool[Array, "m"] | None = None,
    ) -> Float[Array, "n joined"]:
        """Return F_E(inputs) beside F_I(observations), the latter queried by each input where the pool uses a query."""
        own = self.inputs(inputs, mask=input_mask)
        # What does not depend on the query is computed once: vmap leaves it unbatched.
        seen = jax.vmap(lambda q: self.observations(observations, mask=observation_mask, query=q))(own)
        return jnp.concatenate([own, seen], axis=1)

    def _shape_of(self, method: Callable[..., Array]) -> tuple[int, ...]:
        """Return the shape of a method's result for one input and one observation, without computing it."""
        dtype = jnp.zeros(()).dtype
        return eqx.filter_eval_shape(
            method,
            jax.ShapeDtypeStruct((1, self.in_size), dtype),
            jax.ShapeDtypeStruct((1, self.observation_size), dtype),
        ).shape
