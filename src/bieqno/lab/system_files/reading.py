"""Read a system file, import the objects that it names, and check that all fits together before anything is run."""

import functools
import os
import tomllib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

import bieqno.assimilation as da
from bieqno.assimilation.trials import usable_cores
from bieqno.lab.system_files.objects import (
    check_array,
    check_callable,
    check_filter,
    check_instance,
    check_model,
    find_object,
)
from bieqno.lab.system_files.schema import ModelTable, Settings, TruthTable, check_table

MODELS = ("object", "command", "bmi")  # keys that name a model
COPIES = 3  # of the largest arrays, at least, while they are computed
PRETRAINED = "pretrained"  # in place of the file of a filter: the one that ships


@dataclass(frozen=True)
class SystemFile:
    """A system of the user's own, with the settings of its file."""

    path: Path
    settings: Settings
    system: da.System
    window: float  # time between two observations
    first: Float[np.ndarray, "..."] | None  # mean of the first ensemble, or the ensemble itself; None for a free run
    teacher: da.Filter  # the filter to imitate

    @functools.cached_property
    def spread(self) -> Float[Array, "n"]:
        """Return the standard deviation of the first ensemble: as given, or estimated by a free run."""
        return self.system.first_spread(key=jax.random.key(self.settings.seed))

    def trials(
        self, windows: int, *, truths: int, members: int, inputs: Mapping[str, Array] | None = None, key: PRNGKeyArray
    ) -> da.Trials:
        """Simulate truths with observations and first ensembles; the error law is evaluated at the observed value.

        A driven model is given the first of its `inputs`, which all truths share.
        """
        how: dict[str, Any] = {"members": members, "spread": self.spread, "disturbance": self.spread}
        how["inputs"] = None if inputs is None else {name: series[:windows] for name, series in inputs.items()}
        trials = da.make_trials(self.system, windows, truths=truths, **how, key=key)
        observations = jax.vmap(lambda series: series.rebuilt())(trials.twins.observations)
        return eqx.tree_at(lambda t: t.twins.observations, trials, observations)

    def ensemble(self, members: int, *, driven: bool = False, key: PRNGKeyArray) -> Float[Array, "N n"]:
        """Return a first ensemble for observations whose truth is not known; a model that is driven has no free run."""
        if self.first is None and not driven:
            # Far apart in time, so that the states are nearly independent.
            return da.spin_up(self.system, 100 + 10 * members, key=key)[100::10]
        first = self.system.state if self.first is None else jnp.asarray(self.first, float)
        if first.ndim == 1:
            return first + self.spread * jax.random.normal(key, (members, self.system.size))
        if len(first) < members:
            raise ValueError(f"{self.path}: 'first' in [ensemble] has {len(first)} members, {members} are needed")
        return first[:members]

    def load_filter(self, path: Path, inputs: Any = None) -> da.Filter:
        """Return the filter in a file, the one that ships (`PRETRAINED`), or the object that ``my_model:filter`` names.

        A ValueError if it does not fit the system.
        """
        if str(path) == PRETRAINED and not path.exists():
            return da.LocalEnNF.pretrained().at(self.system)
        named = not path.exists() and ":" in path.name
        filter = find_object(str(path), self.path.parent) if named else da.load_filter(path)
        try:
            return check_filter(filter, self.system, inputs)
        except ValueError as error:
            raise ValueError(f"{path} does not fit {self.path}; train it anew ({error})") from error


@dataclass(frozen=True)
class _Named:
    """The objects that a file's settings name: find and check them; errors name file and key."""

    path: Path
    settings: Settings

    def find(self, table: str, key: str, check: Callable[[Any], Any]) -> Any:
        """Return an object that the file names, checked; None if it names none."""
        name = getattr(getattr(self.settings, table), key, None)
        try:
            return None if name is None else check(find_object(name, self.path.parent))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{self.path}: {key!r} in [{table}], {name!r}: {error}") from error

    def places(self, table: str, count: int, period: Any) -> da.Places | None:
        """Return the places of a table's items, given as such or by their positions."""

        def place(item: Any) -> da.Places:
            positions = check_array(item, f"{count} positions, one row each", (count,), (count, None))
            axes = positions[0].size
            if isinstance(period, tuple) and len(period) != axes:
                raise ValueError(f"'period' has {len(period)} numbers, 'positions' have {axes} coordinates")
            return da.Places(positions.reshape(count, axes), period=period)

        example = "Places.grid(40, period=40.0)"
        given: da.Places | None = self.find(table, "places", lambda item: check_instance(item, da.Places, example))
        return given or self.find(table, "positions", place)

    def model(self, state: Float[Array, "n"], inputs: Any) -> Any:
        """Return the model: an object, a program, or a class with the Basic Model Interface."""
        if self.settings.model.object is not None:
            return self.find("model", "object", lambda item: check_model(check_callable(item), state, inputs))
        if inputs is not None:
            raise ValueError(f"{self.path}: inputs are for a model in Python, named by 'object' in [model]")
        return _outside(self.settings.model, self.find("model", "bmi", lambda item: item), self.path, state)


def read_settings(path: Path) -> Settings:
    """Read the numbers and names of a system file; what is wrong is a ValueError that names file and key."""
    try:
        settings: Settings = check_table(Settings, tomllib.loads(path.read_text(encoding="utf-8")))
        _check_numbers(settings)
    except ValueError as error:  # of TOML, too
        raise ValueError(f"{path}: {error}") from error
    except RecursionError as error:
        raise ValueError(f"{path}: tables or lists are nested too deeply") from error
    return settings


