"""Hostile calls of the public Python API: one or more arguments of a valid call replaced by what a user may slip in.

Nothing but ValueError, TypeError and the package's own errors may come back, and no result that is not finite.
"""

import random
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

import bieqno
from bieqno import assimilation as da
from bieqno import scores
from bieqno.compilation import forget_programs
from constructions import Target, built, fits, functions
from tables import Tally, run

KEY = jax.random.key(0)
RANDOM = np.random.default_rng(0)


def _ones(*shape: int) -> np.ndarray:
    return RANDOM.normal(size=shape).astype(np.float32)


def operators() -> list[Target]:
    """Return the operators on sets, and the Gaussian."""
    small: dict[str, Any] = {"width": 4, "depth": 1, "key": KEY}
    gaussian = bieqno.LowRankGaussian(_ones(3), _ones(3, 2), _ones(3))
    sizes = {"in_size": 2, "out_size": 3, **small}
    posterior = bieqno.PosteriorOperator(1, 2, 3, **small)
    attention = bieqno.AttentionPool(4, heads=2, key=KEY)
    return [
        Target("MLP", bieqno.MLP, sizes),
        Target("InvariantOperator", bieqno.InvariantOperator, sizes),
        Target("MLP()", lambda x: bieqno.MLP(2, 3, **small)(x), {"x": _ones(2)}),
        Target("MeanPool()", bieqno.MeanPool(), {"embeddings": _ones(3, 4), "mask": np.array([True, False, True])}),
        Target("AttentionPool()", attention, {"embeddings": _ones(3, 4), "mask": None}),
        Target("InvariantOperator()", bieqno.InvariantOperator(2, 3, **small), {"elements": _ones(3, 2), "mask": None}),
        Target(
            "EquivariantOperator()",
            bieqno.EquivariantOperator(2, 3, context_size=1, **small),
            {"elements": _ones(3, 2), "context": _ones(1), "mask": None},
        ),
        Target("PosteriorOperator()", posterior, {"inputs": _ones(2, 1), "observations": _ones(3, 2)}),
        Target("FourierFeatures()", bieqno.FourierFeatures(2, 3, key=KEY), {"x": _ones(2)}),
        Target(
            "LowRankGaussian", bieqno.LowRankGaussian, {"mean": _ones(3), "factor": _ones(3, 2), "log_diag": _ones(3)}
        ),
        Target("LowRankGaussian.log_prob", gaussian.log_prob, {"value": _ones(3)}),
        Target("LowRankGaussian.sample", gaussian.sample, {"count": 2, "key": KEY}),
        Target("LowRankGaussian.marginal", gaussian.marginal, {"indices": np.array([0, 2])}),
        Target("LowRankGaussian.condition", gaussian.condition, {"indices": np.array([1]), "values": _ones(1)}),
        Target("LowRankGaussian.affine", gaussian.affine, {"scale": 2.0, "shift": _ones(3)}),
    ]


