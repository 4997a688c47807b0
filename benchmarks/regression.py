"""Speed of both regressors beside scikit-learn's Gaussian process: joint samples, and prediction at up to 10^6 points."""

import argparse
import json
import resource
import time
from collections.abc import Callable

import numpy as np
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF

from bieqno import GGPRegressor, PretrainedGGPRegressor

OBSERVATIONS = 1024
MOST_OF_PEER = 5_000  # points: its time grows with their third power
FORMS = {"pretrained": PretrainedGGPRegressor(), "trained": GGPRegressor(max_steps=100, random_state=0)}
"""How long the second one is trained does not matter for the time of its predictions."""


def seconds(call: Callable[[], object], repeats: int, warm: bool = True) -> float:
    """The quickest of several calls; the first one, which compiles, is not counted where it is to be warm."""
    if warm:
        call()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> None:
    """Fit all to the same points, then time what they predict."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, nargs="+", default=[1_024, 16_384, 100_000, 1_000_000])
    parser.add_argument("--samples-at", type=int, nargs="+", default=[1_000, 5_000, 20_000, 100_000])
    parser.add_argument("--samples", type=int, default=100)
    parser.add_argument("--forms", nargs="+", choices=list(FORMS), default=list(FORMS))
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(OBSERVATIONS, 2))
    y = np.sin(6 * X[:, 0]) * X[:, 1] + 0.01 * rng.standard_normal(OBSERVATIONS)
    found: dict[str, object] = {"benchmark": "regression"}
    # The noise is part of all joint samples; a fixed kernel, because only the drawing is timed.
    theirs = GaussianProcessRegressor(RBF(0.3), alpha=1e-4, optimizer=None).fit(X, y)
    asked = {count: rng.uniform(size=(count, 2)) for count in arguments.samples_at}
    peer = {  # once: it may take minutes and compiles nothing
        count: seconds(lambda points=points: theirs.sample_y(points, arguments.samples), 1, warm=False)
        for count, points in asked.items()
        if count <= MOST_OF_PEER
    }
    for name in arguments.forms:
        model = FORMS[name]
        start = time.perf_counter()
        ours = model.fit(X, y)
        fit = time.perf_counter() - start
        print(f"{name}: fit of {OBSERVATIONS} points, compilation included: {fit:.3g} s")
        sampling = []
        for count, points in asked.items():
            repeats = 5 if count <= MOST_OF_PEER else 1
            own = seconds(lambda ours=ours, points=points: ours.sample_y(points, arguments.samples), repeats)
            sampling.append({"points": count, "seconds": own, "scikit_learn": peer.get(count)})
            beside = f"{peer[count]:.3g} s" if count in peer else "not tried"
            print(f"{name}: {arguments.samples} joint samples at {count:>7} points: {own:.3g} s, scikit-learn {beside}")
        rows = []
        for n in arguments.points:
            points = rng.uniform(size=(n, 2))
            each = seconds(lambda ours=ours, points=points: ours.predict(points, return_std=True), 3)
            rows.append({"points": n, "seconds": each, "microseconds_per_point": 1e6 * each / n})
            print(f"{name}: mean and sd at {n:>9} points: {each:.3g} s, {1e6 * each / n:.3g} us a point", flush=True)
        gib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(f"{name}: most memory so far {gib:.2f} GiB", flush=True)
        found[name] = {"fit_seconds": fit, "sampling": sampling, "prediction": rows, "peak_gib": gib}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
