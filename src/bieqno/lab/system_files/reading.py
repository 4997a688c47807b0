"""Read a system file, import the objects that it names, and check that all fits together before anything is run.

To import a module is to run it: a system file is a program of its owner, and no safer than one.
"""

import importlib
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from bieqno.assimilation import EnKF, Filter, Observation, Places, System, Trials, make_trials, spin_up
from bieqno.assimilation.models.forecast import AbstractEnsembleModel, forecast
from bieqno.lab.system_files.schema import Settings, TruthTable, check_table
from bieqno.lab.texts import did_you_mean


@dataclass(frozen=True)
class SystemFile:
    """A system of the user's own, with the settings of its file."""

    path: Path
    settings: Settings
    system: System
    window: float  # time between two observations
    spread: Float[Array, "n"]  # standard deviation of the first ensemble
    first: Float[np.ndarray, "..."] | None  # mean of the first ensemble, or the ensemble itself; None for a free run
    teacher: Filter  # the filter to imitate

    def trials(self, windows: int, *, truths: int, members: int, key: PRNGKeyArray) -> Trials:
        """Simulate truths with observations and first ensembles; the error law is evaluated at the observed value."""
        how: dict[str, Any] = {"members": members, "spread": self.spread, "disturbance": self.spread}
        trials = make_trials(self.system, windows, truths=truths, **how, key=key)
        observations = jax.vmap(lambda series: series.rebuilt())(trials.twins.observations)
        return eqx.tree_at(lambda t: t.twins.observations, trials, observations)

    def ensemble(self, members: int, *, key: PRNGKeyArray) -> Float[Array, "N n"]:
        """Return a first ensemble for observations whose truth is not known."""
        if self.first is None:
            # Far apart in time, so that the states are nearly independent.
            return spin_up(self.system, 100 + 10 * members, key=key)[100::10]
        first = jnp.asarray(self.first, float)
        if first.ndim == 1:
            return first + self.spread * jax.random.normal(key, (members, self.system.size))
        if len(first) < members:
            raise ValueError(f"{self.path}: 'first' in [ensemble] has {len(first)} members, {members} are needed")
        return first[:members]


def read_system_file(path: Path) -> SystemFile:
    """Read a system file and import what it names; what is wrong is a ValueError that names file and key."""
    try:
        settings = check_table(Settings, tomllib.loads(path.read_text(encoding="utf-8")))
        _check_numbers(settings)
    except ValueError as error:  # of TOML, too
        raise ValueError(f"{path}: {error}") from error

    def find(table: str, key: str, convert: Callable[[Any], Any]) -> Any:
        """Return an object that the file names, converted; None if it names none."""
        name = getattr(getattr(settings, table), key, None)
        try:
            return None if name is None else convert(find_object(name, path.parent))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path}: {key!r} in [{table}], {name!r}: {error}") from error

    def find_places(table: str, count: int, period: Any) -> Places | None:
        def place(item: Any) -> Places:
            positions = _array(item, f"{count} positions, one row each", (count,), (count, None)).reshape(count, -1)
            axes = positions.shape[1]
            if isinstance(period, tuple) and len(period) != axes:
                raise ValueError(f"'period' has {len(period)} numbers, 'positions' have {axes} coordinates")
            return Places(positions, period=period)

        given: Places | None = find(
            table, "places", lambda item: _instance(item, Places, "Places.grid(40, period=40.0)")
        )
        return given or find(table, "positions", place)

    state = jnp.asarray(
        find("model", "state", lambda item: _array(item, "a state, a vector of numbers", (None,))), float
    )
    model = find("model", "object", lambda item: _tried(_object(item), state))
    observation = find("observation", "object", lambda item: _instance(item, Observation, "Observation([0, 2], 1.0)"))
    n, m = len(state), find("observation", "object", lambda item: item.size(len(state)))
    either = f"a state ({n},) or members (N, {n})"
    first = find("ensemble", "first", lambda item: _array(item, either, (n,), (None, n)))
    spread = np.asarray(settings.ensemble.spread, float)
    if spread.shape not in {(), (n,)}:
        raise ValueError(f"{path}: 'spread' in [ensemble] is one number or {n}, got {settings.ensemble.spread}")
    places = find_places("model", n, settings.model.period)
    others = find_places("observation", m, None if places is None else places.period)
    try:
        limit, about = (
            settings.model.limit,
            dict[str, Any](observation_places=others, spread=jnp.full(n, spread, float)),
        )
        system = System(model, observation, state, places, limit, **about)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    teacher = find("training", "teacher", lambda item: check_filter(_object(item), system)) or EnKF(centred=False)
    window = settings.model.window or float(getattr(model, "window", 1.0))
    return SystemFile(path, settings, system, window, jnp.full(n, spread, float), first, teacher)