def filters() -> list[Target]:
    """Return filters, observations, cycling and scores."""
    system = da.System(da.Lorenz63(), da.Observation([0, 2], 1.0), jnp.array([-8.5, -7.0, 27.0]))
    prior, observed = _ones(4, 3), system.observation.window(_ones(2))
    near = da.Neighbours.within(9.0, np.arange(3.0)[:, None], np.array([[0.0], [2.0]]))
    call = {"ensemble": prior, "observed": observed, "key": KEY}
    analyses = [
        da.EnKF(),
        da.ETKF(),
        da.SerialEnSRF(),
        da.ParticleFilter(0.1),
        da.LETKF(near, 2.0),
        da.Inflated(da.EnKF(), 1.1),
    ]
    series = da.Observations.of(_ones(3, 2))
    truth, ensemble = {"truth": _ones(3, 2)}, {"truth": _ones(3, 2), "ensemble": _ones(3, 4, 2)}
    return [
        *(Target(f"{type(one).__name__}()", one, call) for one in analyses),
        Target("inflate", da.inflate, {"ensemble": prior, "factor": 1.1}),
        Target("gaspari_cohn", da.gaspari_cohn, {"distance": np.abs(_ones(3)), "radius": 2.0}),
        Target("distances", da.distances, {"first": _ones(2, 2), "second": _ones(3, 2), "period": None}),
        Target("Places", da.Places, {"positions": _ones(3, 2), "kinds": None, "period": None}),
        Target("Places.sphere", da.Places.sphere, {"longitude": _ones(3), "latitude": _ones(3)}),
        Target(
            "Neighbours.within",
            da.Neighbours.within,
            {"radius": 2.0, "variables": _ones(3, 1), "observations": _ones(2, 1)},
        ),
        Target("Observation", da.Observation, {"what": [0, 2], "error": 1.0}),
        Target("Observation.window", system.observation.window, {"value": _ones(2), "mask": None, "reference": None}),
        Target("Observations.of", da.Observations.of, {"value": _ones(3, 2)}),
        Target(
            "System",
            da.System,
            {"model": da.Lorenz63(), "observation": system.observation, "state": _ones(3), "limit": 1e3},
        ),
        Target("forecast", da.forecast, {"model": da.Lorenz63(), "ensemble": prior, "key": KEY}),
        Target("simulate", da.simulate, {"system": system, "windows": 3, "state": None, "key": KEY}),
        Target(
            "cycle",
            da.cycle,
            {"filter": da.EnKF(), "system": system, "ensemble": prior, "observations": series, "key": KEY},
        ),
        Target("scores.rmse", scores.rmse, {**truth, "estimate": _ones(3, 2)}),
        Target("scores.relative_rmse", scores.relative_rmse, {**truth, "estimate": _ones(3, 2)}),
        Target("scores.spread", scores.spread, {"ensemble": _ones(3, 4, 2)}),
        Target("scores.spread_error_ratio", scores.spread_error_ratio, ensemble),
        Target("scores.crps", scores.crps, ensemble),
        Target("scores.energy_score", scores.energy_score, ensemble),
        Target("scores.rank_histogram", scores.rank_histogram, ensemble),
        Target("scores.coverage", scores.coverage, {**ensemble, "level": 0.9}),
        Target("scores.independent_interval", scores.independent_interval, {"values": _ones(5), "level": 0.95}),
        Target("scores.autocorrelated_interval", scores.autocorrelated_interval, {"series": _ones(9)}),
    ]


def regressors() -> list[Target]:
    """Return what a fitted regressor offers; fits themselves take seconds each."""
    X = np.linspace(0, 1, 20)[:, None]
    model = bieqno.PretrainedGGPRegressor(correction=False).fit(X, np.sin(6 * X[:, 0]))
    points = {"X": X[:3]}
    return [
        Target("predict", lambda X: model.predict(X, return_std=True), points),
        Target("predict_quantiles", model.predict_quantiles, {**points, "probabilities": [0.1, 0.9]}),
        Target("sample_y", model.sample_y, {**points, "n_samples": 2}),
        Target("log_predictive_density", model.log_predictive_density, {**points, "y": np.zeros(3)}),
    ]


SPOILS: dict[str, Callable[[Any], Any]] = {
    "None": lambda x: None,
    "a text": lambda x: "seven",
    "a key": lambda x: KEY,
    "an object": lambda x: object(),
    "a set": lambda x: {1.0, 2.0},
    "a dictionary": lambda x: {"a": 1},
    "a list": lambda x: np.asarray(x).tolist(),
    "ragged": lambda x: [[1.0, 2.0], [3.0]],
    "NaN": lambda x: np.full(np.shape(x), np.nan),
    "infinite": lambda x: np.full(np.shape(x), np.inf),
    "huge": lambda x: np.full(np.shape(x), 1e300),
    "large": lambda x: np.full(np.shape(x), 1e30),
    "zeros": lambda x: np.zeros(np.shape(x)),
    "negative": lambda x: np.full(np.shape(x), -1.0),
    "empty": lambda x: np.zeros((0, *np.shape(x)[1:])),
    "no columns": lambda x: np.zeros((*np.shape(x)[:1], 0)),
    "one axis more": lambda x: np.asarray(x)[None],
    "one axis less": lambda x: np.asarray(x)[0],
    "a scalar": lambda x: 0.5,
    "another size": lambda x: np.zeros(np.array(np.shape(x)) + 1),
    "whole numbers": lambda x: np.ones(np.shape(x), int),
    "half precision": lambda x: np.asarray(x, np.float16),
    "complex": lambda x: np.asarray(x, complex),
    "truth values": lambda x: np.ones(np.shape(x), bool),
    "dates": lambda x: np.full(np.shape(x), np.datetime64("2024-01-01")),
    "masked": lambda x: np.ma.masked_array(x, np.ones(np.shape(x), bool)),
    "nullable": lambda x: pd.array([1.0, None, 2.0], "Float64"),
    "objects": lambda x: np.full(np.shape(x), "x", object),
    "a frame": lambda x: pd.DataFrame({"a": [1.0, None]}),
    "a function": lambda x: np.sin,
}


