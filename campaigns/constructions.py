"""More valid calls that hostile arguments are put into: constructors of filters, models and laws, trials, and fits."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import bieqno
from bieqno import assimilation as da
from tables import compile_quickly

compile_quickly()
KEY = jax.random.key(0)
RANDOM = np.random.default_rng(1)


class Target(NamedTuple):
    """A public function and a valid call of it."""

    name: str
    call: Callable[..., Any]
    arguments: dict[str, Any]


def _ones(*shape: int) -> np.ndarray:
    return RANDOM.normal(size=shape).astype(np.float32)


def _used(build: Callable[..., Any]) -> Callable[..., Any]:
    """Return the analysis of a small ensemble by a filter, so that one that was built wrongly shows it."""
    prior, observed = _ones(4, 3), da.Observation([0, 2], 1.0).window(_ones(2))
    return lambda **arguments: build(**arguments)(prior, observed, key=KEY)


def _carried(build: Callable[..., Any]) -> Callable[..., Any]:
    """Return a state one window later."""
    state = np.ones(4 if build is da.Lorenz96 else 3, np.float32)
    return lambda **arguments: build(**arguments)(jnp.asarray(state))


def built() -> list[Target]:
    """Return constructors of filters, which are used at once, of models and of laws."""
    near = da.Neighbours.within(9.0, np.arange(3.0)[:, None], np.array([[0.0], [2.0]]))
    filter: dict[str, Any] = {"filter": da.EnKF()}
    taper = {"state_taper": np.ones((2, 3)), "observation_taper": np.eye(2)}
    filters = [
        (da.Inflated, {**filter, "factor": 1.1}),
        (da.PriorInflated, {**filter, "factor": 1.1}),
        (da.Relaxed, {**filter, "weight": 0.5}),
        (da.Rotated, filter),
        (da.Floored, {**filter, "floor": 0.1}),
        (da.ParticleFilter, {"jitter": 0.1}),
        (da.LETKF, {"neighbours": near, "radius": 2.0}),
        (da.LocalEnKF, taper),
        (da.ThreeDVar, {"background": np.eye(3), "scale": 1.0, "iterations": 1}),
        (da.EnNF, {"observations": 2, "width": 4, "depth": 1, "key": KEY}),
        (da.LearnedGain, {"observations": 2, "width": 4, "depth": 1, "key": KEY}),
    ]
    models = [
        (da.Lorenz63, {"sigma": 10.0, "rho": 28.0, "beta": 2.5, "window": 0.1, "step": 0.01}),
        (da.Lorenz96, {"size": 4, "forcing": 8.0, "window": 0.1, "step": 0.01}),
        (da.LinearModel, {"matrix": np.eye(3)}),
    ]
    laws = [
        (da.Censored, {"deviation": 1.0, "limit": 0.0}),
        (da.NegativeBinomial, {"size": 2.0}),
        (da.StudentT, {"scale": 1.0, "freedom": 4.0}),
        (da.LogNormal, {"deviation": 0.3}),
        (da.AffineLaw, {"slope": 1.0, "offset": 0.0}),
        (da.Climatology, {"states": _ones(5, 3)}),
        (da.Shifted, {"size": 6, "count": 2}),
        (da.Validation, {"truths": 2, "windows": 10, "burn_in": 2, "every": 1, "patience": 2}),
        (da.AgainstTruth, {"sizes": (3, 5), "missing": (0.0, 0.1), "unroll": 2, "learning_rate": 0.01}),
    ]
    return [
        *(Target(f"{build.__name__}, used", _used(build), arguments) for build, arguments in filters),
        *(Target(f"{build.__name__}, used", _carried(build), arguments) for build, arguments in models),
        *(Target(build.__name__, build, arguments) for build, arguments in laws),
    ]


def functions() -> list[Target]:
    """Return functions of assimilation that run trials or sum them up."""
    system = da.System(da.Lorenz63(window=0.02), da.Observation([0, 2], 1.0), jnp.array([-8.5, -7.0, 27.0]))
    trials = da.make_trials(system, 6, truths=2, members=4, spin=2, key=KEY)
    one = jax.tree.map(lambda leaf: leaf[0], trials)
    run = da.cycle(da.EnKF(), system, one.ensembles, one.twins.observations, record=da.keep_ensembles, key=KEY)
    call = {"filter": da.ETKF(), "ensemble": _ones(4, 3), "observed": system.observation.window(_ones(2))}
    sizes = {"system": system, "windows": 2, "truths": 2, "members": 3}
    return [
        Target("make_trials", da.make_trials, {**sizes, "spread": 1.0, "disturbance": 1.0, "spin": 2, "key": KEY}),
        Target("run_trials", da.run_trials, {"filter": da.EnKF(), "system": system, "trials": trials, "key": KEY}),
        Target("spin_up", da.spin_up, {"system": system, "windows": 2, "state": None, "key": KEY}),
        Target("to_dataset", da.to_dataset, {"run": run, "twin": one.twins, "window": 1.0, "attributes": None}),
        Target("summarise", da.summarise, {"data": da.to_dataset(run, one.twins), "burn_in": 1, "level": 0.9}),
        Target("calibration_band", da.calibration_band, {"count": 100, "bins": 10, "level": 0.95}),
        Target("random_rotation", da.random_rotation, {"count": 3, "dtype": np.float32, "key": KEY}),
        Target("rk4", da.rk4, {"tendency": jnp.sin, "state": _ones(3), "step": 0.1, "steps": 2}),
        Target("explain", da.explain, {**call, "key": KEY}),
        Target("filter_from_bytes", da.filter_from_bytes, {"content": da.filter_to_bytes(da.EnKF())}),
        Target(
            "append_parameters",
            da.append_parameters,
            {
                "build": lambda p: da.Lorenz63(*p),
                "system": system,
                "ensemble": _ones(4, 3),
                "parameters": np.ones((4, 1)),
            },
        ),
    ]


def fits() -> list[Target]:
    """Return fits of a regressor on few rows, for they take long, and what it is given beside them."""
    X = np.linspace(0, 1, 12)[:, None]
    given = {"correction": False, "same_units": False, "noise": None, "alpha": 0.0, "random_state": 0}

    def fitted(X: Any, y: Any, **settings: Any) -> Any:
        return bieqno.PretrainedGGPRegressor(**{**given, **settings}).fit(X, y).predict(np.full((2, 1), 0.3))

    def trained(X: Any, y: Any, **settings: Any) -> Any:
        small = {"width": 4, "depth": 1, "rank": 2, "members": 1, "max_steps": 2}
        return bieqno.GGPRegressor(**{**small, **settings}).fit(X, y).predict(np.full((2, 1), 0.3))

    table = {"X": X, "y": np.sin(6 * X[:, 0])}
    return [
        Target("PretrainedGGPRegressor.fit", fitted, table),
        Target("PretrainedGGPRegressor", fitted, {**table, **given}),
        Target("GGPRegressor", trained, {**table, "noise": 0.1, "rank": 2, "max_steps": 2, "random_state": 0}),
    ]
