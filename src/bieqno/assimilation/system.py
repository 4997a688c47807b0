"""`System`: the one description of a twin experiment that every verb takes, and the climate of its model."""

from collections.abc import Callable
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from bieqno.assimilation.geometry import Candidates, Neighbourhoods, Neighbours, near_radius, spacing
from bieqno.assimilation.models.forecast import Model, forecast
from bieqno.assimilation.observation import Components, Observation
from bieqno.assimilation.places import Places

Network: TypeAlias = Callable[[PRNGKeyArray], Bool[Array, "m"]]
RUNS, KEPT = 64, 32  # free runs of a climate, and the windows at the end of each that are kept


def _as_floats(values: Any) -> Any:
    """Return an array of floating-point numbers; one plain number stays as it is."""
    if isinstance(values, (int, float)):
        return float(values)
    return jnp.asarray(values, jnp.result_type(jnp.asarray(values), float))


class System(eqx.Module):
    """A model, what is observed of it, and where everything is.

    Args:
        model: the dynamics: a function from one state to the state one window later, or an `AbstractEnsembleModel`.
        state: a state near the attractor, from which truths begin or spin up.
        places: where the variables are; None if they have no positions.
        limit: a member beyond this absolute value has left the climatology and its run has diverged; a number, or one per
            variable.
        observation_places: where the observations are; follows from `places` if components of the state are observed.
        network: which values there are in a window, if not all: a function from a random key to a mask, such as `Shifted`.
        at_once: largest number of values in a window, if they are few of many that may be observed: local filters then look
            for those near a variable in each window.

    Example:
        >>> import jax.numpy as jnp
        >>> from bieqno.assimilation import Lorenz96
        >>> ring = Places.grid(40, period=40.0)
        >>> system = System(Lorenz96(40), Observation(range(0, 40, 4), 1.0), jnp.full(40, 8.0), ring)
        >>> system.size, system.observed, system.observation_places.positions[:3, 0].tolist()
        (40, 10, [0.0, 4.0, 8.0])
    """

    model: Model
    observation: Observation
    state: Float[Array, "n"] = eqx.field(converter=_as_floats)
    places: Places | None = eqx.field(static=True)
    limit: float | Float[Array, "n"] = eqx.field(converter=_as_floats)
    observation_places: Places | None = eqx.field(static=True)
    network: Network | None
    at_once: int | None = eqx.field(static=True)

    def __init__(
        self,
        model: Model,
        observation: Observation,
        state: Any,
        places: Places | None = None,
        limit: Any = 1e6,
        *,
        observation_places: Places | None = None,
        network: Network | None = None,
        at_once: int | None = None,
    ) -> None:
        self.model = model
        self.observation = observation
        self.state = state
        self.places = places
        self.limit = limit
        self.network = network
        self.at_once = at_once
        operator = observation.operator
        if observation_places is None and places is not None and isinstance(operator, Components):
            observation_places = places.at(operator.indices)
        self.observation_places = observation_places

    def __check_init__(self) -> None:
        if self.state.ndim != 1:
            raise ValueError(f"the state of a system is a vector (n,), got shape {self.state.shape}")
        for name, places, count in (
            ("variables", self.places, self.size),
            ("observations", self.observation_places, self.observed),
        ):
            if places is not None and len(places.positions) != count:
                raise ValueError(f"{len(places.positions)} places are given for {count} {name}")
        if self.network is not None:
            shape = jax.eval_shape(self.network, jax.random.key(0)).shape
            if shape != (self.observed,):
                raise ValueError(
                    f"a network says of each of {self.observed} values whether it is there, got shape {shape}"
                )
        if not isinstance(self.limit, float) and self.limit.shape not in {(), self.state.shape}:
            raise ValueError(f"a limit is a number or one per variable, got shape {self.limit.shape}")
        if not isinstance(self.limit, jax.core.Tracer) and not np.all(np.asarray(self.limit) > 0):
            raise ValueError(f"a limit is positive, got limit={self.limit}")

    @property
    def size(self) -> int:
        """Number n of state variables."""
        return self.state.shape[0]

    @property
    def observed(self) -> int:
        """Number m of observed values."""
        return self.observation.size(self.size)

    def present(self, windows: int, *, key: PRNGKeyArray) -> Bool[Array, "T m"]:
        """Return which values there are in each of some windows."""
        if self.network is None:
            return jnp.ones((windows, self.observed), bool)
        return jax.vmap(self.network)(jax.random.split(key, windows))

    def neighbours(self, radius: float) -> Neighbours | Candidates:
        """Return the observations within a radius of every variable, for the `LETKF`."""
        here, there = self._places()
        if self.at_once is not None:
            return Candidates.of(here, there, radius=radius, most=self.at_once)
        return Neighbours.within(radius, here.positions, there.positions, period=here.period)

    def neighbourhoods(self, radius: float | None = None, reach: float | None = None) -> Neighbourhoods:
        """Return what can act on each variable, for the `LocalEnNF`.

        An observation acts within the `radius`, by default 2.5 times the distance between observations; a variable sees
        others within its `reach`, by default three times their distance.
        """
        here, there = self._places()
        radius = near_radius(here, there, self.at_once) if radius is None else radius
        reach = 3.0 * spacing(here) if reach is None else reach
        return Neighbourhoods.of(here, there, radius=radius, reach=reach, at_once=self.at_once)

    def _places(self) -> tuple[Places, Places]:
        """Return the places of variables and observations; without positions everything is near everything."""
        here = Places.apart(self.size) if self.places is None else self.places
        there = self.observation_places
        if there is None:
            if not isinstance(self.observation.operator, Components):
                raise ValueError(
                    "the places of observations follow from observed components only; "
                    "give System(..., observation_places=Places(...)) for any other operator"
                )
            there = here.at(self.observation.operator.indices)
        return here, there


class Climate(eqx.Module):
    """States of free runs of a system's model, with their mean and standard deviation."""

    states: Float[Array, "r n"]
    mean: Float[Array, "n"]
    deviation: Float[Array, "n"]

    @classmethod
    def of(cls, system: System, *, spin: int = 150, key: PRNGKeyArray) -> "Climate":
        """Run the model freely from about the system's state, with a standard deviation of one.

        Example:
            >>> from bieqno.assimilation import Lorenz96
            >>> system = System(Lorenz96(8), Observation([0], 1.0), jnp.full(8, 8.0))
            >>> climate = Climate.of(system, key=jax.random.key(0))
            >>> climate.states.shape, bool(jnp.all(jnp.abs(climate.deviation - 3.6) < 0.5))
            ((2048, 8), True)
        """
        start_key, model_key = jax.random.split(key)
        starts = system.state + jax.random.normal(start_key, (RUNS, system.size), system.state.dtype)
        states = _free_runs(system.model, starts, spin, model_key).reshape(-1, system.size)
        if not bool(jnp.all(jnp.isfinite(states))):
            raise ValueError("free runs of the model did not stay finite; begin at a state nearer its attractor")
        deviation = jnp.std(states, axis=0)
        return cls(states, jnp.mean(states, axis=0), jnp.where(deviation > 0, deviation, 1))


@eqx.filter_jit
def _free_runs(model: Model, starts: Float[Array, "r n"], spin: int, key: PRNGKeyArray) -> Float[Array, "t r n"]:
    def step(states: Float[Array, "r n"], k: PRNGKeyArray) -> tuple[Array, Array]:
        states = forecast(model, states, key=k)
        return states, states

    return jax.lax.scan(step, starts, jax.random.split(key, spin + KEPT))[1][spin:]
