"""Estimating parameters along with the state, by appending them to it."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from bieqno.arguments import checked
from bieqno.assimilation.linalg import magnitude
from bieqno.assimilation.models.forecast import AbstractEnsembleModel, Model, forecast
from bieqno.assimilation.system import NUDGE, System


class ParametrizedModel(AbstractEnsembleModel):
    """A model of the appended state: parameters persist, the rest moves with them."""

    build: Callable[[Float[Array, "p"]], Model]
    count: int = eqx.field(static=True)

    def forecast(self, ensemble: Float[Array, "N np"], *inputs: PyTree[Any], key: PRNGKeyArray) -> Float[Array, "N np"]:
        """The appended ensemble one window later, every member by the model of its own parameters."""

        def one(member: Float[Array, "np"], k: PRNGKeyArray) -> Float[Array, "np"]:
            state, parameters = member[: -self.count], member[-self.count :]
            return jnp.concatenate([forecast(self.build(parameters), state[None], *inputs, key=k)[0], parameters])

        return jax.vmap(one)(ensemble, jax.random.split(key, ensemble.shape[0]))


class StateOperator(eqx.Module):
    """Observes the state part of an appended state."""

    operator: Callable[[Float[Array, "n"]], Float[Array, "m"]]
    count: int = eqx.field(static=True)

    def __call__(self, appended: Float[Array, "np"]) -> Float[Array, "m"]:
        """What is observed of the state, whatever the parameters."""
        return self.operator(appended[: -self.count])


@checked(finite=False)
def append_parameters(
    build: Callable[[Float[Array, "p"]], Model],
    system: System,
    ensemble: Float[Array, "N n"],
    parameters: Float[Array, "_ p"],
) -> tuple[System, Float[Array, "N n+p"]]:
    """Return system and ensemble of a state with unknown parameters appended to it, ready for `cycle`.

    The system's model is replaced by those that `build` makes of parameter vectors, of any kind that `forecast` takes. The
    initial `parameters` have one row per member; their spread is their uncertainty.

    Example:
        >>> from bieqno.assimilation import Lorenz96, Observation, forecast
        >>> system, ensemble = append_parameters(
        ...     lambda theta: Lorenz96(8, theta[0]),
        ...     System(Lorenz96(8), Observation(range(8), 1.0), jnp.zeros(8)),
        ...     jnp.zeros((5, 8)),
        ...     jnp.full((5, 1), 8.0),
        ... )
        >>> ensemble.shape, forecast(system.model, ensemble, key=jax.random.key(0)).shape
        ((5, 9), (5, 9))
    """
    members = len(ensemble)
    if parameters.ndim != 2 or len(parameters) != members or not parameters.shape[1]:
        raise ValueError(f"expected a row of parameters for each of {members} members, got shape {parameters.shape}")
    count, observation = parameters.shape[1], system.observation
    observed = eqx.tree_at(lambda o: o.operator, observation, StateOperator(observation.operator, count))
    state = jnp.concatenate([system.state, jnp.mean(parameters, axis=0)])
    limit = system.limit
    if not isinstance(limit, float) and limit.ndim:
        limit = jnp.concatenate([limit, jnp.full(count, jnp.inf)])
    # Parameters have no position, so that the appended state has none either.
    both = jnp.concatenate([ensemble, parameters], axis=1)
    # What is not known of a parameter, in its own units, is what its first values say.
    known = jnp.std(both, axis=0) > 1e-5 * jnp.abs(state)
    spread = None if members == 1 else jnp.where(known, jnp.std(both, axis=0), NUDGE * magnitude(state))
    about: Any = {"limit": limit, "spread": spread, "network": system.network}
    return System(ParametrizedModel(build, count), observed, state, **about), both
