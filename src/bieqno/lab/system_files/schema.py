"""What a set-up file may say: a table for each part, with the kind and the default of every key."""

import types
import typing
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, TypeVar

from bieqno.lab.nearest import did_you_mean

T = TypeVar("T")
_POSITIVE = {"above": 0.0}


def _count(default: int, least: int = 1) -> Any:
    return field(default=default, metadata={"least": least})


@dataclass(frozen=True)
class ModelTable:
    """``[model]``: objects are named as ``module:object``.

    Attributes:
        object: the dynamics, from one state to the state one window later.
        state: a state somewhere in its climate, from which truths are spun up.
        window: time between two observations; that of the model itself if it has one, otherwise 1.
        limit: absolute value that no sound state reaches; beyond it a run has diverged.
        positions: where the variables are, one row each, for filters that work locally.
        period: circumference of space where it closes.
    """

    object: str
    state: str
    window: float | None = field(default=None, metadata=_POSITIVE)
    limit: float = field(default=1e3, metadata=_POSITIVE)
    positions: str | None = None
    period: float | list[float] | None = field(default=None, metadata=_POSITIVE)


@dataclass(frozen=True)
class ObservationTable:
    """``[observation]``: the observing system.

    Attributes:
        object: a `bieqno.assimilation.Observation`.
        positions: where the observed values are, one row each.
    """

    object: str
    positions: str | None = None


@dataclass(frozen=True)
class EnsembleTable:
    """``[ensemble]``: the ensemble that an assimilation begins with.

    Attributes:
        members: how many.
        spread: standard deviation about its mean, one number or one a variable.
        first: its mean, or a whole ensemble, one row a member; if not given, members are states of a free run.
    """

    members: int = _count(20, least=2)
    spread: float | list[float] = field(default=1.0, metadata=_POSITIVE)
    first: str | None = None


@dataclass(frozen=True)
class FilterTable:
    """``[filter]``: the neural filter.

    Attributes:
        object: called with the number of observed values, `width`, `depth` and a `key`, it gives the untrained filter.
        width: length of hidden layers.
        depth: number of layers.
        own_weights: weights of its own for each state variable, trained in a second round.
    """

    object: str = "bieqno.assimilation:EnNF"
    width: int = _count(64)
    depth: int = _count(3)
    own_weights: bool = True


@dataclass(frozen=True)
class TrainingTable:
    """``[training]``: whom the filter learns from, and how long.

    Attributes:
        teacher: a filter to imitate.
        teacher_members: its ensemble size.
        truths: how many truths it is shown on.
        windows: how many windows of each.
        steps: training steps of one operator for all variables.
        own_steps: further steps with weights for each variable.
        sizes: sizes of the ensembles that the student is shown.
        batch: members in a batch, of each size.
        shift: how far priors are displaced, in units of the climate's standard deviation.
        noise: how far each member is displaced by itself.
        learning_rate: at the beginning.
    """

    teacher: str | None = None
    teacher_members: int = _count(100, least=2)
    truths: int = _count(20)
    windows: int = _count(100, least=2)
    steps: int = _count(1000)
    own_steps: int = _count(3000)
    sizes: list[int] = field(default_factory=lambda: [2, 16], metadata={"least": 1})
    batch: int = _count(256)
    shift: float = field(default=0.1, metadata={"least": 0})
    noise: float = field(default=0.1, metadata={"least": 0})
    learning_rate: float = field(default=2e-3, metadata=_POSITIVE)


