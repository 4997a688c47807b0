"""Study ``irregular``: one trained filter on observing networks that it never saw."""

from dataclasses import replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PRNGKeyArray

from bieqno.lab.methods.ennf_truth import Mask, truth_study
from bieqno.lab.methods.filters import FilterSettings
from bieqno.lab.papers import sparse_ring
from bieqno.lab.studies import mnmef
from bieqno.lab.study import Description, Experiment, Findings, Run

DESCRIPTION = Description(
    title="Observing networks that were never seen",
    question="A filter is trained once, with some of forty places observed, drawn anew in every window. How does it do, "
    "as it is, on networks of other kinds, all on places of the grid, against an LETKF that is tuned for each of them?",
    claim="None; the paper's filter knows one network only.",
    minutes={"smoke": 1.5, "quick": 6.0, "paper": 60.0},
    methods=("EnNF", "LETKF tuned"),
)
_STUDENT, _MISSING = {"radius": 10.0}, (0.5, 0.95)
_QUICK = {"sizes": {5: 4, 10: 3, 20: 2}, "missing": _MISSING, "steps": 1500}
_LONG = {"sizes": mnmef.TRUTHS, "missing": _MISSING, "steps": 10_000}
_BRIEF = {**mnmef.SMOKE.training, "missing": _MISSING}
PRESETS = {
    "smoke": replace(mnmef.SMOKE, student={**mnmef.SMOKE.student, "radius": 6.0}, training=_BRIEF),
    "quick": FilterSettings("quick", (10, 20), (10, 20), 8, 300, 100, (4, 200), _STUDENT, _QUICK),
    "paper": FilterSettings("paper", (5, 10, 20, 40), (10, 20, 40), 32, 600, 100, (8, 300), _STUDENT, _LONG),
}


def _every_fourth(windows: int, key: PRNGKeyArray) -> Bool[Array, "T m"]:
    """The network of the benchmark."""
    return jnp.broadcast_to(jnp.arange(40) % 4 == 0, (windows, 40))


def _random_places(windows: int, key: PRNGKeyArray) -> Bool[Array, "T m"]:
    """Ten places anywhere, the same in all windows."""
    return jnp.broadcast_to(jax.random.permutation(key, 40) < 10, (windows, 40))


def _half_missing(windows: int, key: PRNGKeyArray) -> Bool[Array, "T m"]:
    """Every other place, half of the values missing at random."""
    return (jnp.arange(40) % 2 == 0) & jax.random.bernoulli(key, 0.5, (windows, 40))


def _moving(windows: int, key: PRNGKeyArray) -> Bool[Array, "T m"]:
    """Ten places anywhere that travel by one place a window."""
    begin = jax.random.permutation(key, 40) < 10
    return jax.vmap(lambda window: jnp.roll(begin, window))(jnp.arange(windows))


_ALL: tuple[Mask, ...] = (_every_fourth, _random_places, _half_missing, _moving)
NETWORKS = {network.__name__[1:].replace("_", " "): network for network in _ALL}


def study(s: FilterSettings, run: Run) -> Findings:
    """Train once with places drawn anew in every window, and compare on each network."""
    system = sparse_ring(all_observed=True)  # a mask leaves those that are observed
    return truth_study(s, run, system, [mnmef.letkf(system)], networks=NETWORKS)


EXPERIMENT = Experiment("irregular", DESCRIPTION, PRESETS, study)
