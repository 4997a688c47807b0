"""A set-up file read, its objects imported, and everything checked to fit together before anything is run."""

import dataclasses
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from bieqno.assimilation.filters import EnKF, Filter
from bieqno.assimilation.models.forecast import AbstractEnsembleModel, Model, forecast
from bieqno.assimilation.observation import Observation
from bieqno.assimilation.trials import Trials, make_trials
from bieqno.assimilation.twin import spin_up
from bieqno.lab.system_files.objects import find_object
from bieqno.lab.system_files.schema import Tables, checked


@dataclasses.dataclass(frozen=True)
class OwnSetup:
    """A set-up of the user's own.

    Attributes:
        path: the file.
        tables: what it says.
        model: the dynamics.
        state: a state in its climate.
        observation: what is observed.
        observed: number of observed values.
        window: time between two observations.
        spread: standard deviation of the first ensemble in each variable.
        first: mean of the first ensemble, or the ensemble itself; None for states of a free run.
        positions: where the variables and the observed values are, if the file says so.
        teacher: the filter to learn from.
        build: makes the untrained filter.
    """

    path: Path
    tables: Tables
    model: Model
    state: Float[Array, "n"]
    observation: Observation
    observed: int
    window: float
    spread: Float[Array, "n"]
    first: Float[Array, "..."] | None
    positions: tuple[np.ndarray, np.ndarray] | None
    teacher: Filter
    build: Callable[..., Any]

    def trials(self, windows: int, *, truths: int, members: int, key: PRNGKeyArray) -> Trials:
        """Truths of the model with their observations and first ensembles, to train, tune and test on.

        Filters evaluate the error law at what was observed, as they will have to with observations of a truth that
        nobody knows.
        """
        trials = make_trials(
            self.model, self.observation, windows, state=self.state, truths=truths, members=members,
            spread=self.spread, disturbance=self.spread, key=key,
        )  # fmt: skip
        seen = jax.vmap(lambda observations: observations.rebuilt())(trials.twins.observations)
        return eqx.tree_at(lambda t: t.twins.observations, trials, seen)

    def ensemble(self, members: int, *, key: PRNGKeyArray) -> Float[Array, "N n"]:
        """A first ensemble for observations whose truth nobody knows."""
        if self.first is None:
            # Far apart in time, so that the states are nearly independent.
            return spin_up(self.model, self.state, 100 + 10 * members, key=key)[100::10]
        if self.first.ndim == 2:
            if len(self.first) < members:
                raise ValueError(
                    f"{self.path}: 'first' in [ensemble] has {len(self.first)} members, {members} are needed"
                )
            return self.first[:members]
        return self.first + self.spread * jax.random.normal(key, (members, len(self.state)))


def read_setup(path: Path) -> OwnSetup:
    """Read a set-up file and import what it names from the file's folder.

    Raises:
        ValueError: if the file or an object is not what it should be, naming file and key.
    """
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8"))
        tables = checked(Tables, given)
    except (tomllib.TOMLDecodeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from error
    compared = tables.compare
    if compared.burn_in >= compared.windows:
        raise ValueError(
            f"{path}: 'burn_in' in [compare] leaves nothing: it is {compared.burn_in} of {compared.windows} 'windows'"
        )
    find = _finder(path)
    model = find("object", "model", tables.model.object, _callable_or_model)
    state = find("state", "model", tables.model.state, _vector)
    n = len(state)
    _try_model(path, model, state)
    observation = find("object", "observation", tables.observation.object, _observation)
    observed = find("object", "observation", tables.observation.object, lambda item: item.size(n))
    window = tables.model.window if tables.model.window is not None else float(getattr(model, "window", 1.0))
    first = find("first", "ensemble", tables.ensemble.first, lambda item: _ensemble(item, n))
    spread = np.asarray(tables.ensemble.spread, float)
    if spread.shape not in {(), (n,)}:
        raise ValueError(f"{path}: 'spread' in [ensemble] is one number or {n}, got {tables.ensemble.spread}")
    teacher = find("teacher", "training", tables.training.teacher, lambda item: _filter(item, observation, state))
    build = find("object", "filter", tables.filter.object, _callable_or_class)
    return OwnSetup(
        path, tables, model, state, observation, observed, window, jnp.broadcast_to(jnp.asarray(spread, float), (n,)),
        first, _positions(path, tables, find, n, observed), EnKF(centred=False) if teacher is None else teacher, build,
    )  # fmt: skip


Finder = Callable[[str, str, str | None, Callable[[Any], Any]], Any]


def _finder(path: Path) -> Finder:
    def find(key: str, table: str, name: str | None, convert: Callable[[Any], Any]) -> Any:
        if name is None:
            return None
        try:
            return convert(find_object(name, path.parent))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path}: {key!r} in [{table}], {name!r}: {error}") from error

    return find


