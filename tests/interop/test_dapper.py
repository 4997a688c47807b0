"""Filters of bieqno in DAPPER's experiments, and its set-ups as systems."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

dapper = pytest.importorskip("dapper", reason="needs DAPPER (the extra bench)")
pytestmark = pytest.mark.filterwarnings("default")  # of DAPPER's own code

from dapper.da_methods import EnKF  # noqa: E402
from dapper.mods.Lorenz63.sakov2012 import HMM as LORENZ63  # noqa: E402
from dapper.mods.Lorenz96.sakov2008 import HMM as LORENZ96  # noqa: E402

from bieqno.assimilation import ETKF, Lorenz63, Lorenz96  # noqa: E402
from bieqno.assimilation.observation import Components  # noqa: E402
from bieqno.interop.dapper import Analysis, from_dapper  # noqa: E402


@pytest.mark.parametrize(
    ("HMM", "settings"), [(LORENZ63, {"N": 10, "infl": 1.02}), (LORENZ96, {"N": 24, "infl": 1.013})]
)
def test_the_etkf_is_dappers_square_root_filter(HMM, settings):
    HMM = HMM.copy()
    HMM.tseq.Ko, HMM.tseq.BurnIn = 120, 20 * HMM.tseq.dto
    dapper.set_seed(3000)
    truth, observed = HMM.simulate()
    found = []
    for method in (EnKF("Sqrt", **settings), Analysis(ETKF(), **settings)):
        dapper.set_seed(1)
        method.assimilate(HMM, truth, observed)
        found.append(np.asarray(method.stats.err.rms.a))
    ours, theirs = found[1], found[0]
    # The same analyses up to the rounding of 32 bits, which chaos makes large in the end.
    np.testing.assert_allclose(ours[:10], theirs[:10], rtol=1e-2)
    difference = ours[20:] - theirs[20:]
    assert abs(difference.mean()) <= 2 * max(
        difference.std() / np.sqrt(len(difference) / 10), 0.02 * theirs[20:].mean()
    )


def test_a_set_up_becomes_a_system():
    system = from_dapper(LORENZ96)
    assert isinstance(system.model, Lorenz96)
    assert isinstance(system.observation.operator, Components)
    assert system.places is not None
    assert system.observed == 40
    E = LORENZ96.X0.sample(3)
    theirs, ours = LORENZ96.Dyn(E, 0.0, LORENZ96.tseq.dt), np.asarray(jax.vmap(system.model)(jnp.asarray(E)))
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
    small = from_dapper(LORENZ63)
    assert isinstance(small.model, Lorenz63)
    assert small.places is None
    assert np.allclose(np.asarray(small.observation.error.std(jnp.zeros(3))), np.sqrt(2))


def test_other_models_run_on_the_host():
    from dapper.mods.LA.raanes2015 import HMM

    system = from_dapper(HMM)
    E = np.asarray(HMM.X0.sample(2))
    carried = np.asarray(system.model.model.function(E)) if hasattr(system.model, "model") else system.model.function(E)
    expected = E
    for k in range(HMM.tseq.dko):
        expected = HMM.Dyn(expected, k * HMM.tseq.dt, HMM.tseq.dt)
    np.testing.assert_allclose(carried, expected, atol=1e-5)