@dataclass(frozen=True)
class CompareTable:
    """``[compare]``: the twin experiment in which filters are compared.

    Attributes:
        sizes: ensemble sizes.
        truths: how many truths, none of which was trained or tuned on.
        windows: length of a run.
        burn_in: windows at the beginning that do not count.
        tuning_truths: how many other truths the classical filters are tuned on.
        tuning_windows: length of these.
        inflation: values to try.
        radius: values to try where positions are given: the distance at which an observation's influence ends.
    """

    sizes: list[int] = field(default_factory=lambda: [4, 16], metadata={"least": 2})
    truths: int = _count(4, least=2)
    windows: int = _count(200, least=2)
    burn_in: int = _count(20, least=0)
    tuning_truths: int = _count(4)
    tuning_windows: int = _count(100, least=2)
    inflation: list[float] = field(default_factory=lambda: [1.0, 1.02, 1.05, 1.1, 1.2, 1.35], metadata=_POSITIVE)
    radius: list[float] = field(default_factory=list, metadata=_POSITIVE)


@dataclass(frozen=True)
class Tables:
    """The whole file."""

    model: ModelTable
    observation: ObservationTable
    seed: int = _count(0, least=0)
    ensemble: EnsembleTable = field(default_factory=EnsembleTable)
    filter: FilterTable = field(default_factory=FilterTable)
    training: TrainingTable = field(default_factory=TrainingTable)
    compare: CompareTable = field(default_factory=CompareTable)


def checked(cls: type[T], given: dict[str, Any], *, place: str = "") -> T:
    """Turn what a TOML file says into a table, key by key.

    Raises:
        ValueError: if a key is unknown, missing, of the wrong kind or too small, naming it.

    Example:
        >>> checked(EnsembleTable, {"members": 8}, place="ensemble").members
        8
        >>> checked(EnsembleTable, {"membres": 8}, place="ensemble")
        Traceback (most recent call last):
        ...
        ValueError: unknown key 'membres' in [ensemble]; did you mean 'members'?
    """
    where = f" in [{place}]" if place else ""
    known = {item.name: item for item in fields(cls)}  # type: ignore[arg-type]  # a dataclass, as its callers know
    hints = typing.get_type_hints(cls)
    for key in given:
        if key not in known:
            raise ValueError(f"unknown key {key!r}{where}; {did_you_mean(key, known)}")
    values: dict[str, Any] = {}
    for key, item in known.items():
        if key not in given:
            if item.default is MISSING and item.default_factory is MISSING:
                raise ValueError(f"there is no {key!r}{where}" if place else f"there is no table [{key}]")
            continue
        value, hint = given[key], hints[key]
        if isinstance(hint, type) and hint.__module__ == __name__:
            if not isinstance(value, dict):
                raise ValueError(f"{key!r} is a table, written [{key}]; got {value!r}")
            values[key] = checked(hint, value, place=key)
            continue
        if not _fits(value, hint):
            raise ValueError(f"{key!r}{where} is {_kind(hint)}, got {value!r}")
        numbers = value if isinstance(value, list) else [value]
        least, above = item.metadata.get("least"), item.metadata.get("above")
        if least is not None and not all(number >= least for number in numbers):
            raise ValueError(f"{key!r}{where} is at least {least}, got {value!r}")
        if above is not None and not all(number > above for number in numbers):  # not a NaN either
            raise ValueError(f"{key!r}{where} is more than {above:g}, got {value!r}")
        if isinstance(value, list) and not value:
            raise ValueError(f"{key!r}{where} is an empty list; give it a value, or leave it out")
        values[key] = value
    return cls(**values)


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value of a TOML file is of a kind; a whole number will do for any number."""
    if isinstance(hint, types.UnionType):
        return any(_fits(value, option) for option in typing.get_args(hint))
    if typing.get_origin(hint) is list:
        return isinstance(value, list) and all(_fits(item, typing.get_args(hint)[0]) for item in value)
    if isinstance(value, bool):
        return hint is bool
    return isinstance(value, int | float) if hint is float else isinstance(value, hint)


def _kind(hint: Any) -> str:
    """What a kind is called in an error."""
    if isinstance(hint, types.UnionType):
        return " or ".join(_kind(option) for option in typing.get_args(hint) if option is not types.NoneType)
    if typing.get_origin(hint) is list:
        return "a list of whole numbers" if typing.get_args(hint)[0] is int else "a list of numbers"
    return {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}[hint]
