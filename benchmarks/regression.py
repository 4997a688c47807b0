"""Speed of `GGPRegressor` beside scikit-learn's Gaussian process: joint samples, and prediction at up to 10^6 points."""

import argparse
import json
import resource
import time
from collections.abc import Callable

import numpy as np
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF

from bieqno import GGPRegressor

OBSERVATIONS = 100
SAMPLES = 10


def seconds(call: Callable[[], object], repeats: int) -> float:
    """The quickest of several calls; the first one, which compiles, is not counted."""
    call()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> None:
    """Fit both to the same points (the training length does not matter here), then time what they predict."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, nargs="+", default=[1_000, 10_000, 100_000, 1_000_000])
    parser.add_argument("--samples-at", type=int, default=5_000)
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(OBSERVATIONS, 2))
    y = np.sin(6 * X[:, 0]) * X[:, 1] + 0.01 * rng.standard_normal(OBSERVATIONS)
    ours = GGPRegressor(max_steps=100, random_state=0).fit(X, y)
    # The noise is part of both joint samples; a fixed kernel, because only the drawing is timed.
    theirs = GaussianProcessRegressor(RBF(0.3), alpha=1e-4, optimizer=None).fit(X, y)

    points = rng.uniform(size=(arguments.samples_at, 2))
    own = seconds(lambda: ours.sample_y(points, SAMPLES), 5)
    start = time.perf_counter()  # once: it takes minutes and compiles nothing
    theirs.sample_y(points, SAMPLES)
    peer = time.perf_counter() - start
    sampling = {"points": len(points), "seconds": own, "scikit_learn": peer, "ratio": peer / own}
    print(
        f"{SAMPLES} joint samples at {len(points)} points: {own:.3g} s, scikit-learn {peer:.3g} s, {peer / own:.0f} times"
    )

    rows = []
    for n in arguments.points:
        points = rng.uniform(size=(n, 2))
        own = seconds(lambda points=points: ours.predict(points, return_std=True), 3)
        rows.append({"points": n, "seconds": own, "microseconds_per_point": 1e6 * own / n})
        print(f"mean and sd at {n:>9} points: {own:.3g} s, {1e6 * own / n:.3g} us a point", flush=True)
    posterior = ours.posterior(points)
    gib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"joint posterior at {len(points)} points: rank {posterior.factor.shape[1]}; most memory so far {gib:.2f} GiB"
    )
    print(json.dumps({"benchmark": "regression", "sampling": sampling, "prediction": rows, "peak_gib": gib}))


if __name__ == "__main__":
    main()
