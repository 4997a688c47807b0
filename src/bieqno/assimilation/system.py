"""`System`: the one description of a twin experiment that every verb takes, and the climate of its model."""

from collections.abc import Callable
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from bieqno.arguments import checked
from bieqno.assimilation.geometry import Neighbours
from bieqno.assimilation.linalg import magnitude
from bieqno.assimilation.models.forecast import Model, forecast
from bieqno.assimilation.neighbourhoods import Candidates, Neighbourhoods, near_radius, spacing
from bieqno.assimilation.observation import Observation
from bieqno.assimilation.observation_operators import Components
from bieqno.assimilation.observation_operators import observation_places as find_places
from bieqno.assimilation.places import Places
from bieqno.compilation import quick_jit

Network: TypeAlias = Callable[[PRNGKeyArray], Bool[Array, "m"]]
RUNS, KEPT = 64, 32  # free runs of a climate, and the windows at the end of each that are kept
SPIN, LONGEST = 75, 1500  # windows between two looks at whether the free runs have settled, and most of them
SETTLED = 0.15  # largest change between two looks, of the logarithm of a deviation on average, of a settled climate
SCOUT = 100  # windows of the free run that shows how much a variable varies
SHARE = 0.25  # first uncertainty, as a share of how much a variable varies
NUDGE = 0.01  # disturbance, as a share of the state, that a free run begins with


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
        observation_places: where the observations are. Follows from `places` where each value depends on variables that are
            near each other: components of the state, functions of them, averages over regions.
        spread: standard deviation of first ensembles about their truth, one number or one per variable, in the units of the
            state; None for a quarter of how much each variable varies in a free run.
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
    spread: float | Float[Array, "n"] | None

    @checked("limit")
    def __init__(
        self,
        model: Model,
        observation: Observation,
        state: Float[Array, "..."],
        places: Places | None = None,
        limit: float | Float[Array, "..."] = 1e6,
        *,
        observation_places: Places | None = None,
        network: Network | None = None,
        at_once: int | None = None,
        spread: float | Float[Array, "..."] | None = None,
    ) -> None:
        self.model = model
        self.observation = observation
        self.state = state
        self.places = places
        self.limit = limit
        self.network = network
        self.at_once = at_once
        operator = observation.operator
        if self.state.ndim == 1:
            observation.size(len(self.state))  # refuses what is no operator of such a state
        if observation_places is None and places is not None:
            if isinstance(operator, Components):
                observation_places = places.at(operator.indices)
            elif len(places.positions) == len(self.state):
                observation_places = find_places(operator, places, self.state)
        self.observation_places = observation_places
        self.spread = None if spread is None else _as_floats(spread)

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
            mask = jax.eval_shape(self.network, jax.random.key(0))
            if mask.shape != (self.observed,) or mask.dtype != bool:
                raise ValueError(
                    f"a network says of each of {self.observed} values whether it is there, got {mask.dtype} {mask.shape}"
                )
            if self.at_once is not None:
                self._check_at_once(self.at_once)
        for name, value in (("limit", self.limit), ("spread", 1.0 if self.spread is None else self.spread)):
            if not isinstance(value, float) and value.shape not in {(), self.state.shape}:
                raise ValueError(f"a {name} is a number or one per variable, got shape {value.shape}")
            known = not isinstance(value, jax.core.Tracer)
            if known and not np.all(np.asarray(value) > 0):
                raise ValueError(f"a {name} is positive, got {name}={value}")
            if known and not np.any(np.isfinite(value)):  # parameters may have none, a model's variables do
                raise ValueError(f"a {name} is finite for some variables, got {name}={value}")

    def _check_at_once(self, most: int) -> None:
        """Refuse a number that windows exceed: the values beyond it would be dropped without a word."""
        with jax.ensure_compile_time_eval():
            seen = int(jnp.max(jnp.sum(self.present(20, key=jax.random.key(0)), axis=1)))
        if most < max(seen, 1):
            raise ValueError(f"a window has up to {seen} values, got at_once={most}")

    def check_present(self, mask: Bool[Array, "*s m"]) -> None:
        """Refuse masks of windows with more values than `at_once`, as far as they are known."""
        if self.at_once is not None and mask.size and not isinstance(mask, jax.core.Tracer):
            most = int(jnp.max(jnp.sum(mask, axis=-1)))
            if most > self.at_once:
                raise ValueError(f"a window has {most} values, more than the at_once={self.at_once} of the system")

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

    def first_spread(self, *, key: PRNGKeyArray) -> Float[Array, "n"]:
        """Return the standard deviation of first ensembles: as given, or estimated by a free run.

        Example:
            >>> from bieqno.assimilation import Lorenz96
            >>> small = lambda z: 1e-3 * Lorenz96(8, window=0.1)(z * 1e3)
            >>> system = System(small, Observation([0], 1e-3), jnp.full(8, 8e-3))
            >>> bool(jnp.all(jnp.abs(system.first_spread(key=jax.random.key(0)) - 0.9e-3) < 0.4e-3))
            True
        """
        if self.spread is not None:
            return jnp.broadcast_to(jnp.asarray(self.spread, self.state.dtype), self.state.shape)
        start_key, model_key = jax.random.split(key)
        nudge = NUDGE * magnitude(self.state)
        start = self.state + nudge * jax.random.normal(start_key, self.state.shape, self.state.dtype)
        run = _free_runs(self.model, start[None], SCOUT, model_key)[SCOUT // 2 :, 0]
        varies = jnp.std(run, axis=0)
        return jnp.where(jnp.isfinite(varies) & _beyond_rounding(varies, run), SHARE * varies, nudge)

    def neighbours(self, radius: float) -> Neighbours | Candidates:
        """Return the observations within a radius of every variable, for the `LETKF`."""
        here, there = self._places()
        if self.at_once is not None:
            return Candidates.of(here, there, radius=radius, most=self.at_once)
        return Neighbours.within(radius, here.positions, there.positions, period=here.period)

    def neighbourhoods(self, radius: float | None = None, reach: float | None = None) -> Neighbourhoods:
        """Return what can act on each variable, for the `LocalEnNF`.

        An observation acts within the `radius`, by default one that holds about 40 of them; a variable sees others within its
        `reach`, by default three times their distance.
        """
        here, there = self._places()
        radius = near_radius(here, there, self.at_once) if radius is None else radius
        reach = 3.0 * spacing(here) if reach is None else reach
        return Neighbourhoods.of(here, there, radius=radius, reach=reach, at_once=self.at_once)

    def _places(self) -> tuple[Places, Places]:
        """Return the places of variables and observations; without positions everything is near everything."""
        here = Places.apart(self.size) if self.places is None else self.places
        there = self.observation_places
        if there is None and self.places is None and not isinstance(self.observation.operator, Components):
            there = Places.apart(self.observed)
        if there is None:
            if not isinstance(self.observation.operator, Components):
                raise ValueError(
                    "the places of these observations cannot be found from the operator, whose values depend on much of the "
                    "domain or cannot be differentiated; give System(..., observation_places=Places(...))"
                )
            there = here.at(self.observation.operator.indices)
        return here, there


class Climate(eqx.Module):
    """States of free runs of a system's model, with their mean and standard deviation."""

    states: Float[Array, "r n"]
    mean: Float[Array, "n"]
    deviation: Float[Array, "n"]

    @classmethod
    def of(cls, system: System, *, key: PRNGKeyArray) -> "Climate":
        """Run the model freely from about the system's state, until the spread of the runs no longer changes.

        Example:
            >>> from bieqno.assimilation import Lorenz96
            >>> system = System(Lorenz96(8), Observation([0], 1.0), jnp.full(8, 8.0))
            >>> climate = Climate.of(system, key=jax.random.key(0))
            >>> climate.states.shape, bool(jnp.all(jnp.abs(climate.deviation - 3.6) < 0.5))
            ((2048, 8), True)
        """
        spread_key, start_key, model_key = jax.random.split(key, 3)
        noise = jax.random.normal(start_key, (RUNS, system.size), system.state.dtype)
        states = (system.state + system.first_spread(key=spread_key) * noise)[None]
        before = jnp.zeros(system.size)
        for look in range(LONGEST // SPIN):
            states = _free_runs(system.model, states[-1], SPIN, jax.random.fold_in(model_key, look))[-KEPT:]
            if not bool(jnp.all(jnp.isfinite(states))):
                raise ValueError(
                    "free runs of the model did not stay finite: they begin at 'state' with noise of standard deviation "
                    "'spread'; give a state nearer the attractor, or a smaller spread"
                )
            deviation = jnp.std(states, axis=(0, 1))
            deviation = jnp.where(_beyond_rounding(deviation, states), deviation, 0)
            known = (deviation > 0) & (before > 0)
            change = jnp.where(known, jnp.abs(jnp.log(deviation / jnp.where(known, before, 1))), 0)
            if look and float(jnp.mean(change)) < SETTLED:
                break
            before = deviation
        kept = states.reshape(-1, system.size)
        return cls(kept, jnp.mean(kept, axis=0), jnp.where(deviation > 0, deviation, 1))


def _beyond_rounding(deviation: Float[Array, "n"], values: Float[Array, "*s n"]) -> Bool[Array, "n"]:
    """Return where values differ by more than a constant does that was rounded."""
    size = jnp.max(jnp.abs(values), axis=tuple(range(values.ndim - 1)))
    return deviation > 100 * float(np.finfo(values.dtype).eps) * size


@quick_jit
def _free_runs(model: Model, starts: Float[Array, "r n"], windows: int, key: PRNGKeyArray) -> Float[Array, "t r n"]:
    def step(states: Float[Array, "r n"], k: PRNGKeyArray) -> tuple[Array, Array]:
        states = forecast(model, states, key=k)
        return states, states

    return jax.lax.scan(step, starts, jax.random.split(key, windows))[1]
