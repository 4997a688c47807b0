"""The local ensemble neural filter: each variable is updated from what is near it, by weights shared by all."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from bieqno.assimilation.filters.learned.local_update import LocalUpdate
from bieqno.assimilation.filters.wrappers import mirrored
from bieqno.assimilation.geometry import Neighbourhoods
from bieqno.assimilation.linalg import white_noise
from bieqno.assimilation.observation import Observed
from bieqno.assimilation.system import Climate, System
from bieqno.operators import Standardiser, frozen

BEYOND = 1.25  # how far beyond the farthest state of the free runs an analysis may be


class LocalEnNF(eqx.Module):
    """Moves each variable by what was observed near it, as it has learned to, given where things are.

    Takes ensembles of any size, any number of variables and observations, and missing values; on a periodic domain it is
    equivariant to translations. With nothing observed the prior is returned as it is. Trained by `train_filter`.

    Example:
        >>> from bieqno.assimilation import Lorenz96, Observation, Places
        >>> system = System(Lorenz96(8), Observation([0], 1.0), jnp.full(8, 8.0), Places.grid(8, period=8.0))
        >>> filter = LocalEnNF.untrained(system, radius=2.0, reach=1.0, key=jax.random.key(0))
        >>> prior = jax.random.normal(jax.random.key(1), (5, 8))
        >>> observed = system.observation.window(jnp.array([2.0]))
        >>> posterior = jax.jit(lambda prior: filter(prior, observed, key=jax.random.key(2)))(prior)
        >>> (jnp.abs(posterior.mean(axis=0) - prior.mean(axis=0)) > 1e-6).tolist()
        [True, True, True, False, False, False, True, True]
    """

    update: LocalUpdate
    neighbourhoods: Neighbourhoods = frozen()

    def __check_init__(self) -> None:
        self.update.check(self.neighbourhoods)

    @classmethod
    def untrained(
        cls,
        system: System,
        *,
        radius: float | None = None,
        reach: float | None = None,
        width: int = 128,
        small: int = 32,
        channels: int = 8,
        key: PRNGKeyArray,
    ) -> "LocalEnNF":
        """Return a filter with new weights, with which the mean moves nearly as that of a tapered Kalman filter.

        Free runs of the system's model give the units. An observation can act within a radius of two and a half times the
        distance between observations by default, and each variable sees others within a reach of three times theirs. `width`,
        `small` and `channels` are those of `LocalUpdate`.
        """
        climate_key, weight_key = jax.random.split(key)
        near = system.neighbourhoods(radius, reach)
        states = Climate.of(system, key=climate_key).states
        kinds = np.asarray(near.variables)
        state = _by_kind(states, kinds)
        far = np.asarray(jnp.max(jnp.abs(states - state.mean[kinds]) / state.scale[kinds], axis=0))
        extent = [BEYOND * max(1.0, *far[kinds == kind]) for kind in range(len(state.mean))]
        update = LocalUpdate(
            near.near.offset.shape[-1],
            state=state,
            extent=jnp.array(extent),
            predicted=_by_kind(jax.vmap(system.observation.operator)(states), np.asarray(near.observations)),
            radius=near.radius,
            reach=near.reach,
            width=width,
            small=small,
            channels=channels,
            key=weight_key,
        )
        return cls(update, near)

    def __call__(self, ensemble: Float[Array, "N n"], observed: Observed, *, key: PRNGKeyArray) -> Float[Array, "N n"]:
        """Analyse one window."""
        around, (count, size) = self.neighbourhoods, ensemble.shape
        observed.check_known(ensemble, around.variables.shape[0], around.observations.shape[0])
        noise = white_noise((count, size + 1), ensemble.dtype, key=jax.random.fold_in(key, 1))
        moved = self.update(ensemble, observed, around, noise[:, :-1])
        return observed.or_prior(mirrored(moved, noise[:, -1]), ensemble)

    def at(self, neighbourhoods: Neighbourhoods) -> "LocalEnNF":
        """Return the same weights elsewhere: on another grid, with another observing network."""
        return LocalEnNF(self.update, neighbourhoods)


def _by_kind(values: Float[Array, "r n"], kinds: Int[np.ndarray, "n"]) -> Standardiser:
    """Return mean and standard deviation of the values of each kind."""
    found = [
        Standardiser.of(values[:, kinds == kind]) if np.any(kinds == kind) else Standardiser.unit()
        for kind in range(int(kinds.max(initial=0)) + 1)
    ]
    return Standardiser(jnp.stack([s.mean for s in found]), jnp.stack([s.scale for s in found]))
