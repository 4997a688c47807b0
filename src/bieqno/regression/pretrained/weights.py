"""The priors that a regressor can start from: the bare mixture of local experts, and the one learned from functions."""

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import equinox as eqx
import jax

from bieqno import persistence
from bieqno.persistence.tensorfile import PersistenceError
from bieqno.regression.pretrained.local_process import SHARED, LocalProcess

LEARNED = Path(__file__).with_name("functions.bieqno")
"""The weights that come with the package; `make prior` trains them."""


@lru_cache
def prior_named(name: str) -> LocalProcess:
    """The local process that goes by a name: ``experts`` or ``functions``.

    Raises:
        ValueError: if there is no such prior.
        PersistenceError: if the learned weights are not there, or were trained for another version.

    Example:
        >>> prior_named("experts").waves
        8
    """
    if name not in _PRIORS:
        raise ValueError(f"expected a prior of {PRIORS}, got {name!r}")
    return _PRIORS[name]()


def _experts() -> LocalProcess:
    """The process before any training: its corrections are zero whatever its other weights are.

    Of how predictions hang together it knows nothing, so that it states none of it.
    """
    process = eqx.filter_jit(lambda key: LocalProcess(width=16, key=key))(jax.random.key(0))
    return eqx.tree_at(
        lambda p: p.operator.fit.network.layers[-1].bias, process, replace_fn=lambda b: b.at[SHARED].set(-30)
    )


def _functions() -> LocalProcess:
    if not LEARNED.exists():
        raise PersistenceError(f"the learned prior is not in {LEARNED}; train it with `make prior`")
    return persistence.load(LEARNED, known=[LocalProcess])


_PRIORS: dict[str, Callable[[], LocalProcess]] = {"experts": _experts, "functions": _functions}
PRIORS = tuple(_PRIORS)
