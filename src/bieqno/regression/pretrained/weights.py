"""The weights of the correction: those that ship with the package, and those that correct nothing."""

from functools import lru_cache
from pathlib import Path

import equinox as eqx
import jax

from bieqno import persistence
from bieqno.persistence import PersistenceError
from bieqno.regression.pretrained.correction import SHARED, Correction

SHIPPED = Path(__file__).with_name("functions.bieqno")
"""The weights that come with the package; `make prior` trains them."""


@lru_cache
def shipped_correction() -> Correction:
    """Return the correction that was pre-trained on random functions.

    Raises:
        PersistenceError: if the weights are not there, or were trained for another version.
    """
    if not SHIPPED.exists():
        raise PersistenceError(f"the pre-trained weights are not in {SHIPPED}; train them with `make prior`")
    return persistence.load(SHIPPED, known=[Correction])


@lru_cache
def no_correction() -> Correction:
    """Return the correction before any training: zero, whatever its other weights are, and without correlations.

    Example:
        >>> no_correction().waves
        8
    """
    correction = eqx.filter_jit(lambda key: Correction(width=16, key=key))(jax.random.key(0))
    return eqx.tree_at(
        lambda c: c.operator.fit.network.layers[-1].bias, correction, replace_fn=lambda b: b.at[SHARED].set(-30)
    )
