"""Twin experiments of papers, and the scores that they report: literature that runs.

- The paper's own (section 3.2): Lorenz-63 and Lorenz-96 with errors that depend on the observed value.
- Sakov, Oliver and Bertino (2012), "An iterative EnKF for strongly nonlinear systems", Mon. Wea. Rev. 140: Lorenz-63.
- Sakov and Oke (2008), "Implications of the form of the ensemble transformation in the ensemble square root filters",
  Mon. Wea. Rev. 136: Lorenz-96.
- Sakov and Oke (2008), "A deterministic formulation of the ensemble Kalman filter", Tellus 60A: the quasi-geostrophic gyres.
- Bach, Baptista, Calvello, Chen and Stuart (2025): learned filters, the study ``mnmef``.
- Bach, Baptista, Brocker, Chen and Stuart (2026), arXiv 2606.26497: learned filters by proper scores, the study ``psef``.
- Bruinsma et al. (2023), "Autoregressive conditional neural processes", ICLR: the study ``neural-process``.

The tuned scores of those by Sakov are the ones that the DAPPER package of Raanes et al. (2024, JOSS) records for them.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

import bieqno.assimilation as da
from bieqno.lab.methods.filters import RADII, classical_filters
from bieqno.scores import relative_rmse, rmse

LIMIT = 1e3  # far outside the climatology of all systems here

MNMEF = {
    "MNMEF": {5: 1.61, 10: 1.48, 20: 1.35, 40: 1.25, 100: 1.15},
    "LETKF": {5: 2.635, 10: 2.020, 20: 1.577, 40: 1.396, 100: 1.304},
}
"""RMSE of the analysis mean by ensemble size, 64 truths x 1,500 windows: MNMEF fine-tuned for each size, read off the authors'
figure to one or two per cent, and the LETKF of their tables, by grid search."""

SAKOV_QG = {"LETKF": {25: 0.64, 45: 0.51}, "serial EAKF": {25: 0.58}, "iterative EnKS": {25: 0.59}}
"""RMSE of the analysis mean by ensemble size, the best that DAPPER records for `sakov_qg`; it does not say of how many truths."""

_SIZES = (5, 10, 20, 40, 100)
_PSEF = {
    "identity": {"PSEF": (8.2, 7.1, 6.3, 5.8, 5.4), "LETKF": (12.3, 9.5, 7.4, 6.6, 6.1)},
    "x^2": {"PSEF": (11.4, 10.7, 10.4, 10.3, 10.2), "LETKF": (16.2, 14.2, 12.3, 11.8, 11.2)},
    "arctan": {"PSEF": (10.7, 10.0, 9.5, 9.1, 8.7), "LETKF": (13.4, 12.3, 11.0, 10.4, 9.7)},
}
PSEF = {
    name: {method: dict(zip(_SIZES, values, strict=True)) for method, values in rows.items()}
    for name, rows in _PSEF.items()
}
"""Energy score by observation map, method and ensemble size, read off the authors' figure to one to three per cent; of their
learned filters the best of each."""

_MODELS = ("AR ConvCNP", "ConvNP", "FullConvGNP", "ConvGNP", "ConvCNP", "ANP", "GNP", "CNP")
_MIXTURE = {
    "inside": (0.56, 0.45, 0.30, 0.16, 0.07, -0.25, -0.69, -1.03),
    "shifted": (0.56, 0.45, 0.30, 0.16, 0.06),
    "extrapolation": (0.34, -0.10, -0.46, -0.91, -1.21),
}
NEURAL_PROCESSES = {
    **{f"mixture, {where}": dict(zip(_MODELS, values, strict=False)) for where, values in _MIXTURE.items()},
    "sawtooth, inside": {"AR ConvCNP": 3.62, "ConvGNP": 2.87, "GNP": -0.18},
}
"""Log-likelihood per target, from the tables of Bruinsma et al.; of Gaussian families they give divergences from the oracle."""


class PaperSystem(eqx.Module):
    """A twin experiment of the paper: a system whose truth begins at its state, and its first ensembles.

    `baseline` makes the mean of a first ensemble from a key; `deviation` is the standard deviation about it.
    """

    system: da.System
    baseline: Callable[[PRNGKeyArray], Float[Array, "n"]]
    deviation: Float[Array, "n"]

    def ensemble(self, members: int, *, key: PRNGKeyArray) -> Float[Array, "N n"]:
        """Return a first ensemble; one member alone is its mean, the baseline of the paper."""
        centre_key, member_key = jax.random.split(key)
        centre = self.baseline(centre_key)
        if members == 1:
            return centre[None]
        noise = jax.random.normal(member_key, (members, self.system.size), self.system.state.dtype)
        return centre + noise * self.deviation

    def trials(
        self, windows: int, *, runs: int, members: int, one_record: bool = False, key: PRNGKeyArray
    ) -> da.Trials:
        """Return runs on the one truth of the experiment, each from a first ensemble of its own.

        With `one_record`, the paper's protocol, all runs see the same observations.
        """

        def one(number: Array) -> da.Trials:
            record_key, start_key = jax.random.split(jax.random.fold_in(key, number))
            twin = da.simulate(self.system, windows, key=key if one_record else record_key)
            return da.Trials(twin, self.ensemble(members, key=start_key), number)

        return jax.vmap(one)(jnp.arange(runs))


def paper_lorenz63() -> PaperSystem:
    """Section 3.2.1: first and third variable observed every 0.5 with an error of 0.1 d + 0.05.

    Example:
        >>> import jax
        >>> paper_lorenz63().ensemble(50, key=jax.random.key(0)).shape
        (50, 3)
    """
    model, observation = da.Lorenz63(window=0.5, step=0.01), da.Observation([0, 2], da.AffineLaw(0.1, 0.05))
    system = da.System(model, observation, jnp.array([-8.5, -7.0, 27.0]), limit=LIMIT, spread=1.0)
    return PaperSystem(system, lambda key: jnp.array([-8.0, -9.0, 28.0]), jnp.sqrt(jnp.array([0.4, 2.0, 1.4])))


def paper_lorenz96() -> PaperSystem:
    """Section 3.2.2: 24 variables, every third observed every 0.2 with an error of 0.05 d + 0.1.

    Example:
        >>> paper_lorenz96().system.observed
        8
    """
    model = da.Lorenz96(24, 8.0, window=0.2, step=0.01)
    observation = da.Observation(range(2, 24, 3), da.AffineLaw(0.05, 0.1))
    # The truth begins after five time units from a disturbed equilibrium, as in the paper.
    rest = da.System(model, observation, jnp.full(24, 8.0).at[19].add(0.01))
    state = da.spin_up(rest, 25, key=jax.random.key(0))[-1]
    system = da.System(model, observation, state, da.Places.grid(24, period=24.0), LIMIT, spread=1.0)
    return PaperSystem(system, lambda key: state + jax.random.normal(key, state.shape, state.dtype), jnp.ones(24))


def sakov_lorenz96() -> da.System:
    """Sakov and Oke (2008): all 40 variables of Lorenz-96 observed every 0.05 with an error variance of 1."""
    model, observation = da.Lorenz96(40, 8.0, window=0.05, step=0.05), da.Observation(range(40), 1.0)
    return da.System(model, observation, jnp.full(40, 8.0), da.Places.grid(40, period=40.0), LIMIT, spread=1.0)


@cache
def sparse_ring(size: int = 40, *, all_observed: bool = False) -> da.System:
    """Return the set-up of the study ``mnmef`` on a ring of any length, every fourth variable observed or all of them."""
    model, places = da.Lorenz96(size, 8.0, window=0.15, step=0.03), da.Places.grid(size, period=float(size))
    observation = da.Observation(range(0, size, 1 if all_observed else 4), 1.0)
    return da.System(model, observation, jnp.full(size, 8.0), places, 1e3, spread=1.0)


def sakov_qg(side: int = 129, *, spin: int = 2000) -> da.System:
    """Sakov and Oke (2008, Tellus): 300 of 129 x 129 values of a stream function, every 5 with an error variance of 4.

    They are evenly spaced in the order of the state, at a new random offset in every window. A smaller side is a smaller basin
    with the same grid interval and density of observations, for training: there the wind is stronger, up to three times, for
    turbulence as strong. The state is `spin` windows from rest: the gyres take about 1,500 to become turbulent.

    Example:
        >>> system = sakov_qg(9, spin=2)
        >>> system.size, system.at_once, int(system.present(1, key=jax.random.key(0)).sum())
        (81, 4, 4)
    """
    length, size = (side - 1) / 128, side**2
    model = da.QuasiGeostrophic(side, length, wind=2 * math.pi * min(3.0, max(1.0, 1 / length)))
    count = max(4, round(300 / 129**2 * size))
    about: dict[str, Any] = {"places": da.Places.grid(side, side), "limit": LIMIT, "network": da.Shifted(size, count)}
    about |= {"observation_places": about["places"], "at_once": count}
    observation, rest = da.Observation(_everything, 2.0), jax.random.normal(jax.random.key(0), (size,))
    state = da.spin_up(da.System(model, observation, rest, **about), spin, key=jax.random.key(0))[-1]
    return da.System(model, observation, state, **about)


def _everything(state: Float[Array, "n"]) -> Float[Array, "n"]:
    return state


class PublishedScore(eqx.Module):
    """A tuned error of the analysis mean that is published, and how to get it here: `build` makes the filter from `settings`.

    `source` is the set-up and its citation, `method` the filter with its ensemble size, `spread` that of first ensembles.
    """

    source: str
    method: str
    expected: float
    tolerance: float
    system: da.System
    spread: float
    members: int
    build: Callable[..., da.Filter]
    settings: Mapping[str, Sequence[float]]

    def trials(self, windows: int, truths: int, *, key: PRNGKeyArray) -> da.Trials:
        """Return independent truths of the set-up."""
        return da.make_trials(self.system, windows, truths=truths, members=self.members, spread=self.spread, key=key)

    def run(
        self, *, windows: int, truths: int, burn_in: int, tuning_windows: int, tuning_truths: int, key: PRNGKeyArray
    ) -> tuple[Float[np.ndarray, "r"], dict[str, float]]:
        """Tune on truths of their own, then score on others; return the errors and the settings found."""
        tune_key, test_key, run_key = jax.random.split(key, 3)
        tuning_trials = self.trials(tuning_windows, tuning_truths, key=tune_key)
        found = da.tune(self.build, self.settings, self.system, tuning_trials, burn_in=burn_in, key=run_key)
        trials = self.trials(windows, truths, key=test_key)
        return score(self.build(**found.best), self.system, trials, burn_in=burn_in, key=run_key), found.best


def published_scores() -> list[PublishedScore]:
    """Return the published scores that this library is held to.

    Example:
        >>> [case.expected for case in published_scores()]
        [0.18, 0.22, 0.22, 0.6, 0.27, 0.31]
    """
    model, observation = da.Lorenz63(window=0.25, step=0.01), da.Observation(range(3), 2.0**0.5)
    lorenz63 = da.System(model, observation, jnp.array([1.5, -1.5, 25.5]), limit=LIMIT, spread=1.0)
    lorenz96 = sakov_lorenz96()
    ring = "Lorenz-96, 40 variables, all observed, R=1, window 0.05 (Sakov and Oke 2008)"
    convection = "Lorenz-63, all observed, R=2, window 0.25 (Sakov et al. 2012)"

    def case(method: str, expected: float, **settings: Sequence[float]) -> PublishedScore:
        where, system, spread = (ring, lorenz96, 0.001**0.5) if expected < 0.25 else (convection, lorenz63, 2.0**0.5)
        tolerance = 0.02 if system is lorenz96 else 0.1 * expected
        name, _, members = method.partition(" N=")
        build = classical_filters(system, radius=settings.get("radius", RADII))[f"{name} tuned"].build
        return PublishedScore(where, method, expected, tolerance, system, spread, int(members), build, settings)

    return [
        case("ETKF N=24", 0.18, inflation=[1.01, 1.013, 1.02, 1.04]),
        case("EnKF N=40", 0.22, inflation=[1.04, 1.06, 1.08]),
        case("LETKF N=7", 0.22, inflation=[1.02, 1.04, 1.06], radius=[11.0, 14.5, 18.0]),
        case("ETKF N=10", 0.6, inflation=[1.0, 1.02, 1.05, 1.1]),
        case("particle filter N=4000", 0.27, jitter=[0.2, 0.35, 0.5]),
        case("iterative EnKF N=10", 0.31, inflation=[1.0, 1.02, 1.05]),
    ]


def score(
    filter: da.Filter,
    system: da.System,
    trials: da.Trials,
    *,
    error: Callable[[Array, Array], Array] = rmse,
    burn_in: int = 0,
    key: PRNGKeyArray,
) -> Float[np.ndarray, "r"]:
    """Return the error of the analysis mean for every trial, averaged over windows; infinite if the run diverged."""
    run = da.run_trials(filter, system, trials, record=da.keep_mean, key=key)
    errors = jax.vmap(error)(trials.twins.truth[:, burn_in:], run.kept[:, burn_in:])
    errors = jnp.mean(errors.reshape(len(errors), -1), axis=1)
    return np.where(np.asarray(run.diverged) >= 0, np.inf, np.asarray(errors))


def paper_score(
    paper: PaperSystem, members: int, *, runs: int, windows: int = 200, key: PRNGKeyArray
) -> Float[np.ndarray, "r"]:
    """Return the paper's relative RMSE (eq. 20) of its EnKF for every run; infinite if the run diverged.

    Perturbations as they are drawn, covariances of the ensemble, R as given. With R from the perturbations
    instead (``EnKF(sampled=True)``) the errors at N = 2 to 8 are 0.71, 0.59 and 0.28 rather than the 0.65, 0.47
    and 0.16 that fit the paper's curve.
    """
    trials = paper.trials(windows, runs=runs, members=members, key=key)
    return score(da.EnKF(centred=False), paper.system, trials, error=relative_rmse, key=key)
