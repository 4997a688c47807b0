"""How long a large table takes, and how much memory: fit, predict, and joint samples of the pretrained regressor.

``python benchmarks/many_rows.py --rows 100000 --points 10000``. Seconds of the clock and of the processor.
"""

import argparse
import resource
import time

import numpy as np

from bieqno import PretrainedGGPRegressor


def table(rng: np.random.Generator, rows: int, inputs: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return inputs, noisy values of a function with a cliff, and the function itself."""
    x = rng.uniform(size=(rows, inputs))
    f = np.sin(5 * x[:, 0]) + 2 * x[:, 1] * x[:, 2 % inputs] + (x[:, 3 % inputs] > 0.5)
    return x, f + 0.2 * rng.standard_normal(rows), f


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in {"--rows": 100_000, "--inputs": 8, "--points": 10_000}.items():
        parser.add_argument(name, type=int, default=default)
    asked = parser.parse_args()
    rng = np.random.default_rng(0)
    (x, y, _), (points, values, f) = (table(rng, count, asked.inputs) for count in (asked.rows, asked.points))
    started = time.perf_counter(), time.process_time()

    def lap(part: str) -> None:
        nonlocal started
        now = time.perf_counter(), time.process_time()
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(
            f"{part:<34}{now[0] - started[0]:8.1f} s{now[1] - started[1]:8.1f} s of the processor{memory:7.2f} GiB at most",
            flush=True,
        )
        started = time.perf_counter(), time.process_time()

    model = PretrainedGGPRegressor(random_state=0).fit(x, y)
    lap(f"fit, {asked.rows} rows")
    mean, std = model.predict(points, return_std=True)
    lap(f"predict, {asked.points} points")
    model.sample_y(points, 10)
    lap("10 joint samples there")
    inside = np.mean(np.abs(values - mean) < 1.96 * std)
    error = np.sqrt(np.mean((mean - f) ** 2))
    print(
        f"experts {model.processes_[0].weights.tolist()}; RMSE of the function {error:.3f}, in the 95 % interval {inside:.3f}"
    )


if __name__ == "__main__":
    main()
