"""Mutated files of every kind: damaged bytes, and for bieqno's own files changed content under a right checksum.

Nothing but the documented errors may come back, what loads must work, and memory stays bounded. `files.py results TOML` mutates
files of these kinds only.
"""

import contextlib
import copy
import functools
import importlib.util
import io
import itertools
import json
import random
import resource
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import xarray as xr

import bieqno
from bieqno import PersistenceError
from bieqno import assimilation as da
from bieqno.cli.table_files import read_table, training_columns, write_table
from bieqno.compilation import forget_programs
from bieqno.lab.results import METRICS_FILE
from bieqno.lab.system_files.reading import read_system_file
from bieqno.persistence.tensorfile import pack_tensors, read_tensors, unpack_tensors
from bieqno.regression import load_regressor
from tables import Tally, compile_quickly, run

compile_quickly()
KEY = jax.random.key(0)
TEXTS = (b"[" * 5000, b"{" * 5000, b"\x00", b"1e999", b"nan", b"\xff\xfe", b"'\"", b"=", b"\n")
SUFFIXES = {"Parquet": "parquet", "Excel": "xlsx"}  # of files whose kind is told by their names
HOSTILE: list[Any] = [
    *(None, True, -1, 0, 10**400, 2**31, 1e308, -0.5, "", "x", "os.system", [], [[]], {}, {"float": "nan"}),
    *(
        {"array": "none"},
        {"numpy": "0"},
        {"tuple": [1]},
        {"module": "os.system", "fields": {}},
        {"function": "jax.relu"},
    ),
]
# What the example's setup.toml names, with a model that is not compiled anew for every file.
MY_MODEL = """
import numpy as np
from bieqno.assimilation import Observation
state, positions, observation = np.ones(40, np.float32), np.arange(40.0)[:, None], Observation(range(0, 40, 4), 1.0)
def model(z): return 0.5 * z
"""


class Kind(NamedTuple):
    """A kind of file: its content, what reads and uses it, and the errors that it may end with."""

    content: bytes
    use: Callable[[Path], Any]
    errors: tuple[type[Exception], ...]
    own: str | None = None  # which of bieqno's own kinds, whose content can be changed under a right checksum


def _use_model(path: Path) -> None:
    mean, deviation = load_regressor(path).predict(np.array([[0.3], [0.9]]), return_std=True)
    if not (np.isfinite(mean).all() and np.isfinite(deviation).all()):
        raise FloatingPointError("a loaded model predicts what is not finite")


def _use_filter(path: Path) -> None:
    loaded = da.load_filter(path)
    observed = da.Observation([0, 2], 1.0).window(jnp.array([1.0, 2.0]))
    found = loaded(jnp.arange(12.0).reshape(4, 3), observed, key=KEY)
    if not np.isfinite(np.asarray(found)).all():
        raise FloatingPointError("a loaded filter gives what is not finite")


def _use_checkpoint(path: Path) -> None:
    read_tensors(path, kind="training checkpoint")


def kinds(folder: Path) -> dict[str, Kind]:
    """Return one good file of every kind."""
    X = np.linspace(0, 1, 20)[:, None]
    model = bieqno.PretrainedGGPRegressor(correction=False).fit(X, np.sin(6 * X[:, 0]))
    model.save(folder / "model")
    da.save_filter(folder / "filter", da.Inflated(da.EnNF(2, width=4, depth=1, key=KEY), 1.02))
    data = xr.Dataset({"observed": (("time", "observation"), np.ones((4, 2)))}, {"time": np.arange(4.0)})
    da.save_dataset(data, folder / "netcdf")
    table = "a,b,y\n" + "".join(f"{k},{k % 3},{k / 7}\n" for k in range(12))
    toml = (Path(da.__file__).parents[1] / "cli" / "example" / "setup.toml").read_bytes()
    (folder / "my_model.py").write_text(MY_MODEL)
    rows = [{"case": "a", "method": "b", "metric": "rmse", "value": 1.0, "stderr": None, "n": 1}]
    metrics = json.dumps({"experiment": "step-1d", "preset": "smoke", "seed": 0, "rows": rows}).encode()
    tables = {}
    for what, module in (("Parquet", "pyarrow"), ("Excel", "openpyxl")):  # extras
        if importlib.util.find_spec(module):
            path = folder / f"table.{SUFFIXES[what]}"
            write_table(path, pd.read_csv(io.StringIO(table)))
            tables[what] = Kind(path.read_bytes(), _use_table, (ValueError,))
    checkpoint = pack_tensors({"state.0": np.ones(3, np.float32)}, kind="training checkpoint", description="0\nx")
    return {
        "model": Kind((folder / "model").read_bytes(), _use_model, (PersistenceError, ValueError), "module"),
        "filter": Kind(
            (folder / "filter").read_bytes(), _use_filter, (PersistenceError, ValueError, TypeError), "module"
        ),
        "checkpoint": Kind(checkpoint, _use_checkpoint, (PersistenceError,), "training checkpoint"),
        "netCDF": Kind((folder / "netcdf").read_bytes(), da.load_dataset, (ValueError,)),
        "TOML": Kind(toml, read_system_file, (ValueError,)),
        "CSV": Kind(table.encode(), _use_table, (ValueError,)),
        **tables,
        "results": Kind(metrics, _use_results, (ValueError,)),
    }


