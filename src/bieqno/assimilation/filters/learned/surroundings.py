"""Where a pretrained filter is used: the observations near each variable, kinds, and how far its model goes by itself."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from bieqno.assimilation.models.forecast import forecast
from bieqno.assimilation.neighbourhoods import Candidates, Stencil
from bieqno.assimilation.system import System
from bieqno.compilation import quick_jit

MOST = 4096  # pairs of kinds whose correlations are told apart
BEYOND = 0.125  # how far beyond the extent of the free runs an analysis may be, as a share of it
RUNS, VALUES = (2, 16), 2048  # free runs, fewest and most, and the variables of all in between
LOOK, LOOKS = 75, 4  # windows between two looks at how far they went, and most looks
WIDENED = 1.05  # growth of the extent between two looks below which it is known
LARGE = 100_000  # variables beyond which free runs cost too much to be run unasked


class Surroundings(eqx.Module):
    """Where a filter is used: the observations near each variable, the kinds of both, and the extent of the model's climate."""

    near: Stencil | Candidates
    variables: Int[Array, "n"]
    observations: Int[Array, "m"]
    kinds: tuple[int, int] = eqx.field(static=True)
    extent: Float[Array, "2 n"] | None = None  # least and largest value of each variable; None where it is not known

    @classmethod
    def of(cls, system: System, states: Float[Array, "r n"] | None = None) -> "Surroundings":
        """Find what is near; distances are in units of the radius that holds about 40 observations.

        The extent is that of the `states`, or else of short free runs; variables of one kind share it.
        """
        around = system.neighbourhoods(reach=1e-6)
        variables, observations = around.variables, around.observations
        extent = free_extent(system, key=jax.random.key(0)) if states is None else extent_of(states)
        if extent is not None:
            extent = shared(extent, np.asarray(variables))
        kinds = tuple(int(np.max(np.asarray(k), initial=0)) + 1 for k in (variables, observations))
        if kinds[0] * kinds[1] > MOST:  # without positions each variable is a kind of its own
            variables, observations, kinds = 0 * variables, 0 * observations, (1, 1)
        return cls(around.near, variables, observations, (kinds[0], kinds[1]), extent)

    def within(
        self, values: Float[Array, "N n"], forecast: Float[Array, "N n"], present: Bool[Array, "N"]
    ) -> Float[Array, "N n"]:
        """Return members moved to within the climate: one beyond all that the model does may blow up in the next forecast.

        Where half of the members have left the climate, as where it drifts, it reaches as far as they do.
        """
        if self.extent is None:
            return values
        middle = jnp.nanmedian(jnp.where(present[:, None], forecast, jnp.nan), axis=0)
        low, high = jax.lax.stop_gradient((jnp.minimum(self.extent[0], middle), jnp.maximum(self.extent[1], middle)))
        margin = BEYOND * (high - low)
        return jnp.clip(values, low - margin, high + margin)


def extent_of(states: Float[Array, "r n"]) -> Float[Array, "2 n"]:
    """Return the least and the largest value of each variable."""
    return jnp.stack([jnp.min(states, axis=0), jnp.max(states, axis=0)])


def shared(extent: Float[Array, "2 n"], kinds: Int[np.ndarray, "n"]) -> Float[Array, "2 n"]:
    """Return the extent of each kind, at its variables."""
    count = int(kinds.max(initial=0)) + 1
    least = jax.ops.segment_min(extent[0], kinds, count)
    return jnp.stack([least, jax.ops.segment_max(extent[1], kinds, count)])[:, kinds]


def free_extent(system: System, *, key: PRNGKeyArray) -> Float[Array, "2 n"] | None:
    """Return how far each variable goes in short free runs, with the states that they begin with.

    Runs that do not stay finite do not count. None where free runs are not to be had at little cost: of models that are
    driven, outside JAX or very large; and where no run stays finite.

    Example:
        >>> from bieqno.assimilation import Observation
        >>> parabola = System(lambda z: 4 * z * (1 - z), Observation([0], 0.1), jnp.array([0.3]))
        >>> free_extent(parabola, key=jax.random.key(0)).round(1).tolist()
        [[0.0], [1.0]]
        >>> free_extent(System(lambda z: 9 * z, Observation([0], 0.1), jnp.ones(1)), key=jax.random.key(0)) is None
        True
    """
    if system.size > LARGE or not _runs_freely(system):
        return None
    spread_key, start_key, model_key = jax.random.split(key, 3)
    runs = min(max(VALUES // system.size, RUNS[0]), RUNS[1])
    noise = jax.random.normal(start_key, (runs, system.size), system.state.dtype)
    states = system.state + system.first_spread(key=spread_key) * noise
    low = high = states
    for look in range(LOOKS):
        states, *ends = _carried(system, states, jax.random.fold_in(model_key, look))
        before = high - low
        low, high = jnp.minimum(low, ends[0]), jnp.maximum(high, ends[1])
        grown = jnp.where(before > 0, (high - low) / jnp.where(before > 0, before, 1), 1)
        if look and float(jnp.mean(grown)) < WIDENED:
            break
    sound = np.isfinite(np.asarray(high - low)).all(axis=1)
    return extent_of(jnp.concatenate([low[sound], high[sound]])) if sound.any() else None


@quick_jit
def _carried(
    system: System, states: Float[Array, "r n"], key: PRNGKeyArray
) -> tuple[Float[Array, "r n"], Float[Array, "r n"], Float[Array, "r n"]]:
    """Return states some windows later, and the ends of the way there; NaN of a run that did not stay finite."""

    def window(carry: tuple[Array, Array, Array], key: PRNGKeyArray) -> tuple[tuple[Array, Array, Array], None]:
        states = forecast(system.model, carry[0], key=key)
        return (states, jnp.minimum(carry[1], states), jnp.maximum(carry[2], states)), None

    return jax.lax.scan(window, (states, states, states), jax.random.split(key, LOOK))[0]


def _runs_freely(system: System) -> bool:
    """Return whether the model runs in JAX, and by itself."""

    def window(ensemble: Float[Array, "N n"]) -> Float[Array, "N n"]:
        return forecast(system.model, ensemble, key=jax.random.key(0))

    try:
        program = str(jax.make_jaxpr(window)(system.state[None]))
    except Exception:  # of whatever kind a model raises that is not given its inputs
        return False
    return "callback[" not in program