def outcome(target: Target, spoiled: dict[str, str]) -> tuple[str, str]:
    """Make a call, and say what came of it."""
    try:
        arguments = {
            name: SPOILS[spoiled[name]](value) if name in spoiled else value for name, value in target.arguments.items()
        }
    except (ValueError, TypeError, IndexError):  # what cannot be spoiled that way stays as it is
        return "not applicable", ""
    tried = f"{spoiled}"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = target.call(**arguments)
            leaves = [np.asarray(x) for x in jax.tree.leaves(result) if isinstance(x, (jax.Array, np.ndarray, float))]
    except (ValueError, TypeError, bieqno.PersistenceError, bieqno.TrainingError) as error:
        text = str(error)
        internal = any(word in text for word in ("MLIR", "Traceback", "XlaRuntime", "has no attribute"))
        return ("uncontrolled" if internal else "refused"), f"{tried}: {type(error).__name__}: {text}"
    except Exception as error:  # what the campaign is after
        return "uncontrolled", f"{tried}: {type(error).__name__}: {error}"
    finite = all(np.isfinite(leaf).all() for leaf in leaves if leaf.dtype.kind == "f")
    return ("result" if finite or target.name in (*LOST, *MODELS) else "not finite"), tried


# Runs that diverge, and what may be missing or infinitely far, are data there, and documented.
LOST = ("simulate", "cycle", "forecast", "run_trials", "spin_up", "rk4", "to_dataset", "summarise", "Neighbours.within")
MODELS = ("Lorenz63, used", "Lorenz96, used", "LinearModel, used")


# Calls that train, fit or compile a program of their own take some hundred times as long as others, and are made less often.
COSTLY = {
    **{"GGPRegressor": 0.05, "PretrainedGGPRegressor": 0.1, "PretrainedGGPRegressor.fit": 0.1},
    **dict.fromkeys(("make_trials", "run_trials", "cycle", "simulate", "append_parameters", "explain"), 0.3),
}
EVERY = 2000  # calls after which compiled programs are forgotten, if they are many


def draw(targets: Sequence[Target], chance: random.Random) -> tuple[Target, dict[str, str]]:
    """Return a function, and how one or two of its arguments are spoiled."""
    target = chance.choices(targets, [COSTLY.get(target.name, 1.0) for target in targets])[0]
    names = chance.sample(sorted(target.arguments), min(chance.choice([1, 2]), len(target.arguments)))
    return target, {name: chance.choice(sorted(SPOILS)) for name in names}


def campaign(count: int, seed: int) -> Tally:
    """Call public functions with hostile arguments; no call is made twice while there are others."""
    targets = [*operators(), *filters(), *regressors(), *built(), *functions(), *fits()]
    tally, chance, made = Tally(count), random.Random(seed), set[tuple[str, ...]]()
    for number in range(count):
        for _ in range(20):
            target, spoiled = draw(targets, chance)
            call = (target.name, *map(str, spoiled.items()))
            if call not in made:
                break
        made.add(call)
        tally.add(target.name, *outcome(target, spoiled))
        tally.step()
        if number % EVERY == EVERY - 1:
            forget_programs()
    return tally


if __name__ == "__main__":
    run("calls", campaign, count=100_000)