def _use_table(path: Path) -> None:
    training_columns(read_table(path), "y", None, path, texts=True)


def _use_results(path: Path) -> None:
    """Make the page of a folder with this file as the numbers of a study."""
    from bieqno.lab.report.page import results_in

    study = path.parent / "runs" / "step-1d"
    study.mkdir(parents=True, exist_ok=True)
    (study / METRICS_FILE).write_bytes(path.read_bytes())
    (study / "config.json").write_text("{}")
    results_in(study.parent)


def damaged(content: bytes, random: random.Random) -> bytes:
    """Return the content with some bytes changed, cut off, doubled or put in between."""
    data = bytearray(content)
    for _ in range(random.choice([1, 1, 2, 8])):
        place = random.randrange(max(len(data), 1))
        match random.randrange(5):
            case 0 if data:
                data[place % len(data)] ^= 1 << random.randrange(8)
            case 1:
                del data[place:]
            case 2:
                data[place:place] = random.randbytes(random.choice([1, 4, 300]))
            case 3:
                data[place:place] = random.choice(TEXTS)
            case _:
                data[place:place] = data[place : place + random.choice([8, 64])]
    return bytes(data)


def forged(content: bytes, kind: str, random: random.Random) -> bytes:
    """Return a file of bieqno's own with changed content and a right checksum."""
    tensors, description = unpack_tensors(content, kind=kind, source="good")
    tensors = dict(tensors)
    if random.random() < 0.5 and description.startswith("{"):
        tree = json.loads(description)
        node, key = random.choice(list(_places(tree)))
        node[key] = copy.deepcopy(random.choice(HOSTILE))
        description = json.dumps(tree)
    else:
        name = random.choice(sorted(tensors))
        tensors[name] = _spoiled(np.array(tensors[name]), random)
    return pack_tensors(tensors, kind=kind, description=description)


def _places(tree: Any) -> Any:
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
        yield tree, key
        if isinstance(value, (dict, list)):
            yield from _places(value)


def _spoiled(array: np.ndarray, random: random.Random) -> np.ndarray:
    match random.randrange(8):
        case 0:
            return array.astype(random.choice([np.int8, np.float16, np.float64, np.bool_, np.uint32]))
        case 1:
            return np.concatenate([array.reshape(-1)] * 2)
        case 2:
            return array.reshape(-1)[:1]
        case 3:
            return np.zeros(0, array.dtype)
        case 4:
            return array[None]
        case _:
            changed = array.copy().reshape(-1)
            if changed.size:
                value = random.choice([np.nan, np.inf, 0, -1, 1e30, 127])
                with np.errstate(all="ignore"), warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    changed[random.randrange(changed.size)] = np.array(value).astype(changed.dtype)
            return changed.reshape(array.shape)


def tried(kind: Kind, path: Path) -> tuple[str, str]:
    """Use a file, and say what came of it."""
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            kind.use(path)
    except kind.errors:
        return "refused", ""
    except FloatingPointError as error:
        return "not finite", str(error)
    except Exception as error:  # what the campaign is after
        frame = traceback.extract_tb(error.__traceback__)[-1]
        return "uncontrolled", f"{type(error).__name__} in {Path(frame.filename).name}:{frame.lineno}: {error}"
    return "read", ""


def campaign(count: int, seed: int, names: Sequence[str] = ()) -> Tally:
    """Read `count` mutated files of each kind."""
    chance, memory = random.Random(seed), 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        good = {what: kind for what, kind in kinds(folder).items() if what in names or not names}
        tally = Tally(len(good) * count)
        for number in range(count):
            for what, kind in good.items():
                path = folder / f"mutated.{SUFFIXES.get(what, what)}"
                own = kind.own is not None and chance.random() < 0.7
                path.write_bytes(forged(kind.content, str(kind.own), chance) if own else damaged(kind.content, chance))
                tally.add(what, *tried(kind, path))
                tally.step()
            if number % 200 == 0:
                forget_programs()
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            if memory and peak > memory + 2e6:  # kilobytes
                tally.add(what, "lost", f"memory grew by {(peak - memory) / 1e6:.1f} GB by file {number}")
            memory = peak
    return tally


if __name__ == "__main__":
    words = list(itertools.takewhile(lambda word: not word.startswith("-"), sys.argv[1:]))
    chosen = functools.update_wrapper(functools.partial(campaign, names=words), campaign)
    run("files", chosen, count=10_000, arguments=sys.argv[1 + len(words) :])