def find_object(name: str, folder: Path) -> Any:
    """Return the object that a text such as ``my_model:observation`` names, from the folder or what is installed.

    Example:
        >>> find_object("math:pi", Path("."))
        3.141592653589793
        >>> find_object("math:pii", Path("."))
        Traceback (most recent call last):
        ...
        ValueError: the module math has no 'pii'; did you mean 'pi'?
    """
    module_name, colon, path = name.partition(":")
    if not (colon and module_name and path):
        raise ValueError(f"expected 'module:object', as in 'my_model:model', got {name!r}")
    found: Any = _import(module_name, folder.resolve())
    for part in path.split("."):
        if not hasattr(found, part):
            names = [other for other in dir(found) if not other.startswith("_")]
            raise ValueError(f"the module {module_name} has no {path!r}; {did_you_mean(part, names)}")
        found = getattr(found, part)
    return found


def _tried(model: Any, state: Float[Array, "n"]) -> Any:
    """Return a model that runs for one window, so that one that does not is reported by its own error."""
    try:
        after = forecast(model, jnp.stack([state, state]), key=jax.random.key(0))
    except Exception as error:  # whatever the user's own code may raise
        raise ValueError(f"it fails on a state of {len(state)} variables: {type(error).__name__}: {error}") from error
    if not np.isfinite(np.asarray(after)).all():
        raise ValueError("it gives values that are not finite one window after 'state'")
    return model


def check_filter(filter: Any, system: System) -> Filter:
    """Return the filter if it takes ensembles and observations of a system, a ValueError if not; nothing is computed."""
    if not callable(filter):
        raise ValueError(f"expected a filter, got {type(filter).__name__}")
    ensemble = jnp.stack([system.state] * 4)
    observed = system.observation.window(jnp.zeros(system.observed), start=ensemble)
    try:
        shape = jax.eval_shape(lambda members: filter(members, observed, key=jax.random.key(0)), ensemble).shape
    except Exception as error:  # whatever the user's own code may raise
        raise ValueError(f"it does not work as a filter: {type(error).__name__}: {error}") from error
    if shape != ensemble.shape:
        raise ValueError(f"a filter keeps the shape {ensemble.shape} of an ensemble, got {shape}")
    return filter


def _import(name: str, folder: Path) -> ModuleType:
    top = name.split(".")[0]
    own = (folder / f"{top}.py").exists() or (folder / top / "__init__.py").exists()
    loaded = Path(getattr(sys.modules.get(top), "__file__", None) or "/").resolve()
    if own and folder not in loaded.parents:  # perhaps a module of the same name that another system file named
        for other in [other for other in sys.modules if other.split(".")[0] == top]:
            del sys.modules[other]
        importlib.invalidate_caches()
    if str(folder) not in sys.path[:1]:
        sys.path.insert(0, str(folder))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise ValueError(f"the module {name} needs {error.name!r}, which is not installed") from error
        hint = did_you_mean(name, [path.stem for path in sorted(folder.glob("*.py"))])
        raise ValueError(f"there is no module {name!r} in {folder} or installed; {hint}") from error
    except Exception as error:  # whatever the user's own code may raise
        raise ValueError(f"importing the module {name} failed: {type(error).__name__}: {error}") from error


def _check_numbers(settings: Settings) -> None:
    compare, training, model, observation = settings.compare, settings.training, settings.model, settings.observation
    placed = model.places or model.positions
    if compare.burn_in >= compare.windows:
        found = f"it is {compare.burn_in} of {compare.windows} 'windows'"
        raise ValueError(f"'burn_in' in [compare] leaves nothing: {found}")
    if placed and not compare.radius:
        raise ValueError("where places or positions are given, [compare] needs values of 'radius' to try")
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


def _object(item: Any) -> Any:
    """Return something to call, or a model, that is not a class."""
    if isinstance(item, type):
        raise ValueError(f"it is a class; make an object of it in your module, as in my_object = {item.__name__}(...)")
    if not (callable(item) or isinstance(item, AbstractEnsembleModel)):
        raise ValueError(f"expected something to call, got {type(item).__name__}")
    return item


def _instance(item: Any, cls: type[Any], example: str) -> Any:
    if not isinstance(item, cls):
        kind = (item if isinstance(item, type) else type(item)).__name__
        raise ValueError(f"expected a bieqno.assimilation.{cls.__name__}, as in {example}, got {kind}")
    return item


def _array(item: Any, what: str, *shapes: tuple[int | None, ...]) -> Float[np.ndarray, "..."]:
    """Return an object as finite numbers of one of some shapes, None for any length."""
    values = np.asarray(item, float)
    alike = (shape for shape in shapes if len(shape) == values.ndim)
    fits = any(all(k in (None, n) for k, n in zip(shape, values.shape, strict=True)) for shape in alike)
    if not values.size or not fits:
        raise ValueError(f"expected {what}, got shape {values.shape}")
    if not np.isfinite(values).all():
        raise ValueError("it holds values that are not finite")
    return values
