"""Whether intervals of 95 % hold what they should: at the rows of a table, beside them and away from them.

Over numbers of inputs and rows, levels of noise, and rows that occur once or four times. A cell whose coverage over all its
tables is below 0.8 counts as out of bounds.
"""

import itertools
import random
import warnings
from collections.abc import Mapping

import numpy as np

from bieqno import PretrainedGGPRegressor
from tables import Tally, run

LEAST = 0.8
LEVELS = {"inputs": (1, 2, 4, 8), "rows": (30, 100), "noise": (0.0, 0.1), "copies": (1, 4)}
PLACES = ("at", "beside", "away")


def covered(inputs: int, rows: int, noise: float, copies: int, seed: int) -> dict[str, float]:
    """Return the shares of new values inside the interval at each kind of place, for one random table."""
    chance = np.random.default_rng(seed)
    X = chance.uniform(size=(rows, inputs))
    directions = chance.normal(size=(inputs, 3))

    def function(points: np.ndarray) -> np.ndarray:
        return np.sin(3 * points @ directions).sum(axis=1)

    observed = function(X) + noise * chance.normal(size=rows)
    model = PretrainedGGPRegressor(random_state=seed).fit(np.repeat(X, copies, axis=0), np.repeat(observed, copies))
    points = {"at": X, "beside": X + 0.02 * chance.normal(size=X.shape), "away": chance.uniform(size=(100, inputs))}
    shares = {}
    for place, new in points.items():
        low, high = model.predict_quantiles(new, [0.025, 0.975]).T
        values = function(new) + noise * chance.normal(size=len(new))
        shares[place] = float(np.mean((values >= low) & (values <= high)))
    return shares


def campaign(count: int, seed: int) -> Tally:
    """Fit `count` tables, going round the cells."""
    tally, found = Tally(count), dict[tuple[object, ...], list[float]]()
    cells = list(itertools.product(*LEVELS.values()))
    random.Random(seed).shuffle(cells)
    for number in range(count):
        inputs, rows, noise, copies = cells[number % len(cells)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for place, share in covered(inputs, rows, noise, copies, seed + number).items():
                found.setdefault((inputs, rows, noise, copies, place), []).append(share)
        judge(found, tally)
        tally.step()
    return tally


def judge(found: Mapping[tuple[object, ...], list[float]], tally: Tally) -> None:
    """Count the cells that are covered and that are not, by the tables so far."""
    tally.counts.clear()
    tally.failures.clear()
    for (inputs, rows, noise, copies, place), shares in found.items():
        what = f"{place} the rows, {inputs} inputs, {'each row once' if copies == 1 else 'each row four times'}"
        end = "covered" if np.mean(shares) >= LEAST else "out of bounds"
        tally.add(what, end, f"{rows} rows, noise {noise}: {np.mean(shares):.2f} in {len(shares)} tables")


if __name__ == "__main__":
    run("coverage", campaign, count=320)
