"""The twin experiments of the paper (section 3.2) and of the literature, as settings that anyone can run."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from bieqno.assimilation.laws import AffineLaw
from bieqno.assimilation.models import Lorenz63, Lorenz96
from bieqno.assimilation.observation import Observation
from bieqno.assimilation.trials import Trials
from bieqno.assimilation.twin import simulate, spin_up


class Setup(eqx.Module):
    """A twin experiment without a filter.

    Args:
        model: the dynamics.
        observation: what is observed of them.
        state: the true state at the beginning.
        baseline: from a key to the mean of the first ensemble.
        deviation: standard deviation of the first ensemble about it.
        limit: absolute value far outside the climatology, beyond which a run has diverged.
    """

    model: Lorenz63 | Lorenz96
    observation: Observation
    state: Float[Array, "n"]
    baseline: Callable[[PRNGKeyArray], Float[Array, "n"]]
    deviation: Float[Array, "n"]
    limit: float = eqx.field(static=True)

    def ensemble(self, members: int, *, key: PRNGKeyArray) -> Float[Array, "N n"]:
        """A first ensemble; one member alone is its mean, the baseline of the paper."""
        if members == 1:
            return self.baseline(jax.random.split(key)[0])[None]
        centre_key, member_key = jax.random.split(key)
        noise = jax.random.normal(member_key, (members, *self.state.shape), self.state.dtype)
        return self.baseline(centre_key) + noise * self.deviation

    def trials(self, windows: int, *, runs: int, members: int, one_record: bool = False, key: PRNGKeyArray) -> Trials:
        """Runs on the one truth of the setup, each from a first ensemble of its own.

        Args:
            windows: how many windows.
            runs: how many runs.
            members: size of each ensemble.
            one_record: the paper's protocol, in which all runs see the same observations.
            key: for observation errors and ensembles.
        """

        def one(number: Array) -> Trials:
            record_key, start_key = jax.random.split(jax.random.fold_in(key, number))
            record_key = key if one_record else record_key
            twin = simulate(self.model, self.observation, windows, state=self.state, key=record_key)
            return Trials(twin, self.ensemble(members, key=start_key), number)

        return jax.vmap(one)(jnp.arange(runs))


def paper_lorenz63() -> Setup:
    """Section 3.2.1: first and third variable observed every 0.5 with an error of 0.1 d + 0.05.

    Example:
        >>> import jax
        >>> paper_lorenz63().ensemble(50, key=jax.random.key(0)).shape
        (50, 3)
    """
    return Setup(
        model=Lorenz63(window=0.5, step=0.01),
        observation=Observation([0, 2], AffineLaw(0.1, 0.05)),
        state=jnp.array([-8.5, -7.0, 27.0]),
        baseline=lambda key: jnp.array([-8.0, -9.0, 28.0]),
        deviation=jnp.sqrt(jnp.array([0.4, 2.0, 1.4])),
        limit=1e3,
    )


def paper_lorenz96() -> Setup:
    """Section 3.2.2: 24 variables, every third observed every 0.2 with an error of 0.05 d + 0.1.

    Example:
        >>> paper_lorenz96().state.shape
        (24,)
    """
    model = Lorenz96(24, 8.0, window=0.2, step=0.01)
    # The truth begins after five time units from a disturbed equilibrium, as in the paper.
    rest = jnp.full(24, 8.0).at[19].add(0.01)
    state = spin_up(model, rest, 25, key=jax.random.key(0))[-1]
    return Setup(
        model=model,
        observation=Observation(range(2, 24, 3), AffineLaw(0.05, 0.1)),
        state=state,
        baseline=lambda key: state + jax.random.normal(key, state.shape, state.dtype),
        deviation=jnp.ones(24),
        limit=1e3,
    )
