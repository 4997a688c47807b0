"""What the correction of many inputs brings to whole fits: NLPD and RMSE with it and by the plain experts.

``python benchmarks/many_inputs.py``. Tables on which what is near counts: a cliff across seven inputs, levels in clusters, steps
across planes, eight inputs on a surface, noise that grows, a rough function. They were no part of the pre-training. Prints means
over seeds and, of the differences, standard errors.
"""

import argparse

import numpy as np

from bieqno import PretrainedGGPRegressor

NEW, WAVES = 1000, 400


def waves(rng, x, length, degrees=None):
    """A Gaussian process, squared exponential or, of so many degrees of freedom, Matern."""
    frequency = rng.normal(size=(WAVES, x.shape[1])) / length
    if degrees is not None:
        frequency *= np.sqrt(degrees / rng.chisquare(degrees, size=WAVES))[:, None]
    return np.sqrt(2 / WAVES) * np.cos(x @ frequency.T + 2 * np.pi * rng.uniform(size=WAVES)).sum(axis=1)


def standardised(f):
    return (f - f.mean()) / f.std()


def cliff(rng, rows):
    x, across = rng.uniform(size=(rows, 7)), rng.normal(size=7)
    return x, standardised(waves(rng, x, 1.5) + 2 * ((x - 0.5) @ across > 0)) + 0.1 * rng.normal(size=rows)


def levels_of_clusters(rng, rows):
    centres, own, levels = rng.uniform(size=(30, 6)), rng.integers(0, 30, rows), rng.normal(size=30)
    x = centres[own] + 0.05 * rng.normal(size=(rows, 6))
    return x, standardised(levels[own]) + 0.3 * waves(rng, x, 0.3) + 0.1 * rng.normal(size=rows)


def steps(rng, rows):
    x, across, heights = rng.normal(size=(rows, 6)), rng.normal(size=(4, 6)), rng.normal(size=4)
    return x, standardised((x @ across.T > 0) @ heights) + 0.1 * rng.normal(size=rows)


def surface(rng, rows):
    z, weights, across = rng.uniform(-1, 1, size=(rows, 2)), rng.normal(size=(2, 8)), rng.normal(size=2)
    x = np.tanh(z @ weights + 0.5 * rng.normal(size=8)) + 0.02 * rng.normal(size=(rows, 8))
    f = np.sin(4 * z[:, 0]) * np.cos(3 * z[:, 1]) + (z @ across > 0.2)
    return x, standardised(f) + 0.1 * rng.normal(size=rows)


def growing_noise(rng, rows):
    x, along = rng.uniform(size=(rows, 7)), rng.normal(size=7)
    noise = 0.3 * np.exp(1.5 * (x[:, 3] - 0.5) + 1.5 * (x[:, 0] - 0.5))
    return x, standardised(np.sin(1.5 * x @ along) + x[:, 1] * x[:, 2]) + noise * rng.normal(size=rows)


def rough(rng, rows):
    x = rng.uniform(size=(rows, 5)) * np.exp(-rng.uniform(0, 1.5, 5))
    return x, standardised(waves(rng, x, 1.0, 1)) + 0.1 * rng.normal(size=rows)


TABLES = {cliff: 300, levels_of_clusters: 400, steps: 300, surface: 400, growing_noise: 250, rough: 500}


def scores(table, rows, seed, correction):
    X, y = table(np.random.default_rng([78, seed]), rows + NEW)
    model = PretrainedGGPRegressor(correction=correction, random_state=0).fit(X[:rows], y[:rows])
    error = model.predict(X[rows:]) - y[rows:]
    return -np.mean(model.predict_distribution(X[rows:]).log_pdf(y[rows:])), np.sqrt(np.mean(error**2))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=6)
    seeds = parser.parse_args().seeds
    for table, rows in TABLES.items():
        plain, corrected = (np.array([scores(table, rows, s, use) for s in range(seeds)]) for use in (False, True))
        apart = corrected - plain
        error = apart.std(axis=0, ddof=1) / np.sqrt(seeds)
        for i, name in enumerate(("NLPD", "RMSE")):
            means = f"{plain[:, i].mean():.3f} -> {corrected[:, i].mean():.3f}"
            print(f"{table.__name__:<20}{name}  {means}  {apart[:, i].mean():+.3f} +- {error[i]:.3f}", flush=True)


if __name__ == "__main__":
    main()