def _positions(path: Path, tables: Tables, find: Finder, n: int, m: int) -> tuple[np.ndarray, np.ndarray] | None:
    variables = find("positions", "model", tables.model.positions, lambda item: _rows(item, n))
    values = find("positions", "observation", tables.observation.positions, lambda item: _rows(item, m))
    if (variables is None) != (values is None):
        raise ValueError(f"{path}: give 'positions' both in [model] and in [observation], or in neither")
    if variables is None:
        return None
    if variables.shape[1] != values.shape[1]:
        sizes = f"{variables.shape[1]} coordinates in [model] and {values.shape[1]} in [observation]"
        raise ValueError(f"{path}: 'positions' have {sizes}; they must agree")
    period = tables.model.period
    if isinstance(period, list) and len(period) != variables.shape[1]:
        raise ValueError(
            f"{path}: 'period' has {len(period)} numbers, 'positions' have {variables.shape[1]} coordinates"
        )
    if not tables.compare.radius:
        raise ValueError(f"{path}: where positions are given, [compare] needs values of 'radius' to try")
    return variables, values


def _try_model(path: Path, model: Model, state: Float[Array, "n"]) -> None:
    """Run one window, so that a model that does not work is known by its own error and not by a later one."""
    place = f"{path}: 'object' in [model]"
    try:
        after = forecast(model, jnp.stack([state, state]), key=jax.random.key(0))
    except Exception as error:  # whatever the user's own code may raise
        raise ValueError(
            f"{place} fails on a state of {len(state)} variables: {type(error).__name__}: {error}"
        ) from error
    if not np.isfinite(np.asarray(after)).all():
        raise ValueError(f"{place} gives values that are not finite one window after 'state'")


def _callable_or_class(item: Any) -> Any:
    if not callable(item):
        raise ValueError(f"expected something to call, got {type(item).__name__}")
    return item


def _callable(item: Any) -> Any:
    if isinstance(item, type):
        raise ValueError(f"it is a class; make an object of it in your module, as in my_object = {item.__name__}(...)")
    return _callable_or_class(item)


def _filter(item: Any, observation: Observation, state: Float[Array, "n"]) -> Filter:
    """Something that takes an ensemble and what was observed, and gives an ensemble back: tried without computing."""
    filter, ensemble = _callable(item), jnp.stack([state] * 4)
    observed = observation.window(jnp.zeros(observation.size(len(state))), start=ensemble)
    try:
        shape = jax.eval_shape(lambda members: filter(members, observed, key=jax.random.key(0)), ensemble).shape
    except Exception as error:  # whatever the user's own code may raise
        raise ValueError(f"it does not work as a filter: {type(error).__name__}: {error}") from error
    if shape != ensemble.shape:
        raise ValueError(f"a filter keeps the shape {ensemble.shape} of an ensemble, got {shape}")
    return filter


def _callable_or_model(item: Any) -> Any:
    return item if isinstance(item, AbstractEnsembleModel) else _callable(item)


def _observation(item: Any) -> Observation:
    if not isinstance(item, Observation):
        kind = item.__name__ if isinstance(item, type) else type(item).__name__
        raise ValueError(f"expected a bieqno.assimilation.Observation, as in Observation([0, 2], 1.0), got {kind}")
    return item


def _numbers(item: Any) -> Float[np.ndarray, "..."]:
    values = np.asarray(item, float)
    if not np.isfinite(values).all():
        raise ValueError("it holds values that are not finite")
    return values


def _vector(item: Any) -> Float[Array, "n"]:
    values = _numbers(item)
    if values.ndim != 1 or not values.size:
        raise ValueError(f"a state is a vector of numbers, got shape {values.shape}")
    return jnp.asarray(values, float)


def _ensemble(item: Any, n: int) -> Float[Array, "..."]:
    values = _numbers(item)
    if values.ndim not in (1, 2) or values.shape[-1] != n:
        raise ValueError(f"expected a state ({n},) or members (N, {n}), got shape {values.shape}")
    return jnp.asarray(values, float)


def _rows(item: Any, count: int) -> Float[np.ndarray, "k d"]:
    values = _numbers(item)
    if values.ndim == 1:
        values = values[:, None]
    if values.ndim != 2 or len(values) != count:
        raise ValueError(f"expected {count} positions, one row each, got shape {values.shape}")
    return values
