"""How much the paper's set form changes its predictions when the test points come in chunks."""

import json

import numpy as np

from bieqno import GGPRegressor


def main() -> None:
    """Fit both forms to the step function and predict 1,000 points at once and in chunks."""
    random = np.random.default_rng(0)
    X = random.uniform(size=(100, 1))
    y = ((X[:, 0] >= 0.3) & (X[:, 0] < 0.7)) + 0.01 * random.normal(size=100)
    points = np.linspace(0, 1, 1000)[:, None]
    rows = []
    for form in (True, False):
        model = GGPRegressor(set_interaction=form, max_steps=500, random_state=0).fit(X, y)
        mean, std = model.predict(points, return_std=True)
        for size in (100, 10, 1):
            parts = [model.predict(points[i : i + size]) for i in range(0, 1000, size)]
            shift = np.abs(np.concatenate(parts) - mean)
            row = {"form": "set" if form else "pointwise", "chunk": size}
            rows.append(row | {"mean_shift": float(shift.mean()), "largest_in_std": float((shift / std).max())})
            print(
                "{form:>9}, chunks of {chunk:>3}: mean shift {mean_shift:.2g}, largest {largest_in_std:.2g} sd".format(
                    **rows[-1]
                )
            )
    print(json.dumps({"benchmark": "chunking", "rows": rows}))


if __name__ == "__main__":
    main()
