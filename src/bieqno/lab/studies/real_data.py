"""Study ``real-data``: measured data that ship with this package or with ordinary ones."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import sklearn.datasets
from jaxtyping import Float
from matplotlib.cbook import get_sample_data

from bieqno.lab.methods import regression
from bieqno.lab.methods.classical_regressors import KERNELS
from bieqno.lab.study import Description, Experiment, Findings, Run

DESCRIPTION = Description(
    title="Measured data",
    question="Heights of a fault and of an island's surroundings at scattered places, CO2 in the air, the Nile's yearly "
    "flow, patients' diabetes: part is observed, the rest predicted. Which method is most exact, and which knows it?",
    claim="None; the paper has no such data.",
    minutes={"smoke": 0.5, "quick": 20.0, "paper": 70.0},
    methods=(*regression.PRETRAINED_FORMS, "ggp-trained", *(f"gp-{kernel}" for kernel in KERNELS), "trees"),
)


@dataclass(frozen=True)
class Settings:
    """What is run: random splits with at most so many rows `observed` (of smaller tables three quarters are) and `asked`."""

    preset: str = "quick"
    repetitions: int = 3
    observed: int = 400
    asked: int = 1000
    ggp: Mapping[str, Any] = field(default_factory=dict)
    lengths: int = 5
    sets: tuple[str, ...] = ("fault", "sea floor", "co2", "nile", "diabetes")


PRESETS = {
    "smoke": Settings("smoke", 1, 40, 40, regression.TINY_GGP, 2, ("nile", "sea floor")),
    "quick": Settings(),
    "paper": Settings("paper", repetitions=10, observed=800, lengths=7),
}

_DATA = Path(__file__).parent / "data"
Table = tuple[Float[np.ndarray, "n d"], Float[np.ndarray, "n"]]


def _fault() -> Table:
    """Return the elevation about the Jacksboro fault, in metres, on a grid of places (Matplotlib's sample data)."""
    height = _sample("jacksboro_fault_dem.npz")["elevation"].astype(float)
    return regression.grid(np.arange(height.shape[0]), np.arange(height.shape[1])), height.ravel()


def _sea_floor() -> Table:
    """Return height and depth about an island, in metres (Matplotlib's sample data)."""
    found = _sample("topobathy.npz")
    return regression.grid(found["latitude"], found["longitude"]), found["topo"].astype(float).ravel()


def _co2() -> Table:
    """Return weekly CO2 at Mauna Loa, in parts per million, against years."""
    table = pd.read_csv(_DATA / "co2.csv").dropna()
    dates = pd.to_datetime(table["date"].astype(str), format="%Y%m%d").dt
    return (dates.year + dates.day_of_year / 365.25).to_numpy(float)[:, None], table["co2"].to_numpy(float)


def _nile() -> Table:
    """Return the yearly flow of the Nile at Aswan, 1871 to 1970."""
    table = pd.read_csv(_DATA / "nile.csv")
    return table[["year"]].to_numpy(float), table["volume"].to_numpy(float)


def _diabetes() -> Table:
    """Return how the disease progressed in a year, from ten measurements (scikit-learn)."""
    x, y = sklearn.datasets.load_diabetes(return_X_y=True)
    return x, y


def _sample(name: str) -> Mapping[str, np.ndarray]:
    with np.load(str(get_sample_data(name, asfileobj=False))) as found:
        return dict(found)


_LOADERS = (_fault, _sea_floor, _co2, _nile, _diabetes)
SETS: dict[str, Callable[[], Table]] = {load.__name__[1:].replace("_", " "): load for load in _LOADERS}


def draw(rng: np.random.Generator, *, table: Table, observed: int, asked: int) -> regression.Problem:
    """Draw a random split of a table."""
    x, y = table
    order = rng.permutation(len(y))
    count = min(observed, 3 * len(y) // 4)
    seen, rest = order[:count], order[count : count + asked]
    return regression.Problem(x[seen], y[seen], x[rest], y[rest], y[rest], None, np.arange(min(50, len(rest))))


def study(s: Settings, run: Run) -> Findings:
    """Run all methods on random splits of every table."""
    problems = {name: partial(draw, table=SETS[name](), observed=s.observed, asked=s.asked) for name in s.sets}
    tuned = partial(regression.tuned_gp, known=False, lengths=s.lengths, climbs=3)
    methods = {**regression.PRETRAINED_FORMS, "ggp-trained": regression.trained_ggp(s.ggp)}
    methods |= {**{f"gp-{kernel}": tuned(kernel) for kernel in KERNELS}, "trees": regression.of_trees}
    return regression.compare_regressors(run, problems, dict.fromkeys(problems, methods), s.repetitions)


EXPERIMENT = Experiment("real-data", DESCRIPTION, PRESETS, study)
