"""What a system file may say: one class per table, with the type and the default of every key.

``[filter]`` and ``[training]`` have one class per choice of ``kind`` and ``objective``: a key of another choice is refused.
"""

import operator
import types
import typing
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple, TypeVar

from bieqno.lab.texts import did_you_mean

T = TypeVar("T")

LARGEST_COUNT = 2**32 - 1  # random keys take no larger seed, and no size beyond it is of use

# A number with its lower bound.
Count = Annotated[int, "at least", 1]
Several = Annotated[int, "at least", 2]
Positive = Annotated[float, "more than", 0]
NotNegative = Annotated[float, "at least", 0]
NotNegativeCount = Annotated[int, "at least", 0]


class ModelTable(NamedTuple):
    """``[model]``: objects are named as ``module:object``."""

    state: str  # a state near the attractor, from which truths are spun up
    object: str | None = None  # the dynamics, from one state to the state one window later, or a `Members`; or ...
    command: str | None = None  # ... a program that is run once per member and window, see `Program`; or ...
    exchange: str = "binary"  # (the form of its files: binary or netcdf)
    bmi: str | None = None  # ... a class with the Basic Model Interface, ...
    config: str | None = None  # ... its configuration file, ...
    variables: tuple[str, ...] | None = None  # ... and those of its variables that make up the state
    timeout: Positive | None = None  # seconds after which a member outside JAX is given up
    retries: NotNegativeCount = 1  # how often a member outside JAX that failed is run again
    survivors: Positive = 0.8  # smallest share of members whose forecast may be left; the others are redrawn
    window: Positive | None = None  # time between observations; the model's own if it has one, otherwise 1
    limit: Positive = 1e3  # absolute value that no valid state reaches; beyond it a run has diverged
    places: str | None = None  # a `Places` of the variables, for local filters; or ...
    positions: str | None = None  # ... their positions, one row per variable, and ...
    period: Positive | tuple[Positive, ...] | None = None  # ... the circumference of a periodic domain


class ObservationTable(NamedTuple):
    """``[observation]``: where the observed values are is needed only where no components of the state are observed."""

    object: str  # an `Observation`
    places: str | None = None
    positions: str | None = None


class EnsembleTable(NamedTuple):
    """``[ensemble]``: the ensemble that an assimilation starts from."""

    members: Several = 20
    spread: Positive | tuple[Positive, ...] | None = None  # standard deviation about the mean; None as in `System`
    first: str | None = None  # the mean, or a whole ensemble; if not given, members are states of a free run


class LocalTable(NamedTuple):
    """``[filter] kind = "local"``: a `LocalEnNF`; radius and reach follow from the places if not given."""

    radius: Positive | None = None
    reach: Positive | None = None
    width: Count = 32
    channels: Count = 8


class LearnedGainTable(NamedTuple):
    """``[filter] kind = "learned-gain"``: a `LearnedGain`."""

    width: Count = 64
    depth: Count = 3


class EnNFTable(NamedTuple):
    """``[filter] kind = "ennf"``: an `EnNF`."""

    width: Count = 64
    depth: Count = 3
    object: str = "bieqno.assimilation:EnNF"  # called as EnNF is: with the number of observed values, width, depth, key
    own_steps: NotNegativeCount = 0  # further training steps with separate weights for each variable


class TruthTable(NamedTuple):
    """``[training] objective = "truth"``: see `bieqno.assimilation.AgainstTruth`."""

    steps: Count = 2500
    budget: str | None = None  # time to train for, such as "5 min", in place of steps
    validate: bool = True  # whether truths of its own decide which weights are kept and when training stops
    sizes: tuple[Count, ...] = (3, 5, 10, 20)  # ensemble sizes
    truths: tuple[Count, ...] | None = None  # of each size; if not given, fewer for larger ensembles
    missing: tuple[NotNegative, ...] = (0.0, 0.0)  # smallest and largest share of missing observations
    unroll: Count | None = None  # windows that are differentiated through; 8, or 1 if the model cannot be
    learning_rate: Positive = 3e-3


class ImitationTable(NamedTuple):
    """``[training] objective = "imitation"``: see `bieqno.assimilation.Imitation`."""

    steps: Count = 1000
    validate: bool = True
    teacher: str | None = None  # the filter to imitate; a stochastic EnKF if not given
    teacher_members: Several = 100
    truths: Count = 20  # truths that the teacher is run on
    windows: Several = 100
    sizes: tuple[Count, ...] = (2, 16)  # sizes of the ensembles that the student is shown
    batch: Count = 256  # members in a batch, of each size
    rerun: bool = True  # whether displaced members are run through the window by the model
    shift: NotNegative = 0.1  # displacement of whole priors, in units of the climatological standard deviation
    noise: NotNegative = 0.1  # displacement of each member, likewise
    translation: NotNegative = 0.0  # displacement of prior, observations and posterior together, likewise
    learning_rate: Positive = 2e-3


class ValidationTable(NamedTuple):
    """``[validation]``: the truths that decide about early stopping; defaults as in `bieqno.assimilation.Validation`."""

    truths: Count | None = None
    windows: Several | None = None
    burn_in: NotNegativeCount | None = None  # first windows, which do not count
    every: Count | None = None  # training steps between two validations
    patience: Count | None = None  # validations without improvement before training stops


