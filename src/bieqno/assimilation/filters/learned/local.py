"""The local ensemble neural filter: each variable is updated from what lies round it, by weights shared by all."""

import equinox as eqx
import jax
from jaxtyping import Array, Float, PRNGKeyArray

from bieqno.assimilation.filters.learned.local_update import LocalUpdate
from bieqno.assimilation.filters.rotation import mirrored
from bieqno.assimilation.geometry import Surroundings
from bieqno.assimilation.noise import white_noise
from bieqno.assimilation.observation import Observed


class LocalEnNF(eqx.Module):
    """Moves each variable by what was observed near it, as it has learned to; knows where things are.

    Takes ensembles of any size, any number of variables and observations, and missing values; on a periodic domain it is
    equivariant to translations. Trained by `train_filter`, against the truth.

    Args:
        update: the learned weights.
        surroundings: where variables and observations are.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from bieqno.assimilation import Observation
        >>> from bieqno.assimilation.geometry import Places
        >>> from bieqno.operators import Standardiser
        >>> ring = Places.grid(8, period=8.0)
        >>> around = Surroundings.of(ring, ring.at([0]), radius=2.0, reach=1.0)
        >>> plain = Standardiser.unit(1)
        >>> filter = LocalEnNF(LocalUpdate(1, state=plain, predicted=plain, radius=2.0, reach=1.0, key=jax.random.key(0)), around)
        >>> prior = jax.random.normal(jax.random.key(1), (5, 8))
        >>> observed = Observation([0], 1.0).window(jnp.array([2.0]))
        >>> posterior = jax.jit(lambda prior: filter(prior, observed, key=jax.random.key(2)))(prior)
        >>> (jnp.abs(posterior.mean(axis=0) - prior.mean(axis=0)) > 1e-6).tolist()
        [True, True, True, False, False, False, True, True]
    """

    update: LocalUpdate
    surroundings: Surroundings

    def __check_init__(self) -> None:
        self.update.check(self.surroundings)

    def __call__(self, ensemble: Float[Array, "N n"], observed: Observed, *, key: PRNGKeyArray) -> Float[Array, "N n"]:
        """Analyse one window."""
        known = self.surroundings.variables.shape[0], self.surroundings.observations.shape[0]
        present = ensemble.shape[1], observed.value.shape[0]
        if known != present:
            raise ValueError(
                f"the surroundings are of {known[0]} variables and {known[1]} observations, "
                f"the state has {present[0]} and {present[1]} are observed"
            )
        count, size = ensemble.shape
        noise = white_noise((count, size + 1), ensemble.dtype, key=jax.random.fold_in(key, 1))
        return mirrored(self.update(ensemble, observed, self.surroundings, noise[:, :-1]), noise[:, -1])

    def at(self, surroundings: Surroundings) -> "LocalEnNF":
        """The same weights elsewhere: another grid, another observing network."""
        return LocalEnNF(self.update, surroundings)
