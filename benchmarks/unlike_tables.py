"""Tables that are unlike those of the studies: ours beside a Gaussian process and boosted trees of scikit-learn.

Each table is drawn anew for every seed. The Gaussian process has a length scale for each input, a linear part, a noise level
and the better of two kernels by marginal likelihood. The trees are the best of four settings by five folds, and have the
residuals of these as their deviation. Prints RMSE, NLPD, the share of new values in 90 % intervals and the processor time of
fit and prediction, and writes runs/benchmarks/unlike_tables.json.
"""

import argparse
import json
import time
import warnings
from pathlib import Path

import numpy as np
from scipy.stats import norm
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, DotProduct, Matern, WhiteKernel
from sklearn.model_selection import cross_val_predict

from bieqno import PretrainedGGPRegressor

NEW = 1000  # rows that are predicted
TREES = [(100, 0.1, 31), (200, 0.05, 8), (400, 0.03, 8), (400, 0.05, 31)]  # number, learning rate, leaves


def few_of_twelve(rng, rows):
    X = rng.normal(size=(rows, 12))
    return X, np.sin(2 * X[:, 3]) + X[:, 7] * X[:, 1] + 0.3 * rng.normal(size=rows)


def heavy_tails(rng, rows):
    X = rng.uniform(size=(rows, 5))
    return X, 4 * np.sin(6 * X[:, 0]) * X[:, 1] + 3 * X[:, 2] + 0.4 * rng.standard_t(2.5, rows)


def growing_noise(rng, rows):
    X = rng.uniform(size=(rows, 6))
    return X, np.cos(5 * X[:, 0]) + 2 * X[:, 1] + (0.05 + 0.8 * X[:, 2] ** 2) * rng.normal(size=rows)


def linear(rng, rows):
    X = rng.normal(size=(rows, 20))
    return X, X[:, :8] @ rng.normal(size=8) + rng.normal(size=rows)


def skewed(rng, rows):
    X = rng.uniform(size=(rows, 6))
    return X, np.exp(1.5 * np.sin(4 * X[:, 0]) + 2 * X[:, 1] + 0.4 * rng.normal(size=rows))


def interactions(rng, rows):
    X = rng.uniform(-1, 1, size=(rows, 10))
    smooth = 3 * X[:, 0] * X[:, 1] + np.sin(3 * X[:, 2] + 2 * X[:, 3]) + X[:, 4] ** 2
    return X, smooth + 0.1 * rng.normal(size=rows)


def checkerboard(rng, rows):
    X = rng.uniform(size=(rows, 2))
    return X, np.floor(3 * X).sum(axis=1) % 2 + 0.1 * rng.normal(size=rows)


def parity(rng, rows):
    X = rng.integers(0, 2, size=(rows, 10)).astype(float)
    return X, 2 * (X[:, :3].sum(axis=1) % 2) + X[:, 3] + 0.3 * rng.normal(size=rows)


def counts(rng, rows):
    X = rng.uniform(-1, 1, size=(rows, 5))
    return X, rng.poisson(np.exp(0.8 + X[:, 0] + X[:, 1] * X[:, 2])).astype(float)


TABLES = {
    "12 inputs, 3 matter": (few_of_twelve, 150),
    "heavy-tailed noise": (heavy_tails, 300),
    "growing noise": (growing_noise, 400),
    "linear, 20 inputs": (linear, 200),
    "skewed and positive": (skewed, 300),
    "interactions, 10 inputs": (interactions, 300),
    "checkerboard, 2 inputs": (checkerboard, 300),
    "parity of three of ten": (parity, 300),
    "counts, 5 inputs": (counts, 400),
}


def ours(X, y, new):
    model = PretrainedGGPRegressor(random_state=0).fit(X, y)
    mean, _ = model.predict(new, return_std=True)
    low, high = model.predict_quantiles(new, (0.05, 0.95)).T
    return mean, low, high, model.predict_distribution(new).log_pdf


def gaussian_process(X, y, new, rows=None):
    """With ``rows``, hyperparameters of so many rows, drawn at random."""
    centre, scale = X.mean(axis=0), X.std(axis=0)
    level, spread = y.mean(), y.std()
    X, new, y, lengths = (X - centre) / scale, (new - centre) / scale, (y - level) / spread, np.full(X.shape[1], 2.0)
    some = slice(None) if rows is None else np.random.default_rng(0).permutation(len(y))[:rows]
    fits = [
        GaussianProcessRegressor(
            ConstantKernel() * kernel + ConstantKernel(0.1) * DotProduct() + WhiteKernel(0.1), alpha=1e-8
        ).fit(X[some], y[some])
        for kernel in (RBF(lengths, (1e-2, 1e3)), Matern(lengths, (1e-2, 1e3), nu=1.5))
    ]
    best = max(fits, key=lambda fit: fit.log_marginal_likelihood_value_)
    if rows is not None and rows < len(y):
        best = GaussianProcessRegressor(best.kernel_, alpha=1e-8, optimizer=None).fit(X[:3000], y[:3000])
    mean, deviation = best.predict(new, return_std=True)
    return normal(mean * spread + level, deviation * spread)


def boosted_trees(X, y, new, settings=TREES, folds=5):
    found = []
    for number, rate, leaves in settings:
        trees = HistGradientBoostingRegressor(
            max_iter=number, learning_rate=rate, max_leaf_nodes=leaves, min_samples_leaf=5, random_state=0
        )
        found.append((np.mean((cross_val_predict(trees, X, y, cv=folds) - y) ** 2), trees))
    variance, trees = min(found, key=lambda pair: pair[0])
    return normal(trees.fit(X, y).predict(new), np.full(len(new), np.sqrt(variance)))


def normal(mean, deviation):
    return mean, *norm.interval(0.9, mean, deviation), lambda values: norm.logpdf(values, mean, deviation)


METHODS = {"gGP": ours, "GP, ARD": gaussian_process, "boosted trees": boosted_trees}


def measured(method, table, rows, seed):
    """RMSE, NLPD, share in the 90 % interval and seconds."""
    X, y = table(np.random.default_rng([5, seed]), rows + NEW)
    begin = time.process_time()
    mean, low, high, log_density = method(X[:rows], y[:rows], X[rows:])
    seconds, true = time.process_time() - begin, y[rows:]
    inside = np.mean((low < true) & (true < high))
    return np.sqrt(np.mean((mean - true) ** 2)), -np.mean(log_density(true)), inside, seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks/unlike_tables.json"))
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)  # bounds of length scales of inputs that do not matter
    results = {}
    for name, (table, rows) in TABLES.items():
        for who, method in METHODS.items():
            found = np.array([measured(method, table, rows, seed) for seed in range(arguments.seeds)])
            results.setdefault(name, {})[who] = found.tolist()
            rmse, nlpd, inside, seconds = found.mean(axis=0)
            print(f"{name}, {rows} rows, {who}: {rmse:.3f} / {nlpd:.3f} / {inside:.2f}, {seconds:.1f} s", flush=True)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(results, indent=1) + "\n")
    print(f"written to {arguments.out}")


if __name__ == "__main__":
    main()
