"""The weights of the correction that ship with the package; `make prior` trains them."""

from functools import lru_cache
from pathlib import Path

import equinox as eqx
import jax

from bieqno import persistence
from bieqno.persistence import PersistenceError
from bieqno.regression.pretrained.correction import Correction

SHIPPED = Path(__file__).with_name("weights.bieqno")


@lru_cache
def shipped_correction() -> Correction:
    """Return the correction that was pre-trained on random functions."""
    if not SHIPPED.exists():
        raise PersistenceError(f"the pre-trained weights are not in {SHIPPED}; train them with `make prior`")
    return persistence.load(SHIPPED, known=[Correction])


@lru_cache
def no_correction() -> Correction:
    """Return the correction before any training: zero, whatever its other weights are."""
    return eqx.filter_jit(lambda key: Correction(width=16, key=key))(jax.random.key(0))