class CompareTable(NamedTuple):
    """``[compare]``: the twin experiment in which filters are compared."""

    sizes: tuple[Several, ...] = (4, 16)
    truths: Several = 4  # none of which was trained or tuned on
    windows: Several = 200
    burn_in: NotNegativeCount = 20  # first windows, which do not count
    tuning_truths: Count = 4  # other truths, on which the classical filters are tuned
    tuning_windows: Several = 100
    inflation: tuple[Positive, ...] = (1.0, 1.02, 1.05, 1.1, 1.2, 1.35)  # values to try
    radius: tuple[Positive, ...] = ()  # where an observation's influence ends; () for values that suit the places


# By table: the key that chooses its class, and the classes, the default first.
CHOICES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "filter": ("kind", {"local": LocalTable, "ennf": EnNFTable, "learned-gain": LearnedGainTable}),
    "training": ("objective", {"truth": TruthTable, "imitation": ImitationTable}),
}


class Settings(NamedTuple):
    """The whole file."""

    model: ModelTable
    observation: ObservationTable
    seed: NotNegativeCount = 0
    ensemble: EnsembleTable = EnsembleTable()
    filter: LocalTable | EnNFTable | LearnedGainTable = LocalTable()
    training: TruthTable | ImitationTable = TruthTable()
    validation: ValidationTable = ValidationTable()
    compare: CompareTable = CompareTable()


def check_table(cls: type[T], given: dict[str, Any], *, place: str = "") -> T:
    """Turn what a TOML file says into a table; a wrong key or value is a ValueError that names it.

    Example:
        >>> check_table(EnsembleTable, {"members": 8}, place="ensemble").members
        8
        >>> check_table(EnsembleTable, {"membres": 8}, place="ensemble")
        Traceback (most recent call last):
        ...
        ValueError: unknown key 'membres' in [ensemble]; did you mean 'members'?
    """
    where = f" in [{place}]" if place else ""
    hints = typing.get_type_hints(cls, include_extras=True)
    for key in given.keys() - hints.keys():
        raise ValueError(f"unknown key {key!r}{where}; {did_you_mean(key, hints)}")
    optional = cls._field_defaults  # type: ignore[attr-defined]  # a NamedTuple, as its callers know
    for key in (key for key in hints if key not in {*given, *optional}):
        raise ValueError(f"there is no {key!r}{where}" if place else f"there is no table [{key}]")
    values: dict[str, Any] = {}
    for key, value in given.items():
        if key in CHOICES or hasattr(hints[key], "_fields"):
            if not isinstance(value, dict):
                raise ValueError(f"{key!r} is a table, written [{key}]; got {value!r}")
            table, content = _chosen_table(value, key) if key in CHOICES else (hints[key], value)
            values[key] = check_table(table, content, place=key)
            continue
        expected = _expected(value, hints[key])
        if expected is not None:
            raise ValueError(f"{key!r}{where} is {expected}, got {value!r}")
        values[key] = tuple(value) if isinstance(value, list) else value
    return cls(**values)


def _chosen_table(given: dict[str, Any], place: str) -> tuple[Any, dict[str, Any]]:
    """Return the class that a key such as ``kind`` chooses, the first by default, and the rest of the table."""
    choice, options = CHOICES[place]
    chosen = given.get(choice, next(iter(options)))
    if chosen not in list(options):
        raise ValueError(f"{choice!r} in [{place}] is one of {', '.join(options)}; got {chosen!r}")
    for key in given.keys() - {*options[chosen]._fields, choice}:
        others = [f'"{name}"' for name, option in options.items() if key in option._fields]
        if others:
            raise ValueError(f'{key!r} in [{place}] belongs to {choice} = {" or ".join(others)}, not to "{chosen}"')
    return options[chosen], {key: value for key, value in given.items() if key != choice}


def _expected(value: Any, hint: Any) -> str | None:
    """Return what a value of a TOML file should be, None if it fits; a whole number passes for any number."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        base, relation, bound = arguments
        if isinstance(value, (int, float)) and abs(value) > 1e300:
            return "a number that is finite"
        if base is int and isinstance(value, int) and value > LARGEST_COUNT:
            return f"at most {LARGEST_COUNT}"
        compared = {"at least": operator.ge, "more than": operator.gt}[relation]  # neither is true of a NaN
        return _expected(value, base) or (None if compared(value, bound) else f"{relation} {bound}")
    if origin in (types.UnionType, typing.Union):
        options = [option for option in arguments if option is not types.NoneType]
        alike = [option for option in options if (typing.get_origin(option) is tuple) == isinstance(value, list)]
        wrong = [_expected(value, option) for option in alike or options]
        return None if None in wrong else " or ".join(filter(None, wrong))
    if origin is tuple:
        if not isinstance(value, list) or not value:
            return "a list of texts" if arguments[0] is str else "a list of numbers"
        return next(filter(None, (_expected(item, arguments[0]) for item in value)), None)
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
    fits = isinstance(value, bool) == (hint is bool) and isinstance(value, (int, float) if hint is float else hint)
    return None if fits else names[hint]
