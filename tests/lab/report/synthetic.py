"""Results that look like those of the studies and take no time: the form is right, the numbers are made up."""

from dataclasses import replace
from functools import partial

import numpy as np
import xarray as xr

from bieqno.lab.methods.regression import Prediction
from bieqno.lab.studies import Result, Row, step_1d, trig_2d


def guess(offset):
    """A regression method that is wrong by a given amount."""

    def method(problem, seed):
        k = len(problem.cut)
        return Prediction(problem.truth + offset, np.full(len(problem.points), 0.1), 0.01 * np.eye(k), -offset)

    return method


METHODS = {"ggp": guess(0.05), "ggp-paper": guess(0.2), "gp-se": guess(0.1), "gp-matern12": guess(0.01)}


def regression(module, methods=METHODS):
    """A regression study with methods of one's own."""
    study = partial(module.study, methods=lambda **_: methods)
    return replace(module.EXPERIMENT, study=study).run("smoke")


def step():
    return regression(step_1d)


def trig():
    return regression(trig_2d)


def filters(name, variables, *, ennf=0.1, paper=0.1, enkf=0.5, sizes=(2, 4)):
    """A filtering study; all runs of the EnKF at the last size diverged. The paper's form has rows, but no series."""
    rng = np.random.default_rng(0)
    windows, steps, runs = 12, 4, 2
    entries = [("baseline", 1), *((method, size) for method in ("EnKF", "EnNF") for size in sizes), ("EnKF tuned", 2)]
    truth = 10 * np.sin(np.arange(windows)[None, :, None] + np.arange(variables) + np.zeros((runs, 1, 1)))
    mean = truth + rng.normal(size=(len(entries), runs, windows, variables))
    true_path = 10 * np.sin(np.arange(windows * steps)[:, None] / steps + np.arange(variables))
    path = true_path + rng.normal(size=(len(entries), windows * steps, variables))
    lost = entries.index(("EnKF", sizes[-1]))
    mean[lost, :, 3:] = path[lost, 3 * steps :] = np.nan
    data = xr.Dataset(
        {
            "truth": (("run", "window", "variable"), truth),
            "mean": (("entry", "run", "window", "variable"), mean),
            "path": (("entry", "step", "variable"), path),
            "true_path": (("step", "variable"), true_path),
        },
        {
            "method": ("entry", [method for method, _ in entries]),
            "ensemble_size": ("entry", [size for _, size in entries]),
            "time": ("window", np.arange(1.0, windows + 1)),
            "path_time": ("step", np.arange(1.0, windows * steps + 1) / steps),
        },
    )
    error = {"baseline": 0.9, "EnKF": enkf, "EnNF": ennf, "EnNF, paper": paper, "EnKF tuned": 0.3}
    rows = [
        Row.of(
            f"N={size}",
            method,
            "relative_rmse",
            [] if (method, size) == entries[lost] else [error[method], 1.1 * error[method]],
            ensemble_size=size,
            protocol=protocol,
            diverged=2 if (method, size) == entries[lost] else 0,
        )
        for protocol in ("paper", "unseen")
        for method, size in [*entries, *(("EnNF, paper", size) for size in sizes)]
    ]
    rows += [
        Row.of("N=2", "EnKF tuned", "inflation", [1.05], ensemble_size=2),
        Row.of("training", "EnNF", "seconds", [1.0]),
        Row.of("training", "EnNF, paper", "epochs", [200.0]),
    ]
    return Result(name, "smoke", 0, tuple(rows), {"paper": data, "unseen": data})


def maps():
    """A study of filters on a square, of which one diverged."""
    rng = np.random.default_rng(0)
    methods, shape = ("EnNF", "LETKF tuned"), (2, 3, 4, 5)
    truth = np.broadcast_to(rng.normal(size=shape[1:]), shape)
    mean = truth + rng.normal(size=shape)
    mean[0, 2:] = np.nan
    labels = {"method": ("entry", list(methods)), "ensemble_size": ("entry", [5, 5]), "window": [4, 8, 12]}
    labels |= {"y": np.arange(4), "x": np.arange(5)}
    axes = ("entry", "window", "y", "x")
    fields = {"truth": (axes, truth), "mean": (axes, mean), "spread": (axes, rng.random(shape))}
    rows = [
        Row.of("N=5", method, "rmse", [0.5, 0.6], ensemble_size=5, protocol="unseen", diverged=0) for method in methods
    ]
    return Result("qg", "smoke", 0, tuple(rows), {"fields": xr.Dataset(fields, labels)})