def read_system_file(path: Path, inputs: Any = None) -> SystemFile:
    """Read a system file and import what it names; what is wrong is a ValueError that names file and key.

    Inputs are those of one window, with which a model that is driven can be tried.
    """
    settings = read_settings(path)
    named = _Named(path, settings)
    vector = "a state, a vector of numbers"
    state = jnp.asarray(named.find("model", "state", lambda item: check_array(item, vector, (None,))), float)
    model = named.model(state, inputs)
    example = "Observation([0, 2], 1.0)"
    observation = named.find("observation", "object", lambda item: check_instance(item, da.Observation, example))
    n, m = len(state), named.find("observation", "object", lambda item: item.size(len(state)))
    for table, numbers in _numbers(settings).items():
        check_memory(f"{path}: [{table}]", n * numbers)
    filter = settings.filter
    for key in ("depth", "channels"):
        check_memory(f"{path}: 'width' and '{key}' in [filter]", filter.width**2 * getattr(filter, key, 1))
    either = f"a state ({n},) or members (N, {n})"
    first = named.find("ensemble", "first", lambda item: check_array(item, either, (n,), (None, n)))
    spread = settings.ensemble.spread
    if np.shape(1.0 if spread is None else spread) not in {(), (n,)}:
        raise ValueError(f"{path}: 'spread' in [ensemble] is one number or {n}, got {spread}")
    if spread is None and (inputs is not None or isinstance(model, da.Members)):
        spread = 1.0  # a driven model has no free run, and one of a program would take too long
    places = named.places("model", n, settings.model.period)
    others = named.places("observation", m, None if places is None else places.period)
    try:
        about: dict[str, Any] = {"observation_places": others}
        if spread is not None:
            about["spread"] = jnp.full(n, jnp.asarray(spread, float))
        system = da.System(model, observation, state, places, settings.model.limit, **about)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    given = named.find("training", "teacher", lambda item: check_filter(check_callable(item), system))
    window = settings.model.window or float(getattr(model, "window", 1.0))
    return SystemFile(path, settings, system, window, first, given or da.EnKF(centred=False))


def _outside(table: ModelTable, bmi: Any, path: Path, state: Float[Array, "n"]) -> da.Members:
    """Return the model of a program, or of a class with the Basic Model Interface; threads run it unless others do."""
    folder = path.parent.resolve()
    given = "'command'" if table.command else "'bmi'"
    try:
        run_one: da.Program | da.BMIModel
        if table.command:
            run_one, timeout = da.Program(table.command, table.exchange, str(folder), table.timeout), None
        else:
            config = str(folder / table.config) if table.config else ""
            run_one, timeout = da.BMIModel(bmi, config, table.variables or (), table.window), table.timeout
        threads = functools.partial(ThreadPoolExecutor, usable_cores())
        model: da.Members = check_model(da.Members(run_one, threads, table.retries, timeout, table.survivors), state)
    except (ValueError, ImportError) as error:
        raise ValueError(f"{path}: {given} in [model]: {error}") from error
    return model


def _check_numbers(settings: Settings) -> None:
    compare, training, model, observation = settings.compare, settings.training, settings.model, settings.observation
    placed = model.places or model.positions
    named = [key for key in MODELS if getattr(model, key) is not None]
    if len(named) != 1:
        raise ValueError(f"[model] names one of 'object', 'command' and 'bmi', got {' and '.join(named) or 'none'}")
    if model.bmi and not model.variables:
        raise ValueError("'bmi' in [model] needs 'variables', those that make up the state")
    if model.survivors > 1:
        raise ValueError(f"'survivors' in [model] is a share of at most 1, got {model.survivors}")
    if compare.burn_in >= compare.windows:
        found = f"it is {compare.burn_in} of {compare.windows} 'windows'"
        raise ValueError(f"'burn_in' in [compare] leaves nothing: {found}")
    if model.places and (model.positions or model.period):
        raise ValueError("'places' in [model] hold positions and period; leave those out")
    if not placed and (observation.places or observation.positions):
        raise ValueError("places or positions in [observation] need those of the variables in [model], too")
    if isinstance(training, TruthTable):
        sizes, truths, missing = training.sizes, training.truths, training.missing
        if truths is not None and len(truths) != len(sizes):
            raise ValueError(f"'truths' in [training] has {len(truths)} numbers, 'sizes' {len(sizes)}")
        if len(missing) != 2 or not missing[0] <= missing[1] <= 1:
            raise ValueError(f"'missing' in [training] is two shares from low to high, got {list(missing)}")


def _numbers(settings: Settings) -> dict[str, int]:
    """Return how many states each table needs at once."""
    compare, training, validation = settings.compare, settings.training, settings.validation
    series = max(compare.truths * compare.windows, compare.tuning_truths * compare.tuning_windows)
    needed = {"ensemble": settings.ensemble.members, "compare": max(compare.sizes) + series}
    needed["validation"] = (validation.truths or 1) * (validation.windows or 1)
    if isinstance(training, TruthTable):
        at_once = max(training.truths or (1,)) * (training.unroll or 1)
        return needed | {"training": max(training.sizes) * at_once}
    analyses = training.truths * training.windows * training.teacher_members
    return needed | {"training": max(analyses, training.batch * max(training.sizes))}


def check_memory(what: str, numbers: int) -> None:
    """Refuse what needs more numbers at once than the machine has memory for, before minutes are spent on it."""
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 2**40
    needed = COPIES * 4 * numbers
    if needed > there:
        raise ValueError(f"{what}: this needs {needed / 1e9:,.0f} GB at once, the machine has {there / 1e9:,.0f}")
